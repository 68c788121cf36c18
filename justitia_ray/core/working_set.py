"""The working set: applications whose contexts fit into the KV memory together.

A prefix cache evicts the context used least recently. If the contexts of all agents exceed the
memory, each is evicted before its next turn and computed again. With the option `working_set_s` the
context of an application between two inferences counts as used memory, for that time, for every
application behind it in the order. The first application whose inference does not fit in addition
to the counted memory waits, and all behind it wait with it: applications start, and continue
between two turns, as their contexts fit. An application is never delayed by contexts of those
behind it, and running inferences are never stopped.

An application that does not come back delays those behind it by at most `working_set_s` for each of
its ended inferences. Whenever nothing runs, the first in order starts.
"""

from collections.abc import Callable

from justitia_ray.core.contexts import Context
from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.ledger import Rank
from justitia_ray.core.locality import NO_REUSE
from justitia_ray.core.state import State
from justitia_ray.units import ApplicationId, Seconds

_FILLED = 0.9
"""Fraction of the KV memory that the working set may use; the remainder is for growth. On the
recorded sessions at 1.5 times the memory, 0.8 and 1.0 have a mean 11 and 30 % higher.
"""
_AGAIN_S: Seconds = 0.25
"""Time for which a refusal stands while no lease ends; contexts expire meanwhile."""


class WorkingSet:
    """Decides whether the first application in order may start an inference."""

    def __init__(
        self, state: State, rank: Callable[[ApplicationId], Rank], counts_s: Seconds
    ) -> None:
        self._state = state
        self._rank_of = rank
        self._counts_s = counts_s
        self._refused: tuple[Inference, int] | None = None
        """The inference refused last, and the value of `State.memory_releases` then."""
        self._refused_at: Seconds = 0.0

    def admits(self, application: Application, inference: Inference) -> bool:
        """Return whether the first in order may start now, if a replica has the memory.

        O(replicas) if all contexts fit; otherwise O(idle contexts), once for each lease or
        application that ends and every quarter of a second.
        """
        state = self._state
        asked = (inference, state.memory_releases)
        if self._refused == asked and state.now < self._refused_at + _AGAIN_S:
            return False
        self._refused = None
        if self._fits(application, inference):
            return True
        self._refused, self._refused_at = asked, state.now
        return False

    def _fits(self, application: Application, inference: Inference) -> bool:
        """Return whether an inference fits beside leases and the contexts that count.

        It does if no context counts, and if a replica has no prefix cache: contexts take no memory
        there. Memory that leases alone leave too small is refused elsewhere.
        """
        state, name = self._state, application.application_id
        replicas = [one for one in state.replicas.values() if not one.draining]
        if not any(one.leases for one in replicas):
            return True
        if not all(one.capacity.caches_prefixes for one in replicas):
            return True
        room = int(_FILLED * sum(one.capacity.kv_tokens for one in replicas))
        excess = sum(one.leases.full_tokens for one in replicas) - room
        if inference.shares:
            excess += min(one.footprint_beside(inference).full_tokens for one in replicas)
        else:
            excess += inference.expected_footprint().full_tokens
        counted = sum(one.contexts.live_tokens for one in replicas)
        if excess + counted <= 0:
            return True
        own = self._rank(application)
        for replica in replicas:
            for other, context in replica.contexts.idle():
                if context.is_live and (other == name or not self._counts(other, context, own)):
                    counted -= context.tokens
                    if counted <= 0 or excess + counted <= 0:
                        return True
        return counted <= 0

    def _counts(self, name: ApplicationId, context: Context, own: tuple[Rank, int]) -> bool:
        """Return whether the idle context of another application counts for one of this rank."""
        other = self._state.applications.get(name)
        if other is None or self._state.now >= context.idle_since + self._counts_s:
            return False
        is_closed = not (other.state.takes_inferences or other.waiting)
        if other.reuse <= NO_REUSE or is_closed:
            return False  # nothing continues from it
        return self._rank(other) < own

    def _rank(self, application: Application) -> tuple[Rank, int]:
        return self._rank_of(application.application_id), application.sequence
