"""The working set: applications whose contexts fit into the KV memory together.

A prefix cache evicts the context used least recently. Where the contexts of all agents take more
memory than there is, each is evicted before its next turn and computed again. With the option
`working_set_s` the context of an application between two inferences counts as used memory for
every application behind it in the order, for that long. The first application whose inference does
not fit beside what counts waits, and all behind it wait with it: applications start, and go on
between two turns, as their contexts fit. An application that comes first in order is delayed by
none behind it, and what runs is never stopped.

An application that does not come back delays those behind it by `working_set_s` at most, for each
of its inferences that has ended. Wherever nothing runs, the first in order starts.
"""

from collections.abc import Callable

from justitia_ray.core.contexts import Context
from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.state import State
from justitia_ray.units import ApplicationId, Seconds, Tokens, VirtualTime

Rank = tuple[bool, VirtualTime]
"""Whether an application runs beyond its quota, and its tag: the smaller is first."""

_FILLED = 0.9
"""Share of the KV memory that the working set may take; the rest is for growth. On the recorded
sessions at 1.5 times the memory, 0.8 and 1.0 have a mean 11 and 30 % higher."""
_AGAIN_S: Seconds = 0.25
"""Time for which a refusal stands while no lease ends: contexts cease to count meanwhile."""


class WorkingSet:
    """Decides whether the first application in order may start an inference."""

    def __init__(
        self, state: State, rank: Callable[[ApplicationId], Rank], counts_s: Seconds
    ) -> None:
        """Start with no refusal.

        Args:
            state: State of the scheduler.
            rank: Returns the place of an application in the order by its tag.
            counts_s: Time for which an idle context counts.
        """
        self._state = state
        self._rank_of = rank
        self._counts_s = counts_s
        self._refused: tuple[Inference, int] | None = None
        """The inference refused last, and `State.headroom_changes` then."""
        self._refused_at: Seconds = 0.0

    def admits(self, application: Application, inference: Inference) -> bool:
        """Return whether the first in order may start now, if a replica has the memory.

        O(replicas) where all contexts fit; else O(idle contexts), once for each change of the
        leases and every quarter of a second.
        """
        state = self._state
        asked = (inference, state.headroom_changes)
        if self._refused == asked and state.now < self._refused_at + _AGAIN_S:
            return False
        self._refused = None
        if not state.leases or self._excess(application, inference) <= 0:
            return True
        self._refused, self._refused_at = asked, state.now
        return False

    def _excess(self, application: Application, inference: Inference) -> Tokens:
        """Return the KV tokens by which an inference exceeds the memory that is left for it.

        Where a replica has no prefix cache, contexts take no memory there: none is exceeded.
        """
        state, name = self._state, application.application_id
        replicas = [one for one in state.replicas.values() if not one.draining]
        if not all(one.capacity.caches_prefixes for one in replicas):
            return 0
        wanted = inference.expected_footprint().full_tokens
        room = int(_FILLED * sum(one.capacity.kv_tokens for one in replicas))
        for replica in replicas:
            wanted += replica.leases.full_tokens + replica.contexts.live_tokens
        if wanted <= room:
            return wanted - room
        own = self._rank(application)
        for replica in replicas:
            for other, context in replica.contexts.idle():
                if context.is_live and (other == name or not self._counts(other, context, own)):
                    wanted -= context.tokens
                    if wanted <= room:
                        return wanted - room
        return wanted - room

    def _counts(self, name: ApplicationId, context: Context, own: tuple[Rank, int]) -> bool:
        """Return whether the idle context of another application counts for one of this rank."""
        other = self._state.applications.get(name)
        if other is None or self._state.now >= context.idle_since + self._counts_s:
            return False
        return self._rank(other) < own

    def _rank(self, application: Application) -> tuple[Rank, int]:
        return self._rank_of(application.application_id), application.sequence
