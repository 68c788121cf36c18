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

# LlamaIndex reads every attribute of its workflow events, even deprecated ones.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

_Branches = dict[tuple[str, int, int], list[Exchange]]
_CALL_ID = re.compile(rb'"((?:chatcmpl-tool-|call_|toolu_)[0-9a-f]{32})"')


@pytest.fixture(scope="module")
def traces_module() -> ModuleType:
    """Return the module that records conversations; its import loads all client libraries."""
    return importlib.import_module("tests.harness.agents.traces")


@pytest.fixture(scope="module")
def traces(traces_module: ModuleType) -> list[Exchange]:
    """Return two short conversations of every client library."""
    return cast("list[Exchange]", traces_module.recorded_short_traces())


@pytest.fixture(scope="module")
def branches(traces: list[Exchange]) -> _Branches:
    """Return the HTTP calls of each branch of a conversation, in order."""
    found: _Branches = defaultdict(list)
    for exchange in traces:
        found[exchange.client, exchange.run, exchange.branch].append(exchange)
    return dict(found)


def request_messages(exchange: Exchange) -> list[object]:
    """Return the messages or items of a call."""
    asked = json.loads(exchange.request)
    found: list[object] = asked["input"] if "input" in asked else asked["messages"]
    return found


def test_every_client_records_a_conversation_and_its_fork(
    traces_module: ModuleType, branches: _Branches
) -> None:
    """The first branch has three questions, the second adds one."""
    for client in traces_module.CLIENTS:
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


def test_recorded_tool_call_ids_recur_in_the_next_call_and_are_unique(
    traces_module: ModuleType, branches: _Branches
) -> None:
    made: list[bytes] = []
    for calls in branches.values():
        for before, after in pairwise(calls):
            ids = set(_CALL_ID.findall(before.response))
            assert ids <= set(_CALL_ID.findall(after.request))
            made += ids

    assert len(made) == len(set(made)) > 2 * len(traces_module.CLIENTS)


def test_recorded_calls_grow_with_each_turn(branches: _Branches) -> None:
    """Clients send the whole conversation again, plus a new message after the last answer."""
    for calls in branches.values():
        for before, after in pairwise(calls):
            assert len(request_messages(before)) < len(request_messages(after))
            assert before.answered_at < after.asked_at


def test_forked_conversation_begins_with_the_messages_of_the_original(branches: _Branches) -> None:
    """Both branches continue the conversation that was forked."""
    for (client, run, branch), calls in branches.items():
        if branch == 1:
            sent = [request_messages(exchange) for exchange in branches[client, run, 0]]
            forked = request_messages(calls[0])
            assert any(earlier[:-1] == forked[:-1] for earlier in sent), client
            assert forked not in sent


def test_recorded_conversations_are_interleaved(traces: list[Exchange]) -> None:
    """Between two calls of one conversation there are calls of others."""
    changes = sum(before.run != after.run for before, after in pairwise(traces))
    assert changes > len(traces) / 2
    assert [exchange.asked_at for exchange in traces] == sorted(e.asked_at for e in traces)


def test_recorded_headers_and_paths_do_not_identify_the_conversation(
    traces: list[Exchange],
) -> None:
    """No client sends a session id, and headers and path must not contain the conversation."""
    assert {"/v1/chat/completions", "/v1/responses", "/v1/messages"} == {e.path for e in traces}
    for exchange in traces:
        names = {name.lower() for name, _ in exchange.headers}
        assert "user-agent" in names
        assert not any("session" in name or "conversation" in name for name in names)


async def test_equal_conversations_differ_only_in_ids(traces_module: ModuleType) -> None:
    """Conversations with equal messages can be told apart by ids, or not at all."""
    found = await traces_module.record_traces(3, 2, clients=["openai_chat"], alike=True)
    first, second = (
        [(e.branch, _CALL_ID.sub(b"", e.request)) for e in found if e.run == run] for run in (0, 1)
    )

    assert sorted(first) == sorted(second)
    requests = [exchange.request for exchange in found]
    assert len(set(requests)) < len(requests)
    assert any(_CALL_ID.search(request) for request in requests)


async def test_same_seed_records_the_same_bytes(traces_module: ModuleType) -> None:
    """Everything except the order of arrival is drawn from the seed."""
    few = ["openai_chat", "anthropic_streamed"]
    first, second, other = [
        {
            (e.run, e.branch, e.request, e.response)
            for e in await traces_module.record_traces(seed, 1, clients=few)
        }
        for seed in (4, 4, 5)
    ]

    assert first == second
    assert not first & other
