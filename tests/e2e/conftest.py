"""The applications of these tests, each with one real vLLM engine on the CPU."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest_asyncio
import yaml

if TYPE_CHECKING:
    from tests.integration.service import Service, Serving

REPLACED_WITHIN_S = 600.0
"""An engine starts in 27 s on two cores that nobody else uses, and in 170 s on busy ones."""
ADAPTER = "tiny-poet"
_CONFIGURATION = Path(__file__).parents[2] / "deployments" / "local-cpu.yaml"


async def _deployed(serving: "Serving", name: str, **changes: dict[str, Any]) -> "Service":
    """Deploy the shipped file with one engine and these changes, its files in the tests' directory.

    Args:
        serving: Serve.
        name: Of the Serve application.
        changes: What `model` and `vllm_args` hold besides, or instead.
    """
    from tests.integration.service import Service

    (application,) = yaml.safe_load(_CONFIGURATION.read_text())["applications"]
    args: dict[str, Any] = application["args"]
    args["name"] = name
    args["model"] |= {"cache_dir": str(serving.directory / "models")} | changes["model"]
    args["engine"]["vllm_args"] |= changes["vllm_args"]
    # A forced tool is called by a grammar of its schema alone: that of the parser's markup allows
    # white space.
    args["engine"]["env"]["VLLM_ENFORCE_STRICT_TOOL_CALLING"] = "0"
    args["store"] = {"data_dir": str(serving.directory / "redis")}
    args["scheduler"] |= {"namespace": serving.namespace}
    service = serving.add(Service(serving, name, "tests.e2e.probe_app:build", 1, {}, args))
    await service.deploy(REPLACED_WITHIN_S)
    return service


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def service(serving: "Serving") -> "Service":
    """A model that generates: with a parser for tools, and an adapter."""
    return await _deployed(
        serving,
        "real",
        model={"adapters": {ADAPTER: "random:tiny-adapter"}},
        vllm_args={
            "enable_auto_tool_choice": True,
            "tool_call_parser": "hermes",
            # Random weights would go on with white space wherever JSON allows it.
            "structured_outputs_config": '{"backend": "xgrammar", "disable_any_whitespace": true}',
        },
    )


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def reading(serving: "Serving") -> "Service":
    """A model that embeds."""
    return await _deployed(
        serving,
        "reading",
        model={"name": "tiny-embedding", "path": "random:tiny-embedding"},
        vllm_args={"max_model_len": 512, "max_num_seqs": 32},
    )


@pytest_asyncio.fixture(loop_scope="session")
async def http(service: "Service") -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of the model that generates."""
    async with service.http(REPLACED_WITHIN_S) as client:
        yield client
