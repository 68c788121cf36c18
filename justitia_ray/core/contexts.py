"""Contexts that lie idle in the prefix cache of one replica, as far as its leases tell.

The engine evicts the blocks first that were freed first. So the contexts that are left are those
used last, as many as fit into the memory that no lease holds. Where a context turns out to be gone,
all that were used before it are gone, too. What is wrong here costs prefills and nothing else.
"""

from collections.abc import Iterator
from typing import NamedTuple

from justitia_ray.units import ApplicationId, Tokens

_MOST = 4096
"""Contexts of one replica: an application of few tokens costs more to remember than to compute."""


class Context(NamedTuple):
    """The context of an application that lies in a replica's cache."""

    tokens: Tokens
    used: int
    """Its place in the order of use: greater is later."""


class Contexts:
    """Contexts that no lease uses, in the order of their last use. Changes are O(1), amortised."""

    def __init__(self) -> None:
        self._contexts: dict[ApplicationId, Context] = {}
        self._uses = 0
        self.tokens: Tokens = 0
        """Tokens of all of them."""

    def __len__(self) -> int:
        return len(self._contexts)

    def __iter__(self) -> Iterator[ApplicationId]:
        """Yield the applications, that of the context used first before the others."""
        return iter(self._contexts)

    def tokens_of(self, application_id: ApplicationId) -> Tokens:
        """Return the tokens of an application's context that lie in the cache; 0: none."""
        context = self._contexts.get(application_id)
        return 0 if context is None else context.tokens

    def put(self, application_id: ApplicationId, tokens: Tokens, room: Tokens) -> None:
        """Note that a lease has left a context behind. A longer one of its application stays.

        Args:
            application_id: The application of the lease.
            tokens: Prompt and output of the lease.
            room: KV tokens that no lease holds.
        """
        former = self.take(application_id)
        if former is not None:
            tokens = max(tokens, former.tokens)
        self._uses += 1
        self._contexts[application_id] = Context(tokens, self._uses)
        self.tokens += tokens
        if len(self._contexts) > _MOST:
            self.take(next(iter(self._contexts)))
        self.shrink(room)

    def take(self, application_id: ApplicationId) -> Context | None:
        """Remove the context of an application, which a lease uses from now on, and return it."""
        context = self._contexts.pop(application_id, None)
        if context is not None:
            self.tokens -= context.tokens
        return context

    def shrink(self, room: Tokens) -> None:
        """Evict the contexts used first, the last of them in part, until all fit into some room."""
        while self._contexts and self.tokens > room:
            name, context = next(iter(self._contexts.items()))
            left = context.tokens - (self.tokens - max(0, room))
            if left > 0:
                self._contexts[name] = context._replace(tokens=left)
                self.tokens -= context.tokens - left
            else:
                self.take(name)

    def note_missing(self, context: Context) -> None:
        """Evict what was used before a context that a lease has not found."""
        while self._contexts:
            name, oldest = next(iter(self._contexts.items()))
            if oldest.used > context.used:
                return
            self.take(name)
