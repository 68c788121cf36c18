"""What the gateway does with endpoints other than chats and completions."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from justitia_ray.config import parse_app_config
from justitia_ray.core.events import InferenceSubmitted
from justitia_ray.errors import EngineError, NoReplicaAnswers, NotServed, RequestError, UnknownModel
from justitia_ray.protocol.messages_body import COUNT_TOKENS, MESSAGES
from justitia_ray.protocol.openai_body import CHAT
from justitia_ray.protocol.pooling_body import EMBEDDINGS
from justitia_ray.serve.gateway import Gateway
from justitia_ray.serve.replica_calls import Answer
from justitia_ray.serve.token_counter import PromptSize
from tests.unit.serve.test_gateway import FakeDispatcher, FakeEstimates

_CONFIG = {
    "model": {"name": "m", "path": "none", "adapters": {"poet": "somewhere"}},
    "engine": {"kind": "fake"},
}


class ThreeInputs:
    """Counts ten tokens for each of three inputs."""

    async def size(self, body: Any) -> PromptSize:
        return PromptSize(3, 30, 10)


@dataclass
class Replicas:
    """Answers what it has a path for, and keeps what it was asked."""

    served: frozenset[str] | None
    """None: there is none."""
    asked_paths: int = 0
    asked: list[tuple[str, Any]] = field(default_factory=list)

    async def paths(self) -> frozenset[str]:
        self.asked_paths += 1
        if self.served is None:
            raise NoReplicaAnswers("none")
        return self.served

    async def aside(self, path: str, body: bytes) -> Answer:
        self.asked.append((path, json.loads(body)))
        return 200, {}, b"{}"


def made(*served: str) -> tuple[Gateway, Replicas, FakeDispatcher]:
    """Return a gateway to replicas that serve these paths."""
    replicas, dispatcher = Replicas(frozenset(served)), FakeDispatcher()
    parts: Any = (dispatcher, replicas, FakeEstimates(), ThreeInputs())
    return Gateway(parse_app_config(_CONFIG), *parts), replicas, dispatcher


async def submitted(path: str, **fields: Any) -> InferenceSubmitted:
    """Return what the scheduler is told of a request."""
    gateway, _, dispatcher = made(path)
    body = gateway.parse(path, json.dumps(fields).encode())
    with pytest.raises(EngineError, match="no replica here"):
        await gateway.unary(path, {}, body)
    return dispatcher.items[-1]


async def test_inputs_that_are_read_once_are_charged_as_a_token_each() -> None:
    """The protocol says d = 1; three inputs of ten tokens are three sequences of one lease."""
    item = await submitted(EMBEDDINGS, input=["a", "b", "c"])

    assert (30, 3, 3, 3) == (
        item.prompt_tokens,
        item.choices,
        item.predicted_output_tokens,
        item.max_output_tokens,
    )


async def test_message_is_an_inference_like_any_other() -> None:
    """Its own field says how long it may be; the length is bounded by it."""
    item = await submitted(MESSAGES, messages=[{"role": "user", "content": "a"}], max_tokens=9)

    assert 9 * 3 == item.max_output_tokens
    assert 1 <= item.predicted_output_tokens <= 9 * 3


async def test_request_of_an_adapter_waits_in_the_queue_of_its_model() -> None:
    """It takes the same memory of the same replicas; the engine is told which one."""
    gateway, _, _ = made()
    asked = {"messages": [{"role": "user", "content": "a"}]}

    parsed = gateway.parse(CHAT, json.dumps(asked | {"model": "poet"}).encode())
    assert "poet" == parsed.fields["model"]
    with pytest.raises(UnknownModel, match="'m' and 'poet' are served here"):
        gateway.parse(CHAT, json.dumps(asked | {"model": "cook"}).encode())


async def test_path_that_the_model_has_not_is_refused_before_it_waits() -> None:
    """A queue of minutes for a 404 helps nobody; the replicas are asked once what they have."""
    gateway, replicas, _ = made(MESSAGES)

    for _ in range(2):
        await gateway.check_served(MESSAGES)
        with pytest.raises(NotServed, match="the model 'm' has no /v1/embeddings"):
            await gateway.check_served(EMBEDDINGS)
    assert 1 == replicas.asked_paths


async def test_while_no_replica_is_there_nothing_is_refused() -> None:
    """The first is still being started: what comes meanwhile waits for it."""
    gateway, replicas, _ = made(MESSAGES)
    replicas.served, later = None, replicas.served
    await gateway.check_served(EMBEDDINGS)
    replicas.served = later

    with pytest.raises(NotServed):
        await gateway.check_served(EMBEDDINGS)


async def test_chats_are_not_held_up_by_the_question() -> None:
    """They are nearly all calls; a model that only embeds refuses them once that is known."""
    gateway, replicas, _ = made(EMBEDDINGS)
    await gateway.check_served(CHAT)
    assert 0 == replicas.asked_paths

    await gateway.check_served(EMBEDDINGS)
    with pytest.raises(NotServed):
        await gateway.check_served(CHAT)


async def test_call_aside_goes_to_a_replica_with_the_models_name() -> None:
    """What counts tokens takes no turn; a wrong name or no JSON is refused here."""
    gateway, replicas, _ = made("/tokenize", COUNT_TOKENS)

    assert (200, {}, b"{}") == await gateway.aside("/tokenize", b'{"prompt": "a"}')
    assert [("/tokenize", {"prompt": "a", "model": "m"})] == replicas.asked
    with pytest.raises(UnknownModel):
        await gateway.aside("/tokenize", b'{"prompt": "a", "model": "other"}')
    with pytest.raises(RequestError, match="not valid JSON"):
        await gateway.aside("/tokenize", b"{")
    with pytest.raises(NotServed):
        await gateway.aside("/detokenize", b'{"tokens": [1]}')
