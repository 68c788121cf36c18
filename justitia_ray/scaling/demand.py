"""Demand of a model's queue at one instant: waiting, running and expected work."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from justitia_ray.core import SchedulerCore
from justitia_ray.core.entities import Application
from justitia_ray.core.queue_profile import expected_service
from justitia_ray.units import ApplicationId, KvTokenTime, Seconds, Tokens

MAXIMUM_PROMISES = 512
"""Maximum number of applications whose promised starts are read, in the order of arrival."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Demand of a model's queue, and capacity of its replicas. Work is KV token-time."""

    at: Seconds
    served: KvTokenTime = 0
    """Total service charged since the scheduler started, in token·iterations."""
    prefill: KvTokenTime = 0
    """Part of the service that was for computing prompts."""
    queued: KvTokenTime = 0
    """Remaining service of the waiting inferences, in token·iterations."""
    in_flight: KvTokenTime = 0
    """Remaining service of the running inferences, in token·iterations."""
    expected_more: KvTokenTime = 0
    """Further service that open applications are predicted to request."""
    waiting: int = 0
    """Number of inferences in the queue, without suspended ones."""
    running: int = 0
    applications: int = 0
    """Number of live applications, without those that have been idle for longer than `hold_s`."""
    usable_kv_tokens: Tokens = 0
    """KV memory that all waiting and running inferences would use at once."""
    sequences: int = 0
    """Number of sequences that all inferences would run at once. It is a lower bound, because a
    waiting inference counts as one.
    """
    replicas: int = 0
    """Number of replicas that accept work."""
    kv_tokens: Tokens = 0
    """KV memory of the replicas that accept work."""
    seats: int = 0
    """Number of sequences that replicas accepting work can run at the same time."""
    held_tokens: Tokens = 0
    """KV memory used by the leases of replicas that accept work."""
    promises: Mapping[ApplicationId, KvTokenTime] = field(default_factory=dict)
    """Work that must be served before the promised start of each waiting application."""

    @property
    def work(self) -> KvTokenTime:
        """All service that is still expected: queued, in flight and to be requested."""
        return self.queued + self.in_flight + self.expected_more


def read_demand(core: SchedulerCore, now: Seconds, hold_s: Seconds) -> Demand:
    """Return the core's demand at `now`; the core is unchanged. O(applications + leases).

    Args:
        core: The queue.
        now: Time on the driver's clock, in seconds; the core's last event may be long ago.
        hold_s: Time for which an application counts without waiting or running inferences.
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
        if _is_active(application, now, hold_s):
            applications += 1
            more += _expected_service(application, flying.get(application.application_id, 0))
    serving = [one for one in state.replicas.values() if one.takes_leases]
    held = sum(one.context_tokens for one in state.replicas.values())
    return Demand(
        at=now,
        served=sum(state.counters.served.values()),
        prefill=state.counters.prefill,
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
        promises=_promised_starts(core),
    )


def _is_active(application: Application, now: Seconds, hold_s: Seconds) -> bool:
    since = application.idle_since
    return since is None or now - since <= hold_s


def _expected_service(application: Application, flying: KvTokenTime) -> KvTokenTime:
    """Return the predicted service of an application beyond its present inferences."""
    if not application.state.takes_inferences:
        return 0
    here = flying
    if application.waiting:
        here += len(application.waiting) * expected_service(application.waiting.first)
    return max(0, application.predicted_kv_token_time - application.kv_token_time - here)


def _promised_starts(core: SchedulerCore) -> dict[ApplicationId, KvTokenTime]:
    promises = {}
    waiting = (one for one in core.state.applications.values() if one.waiting)
    for application in islice(waiting, MAXIMUM_PROMISES):
        work = core.outlooks.guaranteed_work(application)
        if work is not None:
            promises[application.application_id] = work
    return promises
