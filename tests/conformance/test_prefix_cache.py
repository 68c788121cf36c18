"""vLLM's prefix cache between tenants: no tenant finds another tenant's tokens, on any path."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from justitia_ray.protocol.engine import EngineCall
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from justitia_ray.serve.engines.cache_salts import CacheSalts
from justitia_ray.serve.engines.vllm_engine import VllmEngine
from tests.conformance.conftest import VLLM_ONLY
from tests.conformance.test_engines import LEASES, MODEL, answer_json

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    *VLLM_ONLY[0].marks,
]

_MOST_SALTS = 3
_BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"max_tokens": 1}),
    "completion": (COMPLETIONS, {"max_tokens": 1}),
    "token ids": (COMPLETIONS, {"max_tokens": 1}),
    "responses": (RESPONSES, {"max_output_tokens": 1}),
    "messages": (MESSAGES, {"max_tokens": 1}),
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def caching(model_path: str) -> AsyncIterator[VllmEngine]:
    """Engine that caches prompts and reports cached tokens."""
    engine = VllmEngine(
        model_path,
        MODEL,
        {
            "dtype": "float32",
            "enforce_eager": True,
            "block_size": 32,
            "num_gpu_blocks_override": 257,
            "max_model_len": 2_048,
            "enable_prefix_caching": True,
            "enable_prompt_tokens_details": True,
        },
        cache_salts=CacheSalts("tenant", _MOST_SALTS),
    )
    await engine.start()
    yield engine
    await engine.stop()


def _prompt(kind: str, path: str) -> dict[str, Any]:
    """Return a prompt of at least 100 tokens, different for each kind."""
    text = " ".join(f"{kind} {n}" for n in range(60))
    if kind == "token ids":
        return {"prompt": [7 + n % 50 for n in range(200)]}
    if path == COMPLETIONS:
        return {"prompt": text}
    return (
        {"input": text} if path == RESPONSES else {"messages": [{"role": "user", "content": text}]}
    )


async def _ask(engine: VllmEngine, tenant: str, kind: str, **more: Any) -> tuple[int, Any]:
    path, fields = _BODIES[kind]
    body = {"model": MODEL, "temperature": 0, **fields, **_prompt(kind, path), **more}
    call = EngineCall(next(LEASES), 0, path, {}, json.dumps(body).encode(), (), tenant)
    status, answered = await answer_json(engine, call)
    engine.release(call.lease_id)
    return status, answered


async def _cached(engine: VllmEngine, tenant: str, kind: str, **more: Any) -> int:
    """Return how many tokens of a prompt were found in the cache."""
    status, answered = await _ask(engine, tenant, kind, **more)
    assert 200 == status, answered
    usage = answered["usage"]
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return int(details.get("cached_tokens") or usage.get("cache_read_input_tokens") or 0)


@pytest.mark.parametrize("kind", _BODIES)
async def test_prompt_is_found_by_its_own_tenant_only(caching: VllmEngine, kind: str) -> None:
    assert 0 == await _cached(caching, "a/x", kind)
    assert 0 == await _cached(caching, "b", kind)
    assert 0 == await _cached(caching, "a", kind)
    assert 64 <= await _cached(caching, "a/x", kind)


async def test_callers_salt_divides_the_prefix_cache_within_its_tenant(caching: VllmEngine) -> None:
    own = {"cache_salt": "s", "max_tokens": 2}
    assert 0 == await _cached(caching, "c", "chat")
    assert 0 == await _cached(caching, "c", "chat", **own)
    assert 64 <= await _cached(caching, "c", "chat", **own)
    assert 0 == await _cached(caching, "d", "chat", **own)


async def test_one_salt_too_many_is_the_callers_mistake(caching: VllmEngine) -> None:
    """The engine continues, and so do the tenant's other calls."""
    statuses = [
        (await _ask(caching, "e", "chat", cache_salt=f"s{n}"))[0] for n in range(_MOST_SALTS)
    ]
    status, answered = await _ask(caching, "e", "chat", cache_salt="more")

    assert [200] * _MOST_SALTS == statuses
    assert 400 == status
    assert "engine.max_cache_salts" in answered["error"]["message"]
    assert 64 <= await _cached(caching, "e", "chat", cache_salt="s0")
    caching.check()
