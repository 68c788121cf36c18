"""Forecast of applications' starts while the working set holds the first in order back.

Then applications are served at the same time, not one after the other: the started applications
hold memory even in their tool gaps, and the next application in order starts when some of them have
ended and left enough memory. The forecast gives each started application an equal part of the
service. It neglects the growth of contexts, and later arrivals.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence

from justitia_ray.core.entities import Application
from justitia_ray.core.ledger import Ledger
from justitia_ray.core.queue_profile import QueueProfile, expected_remaining_service
from justitia_ray.core.state import State
from justitia_ray.core.working_set import WorkingSet
from justitia_ray.units import ApplicationId, KvTokenTime, Tokens


class StartForecast:
    """Forecast of the service until each waiting application starts.

    Creating a forecast is O(k log k) for k visited or started applications, and O(idle contexts).

    Args:
        state: State of the core.
        ledger: Accounts and queue.
        gate: The working set.
        profile: The profile of the queue.
        first: The first application in order.
        missing_tokens: KV tokens that must become free before the first application starts.

    Attributes:
        missing_tokens: KV tokens that must become free before the first in order starts.
        made_at: Time at which the forecast was made.
        passing: Started applications that wait before the first, with their positions.
    """

    def __init__(
        self,
        state: State,
        ledger: Ledger,
        gate: WorkingSet,
        profile: QueueProfile,
        first: Application,
        missing_tokens: Tokens,
    ) -> None:
        self.missing_tokens = missing_tokens
        self.made_at = state.now
        passing = sorted(gate.earlier_started_applications(first), key=ledger.queue.place)
        self.passing: Mapping[ApplicationId, int] = {
            one.application_id: place for place, one in enumerate(passing)
        }
        applications = state.applications
        held = _kv_held_by_application(state, gate, first)
        started = [
            (tokens, expected_remaining_service(applications[name]))
            for name, tokens in held.items()
        ]
        waiting: list[tuple[Tokens, KvTokenTime]] = []
        for name in profile.names:
            one = applications.get(name)
            if one is None or not one.waiting or name in held:
                waiting.append((0, 0))  # its leases already use memory
            else:
                need = one.waiting.first.expected_footprint().full_tokens
                waiting.append((need, expected_remaining_service(one)))
        self._until = served_until_starts(gate.room, started, waiting)

    def served_until(self, place: int) -> KvTokenTime:
        """Return the service before the application at this position starts."""
        return self._until[min(place, len(self._until) - 1)]


def served_until_starts(
    room: Tokens,
    started: Iterable[tuple[Tokens, KvTokenTime]],
    waiting: Sequence[tuple[Tokens, KvTokenTime]],
) -> list[KvTokenTime]:
    """Return the total service after which each waiting application starts.

    Args:
        room: KV tokens that the applications may hold together.
        started: KV tokens that each started application holds, and its expected service.
        waiting: The same for the waiting applications, in order.

    Returns:
        An amount for each waiting application, and a last amount for any application behind them.
    """
    level: KvTokenTime = 0
    """Service that each application in the forecast has received since the forecast began."""
    served: KvTokenTime = 0
    ends = [(work, tokens) for tokens, work in started]
    heapq.heapify(ends)
    used = sum(tokens for _, tokens in ends)
    until = []
    for tokens, work in (*waiting, (0, 0)):
        while ends and used + tokens > room:
            end, freed = heapq.heappop(ends)
            served += (end - level) * (len(ends) + 1)
            level, used = end, used - freed
        until.append(served)
        if tokens:
            heapq.heappush(ends, (level + work, tokens))
            used += tokens
    return until


def _kv_held_by_application(
    state: State, gate: WorkingSet, first: Application
) -> dict[ApplicationId, Tokens]:
    """Return the KV tokens of each application's leases and counted contexts."""
    held: dict[ApplicationId, Tokens] = {}
    for name, tokens in gate.counted(first):
        held[name] = held.get(name, 0) + tokens
    for lease in state.leases.values():
        name = state.inferences[lease.request_id].application_id
        tokens = state.replicas[lease.replica_id].leases[lease.lease_id].full_tokens
        held[name] = held.get(name, 0) + tokens
    return held
