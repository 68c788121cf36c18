"""Prefix cache of a replica whose engine evicts the contexts of ended applications first.

Such an engine *holds* the contexts of applications that may submit again: all other cached blocks
are evicted before them (`engine.hold_contexts`).
"""

from justitia_ray.core.contexts import Context, Contexts
from justitia_ray.units import Tokens


class KeptContexts(Contexts):
    """Cached contexts of a replica that evicts the contexts of live applications last."""

    def forget_before(self, context: Context) -> None:
        """Remove unused contexts of ended applications that are older than an evicted context."""
        if not context.is_live:
            super().forget_before(context)
            return
        for other in [one for one in self._idle if not one.is_live and one.used < context.used]:
            self._remove_idle_context(other)

    def shrink(self, room: Tokens) -> None:
        """Evict contexts of ended applications, then the least recently used, until the rest fits.

        O(idle contexts) if contexts of ended applications have to be evicted.
        """
        if self.tokens > room and self.tokens > self.live_tokens:
            for context in [one for one in self._idle if not one.is_live]:
                if self.tokens <= room:
                    return
                if context.own_tokens <= self.tokens - room:
                    self._remove_idle_context(context)
                else:
                    evicted = self.tokens - room
                    context.tokens -= evicted
                    self.tokens -= evicted
        super().shrink(room)

    def displaced(self, continued: Context | None, wanted: Tokens, room: Tokens) -> Tokens:
        live = self.live_tokens
        if continued is not None and continued in self._idle and continued.is_live:
            live -= continued.own_tokens
        return max(0, min(live, live + wanted - room))
