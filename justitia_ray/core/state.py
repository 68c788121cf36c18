"""State that all parts of the core share: entities, quotas, counters, deadlines, actions."""

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from justitia_ray.core.actions import Action
from justitia_ray.core.context_growth import ContextGrowth
from justitia_ray.core.drain import TenantQuota
from justitia_ray.core.engine_times import EngineTimes
from justitia_ray.core.entities import (
    Application,
    Departure,
    FailureCause,
    Inference,
    KnownReplica,
    Lease,
    Outcome,
)
from justitia_ray.core.kept_ends import KeptEnds
from justitia_ray.core.prefill_costs import MeasuredPrefill
from justitia_ray.core.prefill_ratios import PrefillRatios
from justitia_ray.core.served_rate import ServedRate
from justitia_ray.core.tenant_rows import TenantRows
from justitia_ray.core.tenants import TIERS, TenantTree, Tier
from justitia_ray.core.usage import UsageBook
from justitia_ray.cost import PrefillCost, choices_kv_token_time
from justitia_ray.units import (
    ApplicationId,
    ClientId,
    IngressId,
    KvTokenTime,
    LeaseId,
    ReplicaId,
    RequestId,
    Seconds,
    Tokens,
)

_Amount = TypeVar("_Amount", int, float)

OTHER = "other"
"""Tenant under which service is counted when the table of tenants is full."""
_MAXIMUM_TENANTS = 1_024
"""Maximum number of tenants with counts of their own. Callers can create any number of tenants, but
readers of the counts store far fewer.
"""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Times of silence, in seconds, after which a lease, a replica or an ingress counts as lost."""

    lease_s: Seconds = 5.0
    """Seconds after which a lease without a payload expires."""
    replica_s: Seconds = 4.0
    """Seconds without a report after which a replica is lost; its inferences should run elsewhere
    within 5 s.
    """
    ingress_s: Seconds = 30.0
    """Seconds without a call after which an ingress is lost; long polls of an ingress take 20 s."""
    application_s: Seconds = 600.0
    """Seconds without inferences after which an application ends; an application may override it.
    """
    reconnect_s: Seconds = 2.0
    """Seconds after which an inference tries unreachable replicas again if no other replica could
    run it. An inference may use up 20 leases, and connections recover in less time.
    """
    recovery_s: Seconds = 3.0
    """Seconds for which a new scheduler waits for the replicas of its predecessor."""


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Limits of a scheduler; None: no limit."""

    waiting_inferences: int | None = None
    """Maximum number of waiting and running inferences together."""
    open_applications: int | None = None
    """Maximum number of open applications, idle ones included."""


@dataclass(slots=True)
class Counters:
    """Counts since this scheduler began, and sums over the queue. O(1) an event."""

    waiting_kv_tokens: Tokens = 0
    """KV tokens that all queued inferences would need at once. Suspended inferences do not count,
    because more replicas would not serve them.
    """
    waiting_kv_token_time: KvTokenTime = 0
    """Predicted service in token·iterations that all queued inferences still need."""
    leases_expired: int = 0
    """Number of leases whose payload did not reach the replica in time."""
    leases_nacked: int = 0
    """Number of leases that their ingress could not use."""
    engine_failures: dict[FailureCause, int] = field(
        default_factory=lambda: dict.fromkeys(FailureCause, 0)
    )
    """Number of engine failures on replicas that went on, by cause."""
    outran: int = 0
    """Number of charges that were doubled because the service exceeded them (rule 1)."""
    expected: int = 0
    """Number of charges that were raised at a new stage (rule 7)."""
    rejected_applications: int = 0
    """Number of applications rejected by quotas; a repetition soon after does not count again."""
    ended: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    """Number of ended inferences by outcome, without inferences counted by an earlier scheduler."""
    made_tokens: Tokens = 0
    """Output tokens in all reports of replicas."""
    iterations: int = 0
    """Iterations of all leases of this scheduler that finished at the first attempt."""
    iterating_s: Seconds = 0
    """Seconds from the start to the last report of each lease counted in `iterations`, in total."""
    prefill: KvTokenTime = 0
    """Service counted for computing prompts, in token·iterations."""
    forgiven: KvTokenTime = 0
    """Part of `prefill` that tenants paid, but not the tags of their applications."""
    contexts_found: int = 0
    """Number of returning applications that found the context kept for them."""
    contexts_missed: int = 0
    """Number of returning applications that missed the context kept for them."""
    served: dict[str, KvTokenTime] = field(default_factory=dict)
    """Service counted, by tenant."""
    _rows: TenantRows = field(default_factory=lambda: TenantRows(_MAXIMUM_TENANTS, OTHER))
    prompt_tokens: dict[str, Tokens] = field(default_factory=dict)
    """Prompt tokens of inferences that had begun and ended, by tenant."""
    cached_tokens: dict[str, Tokens] = field(default_factory=dict)
    """Prompt tokens of ended inferences that were in an engine's prefix cache, by tenant."""
    output_tokens: dict[str, Tokens] = field(default_factory=dict)
    """Output tokens of inferences that had begun and ended, by tenant."""

    def count_waiting(self, inference: Inference, sign: int) -> None:
        """Count an inference into the queue (+1) or out of it (-1).

        The sizes of an inference do not change while it waits.
        """
        total = choices_kv_token_time(
            inference.prompt_tokens, inference.predicted_output_tokens, inference.choices
        )
        left = max(0, total - inference.attained)
        if inference.prefill is not None:
            left += inference.prefill.expected
        self.waiting_kv_tokens += sign * inference.kv_need_tokens()
        self.waiting_kv_token_time += sign * left

    def count_services(self, services: Iterable[tuple[str, KvTokenTime]]) -> None:
        """Add the service of a report, a pair (tenant, amount) for each application."""
        served = self.served
        for tenant, amount in services:
            if tenant in served:
                served[tenant] += amount
            else:
                self._add_by_tenant(served, tenant, amount)

    def count_tokens(self, tenant: str, prompt: Tokens, output: Tokens, cached: Tokens = 0) -> None:
        """Add the tokens of an ended inference of a tenant.

        Args:
            tenant: The tenant.
            prompt: Its prompt tokens.
            output: Its output tokens.
            cached: Its prompt tokens that were in an engine's prefix cache.
        """
        self._add_by_tenant(self.prompt_tokens, tenant, prompt)
        self._add_by_tenant(self.cached_tokens, tenant, cached)
        self._add_by_tenant(self.output_tokens, tenant, output)

    def _add_by_tenant(self, counts: dict[str, _Amount], tenant: str, amount: _Amount) -> None:
        if tenant not in counts:
            tenant = self._rows.name_of(tenant)
        counts[tenant] = counts.get(tenant, 0) + amount


class DeadlineKind(StrEnum):
    """Kinds of deadlines, by the object that expires."""

    LEASE = "lease"
    HOLDER = "holder"
    REPLICA = "replica"
    INGRESS = "ingress"
    APPLICATION = "application"
    RECOVERY = "recovery"
    CLAIM = "claim"
    RECONNECT = "reconnect"
    RETURN = "return"
    WAIT = "wait"
    CAP = "cap"
    DEPARTURE = "departure"
    SUSPECT = "suspect"


class Deadlines:
    """Heap of deadlines: (time, kind, id).

    Renewal is lazy: an expired entry is checked against the current state.

    A deadline that is postponed keeps its entry in the heap, which is moved when its first time is
    reached: an application that becomes idle a hundred times in ten minutes must not leave a
    hundred entries.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Seconds, int, DeadlineKind, str]] = []
        self._sequence = 0
        self._set: dict[tuple[DeadlineKind, str], Seconds] = {}
        """Time to which each deadline in the heap was last set."""

    def __len__(self) -> int:
        return len(self._heap)

    def set(self, at: Seconds, kind: DeadlineKind, name: str) -> None:
        """Set the deadline of `name` to `at`, in place of an earlier deadline; inf: never."""
        if at == math.inf:
            self._set.pop((kind, name), None)
            return
        before = self._set.get((kind, name))
        self._set[kind, name] = at
        if before is None or at < before:
            self._push_deadline(at, kind, name)

    def is_set(self, kind: DeadlineKind, name: str) -> bool:
        """Return whether a deadline is set and has not expired."""
        return (kind, name) in self._set

    def next(self) -> Seconds | None:
        """Return the time of the earliest deadline, or an earlier time; None without deadlines."""
        return self._heap[0][0] if self._heap else None

    def due(self, now: Seconds) -> Iterator[tuple[DeadlineKind, str]]:
        """Remove and yield the deadlines due by `now`, in order.

        Later deadlines that are set meanwhile stay.
        """
        while self._heap and self._heap[0][0] <= now:
            at, _, kind, name = heapq.heappop(self._heap)
            wanted = self._set.get((kind, name))
            if wanted == at:
                del self._set[kind, name]
                yield kind, name
            elif wanted is not None and wanted > at:
                self._push_deadline(wanted, kind, name)

    def _push_deadline(self, at: Seconds, kind: DeadlineKind, name: str) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (at, self._sequence, kind, name))


@dataclass(slots=True)
class State:
    """All entities of a core by id, with counters and deadlines.

    `scheduler` decides which part of the core changes them for an event.
    """

    timeouts: Timeouts
    lease_prefix: str = ""
    now: Seconds = 0.0
    sequence: int = 0
    grants: int = 0
    memory_releases: int = 0
    """Number of leases and applications that have ended; after each, fewer cached contexts may
    count.
    """
    headroom_changes: int = 0
    """Counter that rises whenever a waiting inference may fit because memory became free."""
    late_reports: int = 0
    """Number of dropped reports about leases that had ended before."""
    applications: dict[ApplicationId, Application] = field(default_factory=dict)
    inferences: dict[RequestId, Inference] = field(default_factory=dict)
    leases: dict[LeaseId, Lease] = field(default_factory=dict)
    leaving: dict[LeaseId, Departure] = field(default_factory=dict)
    """Stopped inferences by lease, which are counted with the last reports of their leases."""
    leaving_requests: dict[RequestId, LeaseId] = field(default_factory=dict)
    replicas: dict[ReplicaId, KnownReplica] = field(default_factory=dict)
    asking: dict[ReplicaId, KnownReplica] = field(default_factory=dict)
    """Replicas that ask for leases and are not answered yet."""
    ingresses: dict[IngressId, Seconds] = field(default_factory=dict)
    """Time of the last heartbeat of each ingress."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    open_applications: TenantQuota = field(default_factory=TenantQuota)
    """Count and limit of open applications, with the retry times of rejected callers."""
    known_inferences: TenantQuota = field(default_factory=TenantQuota)
    """Count and limit of unfinished inferences, with the retry times of refused callers."""
    counters: Counters = field(default_factory=Counters)
    context_growth: ContextGrowth = field(default_factory=ContextGrowth)
    engine_times: EngineTimes = field(default_factory=EngineTimes)
    """Times of prompt tokens and iterations on replicas with a prefix cache."""
    served_rate: ServedRate = field(default_factory=ServedRate)
    usage: UsageBook = field(default_factory=UsageBook)
    ends: KeptEnds = field(default_factory=KeptEnds)
    tenants: TenantTree = field(default_factory=TenantTree)
    tiers: Mapping[str, Tier] = field(default_factory=lambda: TIERS)
    prefill_cost: PrefillCost | None = None
    """Cost of computing prompts for applications that arrive now; None: computing a prompt costs
    nothing.
    """
    measures_prefill: bool = False
    """Whether the first cost that a replica measures replaces `prefill_cost`."""
    measured_prefill: MeasuredPrefill | None = None
    """Cost of computing prompts that a replica measured, of the last release with a measurement."""
    prefill_ratios: PrefillRatios = field(default_factory=PrefillRatios)
    caps: bool = False
    """Whether any tenant limits the usage of single applications."""
    served: dict[ApplicationId, None] = field(default_factory=dict)
    """Applications served since their limits (caps) were last checked."""
    ended: dict[RequestId, Inference] | None = None
    """Inferences that have ended since quotas were last counted; None: no quotas."""
    actions: list[Action] = field(default_factory=list)
    changed: dict[ApplicationId, None] = field(default_factory=dict)
    """Applications whose stored records must be updated, in order."""

    @property
    def waiting(self) -> int:
        """Return the number of inferences without a lease."""
        return len(self.inferences) - len(self.leases)

    def effective_weight(self, tenant: ClientId, weight: float, tier: str) -> float:
        """Return a weight times its tier's factor, at most the maximum of the tenant's nodes."""
        factor = self.tiers[tier].weight_factor if tier in self.tiers else 1
        if factor != 1:
            weight *= factor
        if self.tenants.described:
            for _, node in self.tenants.nodes(tenant):
                if node.max_weight is not None:
                    weight = min(weight, node.max_weight)
        return weight

    def kv_tokens(self) -> Tokens:
        return sum(replica.capacity.kv_tokens for replica in self.replicas.values())

    def kv_per_iteration(self) -> KvTokenTime:
        """Return the service that all replicas deliver an iteration while inferences wait."""
        return self.served_rate.kv_per_iteration(self.kv_tokens())

    def kv_in_flight(self) -> KvTokenTime:
        """Return the KV tokens that the inferences on full replicas have, each counted whole.

        This is the KV memory, or the service of an iteration without prefill if that is measured to
        be more: common beginnings then count once in the memory, but in each inference's service.
        """
        return max(self.kv_tokens(), self.served_rate.decoded_per_iteration)

    def next_sequence(self) -> int:
        """Return the next arrival number, which applications and inferences share."""
        self.sequence += 1
        return self.sequence
