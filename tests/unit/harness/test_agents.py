"""The recorded traces of real clients have the stated properties, for every kind of client."""

import importlib
import json
import re
from collections import defaultdict
from itertools import pairwise
from types import ModuleType
from typing import cast

import pytest

from tests.harness.agents.exchange import Exchange

# LlamaIndex's workflows read every attribute of their events, even deprecated ones.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

_Branches = dict[tuple[str, int, int], list[Exchange]]
_CALL_ID = re.compile(rb'"((?:chatcmpl-tool-|call_|toolu_)[0-9a-f]{32})"')


@pytest.fixture(scope="module")
def agents() -> ModuleType:
    """Return the recording module, which imports thousands of modules of the clients."""
    return importlib.import_module("tests.harness.agents.traces")


@pytest.fixture(scope="module")
def traces(agents: ModuleType) -> list[Exchange]:
    """Return two short runs of every client."""
    return cast("list[Exchange]", agents.short_traces())


@pytest.fixture(scope="module")
def branches(traces: list[Exchange]) -> _Branches:
    """Return the exchanges of each branch of a run, in order."""
    found: _Branches = defaultdict(list)
    for exchange in traces:
        found[exchange.client, exchange.run, exchange.branch].append(exchange)
    return dict(found)


def said_in(exchange: Exchange) -> list[object]:
    """Return the messages or items of a call."""
    asked = json.loads(exchange.request)
    found: list[object] = asked["input"] if "input" in asked else asked["messages"]
    return found


def test_every_client_has_turns_of_one_conversation_and_of_a_fork(
    agents: ModuleType, branches: _Branches
) -> None:
    """Two questions and one more in the first branch, one more in the other."""
    for client in agents.CLIENTS:
        mine = {key: len(calls) for key, calls in branches.items() if key[0] == client}
        assert len(mine) == 4, client
        assert all(count >= (4 if branch == 0 else 1) for (*_, branch), count in mine.items())


def test_clients_stream_as_their_names_say(traces: list[Exchange]) -> None:
    """A stream is recorded as its events, another answer as one document."""
    for exchange in traces:
        assert exchange.streamed == exchange.client.endswith("_streamed")
        if exchange.streamed:
            assert exchange.response.startswith((b"data: {", b"event: "))
        else:
            assert isinstance(json.loads(exchange.response), dict)


def test_ids_of_tool_calls_come_back_and_are_fresh(agents: ModuleType, branches: _Branches) -> None:
    """The next call repeats the ids of the answer before; no other run has them."""
    made: list[bytes] = []
    for calls in branches.values():
        for before, after in pairwise(calls):
            ids = set(_CALL_ID.findall(before.response))
            assert ids <= set(_CALL_ID.findall(after.request))
            made += ids

    assert len(made) == len(set(made)) > 2 * len(agents.CLIENTS)


def test_calls_grow_from_turn_to_turn(branches: _Branches) -> None:
    """Clients send the whole conversation again, plus a new message after the last answer."""
    for calls in branches.values():
        for before, after in pairwise(calls):
            assert len(said_in(before)) < len(said_in(after))
            assert before.answered_at < after.asked_at


def test_fork_begins_with_the_messages_of_the_other_branch(branches: _Branches) -> None:
    """Both continue the same conversation: the later branch has the prefix of the earlier one."""
    for (client, run, branch), calls in branches.items():
        if branch == 1:
            sent = [said_in(exchange) for exchange in branches[client, run, 0]]
            forked = said_in(calls[0])
            assert any(earlier[:-1] == forked[:-1] for earlier in sent), client
            assert forked not in sent


def test_runs_are_interleaved(traces: list[Exchange]) -> None:
    """Calls of one run have calls of other runs between them."""
    changes = sum(before.run != after.run for before, after in pairwise(traces))
    assert changes > len(traces) / 2
    assert [exchange.asked_at for exchange in traces] == sorted(e.asked_at for e in traces)


def test_headers_and_path_are_the_clients_own(traces: list[Exchange]) -> None:
    """Headers and path do not contain the run; no client sends a session."""
    assert {"/v1/chat/completions", "/v1/responses", "/v1/messages"} == {e.path for e in traces}
    for exchange in traces:
        names = {name.lower() for name, _ in exchange.headers}
        assert "user-agent" in names
        assert not any("session" in name or "conversation" in name for name in names)


async def test_alike_runs_differ_in_ids_only(agents: ModuleType) -> None:
    """Runs with equal messages can be separated by ids, or not at all."""
    found = await agents.record_traces(3, 2, clients=["openai_chat"], alike=True)
    first, second = (
        [(e.branch, _CALL_ID.sub(b"", e.request)) for e in found if e.run == run] for run in (0, 1)
    )

    assert sorted(first) == sorted(second)
    requests = [exchange.request for exchange in found]
    assert len(set(requests)) < len(requests)
    assert any(_CALL_ID.search(request) for request in requests)


async def test_same_seed_records_the_same_bytes(agents: ModuleType) -> None:
    """Everything except the order of arrival is drawn from the seed."""
    few = ["openai_chat", "anthropic_streamed"]
    first, second, other = [
        {
            (e.run, e.branch, e.request, e.response)
            for e in await agents.record_traces(seed, 1, clients=few)
        }
        for seed in (4, 4, 5)
    ]

    assert first == second
    assert not first & other
