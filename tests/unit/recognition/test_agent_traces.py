"""Recorded calls of official clients and agent frameworks are grouped into conversations."""

import asyncio
import importlib
import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import ModuleType

import pytest

from justitia_ray.protocol.inference_body import read_object
from justitia_ray.recognition.answers import AnswerReader
from justitia_ray.recognition.conversations import Conversation, read_conversation
from justitia_ray.recognition.directory import Directory
from tests.harness.agents.exchange import Exchange

# LlamaIndex's workflows read even deprecated attributes of their events.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

_TENANT = "t"
_PIECE = 100
"""Number of bytes in which a streamed answer is read."""


@dataclass
class Recognized:
    """Number of later calls of conversations that were recognised, missed or assigned wrongly."""

    right: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    """Calls that were assigned to another conversation."""
    missed: Counter[str] = field(default_factory=Counter)
    """Calls that were treated as a separate application."""


def recognise_in_order(exchanges: Iterable[Exchange]) -> Recognized:
    """Recognise recorded calls in their order, and compare the result with the recording."""
    directory, found = Directory(), Recognized()
    run_of: dict[str, int] = {}
    seen: set[int] = set()
    pending: dict[int, tuple[Conversation, str]] = {}
    numbers = itertools.count()
    for _, is_asked, exchange in sorted(
        (
            moment
            for one in exchanges
            for moment in ((one.asked_at, True, one), (one.answered_at, False, one))
        ),
        key=lambda moment: moment[0],
    ):
        if not is_asked:
            conversation, application = pending.pop(exchange.asked_at)
            names = names_after(conversation, exchange)
            directory.name_conversation(_TENANT, names, application)
            continue
        path = exchange.path.partition("?")[0]
        call = read_conversation(path, read_object(exchange.request), "key")
        assert call is not None
        known = directory.find_conversation(_TENANT, call.beginnings)
        own = known or f"app-{next(numbers)}"
        run_of.setdefault(own, exchange.run)
        if exchange.run in seen:
            how = found.right if known else found.missed
            (how if run_of[own] == exchange.run else found.wrong)[exchange.client] += 1
        elif known:
            found.wrong[exchange.client] += 1
        seen.add(exchange.run)
        pending[exchange.asked_at] = call, own
    return found


def names_after(conversation: Conversation, exchange: Exchange) -> list[bytes]:
    """Return the names by which the call after an answer is recognised as its continuation."""
    reader = AnswerReader(conversation.path, stream=exchange.streamed)
    size = _PIECE if exchange.streamed else len(exchange.response)
    for at in range(0, len(exchange.response), size):
        reader.add(exchange.response[at : at + size])
    assert reader.is_whole
    return [conversation.name_after(turn) for turn in reader.turns()]


@pytest.fixture(scope="module")
def agent_traces() -> ModuleType:
    """Return the module that records agents; its import loads all client libraries."""
    return importlib.import_module("tests.harness.agents.traces")


def test_follow_up_calls_of_real_agents_are_assigned_to_their_run(agent_traces: ModuleType) -> None:
    """The recordings have every kind of client, and conversations that fork."""
    found = recognise_in_order(agent_traces.recorded_short_traces())

    assert set(agent_traces.CLIENTS) == set(found.right)
    assert not found.wrong
    assert not found.missed


def test_runs_with_equal_text_are_distinguished_by_tool_call_ids(
    agent_traces: ModuleType,
) -> None:
    clients = ("openai_chat", "anthropic_streamed", "openai_agents_responses", "pydantic_ai_chat")
    alike = asyncio.run(agent_traces.record_traces(7, 2, clients=clients, most_turns=2, alike=True))
    found = recognise_in_order(alike)

    assert set(clients) == set(found.right)
    assert not found.wrong
    assert not found.missed
