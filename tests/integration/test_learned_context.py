"""The served context and prefix cache are those of the engines, once one has started."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio

from justitia_ray.protocol.endpoints import WAITED_HEADER
from tests.eventually import eventually
from tests.harness.bodies import COMPLETIONS, completion
from tests.harness.service import Service, Serving

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

_DECLARED, _KV_TOKENS = 4_096, 512
_PROMPT, _OUTPUT, _ITERATION_S = 300, 60, 0.05
"""Lengths of two calls that fit the memory only if their common prefix is counted once."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def service(serving: Serving) -> AsyncIterator[Service]:
    """Application whose replica has less KV memory than the declared context."""
    fake = {"kv_tokens": _KV_TOKENS, "max_model_len": _DECLARED, "iteration_s": _ITERATION_S}
    async with serving.deployed_service("learned", replicas=1, fake=fake) as service:
        yield service


async def test_ingress_learns_the_context_length_from_replicas(service: Service) -> None:
    """Only the engine knows the context length that fits its memory."""
    async with service.http() as http:

        async def context_is_learned() -> bool:
            (card,) = (await http.get("/v1/models")).json()["data"]
            return bool(_KV_TOKENS == card["max_model_len"] == card["max_input_tokens"])

        await eventually(context_is_learned, "a replica has told it", 30.0)
        beyond = await http.post(COMPLETIONS, json=completion("word " * 600))

    assert (400, "context_length_exceeded") == (
        beyond.status_code,
        beyond.json()["error"]["code"],
    )


async def test_kv_memory_of_a_common_prefix_is_counted_once(service: Service) -> None:
    """Prompts with a common prefix run together; prompts of other words wait for memory."""
    beginning = "word " * (_PROMPT - 1)
    async with service.http() as http:

        async def ran_at_once(*prompts: str) -> bool:
            bodies = [completion(prompt, max_tokens=_OUTPUT) for prompt in prompts]
            answers = await asyncio.gather(*(http.post(COMPLETIONS, json=b) for b in bodies))
            waited_s = [float(answer.headers[WAITED_HEADER]) for answer in answers]
            return max(waited_s) < _OUTPUT * _ITERATION_S / 2

        # The ingress reads the engines' cache settings as soon as they answer.
        both = partial(ran_at_once, beginning + "a", beginning + "b")
        await eventually(both, "two that begin alike run at once", 90.0)

        assert not await ran_at_once(beginning + "a", "other " * _PROMPT)
    assert (await service.status())["cached_prompt_tokens"] >= _PROMPT - 1
