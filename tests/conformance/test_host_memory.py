"""Contexts that come back from host memory give the same tokens as computed ones; needs a GPU.

Until these tests have run on a GPU, `engine.host_kv_gib` is unproved there.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from justitia_ray.protocol.engine import EngineCapacity, Hold
from justitia_ray.serve.engines.vllm_engine import VllmEngine
from tests.conformance.conftest import VLLM_ONLY
from tests.conformance.test_context_holds import complete_prompt, fill_cache, prompt_of, text_of
from tests.conformance.test_engines import MODEL

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    *VLLM_ONLY[0].marks,
]

_BLOCK = 16
_BLOCKS = 128
_CONTEXT = 32 * _BLOCK
_ENDLESS = 1000.0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def spilling_engine(model_path: str) -> AsyncIterator[tuple[VllmEngine, EngineCapacity]]:
    """Running vLLM engine with 128 KV blocks on the GPU and 1 GiB of KV cache in host memory."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("host memory for KV caches needs a GPU")
    options: dict[str, Any] = {
        "enforce_eager": True,
        "block_size": _BLOCK,
        "num_gpu_blocks_override": _BLOCKS + 1,
        "gpu_memory_utilization": 0.2,
        "max_model_len": _BLOCKS * _BLOCK,
        "max_num_seqs": 16,
        "enable_prefix_caching": True,
        "enable_prompt_tokens_details": True,
    }
    engine = VllmEngine(model_path, MODEL, options, host_kv_gib=1.0)
    capacity = await engine.start()
    yield engine, capacity
    await engine.stop()


async def test_engine_reports_the_tokens_of_its_host_memory(
    spilling_engine: tuple[VllmEngine, EngineCapacity],
) -> None:
    assert spilling_engine[1].host_kv_tokens > spilling_engine[1].kv_tokens


async def test_context_evicted_from_the_gpu_is_loaded_from_host_memory(
    spilling_engine: tuple[VllmEngine, EngineCapacity],
) -> None:
    agent = prompt_of(_CONTEXT)
    await complete_prompt(spilling_engine[0], agent, Hold("agent", _ENDLESS))
    await fill_cache(spilling_engine[0], 60)

    assert _CONTEXT == await complete_prompt(spilling_engine[0], [*agent, *prompt_of(40)])


async def test_greedy_outputs_are_equal_with_and_without_host_memory(
    spilling_engine: tuple[VllmEngine, EngineCapacity],
) -> None:
    agents = [prompt_of(_CONTEXT) for _ in range(8)]
    holds = [Hold(f"agent {n}", _ENDLESS) for n in range(8)]
    first = [await text_of(spilling_engine[0], *pair) for pair in zip(agents, holds, strict=True)]
    await fill_cache(spilling_engine[0], 60)

    assert first == [await text_of(spilling_engine[0], agent) for agent in agents]
