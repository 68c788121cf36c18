"""Two ingresses that share a directory assign every call to the same application."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from justitia_ray.access.identity import Identity, Scope
from justitia_ray.config import RecognitionSection
from justitia_ray.errors import ConnectionLost
from justitia_ray.protocol.generation_bodies import CHAT, COMPLETIONS
from justitia_ray.recognition.directory import Directory
from justitia_ray.serve.ingress.recognition import ApplicationFinder, FoundApplication
from justitia_ray.serve.ingress.replica_calls import StreamItem
from justitia_ray.serve.ingress.request_context import read_context
from tests.harness.simulation.virtual_loop import run_virtually

Json = dict[str, Any]
ACME = Identity("acme", frozenset({Scope.INFER}), "key:acme")
BETA = Identity("beta", frozenset({Scope.INFER}), "key:beta")
QUESTION = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "a"}


class Link:
    """Connection to a fake scheduler with a directory of conversations."""

    def __init__(self) -> None:
        self.directory = Directory()
        self.is_lost = False
        self.has_leader = asyncio.Event()
        """Whether a scheduler leads; otherwise calls wait for one."""
        self.has_leader.set()
        self.asked: list[str] = []

    async def call(self, method: str, *arguments: Any) -> Any:
        if self.is_lost:
            raise ConnectionLost("it is being started again")
        await self.has_leader.wait()
        self.asked.append(method)
        return getattr(self.directory, method)(*arguments)


class FinderOfIngress:
    def __init__(self, link: Link, **section: Any) -> None:
        self.finder = ApplicationFinder(RecognitionSection.parse(section), link)

    async def find(
        self, headers: Json, fields: Json | None = None, *, who: Identity = ACME, path: str = CHAT
    ) -> FoundApplication:
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        body = fields or {"messages": [QUESTION]}
        return await self.finder.find(read_context(who, raw), path, body)

    async def application_of_session(
        self, session: str, parent: str | None = None, *, who: Identity = ACME
    ) -> str | None:
        headers = {"x-session-id": session}
        if parent is not None:
            headers["x-parent-session-id"] = parent
        return (await self.find(headers, who=who)).context.application_id

    async def application_of_chat(self, *messages: Json, who: Identity = ACME) -> str | None:
        """Send a chat whose answer is `a`, and return the chat's application."""
        found = await self.find({}, {"messages": list(messages)}, who=who)
        whole = json.dumps({"choices": [{"message": ANSWER}]}).encode()
        await found.read_answer((200, {}, whole))
        return found.context.application_id


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def ingresses(link: Link) -> tuple[FinderOfIngress, FinderOfIngress]:
    rules = (*RecognitionSection().rules, "conversation")
    return FinderOfIngress(link, rules=rules), FinderOfIngress(link, rules=rules)


async def test_call_without_application_or_session_id_is_a_separate_application(link: Link) -> None:
    """A call without any identifying field causes no lookup in the directory."""
    ingress = FinderOfIngress(link)
    plain = await ingress.find({})
    named = await ingress.find({"x-claude-code-session-id": "s"})
    ours = await ingress.find({"x-claude-code-session-id": "s", "x-justitia-class": "mine"})

    assert (None, "") == (plain.context.application_id, plain.context.recognized_by)
    assert ("claude-code/s", "claude-code", "claude-code") == (
        named.context.application_id,
        named.context.recognized_by,
        named.context.application_class,
    )
    assert "mine" == ours.context.application_class
    assert [] == link.asked


async def test_session_header_is_ignored_unless_a_rule_names_it(link: Link) -> None:
    """An operator may accept only the headers of known agent programs."""
    found = await FinderOfIngress(link, rules=["harness"]).find({"x-justitia-application": "a"})

    assert found.context.application_id is None


async def test_sub_agents_of_a_harness_are_one_application_at_every_ingress(
    ingresses: tuple[FinderOfIngress, FinderOfIngress], link: Link
) -> None:
    one, other = ingresses
    roots = [
        await one.application_of_session("root"),
        await other.application_of_session("child", "root"),
        await one.application_of_session("grandchild", "child"),
        await other.application_of_session("grandchild", "child"),
        await one.application_of_session("grandchild", "child"),
    ]

    assert ["opencode/root"] * 5 == roots
    assert 4 == link.asked.count("claim_session")


async def test_parent_session_of_another_tenant_is_ignored(
    ingresses: tuple[FinderOfIngress, FinderOfIngress],
) -> None:
    """A session's name refers only to applications of the caller's own tenant."""
    one, other = ingresses
    await one.application_of_session("child", "root")

    assert "opencode/child" == await other.application_of_session("child", who=BETA)
    assert "opencode/root" == await other.application_of_session("grandchild", "root", who=BETA)


async def test_end_of_a_sub_agent_does_not_end_its_root_application(link: Link) -> None:
    ingress = FinderOfIngress(link)
    child = {"x-dynamo-session-id": "c", "x-dynamo-parent-session-id": "r"}
    final = {"x-dynamo-session-final": "true"}
    ends = [
        await ingress.find(headers | final) for headers in (child, {"x-dynamo-session-id": "r"})
    ]

    assert ["dynamo/r", "dynamo/r"] == [found.context.application_id for found in ends]
    assert [False, True] == [found.context.is_final for found in ends]


async def test_conversation_continues_at_every_ingress(
    ingresses: tuple[FinderOfIngress, FinderOfIngress],
) -> None:
    """A later call or a fork belongs to the application of the conversation that it continues."""
    one, other = ingresses
    first = await one.application_of_chat(QUESTION)
    second = await other.application_of_chat(QUESTION, ANSWER, QUESTION)
    fork = await one.application_of_chat(QUESTION, ANSWER, {"role": "user", "content": "else"})
    third = await one.application_of_chat(QUESTION, ANSWER, QUESTION, ANSWER, QUESTION)

    assert first is not None
    assert {first} == {second, fork, third}


async def test_calls_with_equal_text_are_separate_applications(
    ingresses: tuple[FinderOfIngress, FinderOfIngress],
) -> None:
    """Thousands of calls may share one template and one answer."""
    one, other = ingresses
    firsts = [await ingress.application_of_chat(QUESTION) for ingress in (one, other, one)]
    follow_up = await other.application_of_chat(QUESTION, ANSWER, QUESTION)

    assert 3 == len(set(firsts))
    assert follow_up not in firsts


async def test_equal_conversation_of_another_tenant_is_separate(
    ingresses: tuple[FinderOfIngress, FinderOfIngress],
) -> None:
    one, _ = ingresses
    first = await one.application_of_chat(QUESTION)

    assert first != await one.application_of_chat(QUESTION, ANSWER, QUESTION, who=BETA)


async def test_first_call_of_a_conversation_has_a_shorter_lookup_timeout(
    ingresses: tuple[FinderOfIngress, FinderOfIngress],
) -> None:
    """Every first call starts a conversation, and most conversations have no second call."""
    one, _ = ingresses
    new = (await one.find({})).context
    text = (await one.find({}, {"prompt": "q"}, path=COMPLETIONS)).context

    assert (60.0, True, "conversation") == (new.idle_s, new.begins_conversation, new.recognized_by)
    assert (None, None) == (text.application_id, text.idle_s)


async def test_streamed_answer_is_recorded_before_its_last_chunk(
    ingresses: tuple[FinderOfIngress, FinderOfIngress], link: Link
) -> None:
    """The caller may continue at another ingress as soon as it has the last chunk."""
    one, other = ingresses
    found = await one.find({})
    begun = json.dumps({"choices": [{"index": 0, "delta": {"content": "a"}}]}).encode()
    chunks = [b"data: " + begun + b"\n\n", b"", b"data: [DONE]\n\n"]

    async def stream_answer() -> AsyncGenerator[StreamItem]:
        yield 200, {}
        for chunk in chunks:
            yield chunk

    seen = [
        ("name_conversation" in link.asked, item)
        async for item in found.reading(stream_answer(), stream=True)
    ]

    assert [(200, {}), *chunks] == [item for _, item in seen]
    assert [False, False, False, True] == [is_named for is_named, _ in seen]
    assert found.context.application_id == await other.application_of_chat(
        QUESTION, ANSWER, QUESTION
    )


@pytest.mark.parametrize("status", [400, 500])
async def test_error_response_does_not_continue_a_conversation(
    ingresses: tuple[FinderOfIngress, FinderOfIngress], link: Link, status: int
) -> None:
    found = await ingresses[0].find({})
    await found.read_answer((status, {}, json.dumps({"choices": [{"message": ANSWER}]}).encode()))

    assert [] == link.asked


async def test_calls_are_recognised_while_the_session_directory_is_unreachable(
    ingresses: tuple[FinderOfIngress, FinderOfIngress], link: Link
) -> None:
    """While the scheduler restarts, each ingress uses only its own entries."""
    one, other = ingresses
    link.is_lost = True
    first = await one.application_of_chat(QUESTION)

    assert first == await one.application_of_chat(QUESTION, ANSWER, QUESTION)
    assert first != await other.application_of_chat(QUESTION, ANSWER, QUESTION)
    assert "opencode/root" == await one.application_of_session("child", "root")
    assert "opencode/root" == await one.application_of_session("root")


def test_recognition_does_not_wait_for_a_restarting_scheduler() -> None:
    """While Redis is down, lookups wait, but calls of another model must continue."""

    async def answer_whole(body: bytes) -> AsyncGenerator[StreamItem]:
        yield 200, {}
        yield body

    async def converse() -> float:
        began_at = asyncio.get_running_loop().time()
        link = Link()
        link.has_leader.clear()
        ingress = FinderOfIngress(link, rules=(*RecognitionSection().rules, "conversation"))
        first = await ingress.application_of_chat(QUESTION)
        assert first == await ingress.application_of_chat(QUESTION, ANSWER, QUESTION)
        assert "opencode/root" == await ingress.application_of_session("child", "root")
        found = await ingress.find({})
        whole = json.dumps({"choices": [{"message": ANSWER}]}).encode()
        items = found.reading(answer_whole(whole), stream=False)
        assert whole == [item async for item in items][-1]
        return asyncio.get_running_loop().time() - began_at

    assert run_virtually(converse()) < 10.0


def test_ingress_waits_while_a_new_scheduler_reads_conversation_names() -> None:
    """All ingresses submit everything to a new scheduler at the same time."""

    async def restore() -> str | None:
        link = Link()
        rules = (*RecognitionSection().rules, "conversation")
        one, other = FinderOfIngress(link, rules=rules), FinderOfIngress(link, rules=rules)
        first = await one.application_of_chat(QUESTION)
        link.directory = Directory()
        link.has_leader.clear()
        asyncio.get_running_loop().call_later(20.0, link.has_leader.set)
        await one.finder.tell_new_scheduler()
        assert first == await other.application_of_chat(QUESTION, ANSWER, QUESTION)
        return first

    assert run_virtually(restore())


async def test_conversation_continues_locally_until_a_new_scheduler_knows_it(
    ingresses: tuple[FinderOfIngress, FinderOfIngress], link: Link
) -> None:
    """An ingress remembers its recent entries; other conversations stay separate."""
    one, other = ingresses
    first = await one.application_of_chat(QUESTION)
    link.directory = Directory()

    assert first == await one.application_of_chat(QUESTION, ANSWER, QUESTION)
    await other.application_of_chat(QUESTION)
    await one.application_of_chat(QUESTION)
    assert first != await one.application_of_chat(
        QUESTION, ANSWER, {"role": "user", "content": "else"}
    )


async def test_new_scheduler_receives_the_recorded_conversations(
    ingresses: tuple[FinderOfIngress, FinderOfIngress], link: Link
) -> None:
    """Every ingress repeats its entries to the new scheduler."""
    one, other = ingresses
    first = await one.application_of_chat(QUESTION)
    await one.application_of_session("child", "root")
    link.directory = Directory()
    await one.finder.tell_new_scheduler()

    assert first == await other.application_of_chat(QUESTION, ANSWER, QUESTION)
    assert "opencode/root" == await other.application_of_session("grandchild", "child")
