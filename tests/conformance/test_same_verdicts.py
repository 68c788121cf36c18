"""This service accepts what vLLM's own server accepts, and refuses the others early.

One engine answers each body of a corpus twice: on vLLM's own application, and behind the ingress's
HTTP application.
"""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from justitia_ray.config import AppConfig
from justitia_ray.core.actions import Grant
from justitia_ray.protocol.endpoints import parse_body
from justitia_ray.protocol.engine import Answer, Engine, EngineCall, ResponseHead
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from justitia_ray.protocol.stream_parts import Part
from justitia_ray.serve.engines.factory import load_prompt_counter
from justitia_ray.serve.ingress.gateway import Gateway
from justitia_ray.serve.ingress.models import ServedModel
from justitia_ray.serve.ingress.replica_calls import Head
from justitia_ray.serve.ingress.submission import ApplicationSpecCache
from justitia_ray.serve.ingress.token_counter import TokenCounter
from tests.conformance.corpus.chats import CHATS
from tests.conformance.corpus.completions import COMPLETIONS as COMPLETION_BODIES
from tests.conformance.corpus.messages import MESSAGES as MESSAGE_BODIES
from tests.conformance.corpus.responses import RESPONSES as RESPONSE_BODIES
from tests.conformance.corpus.words import CONTEXT
from tests.conformance.test_engines import LEASES
from tests.unit.serve.ingress.answering_model import AnsweringReplicas, GrantingQueue
from tests.unit.serve.ingress.http_client import client_of
from tests.unit.serve.ingress.test_gateway import FakeEstimates, unknown_outlooks

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning:vllm"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
]

_MODEL = "tiny"
CORPUS: dict[str, dict[str, dict[str, Any]]] = {
    CHAT: CHATS,
    COMPLETIONS: COMPLETION_BODIES,
    RESPONSES: RESPONSE_BODIES,
    MESSAGES: MESSAGE_BODIES,
}
DIFFERENCES = {
    "beam search": "it runs outside the engine's batch (openai/chat_completion/serving.py:380)",
    "129 choices": "OpenAI's limit is 128, vLLM's 16,384 (vllm/sampling_params.py:46)",
}
"""Requests that vLLM accepts and this service refuses, each with the reason."""
LATE = {
    "audio": "only the engine knows whether its model hears (multimodal/registry.py:159)",
    "content no blocks": "the engine makes no message of it (anthropic/serving.py:420)",
    "embeddings as a prompt": "the engine's option decides (renderers/base.py:975)",
    "image": "only the engine knows whether its model sees (multimodal/registry.py:159)",
    "suffix": "the model's renderer decides (renderers/online_renderer.py:625)",
    "text null": "the engine makes no message of it (anthropic/serving.py:420)",
    "too long in items": "items are estimated: the engine makes messages of them",
    "system between items": "items are estimated: the engine makes messages of them",
}
"""Requests that pass the ingress and are refused by the engine, each with the reason."""
_CASES = [
    pytest.param(path, name, id=f"{path.rsplit('/', 1)[-1]}: {name}")
    for path, bodies in CORPUS.items()
    for name in bodies
]


class EngineReplicas(AnsweringReplicas):
    """Stand-in for the connection to replicas: the engine answers, and its calls are counted."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.asked = 0

    async def unary(self, grant: Grant, path: str, payload: bytes, headers: Any) -> Answer:
        self.asked += 1
        status, body = await ask_engine(self.engine, path, payload)
        return status, {"content-type": "application/json"}, body

    async def stream(
        self, grant: Grant, path: str, payload: bytes, resume: Any, headers: Any
    ) -> AsyncIterator[Head | Part]:
        status, head, body = await self.unary(grant, path, payload, headers)
        yield status, head
        yield Part(body, 1, ())


async def ask_engine(engine: Engine, path: str, payload: bytes) -> tuple[int, bytes]:
    """Return the status and body that vLLM itself answers."""
    lease = next(LEASES)
    try:
        items = [item async for item in engine.call(EngineCall(lease, 0, path, {}, payload))]
    finally:
        engine.release(lease)
    head, *chunks = items
    assert isinstance(head, ResponseHead)
    return head.status, b"".join(chunk for chunk in chunks if isinstance(chunk, bytes))


@pytest.fixture(scope="module")
def replicas(strict: Engine) -> EngineReplicas:
    return EngineReplicas(strict)


@pytest.fixture(scope="module")
def counter(strict_config: AppConfig) -> Iterator[TokenCounter]:
    counter = TokenCounter(load_prompt_counter(strict_config))
    yield counter
    counter.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def http(
    strict_config: AppConfig, replicas: EngineReplicas, counter: TokenCounter
) -> AsyncIterator[httpx.AsyncClient]:
    specs = ApplicationSpecCache(600.0, 100)
    calls: Any = (GrantingQueue(), replicas, FakeEstimates(), counter)
    parts: Any = (*calls, specs, unknown_outlooks())
    nothing: Any = None
    gateway = Gateway(strict_config, *parts)
    model = ServedModel(strict_config, gateway, nothing, nothing, nothing)
    async with client_of(model, specs=specs) as client:
        yield client


@pytest.mark.parametrize(("path", "name"), _CASES)
async def test_service_and_vllm_give_equal_status_error_field_and_token_count(
    http: httpx.AsyncClient,
    replicas: EngineReplicas,
    counter: TokenCounter,
    path: str,
    name: str,
) -> None:
    body = CORPUS[path][name]
    raw = json.dumps({"model": _MODEL} | body).encode()
    theirs, said = await ask_engine(replicas.engine, path, raw)
    replicas.asked = 0
    ours = await http.post(path, content=raw)

    if name in DIFFERENCES:
        assert (200, 400) == (theirs, ours.status_code), (said, ours.text)
        return
    assert theirs // 100 == ours.status_code // 100, (said, ours.text)
    if theirs >= 400:
        assert replicas.asked == (name in LATE), "it is refused at the door, or not"
        if not replicas.asked and path != MESSAGES:
            check_field(json.loads(said)["error"], ours.json()["error"], body)
    elif said.startswith(b"{"):
        size = await counter.prompt_size(parse_body(path, raw, [_MODEL], CONTEXT), "t", CONTEXT)
        usage = json.loads(said)["usage"]
        if size.is_exact and path in (CHAT, COMPLETIONS):
            assert usage["prompt_tokens"] == size.total_tokens


def check_field(theirs: dict[str, Any], ours: dict[str, Any], body: dict[str, Any]) -> None:
    """Check that a refusal names the field that vLLM names, if the request body has that field."""
    first = (theirs["param"] or "").removeprefix("body.").partition(".")[0]
    assert ours["param"]
    if first in body and ours["code"] != "context_length_exceeded":
        assert first == ours["param"].partition(".")[0].partition("[")[0]


async def test_lists_of_known_differences_from_vllm_are_short_and_current() -> None:
    names = {name for bodies in CORPUS.values() for name in bodies}

    assert names >= {*DIFFERENCES, *LATE}
    assert len(DIFFERENCES) <= 10
    assert sum(map(len, CORPUS.values())) >= 200
