"""Contexts in the prefix cache of one replica, as inferred from its leases.

A context is a prompt of an application that was computed there, with its answer. An application may
have several: its sub-agents have their own, and a *branch* begins with a part of another one. A
prompt continues the longest context of its application that is not longer than the prompt. Leases
*hold* the context that they continue; without a lease it is idle. The engine evicts blocks in the
order in which they were freed. So the idle contexts in the cache are the last used ones, up to the
memory that no lease has. A wrong assumption costs prefills and nothing else.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, TypeVar

from justitia_ray.units import ApplicationId, Seconds, Tokens

_MOST = 4096
_EVICTION_CANDIDATES = 16
"""Number of least recently used contexts of which the shortest is dropped if there are too many
(`_MOST`).
"""
_MOST_OF_AN_APPLICATION = 8
"""Maximum number of cached contexts of one application."""


class _Prompted(Protocol):
    prompt_tokens: Tokens


PromptedT = TypeVar("PromptedT", bound=_Prompted)


def longest_fitting_context(
    contexts: Iterable[PromptedT], prompt_tokens: Tokens
) -> PromptedT | None:
    """Return the longest context with which a prompt may begin, or None.

    Of equally long contexts the last.
    """
    longest = None
    for context in contexts:
        if context.prompt_tokens <= prompt_tokens and (
            longest is None or context.prompt_tokens >= longest.prompt_tokens
        ):
            longest = context
    return longest


@dataclass(slots=True, eq=False)
class Context:
    """Computed prompt and answer of an application in a replica's prefix cache."""

    prompt_tokens: Tokens
    """Prompt length in tokens of the inference that left the context. A longer prompt of the
    application continues the context.
    """
    tokens: Tokens
    """Tokens of the context that are in the replica's prefix cache."""
    used: int = 0
    """Rank of the context's last use; 0 if the context is from an earlier scheduler."""
    idle_since: Seconds = 0.0
    """End of the last lease that used the context; 0 if the context is from an earlier scheduler.
    """
    leases: int = 0
    """Number of leases that use the context."""
    is_live: bool = True
    """Whether the application of the context may submit more inferences."""
    shared: Tokens = 0
    """Tokens that this context has in common with the context from which it branched."""

    @property
    def own_tokens(self) -> Tokens:
        """Return the KV tokens of this context that it does not share with its parent context."""
        return max(0, self.tokens - self.shared)


class Contexts:
    """Contexts of applications in one replica's prefix cache. A change takes amortised O(1)."""

    def __init__(self) -> None:
        self._idle: dict[Context, ApplicationId] = {}
        """Contexts that no lease uses, ordered by last use."""
        self._of: dict[ApplicationId, list[Context]] = {}
        """Contexts of each application; the one that was continued last is at the end."""
        self._uses = 0
        self.tokens: Tokens = 0
        """Tokens of the contexts that no lease uses."""
        self.live_tokens: Tokens = 0
        """Tokens of the unused contexts whose applications may submit more inferences."""

    def __len__(self) -> int:
        return len(self._idle)

    def idle(self) -> Iterator[tuple[ApplicationId, Context]]:
        """Yield the contexts that no lease uses, the least recently used context first."""
        return ((name, context) for context, name in self._idle.items())

    def held(self) -> Iterator[tuple[ApplicationId, Context]]:
        """Yield the contexts that leases use."""
        for name, contexts in self._of.items():
            yield from ((name, context) for context in contexts if context.leases)

    def of(self, application_id: ApplicationId) -> Sequence[Context]:
        """Return all contexts of an application.

        The context continued last is at the end.
        """
        return self._of.get(application_id, ())

    def continued_by(self, application_id: ApplicationId, prompt_tokens: Tokens) -> Context | None:
        """Return the longest context of an application with which a prompt may begin, or None."""
        return longest_fitting_context(self._of.get(application_id, ()), prompt_tokens)

    def find_other_context(
        self, application_id: ApplicationId, prompt_tokens: Tokens, found: Tokens, missed: Context
    ) -> Context | None:
        """Return the other context that best explains the number of cached prompt tokens.

        None if none fits: the engine finds most of a context that a prompt continues.
        """
        others = (
            context
            for context in self._of.get(application_id, ())
            if context is not missed and found >= min(context.tokens, prompt_tokens) / 2 > 0
        )
        return longest_fitting_context(others, prompt_tokens)

    def hold(self, application_id: ApplicationId, prompt_tokens: Tokens) -> Context | None:
        """Let a lease use the context that its prompt continues; return the context or None."""
        context = self.continued_by(application_id, prompt_tokens)
        return None if context is None else self.hold_known_context(application_id, context)

    def hold_known_context(self, application_id: ApplicationId, context: Context) -> Context:
        if context in self._idle:
            self._hold_idle_context(context)
            context.is_live = True
        self._make_last_continued(application_id, context)
        context.leases += 1
        return context

    def begin(self, application_id: ApplicationId, prompt_tokens: Tokens) -> Context:
        """Return the context of a lease whose prompt was computed, and create it if necessary."""
        context = self.hold(application_id, prompt_tokens)
        return self.add(application_id, prompt_tokens) if context is None else context

    def add(self, application_id: ApplicationId, prompt_tokens: Tokens) -> Context:
        """Create a context for a lease whose prompt continues no other context."""
        context = Context(prompt_tokens, prompt_tokens, leases=1)
        self._make_last_continued(application_id, context)
        return context

    def release(
        self,
        application_id: ApplicationId,
        context: Context,
        left: Context | None,
        room: Tokens,
        begun_with: Tokens | None = None,
    ) -> None:
        """Remove a lease from its context, which becomes idle if no other lease uses it.

        Args:
            application_id: The application of the lease.
            context: The context that the lease held.
            left: Prompt and cached tokens with the answer, if the lease has read its prompt; else
                None.
            room: KV tokens that no lease has.
            begun_with: Tokens that the context had when the lease took it. If another lease has
                extended it since, the two prompts fork, and this one's is a branch.
        """
        context.leases -= 1
        is_known = context in self._of.get(application_id, ())
        if left is not None:
            if is_known and begun_with is not None and context.tokens > begun_with:
                left.shared, left.idle_since = min(begun_with, left.tokens), context.idle_since
                left.is_live = context.is_live
                self.put(application_id, left, room)
            elif left.prompt_tokens >= context.prompt_tokens:
                context.prompt_tokens, context.tokens = left.prompt_tokens, left.tokens
        if is_known and not context.leases:
            self.put(application_id, context, room)

    def put(self, application_id: ApplicationId, context: Context, room: Tokens) -> None:
        """Add a context that no lease uses as the most recently used."""
        self._uses += 1
        context.used = self._uses
        self._add_context(application_id, context)
        self._make_last_continued(application_id, context)
        if len(self._idle) > _MOST:
            self._remove_idle_context(
                min(islice(self._idle, _EVICTION_CANDIDATES), key=lambda one: one.tokens)
            )
        self.shrink(room)

    def assume_context(
        self, application_id: ApplicationId, prompt_tokens: Tokens, room: Tokens
    ) -> None:
        """Add a context from before a restart, with an assumed length."""
        if application_id not in self._of:
            context = Context(prompt_tokens, prompt_tokens)
            self._add_context(application_id, context)
            self._make_last_continued(application_id, context)
            self.shrink(room)

    def forget(self, application_id: ApplicationId, context: Context) -> None:
        """Remove a context that the engine did not find; its leases keep it until they end."""
        if context in self._idle:
            self._remove_idle_context(context)
        else:
            self._remove_from_application(application_id, context)

    def forget_before(self, context: Context) -> None:
        """Remove the idle contexts that were used less recently than an evicted context."""
        while self._idle:
            oldest = next(iter(self._idle))
            if oldest.used >= context.used:
                return
            self._remove_idle_context(oldest)

    def end(self, application_id: ApplicationId) -> None:
        """Mark the contexts of an ended application as cached, but never continued."""
        for context in self._of.get(application_id, ()):
            if context.is_live:
                context.is_live = False
                if context in self._idle:
                    self.live_tokens -= context.own_tokens

    def shrink(self, room: Tokens) -> None:
        """Evict the least recently used contexts until the remaining contexts fit.

        The last of them is only shortened.
        """
        while self._idle and self.tokens > room:
            context = next(iter(self._idle))
            evicted = min(context.own_tokens, self.tokens - max(0, room))
            if evicted == context.own_tokens:
                self._remove_idle_context(context)
                continue
            context.tokens -= evicted
            self.tokens -= evicted
            self.live_tokens -= evicted * context.is_live

    def displaced(self, continued: Context | None, wanted: Tokens, room: Tokens) -> Tokens:
        """Return the tokens of live applications' contexts that a start would evict.

        Contexts of ended applications are assumed to be evenly distributed among the evicted ones.

        Args:
            continued: The context that the start continues, if any.
            wanted: KV tokens that it adds.
            room: KV tokens that no lease has.
        """
        all_tokens, live = self.tokens, self.live_tokens
        if continued is not None and continued in self._idle:
            all_tokens -= continued.own_tokens
            live -= continued.own_tokens * continued.is_live
        excess = min(all_tokens, all_tokens + wanted - room)
        return excess * live // all_tokens if excess > 0 else 0

    def _add_context(self, application_id: ApplicationId, context: Context) -> None:
        self._idle[context] = application_id
        self.tokens += context.own_tokens
        self.live_tokens += context.own_tokens * context.is_live

    def _hold_idle_context(self, context: Context) -> ApplicationId:
        application_id = self._idle.pop(context)
        self.tokens -= context.own_tokens
        self.live_tokens -= context.own_tokens * context.is_live
        return application_id

    def _remove_idle_context(self, context: Context) -> None:
        """Remove a context that no lease uses.

        The tokens that it shares with a branch then count for the branch.
        """
        application_id = self._hold_idle_context(context)
        self._remove_from_application(application_id, context)
        for branch in self._of.get(application_id, ()):
            if 0 < branch.shared <= context.tokens:
                is_idle = branch in self._idle
                self.tokens += branch.shared * is_idle
                self.live_tokens += branch.shared * (is_idle and branch.is_live)
                branch.shared = 0
                return

    def _make_last_continued(self, application_id: ApplicationId, context: Context) -> None:
        contexts = self._of.setdefault(application_id, [])
        if context in contexts:
            contexts.remove(context)
        contexts.append(context)
        if len(contexts) > _MOST_OF_AN_APPLICATION:
            oldest = next((one for one in contexts if one in self._idle), None)
            if oldest is not None:
                self._remove_idle_context(oldest)

    def _remove_from_application(self, application_id: ApplicationId, context: Context) -> None:
        contexts = self._of.get(application_id, [])
        if context in contexts:
            contexts.remove(context)
            if not contexts:
                del self._of[application_id]
