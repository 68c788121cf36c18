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

# LlamaIndex's workflows read every attribute of their events, including deprecated ones.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

_TENANT = "t"
_PIECE = 100
"""Number of bytes that a streamed answer is read in at a time."""


@dataclass
class Recognized:
    """Counts of follow-up calls that were recognised, by client."""

    right: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    """Calls assigned to another run."""
    missed: Counter[str] = field(default_factory=Counter)
    """Calls treated as a separate application."""


def put_together(exchanges: Iterable[Exchange]) -> Recognized:
    """Recognise calls in the recorded order of requests and answers, and compare with the runs."""
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
    """Return the names that an answer gives its conversation."""
    reader = AnswerReader(conversation.path, stream=exchange.streamed)
    size = _PIECE if exchange.streamed else len(exchange.response)
    for at in range(0, len(exchange.response), size):
        reader.add(exchange.response[at : at + size])
    assert reader.is_whole
    return [conversation.name_after(turn) for turn in reader.turns()]


@pytest.fixture(scope="module")
def agents() -> ModuleType:
    """Return the recording module, which imports thousands of client modules."""
    return importlib.import_module("tests.harness.agents.traces")


def test_follow_up_calls_of_real_agents_are_assigned_to_their_run(agents: ModuleType) -> None:
    """Every kind of client is recognised, including forks of a conversation."""
    found = put_together(agents.recorded_short_traces())

    assert set(agents.CLIENTS) == set(found.right)
    assert not found.wrong
    assert not found.missed


def test_runs_with_equal_text_are_distinguished_by_tool_call_ids(
    agents: ModuleType,
) -> None:
    clients = ("openai_chat", "anthropic_streamed", "openai_agents_responses", "pydantic_ai_chat")
    alike = asyncio.run(agents.record_traces(7, 2, clients=clients, most_turns=2, alike=True))
    found = put_together(alike)

    assert set(clients) == set(found.right)
    assert not found.wrong
    assert not found.missed
