"""Conversations of real agents: what official clients and frameworks send is put together again."""

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

# LlamaIndex's workflows look at every attribute of their events, the deprecated ones, too.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

_TENANT = "t"
_PIECE = 100
"""Bytes that a streamed answer is read in at a time."""


@dataclass
class Recognized:
    """How many follow-up calls of each client were put where they belong."""

    right: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    """Put with another run."""
    missed: Counter[str] = field(default_factory=Counter)
    """Taken for an application of their own."""


def put_together(exchanges: Iterable[Exchange]) -> Recognized:
    """Recognise calls in the order in which they were asked and answered; compare with the runs."""
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
    """Return the recording; clients are thousands of modules, for this process alone to import."""
    return importlib.import_module("tests.harness.agents.traces")


def test_follow_up_calls_of_real_agents_are_put_where_they_belong(agents: ModuleType) -> None:
    """Every kind of client is, with its forks."""
    found = put_together(agents.short_traces())

    assert set(agents.CLIENTS) == set(found.right)
    assert not found.wrong
    assert not found.missed


def test_runs_that_say_the_same_are_told_apart_by_the_ids_of_tool_calls(
    agents: ModuleType,
) -> None:
    """An agent on one task, twice at a time."""
    clients = ("openai_chat", "anthropic_streamed", "openai_agents_responses", "pydantic_ai_chat")
    alike = asyncio.run(agents.record_traces(7, 2, clients=clients, most_turns=2, alike=True))
    found = put_together(alike)

    assert set(clients) == set(found.right)
    assert not found.wrong
    assert not found.missed
