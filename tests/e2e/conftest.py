"""Applications of the end-to-end tests: vLLM engines on the CPU, from the shipped files."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import pytest_asyncio
import yaml

from justitia_ray.config import RecognitionSection
from tests.harness.key_ring import KeyRing
from tests.harness.otlp_receiver import OtlpReceiver, otlp_receiver

if TYPE_CHECKING:
    from tests.harness.service import Service, Serving

REPLACED_WITHIN_S = 600.0
"""Longest time in seconds until a dead engine is replaced: 27 s measured on two idle cores, 170 s
on busy cores.
"""
ADAPTER = "tiny-poet"
EMBEDDING = "tiny-embedding"
RERANKER = "tiny-reranker"
AGENT, OPERATOR = "agent", "operator"
"""Names of two API keys: all test clients use the first, the operator uses the second."""
MOST_WEIGHT = 3.0
"""Largest application weight that the test clients' key may request."""
_DEPLOYMENTS = Path(__file__).parents[2] / "deployments"


def _shipped_config(
    file: str, serving: "Serving", name: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments and `user_config` of a shipped Serve file, changed for tests.

    Args:
        file: Its name.
        serving: Serve.
        name: Of the Serve application.
    """
    (application,) = yaml.safe_load((_DEPLOYMENTS / file).read_text())["applications"]
    (ingress,) = (one for one in application["deployments"] if one["name"] == "Ingress")
    args: dict[str, Any] = application["args"] | {"name": name}
    for model in args.get("models") or [args["model"]]:
        model["cache_dir"] = str(serving.directory / "models")
    args["store"] = {"data_dir": str(serving.directory / "redis")}
    args["scheduler"] |= {"namespace": serving.namespace}
    return args, ingress["user_config"]


@pytest.fixture(scope="session")
def collector() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as received:
        yield received


@pytest.fixture(scope="session")
def keys(serving: "Serving") -> KeyRing:
    """API keys of all end-to-end applications, which refuse calls without a key."""
    keys = KeyRing(serving.directory / "keys.yaml")
    keys.add(AGENT, "agents", "infer", "own", max_weight=MOST_WEIGHT)
    keys.add(OPERATOR, "operators", "operate")
    keys.write()
    return keys


async def _deployed_service(
    serving: "Serving",
    name: str,
    args: dict[str, Any],
    user_config: dict[str, Any],
    keys: KeyRing,
    replicas: int = 1,
) -> "Service":
    from tests.harness.service import Service

    path = "tests.e2e.probe_app:build"
    args["access"] = {"keys_file": str(keys.file)}
    service = Service(serving, name, path, replicas, user_config, args, api_key=keys.secrets[AGENT])
    serving.add(service)
    await service.deploy(REPLACED_WITHIN_S)
    return service


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def service(collector: OtlpReceiver, serving: "Serving", keys: KeyRing) -> "Service":
    """Service from `local-cpu.yaml` with one engine, a tool parser, a LoRA adapter and tracing."""
    args, user_config = _shipped_config("local-cpu.yaml", serving, "real")
    args["model"]["adapters"] = {ADAPTER: "random:tiny-adapter"}
    args["engine"]["vllm_args"] |= {
        "enable_auto_tool_choice": True,
        "tool_call_parser": "hermes",
        "otlp_traces_endpoint": collector.url,
        # A random model would repeat white space wherever JSON allows it.
        "structured_outputs_config": '{"backend": "xgrammar", "disable_any_whitespace": true}',
    }
    # A forced tool call follows the grammar of its JSON schema, not the parser's markup.
    # allows white space.
    args["engine"]["env"]["VLLM_ENFORCE_STRICT_TOOL_CALLING"] = "0"
    args["engine"]["env"]["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = "http/protobuf"
    args["tracing"] = {"endpoint": collector.url, "sample_ratio": 1.0}
    # No test waits until an application ends by its idle timeout.
    rules = [*RecognitionSection().rules, "conversation"]
    args["recognition"] = {"rules": rules, "conversation_idle_s": 1.0}
    return await _deployed_service(serving, "real", args, user_config, keys)


@pytest_asyncio.fixture(loop_scope="session")
async def divided(serving: "Serving", keys: KeyRing) -> AsyncIterator["Service"]:
    """Service from `local-cpu.yaml` whose engine is split over two tensor-parallel ranks."""
    args, user_config = _shipped_config("local-cpu.yaml", serving, "divided")
    args["engine"]["vllm_args"] |= {
        "tensor_parallel_size": 2,
        "distributed_executor_backend": "mp",
    }
    yield await _deployed_service(serving, "divided", args, user_config, keys)
    serving.retire("divided")


@pytest_asyncio.fixture(loop_scope="session")
async def measured(serving: "Serving", keys: KeyRing) -> AsyncIterator["Service"]:
    """Service from `local-cpu.yaml` whose replica measures the cost of prefill at its start."""
    args, user_config = _shipped_config("local-cpu.yaml", serving, "measured")
    args["scheduler"]["cost"] = "with_prefill"
    yield await _deployed_service(serving, "measured", args, user_config, keys)
    serving.retire("measured")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def holding(serving: "Serving", keys: KeyRing) -> AsyncIterator["Service"]:
    """Service from `local-cpu.yaml` with two engines that keep agents' contexts between turns."""
    args, user_config = _shipped_config("local-cpu.yaml", serving, "holding")
    args["engine"] |= {"hold_contexts": True}
    args["engine"]["vllm_args"] |= {"enable_prefix_caching": True, "num_gpu_blocks_override": 1025}
    yield await _deployed_service(serving, "holding", args, user_config, keys, replicas=2)
    serving.retire("holding")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def reading(serving: "Serving", keys: KeyRing) -> "Service":
    """Service from `several-models.yaml` that embeds texts and scores pairs of texts."""
    args, user_config = _shipped_config("several-models.yaml", serving, "reading")
    _, embedding = args["models"]
    args["models"] = [embedding, embedding | {"name": RERANKER, "path": f"random:{RERANKER}"}]
    return await _deployed_service(serving, "reading", args, user_config, keys)


@pytest_asyncio.fixture(loop_scope="session")
async def http(service: "Service") -> AsyncIterator[httpx.AsyncClient]:
    async with service.http() as client:
        yield client
