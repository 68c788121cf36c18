"""Contexts in the prefix cache of one replica, as inferred from its leases.

A context is the longest prompt of an application that was computed there, with its answer. Leases
of the application *hold* it; without such a lease it is idle. The engine evicts the blocks first
that were freed first: the idle contexts still there are those used last, as many as fit into the
memory that no lease has. An error here costs prefills and nothing else.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from justitia_ray.units import ApplicationId, Seconds, Tokens

_MOST = 4096
_LOOKED_AT = 16
"""Number of least recently used contexts of which the shortest is dropped above `_MOST`."""


@dataclass(slots=True, eq=False)
class Context:
    """The context of an application on a replica."""

    prompt_tokens: Tokens
    """Prompt length of the inference that left it; an inference with a longer prompt continues it.
    """
    tokens: Tokens
    """Tokens of the context that are in the replica's prefix cache."""
    used: int = 0
    """Rank of its last use; 0: unknown, because it is from an earlier scheduler."""
    idle_since: Seconds = 0.0
    """Time at which the last lease that held it ended; 0 if it is from an earlier scheduler."""
    leases: int = 0
    """Number of leases that hold it."""
    is_live: bool = True
    """Whether its application may submit more."""


class Contexts:
    """The contexts of one replica. A change takes amortised O(1)."""

    def __init__(self) -> None:
        self._idle: dict[ApplicationId, Context] = {}
        """Idle contexts in the order of their last use."""
        self._held: dict[ApplicationId, Context] = {}
        self._uses = 0
        self.tokens: Tokens = 0
        """Tokens of the idle contexts."""
        self.live_tokens: Tokens = 0
        """Tokens of the idle contexts whose applications may submit more."""

    def __len__(self) -> int:
        return len(self._idle)

    def idle(self) -> Iterator[tuple[ApplicationId, Context]]:
        """Yield the contexts that no lease holds, the least recently used first."""
        return iter(self._idle.items())

    def get(self, application_id: ApplicationId) -> Context | None:
        """Return the context of an application, held or idle."""
        return self._held.get(application_id) or self._idle.get(application_id)

    def held(self) -> Iterator[tuple[ApplicationId, Context]]:
        """Yield the contexts that leases hold."""
        return iter(self._held.items())

    def hold(self, application_id: ApplicationId, prompt_tokens: Tokens) -> Context | None:
        """Add a lease to the context that its prompt continues; return the context or None."""
        context = self.get(application_id)
        if context is None or prompt_tokens < context.prompt_tokens:
            return None
        if application_id in self._idle:
            self._take(application_id)
            self._held[application_id] = context
            context.is_live = True
        context.leases += 1
        return context

    def begin(self, application_id: ApplicationId, prompt_tokens: Tokens) -> Context | None:
        """Return the context of a lease whose prompt was computed, a new one if necessary.

        None if its application has a longer context.
        """
        context = self.hold(application_id, prompt_tokens)
        if context is None and self.get(application_id) is None:
            context = self._held[application_id] = Context(prompt_tokens, prompt_tokens, leases=1)
        return context

    def release(
        self, application_id: ApplicationId, context: Context, left: Context | None, room: Tokens
    ) -> None:
        """Remove a lease from its context, which becomes idle if no other lease holds it.

        Args:
            application_id: The application of the lease.
            context: The context that the lease held.
            left: Prompt and cached tokens with the answer, if the lease has read its prompt; else
                None.
            room: KV tokens that no lease has.
        """
        context.leases -= 1
        if left is not None and left.prompt_tokens >= context.prompt_tokens:
            context.prompt_tokens, context.tokens = left.prompt_tokens, left.tokens
        if not context.leases and self._held.get(application_id) is context:
            del self._held[application_id]
            self.put(application_id, context, room)

    def put(self, application_id: ApplicationId, context: Context, room: Tokens) -> None:
        """Add an idle context as the most recently used."""
        self._uses += 1
        context.used = self._uses
        self._add(application_id, context)
        if len(self._idle) > _MOST:
            names = islice(self._idle, _LOOKED_AT)
            self._take(min(names, key=lambda name: self._idle[name].tokens))
        self.shrink(room)

    def recall(self, application_id: ApplicationId, prompt_tokens: Tokens, room: Tokens) -> None:
        """Add a context from before a restart, with an assumed length."""
        if self.get(application_id) is None:
            self._add(application_id, Context(prompt_tokens, prompt_tokens))
            self.shrink(room)

    def forget(self, application_id: ApplicationId) -> None:
        """Remove a context that an engine did not find."""
        self._held.pop(application_id, None)  # its leases hold it until they end
        if application_id in self._idle:
            self._take(application_id)

    def forget_before(self, context: Context) -> None:
        """Remove the idle contexts that were used before a context that has been evicted."""
        while self._idle:
            name, oldest = next(iter(self._idle.items()))
            if oldest.used >= context.used:
                return
            self._take(name)

    def end(self, application_id: ApplicationId) -> None:
        """Mark the context of an ended application: still cached, but nothing continues it."""
        context = self.get(application_id)
        if context is not None and context.is_live:
            context.is_live = False
            if application_id in self._idle:
                self.live_tokens -= context.tokens

    def shrink(self, room: Tokens) -> None:
        """Evict the least recently used idle contexts, the last one in part, until all fit."""
        while self._idle and self.tokens > room:
            name, context = next(iter(self._idle.items()))
            evicted = min(context.tokens, self.tokens - max(0, room))
            if evicted == context.tokens:
                self._take(name)
                continue
            context.tokens -= evicted
            self.tokens -= evicted
            self.live_tokens -= evicted * context.is_live

    def displaced(self, application_id: ApplicationId, wanted: Tokens, room: Tokens) -> Tokens:
        """Return the tokens of other live applications' contexts that a start would evict.

        Contexts of ended applications are assumed to be evenly distributed among them.
        """
        own = self._idle.get(application_id)
        all_tokens, live = self.tokens, self.live_tokens
        if own is not None:
            all_tokens -= own.tokens
            live -= own.tokens * own.is_live
        excess = min(all_tokens, all_tokens + wanted - room)
        return excess * live // all_tokens if excess > 0 else 0

    def _add(self, application_id: ApplicationId, context: Context) -> None:
        self._idle[application_id] = context
        self.tokens += context.tokens
        self.live_tokens += context.tokens * context.is_live

    def _take(self, application_id: ApplicationId) -> None:
        context = self._idle.pop(application_id)
        self.tokens -= context.tokens
        self.live_tokens -= context.tokens * context.is_live
