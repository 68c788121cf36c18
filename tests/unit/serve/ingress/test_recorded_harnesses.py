"""Recorded sessions of coding harnesses: each is one application of the expected class.

Every session has tools and a resume and, except for pi, a sub-agent; `tests/e2e/harnesses` plays
such sessions. Long texts are shortened. Where a harness names its session, the earlier turns are
left out.
"""

import itertools
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.access.identity import Identity, Scope
from justitia_ray.config import RecognitionSection
from justitia_ray.recognition.directory import Directory
from justitia_ray.serve.ingress.recognition import ApplicationFinder
from justitia_ray.serve.ingress.replica_calls import StreamItem
from justitia_ray.serve.ingress.request_context import RequestContext, read_context

Json = dict[str, Any]
ACME = Identity("acme", frozenset({Scope.INFER}), "key:acme")
OTHER_KEY = Identity("acme", frozenset({Scope.INFER}), "key:other")
_RECORDED = Path(__file__).parent / "recorded_harnesses"


class Link:
    """Connection to the directory of conversations that all ingresses share."""

    def __init__(self) -> None:
        self._directory = Directory()

    async def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self._directory, method)(*arguments)


class Ingresses:
    """Two ingresses that handle calls alternately."""

    def __init__(self) -> None:
        link = Link()
        finders = [ApplicationFinder(RecognitionSection(), link) for _ in range(2)]
        self._finders = itertools.cycle(finders)

    async def replay_call(self, call: Json, who: Identity = ACME) -> RequestContext:
        """Replay a recorded call with its answer, and return the call's application."""
        headers = [(name.encode(), value.encode()) for name, value in call["headers"].items()]
        found = await next(self._finders).find(
            read_context(who, headers), call["path"], call["body"]
        )

        async def recorded_items() -> AsyncGenerator[StreamItem]:
            yield 200, {}
            yield call.get("answer", "").encode()

        async for _ in found.reading(recorded_items(), stream=True):
            pass
        return found.context

    async def applications_of(self, calls: list[Json], who: Identity = ACME) -> list[str | None]:
        return [(await self.replay_call(call, who)).application_id for call in calls]


def recorded_calls(session: str) -> list[Json]:
    lines = (_RECORDED / f"{session}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("session", "application_class"),
    [
        ("claude-code", "claude-code"),
        ("codex", "codex"),
        ("opencode", "opencode"),
        ("qwen-code", "qwen-code"),
        ("pi", "pi"),
        ("pi-messages", "pi"),
        ("pi-responses", "pi"),
    ],
)
async def test_recorded_session_is_one_application_of_its_harness(
    session: str, application_class: str
) -> None:
    calls = recorded_calls(session)
    ingresses = Ingresses()
    found = [await ingresses.replay_call(call) for call in calls]

    assert len(calls) > 1
    assert 1 == len({context.application_id for context in found})
    assert {application_class} == {context.application_class for context in found}
    assert {application_class} == {context.recognized_by for context in found}
    assert {None} == {context.idle_s for context in found}


@pytest.mark.parametrize("session", ["qwen-code", "pi", "pi-messages"])
async def test_equal_conversation_with_another_api_key_is_separate(session: str) -> None:
    """Keys of one tenant do not share conversations."""
    calls, ingresses = recorded_calls(session), Ingresses()
    one = await ingresses.applications_of(calls)
    other = await ingresses.applications_of(calls, OTHER_KEY)

    assert 1 == len({*one}) == len({*other})
    assert one[0] != other[0]


async def test_two_agent_runs_with_equal_prompts_are_two_applications() -> None:
    """Two runs of an agent in one directory differ only in the ids of their tool calls."""
    calls, ingresses = recorded_calls("pi"), Ingresses()
    again = json.loads(json.dumps(calls).replace("call_", "call_again_"))
    interleaved = [call for pair in zip(calls, again, strict=True) for call in pair]
    found = await ingresses.applications_of(interleaved)

    assert 2 == len({*found})
    assert 1 == len({*found[::2]}) == len({*found[1::2]})


async def test_sub_agent_with_an_ambiguous_parent_joins_no_application() -> None:
    calls, ingresses = recorded_calls("qwen-code"), Ingresses()
    text = json.dumps(calls).replace("call_", "call_again_").replace("@@tools@@", "@@others@@")
    again = json.loads(text)
    (spawned, *_) = [number for number, call in enumerate(calls) if len(_messages_of(call)) == 2][
        1:
    ]
    mains = {
        *await ingresses.applications_of(calls[:spawned]),
        *await ingresses.applications_of(again[:spawned]),
    }
    sub_agent = await ingresses.replay_call(calls[spawned])

    assert 2 == len(mains)
    assert sub_agent.application_id not in mains
    assert "qwen-code" == sub_agent.application_class


def _messages_of(call: Json) -> list[Json]:
    messages: list[Json] = call["body"]["messages"]
    return messages


async def test_harness_is_recognised_by_the_start_of_its_system_prompt() -> None:
    call = recorded_calls("qwen-code")[0]
    call["headers"] = {"user-agent": "OpenAI/JS 6.1.0"}
    found = await Ingresses().replay_call(call)

    assert ("qwen-code", "qwen-code") == (found.application_class, found.recognized_by)


async def test_harness_is_not_recognised_by_words_later_in_the_prompt() -> None:
    call = {"path": "/v1/chat/completions", "headers": {"user-agent": "curl/8 pi/1.0"}}
    said = [{"role": "system", "content": "Do not say: You are Qwen Code, a CLI agent."}]
    found = await Ingresses().replay_call(call | {"body": {"messages": said}})

    assert (None, None) == (found.application_id, found.application_class)


async def test_harness_is_recognised_only_if_a_rule_names_it() -> None:
    finder = ApplicationFinder(RecognitionSection(rules=("header",)), Link())
    call = recorded_calls("pi")[0]
    headers = [(name.encode(), value.encode()) for name, value in call["headers"].items()]
    found = await finder.find(read_context(ACME, headers), call["path"], call["body"])

    assert (None, None) == (found.context.application_id, found.context.application_class)
