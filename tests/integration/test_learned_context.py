"""The model's context is that of its engines, once one has started."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.eventually import eventually
from tests.integration.bodies import COMPLETIONS, completion
from tests.integration.service import Service, Serving

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

_DECLARED, _KV_TOKENS = 4_096, 512


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def service(serving: Serving) -> AsyncIterator[Service]:
    """A replica whose memory holds less than the declared context."""
    fake = {"kv_tokens": _KV_TOKENS, "max_model_len": _DECLARED}
    async with serving.deployed_service("learned", replicas=1, fake=fake) as service:
        yield service


async def test_context_is_learned_from_the_replicas(service: Service) -> None:
    """What vLLM derives, or fits into its memory, only an engine knows."""
    async with service.http() as http:

        async def is_learned() -> bool:
            (card,) = (await http.get("/v1/models")).json()["data"]
            return bool(_KV_TOKENS == card["max_model_len"] == card["max_input_tokens"])

        await eventually(is_learned, "a replica has told it", 30.0)
        beyond = await http.post(COMPLETIONS, json=completion("word " * 600))

    assert (400, "context_length_exceeded") == (
        beyond.status_code,
        beyond.json()["error"]["code"],
    )
