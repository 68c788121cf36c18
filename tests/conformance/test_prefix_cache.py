"""vLLM's prefix cache between tenants: no tenant finds another tenant's tokens, on any path."""

import json
from typing import Any

import pytest

from justitia_ray.errors import StreamRefused
from justitia_ray.protocol.engine import Engine, EngineCall
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from justitia_ray.serve.engines.vllm_engine import VllmEngine
from tests.conformance.conftest import MOST_SALTS, VLLM_ONLY
from tests.conformance.test_engines import LEASES, MODEL, answer_json

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    *VLLM_ONLY[0].marks,
]

_BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"max_tokens": 1}),
    "completion": (COMPLETIONS, {"max_tokens": 1}),
    "token ids": (COMPLETIONS, {"max_tokens": 1}),
    "responses": (RESPONSES, {"max_output_tokens": 1}),
    "messages": (MESSAGES, {"max_tokens": 1}),
}


def _prompt(kind: str, path: str) -> dict[str, Any]:
    """Return a prompt of at least 100 tokens that shares no prefix with other kinds."""
    text = " ".join(f"{kind} {n}" for n in range(40))
    if kind == "token ids":
        return {"prompt": [7 + n % 50 for n in range(200)]}
    if path == COMPLETIONS:
        return {"prompt": text}
    return (
        {"input": text} if path == RESPONSES else {"messages": [{"role": "user", "content": text}]}
    )


async def _send_prompt(engine: Engine, tenant: str, kind: str, **more: Any) -> tuple[int, Any]:
    path, fields = _BODIES[kind]
    body = {"model": MODEL, "temperature": 0, **fields, **_prompt(kind, path), **more}
    call = EngineCall(next(LEASES), 0, path, {}, json.dumps(body).encode(), (), tenant)
    status, answered = await answer_json(engine, call)
    engine.release(call.lease_id)
    return status, answered


async def _cached_tokens(engine: Engine, tenant: str, kind: str, **more: Any) -> int:
    """Return the number of a prompt's tokens that were found in the prefix cache."""
    status, answered = await _send_prompt(engine, tenant, kind, **more)
    assert 200 == status, answered
    usage = answered["usage"]
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return int(details.get("cached_tokens") or usage.get("cache_read_input_tokens") or 0)


@pytest.mark.parametrize("kind", _BODIES)
async def test_only_the_same_tenant_hits_a_cached_prompt(strict: Engine, kind: str) -> None:
    assert 0 == await _cached_tokens(strict, "a/x", kind)
    assert 0 == await _cached_tokens(strict, "b", kind)
    assert 0 == await _cached_tokens(strict, "a", kind)
    assert 64 <= await _cached_tokens(strict, "a/x", kind)


async def test_common_prefix_of_concurrent_prompts_is_computed_once(strict: Engine) -> None:
    """VLLM would compute a common prefix twice for concurrent prompts, but charge it once."""
    assert isinstance(strict, VllmEngine)
    scheduler = strict._llm.vllm_config.scheduler_config

    assert 0 == scheduler.long_prefill_token_threshold


async def test_cache_salt_of_a_caller_divides_the_tenants_prefix_cache(strict: Engine) -> None:
    own = {"cache_salt": "s", "max_tokens": 2}
    assert 0 == await _cached_tokens(strict, "c", "chat")
    assert 0 == await _cached_tokens(strict, "c", "chat", **own)
    assert 64 <= await _cached_tokens(strict, "c", "chat", **own)
    assert 0 == await _cached_tokens(strict, "d", "chat", **own)


async def test_request_beyond_the_limit_of_cache_salts_is_refused(strict: Engine) -> None:
    """After the refusal, the engine and the tenant's other calls continue."""
    statuses = [
        (await _send_prompt(strict, "e", "chat", cache_salt=f"s{n}"))[0] for n in range(MOST_SALTS)
    ]
    status, answered = await _send_prompt(strict, "e", "chat", cache_salt="more")

    assert [200] * MOST_SALTS == statuses
    assert 400 == status
    assert "engine.max_cache_salts" in answered["error"]["message"]
    assert 64 <= await _cached_tokens(strict, "e", "chat", cache_salt="s0")
    strict.check()


async def test_engine_that_refuses_a_streams_cache_salt_stays_alive(
    strict: Engine,
) -> None:
    """VLLM refuses such a stream only after it has sent the response head."""
    for number in range(MOST_SALTS):
        await _send_prompt(strict, "f", "responses", cache_salt=f"s{number}")
    with pytest.raises(StreamRefused) as refused:
        await _send_prompt(strict, "f", "responses", cache_salt="more", stream=True)

    assert 400 == refused.value.status
    assert "engine.max_cache_salts" in refused.value.error["message"]
    strict.check()
