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
"""Longest start of a replacement engine in seconds: 27 on two idle cores, 170 on busy cores."""
ADAPTER = "tiny-poet"
EMBEDDING = "tiny-embedding"
RERANKER = "tiny-reranker"
AGENT, OPERATOR = "agent", "operator"
"""Names of two API keys: the key of all clients, and the operator's key."""
MOST_WEIGHT = 3.0
"""Largest weight that the agent may ask for."""
_DEPLOYMENTS = Path(__file__).parents[2] / "deployments"


def _shipped_config(
    file: str, serving: "Serving", name: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return `args` and `user_config` of a shipped file, with data in the tests' directory.

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
    """API keys for all end-to-end applications, which refuse calls without a key."""
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
    """`local-cpu.yaml` with one engine, a tool parser, an adapter, and traces of all calls."""
    args, user_config = _shipped_config("local-cpu.yaml", serving, "real")
    args["model"]["adapters"] = {ADAPTER: "random:tiny-adapter"}
    args["engine"]["vllm_args"] |= {
        "enable_auto_tool_choice": True,
        "tool_call_parser": "hermes",
        "otlp_traces_endpoint": collector.url,
        # A model of random weights would repeat white space wherever JSON allows it.
        "structured_outputs_config": '{"backend": "xgrammar", "disable_any_whitespace": true}',
    }
    # Forced tool calls follow the grammar of the schema, not of the parser's markup.
    # allows white space.
    args["engine"]["env"]["VLLM_ENFORCE_STRICT_TOOL_CALLING"] = "0"
    args["engine"]["env"]["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = "http/protobuf"
    args["tracing"] = {"endpoint": collector.url, "sample_ratio": 1.0}
    # No test waits for the idle timeout.
    rules = [*RecognitionSection().rules, "conversation"]
    args["recognition"] = {"rules": rules, "conversation_idle_s": 1.0}
    return await _deployed_service(serving, "real", args, user_config, keys)


@pytest_asyncio.fixture(loop_scope="session")
async def divided(serving: "Serving", keys: KeyRing) -> AsyncIterator["Service"]:
    """`local-cpu.yaml` with one engine of two tensor-parallel ranks, as in `gpu-tp.yaml`."""
    args, user_config = _shipped_config("local-cpu.yaml", serving, "divided")
    args["engine"]["vllm_args"] |= {
        "tensor_parallel_size": 2,
        "distributed_executor_backend": "mp",
    }
    yield await _deployed_service(serving, "divided", args, user_config, keys)
    serving.retire("divided")


@pytest_asyncio.fixture(loop_scope="session")
async def measured(serving: "Serving", keys: KeyRing) -> AsyncIterator["Service"]:
    """`local-cpu.yaml` with one engine, on which the replica measures the cost of prefill."""
    args, user_config = _shipped_config("local-cpu.yaml", serving, "measured")
    args["scheduler"]["cost"] = "with_prefill"
    yield await _deployed_service(serving, "measured", args, user_config, keys)
    serving.retire("measured")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def holding(serving: "Serving", keys: KeyRing) -> AsyncIterator["Service"]:
    """`local-cpu.yaml` with two engines that hold contexts, and memory for all of them."""
    args, user_config = _shipped_config("local-cpu.yaml", serving, "holding")
    args["engine"] |= {"hold_contexts": True}
    args["engine"]["vllm_args"] |= {"enable_prefix_caching": True, "num_gpu_blocks_override": 1025}
    yield await _deployed_service(serving, "holding", args, user_config, keys, replicas=2)
    serving.retire("holding")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def reading(serving: "Serving", keys: KeyRing) -> "Service":
    """Return a service of `several-models.yaml` that embeds texts and scores pairs of texts."""
    args, user_config = _shipped_config("several-models.yaml", serving, "reading")
    _, embedding = args["models"]
    args["models"] = [embedding, embedding | {"name": RERANKER, "path": f"random:{RERANKER}"}]
    return await _deployed_service(serving, "reading", args, user_config, keys)


@pytest_asyncio.fixture(loop_scope="session")
async def http(service: "Service") -> AsyncIterator[httpx.AsyncClient]:
    """HTTP client of the generating model."""
    async with service.http() as client:
        yield client
