"""Engines of the conformance suite, each started once."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from justitia_ray.config import AppConfig
from justitia_ray.protocol.engine import Engine, EngineCapacity
from justitia_ray.serve.engines.factory import build_engine
from justitia_ray.serve.engines.fake_engine import FakeEngine
from justitia_ray.serve.engines.random_models import materialise_model
from justitia_ray.serve.engines.vllm_engine import VllmEngine
from tests.conformance.corpus.words import CONTEXT

MOST_SALTS = 3
"""Number of prefix-cache salts that a tenant's callers may use at a time in the fixture `strict`.
"""
_MODEL = "tiny"
_KV_TOKENS = 2048
"""KV tokens of the test engines: so few that one prompt can fill them."""
_BLOCK_SIZE = 32
_MAX_NUM_SEQS = 16
_CPU_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}


def make_fake_engine(model_path: str) -> Engine:
    """Return a fake engine with the same memory size as the vLLM engine."""
    return FakeEngine(
        _MODEL,
        kv_tokens=_KV_TOKENS,
        block_size=_BLOCK_SIZE,
        max_num_seqs=_MAX_NUM_SEQS,
        max_model_len=_KV_TOKENS,
        iteration_s=0.001,
    )


def make_vllm_engine(model_path: str) -> Engine:
    return VllmEngine(
        model_path,
        _MODEL,
        {
            "dtype": "float32",
            "enforce_eager": True,
            "block_size": _BLOCK_SIZE,
            "num_gpu_blocks_override": _KV_TOKENS // _BLOCK_SIZE + 1,  # plus vLLM's null block
            "max_model_len": _KV_TOKENS,
            "max_num_seqs": _MAX_NUM_SEQS,
            "enable_auto_tool_choice": True,
            "tool_call_parser": "hermes",
        },
        grammar_limits=(5.0, 2**30),
    )


_ENGINES: dict[str, Callable[[str], Engine]] = {"fake": make_fake_engine, "vllm": make_vllm_engine}
VLLM_ONLY = [
    pytest.param(
        "vllm",
        marks=[
            pytest.mark.vllm,
            # vLLM itself uses deprecated torch functions and chat fields.
            pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning"),
            pytest.mark.filterwarnings("ignore:max_tokens is deprecated:DeprecationWarning:vllm"),
        ],
    ),
]
_PARAMS = [pytest.param("fake"), *VLLM_ONLY]


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Path of the tiny model; vLLM is limited to two cores by environment variables."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _CPU_ENVIRONMENT.items():
            patch.setenv(name, value)
        yield materialise_model("random:tiny-llama", tmp_path_factory.mktemp("models"))


def _new_engine(request: pytest.FixtureRequest) -> Engine:
    # The fake engine needs no model; building one takes ten seconds.
    path = request.getfixturevalue("model_path") if request.param == "vllm" else ""
    return _ENGINES[request.param](path)


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=_PARAMS)
async def started(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Engine, EngineCapacity]]:
    """Running engine that all tests share; each test must leave it idle."""
    engine = _new_engine(request)
    capacity = await engine.start()
    yield engine, capacity
    await engine.stop()


@pytest.fixture(scope="session")
def engine(started: tuple[Engine, EngineCapacity]) -> Engine:
    return started[0]


@pytest.fixture(scope="session")
def capacity(started: tuple[Engine, EngineCapacity]) -> EngineCapacity:
    """Capacity that the shared engine reported when it started."""
    return started[1]


@pytest_asyncio.fixture(loop_scope="session", params=_PARAMS)
async def own_engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    """Engine that the test starts itself and may break."""
    engine = _new_engine(request)
    yield engine
    await engine.stop()


@pytest.fixture(scope="package")
def strict_config(model_path: str) -> AppConfig:
    """Model configuration with a strict chat template, tools, a short context and few salts."""
    options = {
        "dtype": "float32",
        "enforce_eager": True,
        "block_size": 32,
        "num_gpu_blocks_override": 257,
        "max_model_len": CONTEXT,
        "max_num_seqs": 16,
        "enable_auto_tool_choice": True,
        "tool_call_parser": "hermes",
        "enable_prefix_caching": True,
        "enable_prompt_tokens_details": True,  # cached tokens too
        "chat_template": str(Path(__file__).with_name("strict_template.jinja")),
    }
    model = {"name": _MODEL, "path": model_path}
    engine = {"kind": "vllm", "metrics": False, "max_cache_salts": MOST_SALTS}
    return AppConfig.parse({"model": model, "engine": engine | {"vllm_args": options}})


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def strict(strict_config: AppConfig) -> AsyncIterator[Engine]:
    """Running vLLM engine with a strict chat template, built as a replica would build it."""
    engine = await build_engine(strict_config)
    await engine.start()
    yield engine
    await engine.stop()
