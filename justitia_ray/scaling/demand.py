"""The demand for replicas at one instant: what waits, what runs, what open applications ask yet."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from justitia_ray.core import SchedulerCore
from justitia_ray.core.entities import Application, ApplicationState
from justitia_ray.core.queue_profile import expected_service
from justitia_ray.units import ApplicationId, KvTokenTime, Seconds, Tokens

MAXIMUM_PROMISES = 512
"""Applications at most whose promises are looked at: those that arrived first."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Demand of one model's queue, and the state of its replicas. Work is KV token-time."""

    at: Seconds
    served: KvTokenTime = 0
    """Service booked since the scheduler began; only grows."""
    queued: KvTokenTime = 0
    """Service that what waits still needs."""
    in_flight: KvTokenTime = 0
    """Service that what is leased or runs still needs."""
    expected_more: KvTokenTime = 0
    """Service beyond that which open applications are expected to ask for."""
    waiting: int = 0
    """Inferences in the queue; without those that are kept out of it."""
    running: int = 0
    """Inferences leased or running."""
    applications: int = 0
    """Live applications, without those that have been idle for longer than is waited for."""
    usable_kv_tokens: Tokens = 0
    """KV memory that everything that waits or runs could hold at once."""
    sequences: int = 0
    """Sequences that everything that waits or runs would run at once; at least, for each inference
    that waits counts as one."""
    replicas: int = 0
    """Replicas that take work."""
    kv_tokens: Tokens = 0
    """KV memory of those."""
    seats: int = 0
    """Sequences that those can run at once."""
    held_tokens: Tokens = 0
    """KV memory that their leases hold."""
    promises: Mapping[ApplicationId, KvTokenTime] = field(default_factory=dict)
    """Work until each waiting application has what it was promised, where anything was."""

    @property
    def work(self) -> KvTokenTime:
        """All service that is expected to be needed yet."""
        return self.queued + self.in_flight + self.expected_more


def read_demand(core: SchedulerCore, now: Seconds, hold_s: Seconds) -> Demand:
    """Return the demand as the core has it now; changes nothing. O(applications + leases).

    Args:
        core: The queue.
        now: The driver's clock, in seconds: nothing may have happened for long.
        hold_s: An application of which nothing waits or runs counts for so long.
    """
    state = core.state
    flying: dict[ApplicationId, KvTokenTime] = {}
    sequences = waiting = 0
    for lease in state.leases.values():
        inference = state.inferences[lease.request_id]
        name = inference.application_id
        flying[name] = flying.get(name, 0) + expected_service(inference)
        sequences += inference.choices
    more: KvTokenTime = 0
    applications = 0
    for application in state.applications.values():
        waiting += len(application.waiting)
        if _is_counted(application, now, hold_s):
            applications += 1
            more += _expected_more(application, flying.get(application.application_id, 0))
    serving = [one for one in state.replicas.values() if one.takes_leases]
    held = sum(one.context_tokens for one in state.replicas.values())
    return Demand(
        at=now,
        served=sum(state.counters.served.values()),
        queued=max(0, state.counters.waiting_kv_token_time),
        in_flight=sum(flying.values()),
        expected_more=more,
        waiting=waiting,
        running=len(state.leases),
        applications=applications,
        usable_kv_tokens=state.counters.waiting_kv_tokens + held,
        sequences=sequences + waiting,
        replicas=len(serving),
        kv_tokens=sum(one.capacity.kv_tokens for one in serving),
        seats=sum(one.capacity.max_num_seqs for one in serving),
        held_tokens=sum(one.context_tokens for one in serving),
        promises=_promises(core),
    )


def _is_counted(application: Application, now: Seconds, hold_s: Seconds) -> bool:
    since = application.idle_since
    return not application.is_idle or since is None or now - since <= hold_s


def _expected_more(application: Application, flying: KvTokenTime) -> KvTokenTime:
    """Return what an application is expected to ask for beyond what is here of it."""
    if application.state is not ApplicationState.OPEN:
        return 0
    here = flying
    if application.waiting:
        here += len(application.waiting) * expected_service(application.waiting.first)
    return max(0, application.predicted_kv_token_time - application.kv_token_time - here)


def _promises(core: SchedulerCore) -> dict[ApplicationId, KvTokenTime]:
    promises = {}
    waiting = (one for one in core.state.applications.values() if one.waiting)
    for application in islice(waiting, MAXIMUM_PROMISES):
        work = core.outlooks.guaranteed_work(application)
        if work is not None:
            promises[application.application_id] = work
    return promises
