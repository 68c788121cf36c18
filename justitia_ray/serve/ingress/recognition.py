"""Recognition of agents' sessions: find the application of each call before it is submitted.

Most rules need nothing but the call. Sessions with a parent and conversations are looked up in the
directory of the first model's scheduler, which all ingresses share. While that scheduler restarts,
or does not answer in time, calls are treated as if the directory had no entry.
"""

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Protocol

from justitia_ray.config import RecognitionSection
from justitia_ray.errors import JustitiaError
from justitia_ray.protocol.engine import Answer
from justitia_ray.recognition.answers import AnswerReader
from justitia_ray.recognition.conversations import Conversation, Name, read_conversation
from justitia_ray.recognition.rules import CONVERSATION, Recognized, Recognizer
from justitia_ray.serve.ingress.replica_calls import StreamItem
from justitia_ray.serve.ingress.request_context import RequestContext
from justitia_ray.units import Seconds

_DIRECTORY_S: Seconds = 1.0
"""Maximum seconds for which a call, or its finished answer, waits for the scheduler's table of
conversations.
"""
_MOST_NAMED = 10_000
"""Maximum number of conversations that an ingress sends to a new scheduler, the latest ones."""
_AT_ONCE = 1_000


class DirectoryLink(Protocol):
    """Calls to the scheduler's table of sessions and conversations."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the scheduler and return the answer."""


class RecentNames:
    """Names of sessions and conversations that this ingress used recently."""

    def __init__(self, most: int = _MOST_NAMED) -> None:
        self._most = most
        self._names: OrderedDict[Name, tuple[str, str]] = OrderedDict()

    def find(self, name: Name) -> str | None:
        """Return the application id of a session or conversation; None if it is not stored here."""
        found = self._names.get(name)
        return None if found is None else found[1]

    def add(self, tenant: str, name: Name, application_id: str) -> None:
        """Store a tenant's session or conversation; beyond the maximum the oldest is dropped."""
        self._names[name] = (tenant, application_id)
        self._names.move_to_end(name)
        if len(self._names) > self._most:
            self._names.popitem(last=False)

    def batches(self) -> Iterator[tuple[str, tuple[tuple[Name, str], ...]]]:
        """Yield all sessions and conversations by tenant, in batches of at most `_AT_ONCE`."""
        names: dict[str, list[tuple[Name, str]]] = {}
        for name, (tenant, application_id) in self._names.items():
            names.setdefault(tenant, []).append((name, application_id))
        for tenant, of_one in names.items():
            for at in range(0, len(of_one), _AT_ONCE):
                yield tenant, tuple(of_one[at : at + _AT_ONCE])


class ApplicationFinder:
    """Finds the application to which each call belongs, by the configured rules.

    Args:
        section: Settings of the rules.
        directory: Link to the first model's scheduler; None: nothing is looked up.
    """

    def __init__(self, section: RecognitionSection, directory: DirectoryLink | None = None) -> None:
        own = [one.harness() for one in section.headers]
        self._recognizer = Recognizer(section.rules, own, section.baggage_key)
        self._section = section
        self._directory = directory
        self._sessions = RecentNames()
        self._conversations = RecentNames()

    async def find(
        self, context: RequestContext, path: str, fields: Mapping[str, Any]
    ) -> "FoundApplication":
        """Return a call with the application to which it belongs.

        Args:
            context: Context of the call, which includes its headers.
            path: Path of the endpoint.
            fields: Body of the call, checked by the endpoint's reader.

        Raises:
            Forbidden: If the caller may not submit for the named tenant.
            RequestError: If the caller must name a tenant, and does not.
        """
        found = self._recognizer.recognize(context.headers, fields)
        if found is not None:
            return FoundApplication(await self._context_of_session(context, found), None, self)
        context = replace(context, application_id=None)
        harness = self._recognizer.harness_without_session(context.headers, path, fields)
        if harness is not None:
            named = context.application_class or harness.application_class
            context = replace(context, application_class=named)
        if self._section.by_conversation or harness is not None:
            scope = f"{context.tenant}\0{context.identity.credential}"
            conversation = read_conversation(path, fields, scope, by_harness=harness is not None)
            if conversation is not None:
                if harness is None:
                    idle_s = self._section.conversation_idle_s
                    context = replace(context, recognized_by=CONVERSATION, idle_s=idle_s)
                else:  # An agent program nearly always calls again.
                    context = replace(context, recognized_by=harness.name)
                placed = await self._context_of_conversation(context, conversation)
                return FoundApplication(placed, conversation, self)
        return FoundApplication(context, None, self)

    async def _context_of_session(
        self, context: RequestContext, found: Recognized
    ) -> RequestContext:
        application_id = found.application_id
        if found.can_have_parent:
            application_id = await self._application_of_root(context, found)
        return replace(
            context,
            application_id=application_id,
            application_class=context.application_class or found.application_class,
            recognized_by=found.rule,
            # The end of a sub-agent does not end its root session.
            is_final=found.is_final and application_id == found.application_id,
        )

    async def _application_of_root(self, context: RequestContext, found: Recognized) -> str:
        """Return the application of a session's root; the scheduler is asked only once."""
        tenant, namespace = context.tenant, context.namespace
        session = _name(tenant, found.application_id)
        known = self._sessions.find(session)
        if known is not None:
            return known
        parents = found.parent_application_id
        parent = None if parents is None else _name(tenant, parents)
        own = found.application_id
        root = await self._call_directory("claim_session", namespace, session, own, parent, parents)
        if root is None:
            return own if parents is None else parents
        self._sessions.add(namespace, session, root)
        return root

    async def _context_of_conversation(
        self, context: RequestContext, conversation: Conversation
    ) -> RequestContext:
        known = None
        if beginnings := conversation.beginnings:
            known = await self._call_directory("find_conversation", context.namespace, beginnings)
            if known is None:  # A new scheduler may not have these conversations yet.
                known = next(filter(None, map(self._conversations.find, beginnings)), None)
        return replace(
            context,
            application_id=known or f"{context.recognized_by}/{uuid.uuid4().hex}",
            begins_conversation=not known,
        )

    async def name_conversation(self, context: RequestContext, names: tuple[Name, ...]) -> None:
        """Store the conversation of a call, by which any ingress finds its application later."""
        assert context.application_id is not None
        for name in names:
            self._conversations.add(context.namespace, name, context.application_id)
        await self._call_directory(
            "name_conversation", context.namespace, names, context.application_id
        )

    async def _call_directory(self, method: str, *arguments: Any) -> str | None:
        """Look up a conversation at the scheduler; return None if it does not answer in time."""
        if self._directory is None:
            return None
        try:
            async with asyncio.timeout(_DIRECTORY_S):
                answer: str | None = await self._directory.call(method, *arguments)
        except (JustitiaError, TimeoutError):
            return None  # A restarted scheduler gets the names stored here.
        return answer

    async def tell_new_scheduler(self) -> None:
        """Send a new scheduler the conversations by which recent calls found their applications.

        A scheduler that has just started is busy, but no call waits for these answers.
        """
        if self._directory is None:
            return
        for tenant, names in (*self._sessions.batches(), *self._conversations.batches()):
            with suppress(JustitiaError):
                await self._directory.call("restore_names", tenant, names)


@dataclass(frozen=True, slots=True)
class FoundApplication:
    """A call with its application, whose answer becomes part of its conversation."""

    context: RequestContext
    _conversation: Conversation | None
    _finder: ApplicationFinder

    async def read_answer(self, answer: Answer) -> None:
        """Add a whole answer to the conversation, before the caller receives the answer."""
        status, _, whole = answer
        if self._conversation is not None and status == 200:
            reader = AnswerReader(self._conversation.path, stream=False)
            reader.add(whole)
            await self._name(reader)

    def reading(
        self, items: AsyncGenerator[StreamItem], *, stream: bool
    ) -> AsyncGenerator[StreamItem]:
        """Yield the items of an answer, and add the answer to the conversation before the last one.

        Args:
            items: (status, headers), then the body; closed at the end.
            stream: Whether the body is a stream of events.
        """
        if self._conversation is None:
            return items
        return self._read(items, self._conversation.path, stream)

    async def _read(
        self, items: AsyncGenerator[StreamItem], path: str, stream: bool
    ) -> AsyncGenerator[StreamItem]:
        reader: AnswerReader | None = None
        async with aclosing(items):
            async for item in items:
                if isinstance(item, tuple):
                    if item[0] == 200:
                        reader = AnswerReader(path, stream=stream)
                elif reader is not None:
                    reader.add(item)
                    if reader.is_whole:
                        await self._name(reader)
                        reader = None
                yield item

    async def _name(self, reader: AnswerReader) -> None:
        assert self._conversation is not None
        names = tuple(self._conversation.name_after(turn) for turn in reader.turns())
        if self._conversation.can_be_spawned:
            names += tuple(map(self._conversation.name_of_prompt, reader.prompts()))
        if reader.is_whole and names:
            await self._finder.name_conversation(self.context, names)


def _name(tenant: str, application_id: str) -> Name:
    return blake2b(f"{tenant}\0{application_id}".encode(), digest_size=16).digest()
