"""The number of replicas that a model's demand requires, and the reason.

With this number all expected work is served within the target time, work arrives no faster than it
is served, and promised starts of open applications are kept. A replica started now serves only when
it has loaded, so the expected work is projected to that time, with arrivals and service until then.
Work that has exceeded the target for longer than a replica takes to load is not projected. The
number never exceeds the replicas that the present inferences could fill.

Delays and steps of scaling are left to Ray Serve.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from justitia_ray.core.served_rate import (
    USUAL_ITERATION_S,
    USUAL_USE,
    assumed_kv_per_iteration,
)
from justitia_ray.scaling.demand import Demand
from justitia_ray.units import ApplicationId, KvTokenTime, Seconds

_INFLOW_HALF_LIVES_S: tuple[Seconds, ...] = (120.0, 300.0)
"""Half-lives of two averages of the requested work, of which the lower is used: a short burst adds
only its own work, and no replicas are kept for a load that has ended.
"""
_RATE_HALF_LIFE_S: Seconds = 300.0
"""Half-life of the measured service rate, in seconds of full replicas."""
_PRIOR_S: Seconds = 20.0
"""Weight of the initial service rate, in seconds of full replicas."""
_LEAST_APART_S: Seconds = 0.05
"""Minimum seconds between two readings that update the rates."""
_FULL = 0.4
"""Share of KV memory or seats in use above which a replica with waiting work counts as full."""
_MOST_BUSY = 0.7
"""Share of the service rate that requested work may use; with 1 the queue grows without limit. In
simulations this value gave shorter completion times per replica-hour than 0.6, 0.7 and 0.9.
"""


class SizeReason(StrEnum):
    """Reason for the wanted number of replicas."""

    NOTHING = "nothing"
    OPEN = "open"
    DRAIN = "drain"
    INFLOW = "inflow"
    USABLE = "usable"
    PROMISE = "promise"


WHY_SO_MANY: Mapping[SizeReason, str] = {
    SizeReason.NOTHING: "no application is open, or all have been idle for long",
    SizeReason.OPEN: "applications are open: one replica serves them",
    SizeReason.DRAIN: "what is asked is to be served within the target",
    SizeReason.INFLOW: "more is asked each second than fewer replicas serve",
    SizeReason.USABLE: "what waits and runs would not fill more replicas",
    SizeReason.PROMISE: "with fewer, open applications would start later than they were promised",
}
"""Sentences that explain the wanted number of replicas, by reason."""


@dataclass(frozen=True, slots=True)
class SizingRules:
    """Limits and delays that an operator sets for the number of replicas."""

    minimum: int = 1
    """Smallest number of replicas; with 0 all replicas stop while no application is open."""
    maximum: int | None = None
    """Largest number of replicas; None: no limit."""
    target_drain_s: Seconds = 60.0
    """Time within which all expected work must be served, in seconds."""
    load_s: Seconds = 120.0
    """Seconds that a replica is assumed to take to load, until this is measured."""
    hold_s: Seconds = 60.0
    """Seconds for which an idle application counts as active."""

    def bounded(self, replicas: int) -> int:
        """Return a number of replicas, limited to minimum and maximum."""
        capped = replicas if self.maximum is None else min(replicas, self.maximum)
        return max(self.minimum, capped)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Replicas that are starting, as reported by the autoscaler."""

    starting: int = 0
    """Number of requested replicas that do not serve yet."""
    load_s: Seconds | None = None
    """Measured seconds that a replica takes to load; None: not measured yet."""


@dataclass(frozen=True, slots=True)
class SizeDecision:
    """Wanted number of replicas, with the values that led to it."""

    wanted: int
    """Wanted number of replicas, within the limits."""
    asked: int
    """Wanted number of replicas before the limits are applied."""
    reason: SizeReason
    drain_s: Seconds
    """Seconds in which the present replicas would serve all expected work."""
    work: KvTokenTime
    inflow_kv_per_s: float
    """Recent average of KV token-time requested per second."""
    replica_kv_per_s: float | None
    """KV token-time that a full replica serves per second; None until any replica has been seen."""
    load_s: Seconds
    floor: int
    """Smallest number of replicas with which all promised starts are kept."""
    replicas: int
    """Number of replicas that accept work."""
    starting: int

    def as_json(self) -> dict[str, Any]:
        """Return the decision as JSON, with the sentence for its reason."""
        return asdict(self) | {"reason": self.reason.value, "why": WHY_SO_MANY[self.reason]}


class ReplicaRate:
    """Service rate of a full replica: estimated until full replicas have been measured."""

    def __init__(self) -> None:
        self._service: KvTokenTime = 0
        """Decaying sums of service and of seconds, over the time in which replicas were full."""
        self._replica_s: Seconds = 0
        self._iterating: KvTokenTime = 0
        """Decaying sums of decoded KV token-time and of used token-seconds, over all time."""
        self._held_token_s: float = 0
        self._kv_tokens: float | None = None
        self._seats: float = 0

    def observe(self, before: Demand, now: Demand) -> None:
        """Update the service rate from two successive readings."""
        if now.replicas:
            self._kv_tokens = now.kv_tokens / now.replicas
            self._seats = now.seats / now.replicas
        lasted_s, served = now.at - before.at, now.served - before.served
        if not before.replicas or served <= 0:
            return
        keep = 0.5 ** (lasted_s / _RATE_HALF_LIFE_S)
        held = (before.held_tokens + now.held_tokens) / 2
        # Decoding serves KV memory that is in use; the cost of computing prompts is extra.
        self._iterating = keep * self._iterating + served - (now.prefill - before.prefill)
        self._held_token_s = keep * self._held_token_s + held * lasted_s
        if _is_full(before) and _is_full(now):
            replica_s = before.replicas * lasted_s
            keep = 0.5 ** (replica_s / _RATE_HALF_LIFE_S)
            self._service = keep * self._service + served
            self._replica_s = keep * self._replica_s + replica_s

    def kv_per_s(self, now: Demand) -> float | None:
        """Return the service rate in KV token-time per second; None before any replica is seen."""
        if self._kv_tokens is None:
            return None
        used = assumed_kv_per_iteration(self._kv_tokens)
        if now.running and self._seats:
            used = min(used, self._seats * max(1.0, now.held_tokens / now.running))
        guess = max(1.0, used / self._iteration_s)
        return (self._service + guess * _PRIOR_S) / (self._replica_s + _PRIOR_S)

    @property
    def _iteration_s(self) -> Seconds:
        if self._iterating > 0 and self._held_token_s > 0:
            return self._held_token_s / self._iterating
        return USUAL_ITERATION_S


def _is_full(demand: Demand) -> bool:
    return bool(demand.waiting) and (
        demand.held_tokens >= _FULL * demand.kv_tokens or demand.running >= _FULL * demand.seats
    )


class Inflow:
    """Rate of requested work: service between readings plus the growth of expected work."""

    def __init__(self) -> None:
        # Averages start at 0, so that a first burst does not count as a constant load.
        self._lasted_s = list(_INFLOW_HALF_LIVES_S)
        self._unbounded_size: list[KvTokenTime] = [0.0] * len(self._lasted_s)

    def observe(self, before: Demand, now: Demand) -> None:
        """Update the averages from two successive readings."""
        lasted_s = now.at - before.at
        asked = now.served - before.served + now.work - before.work
        for which, half_life_s in enumerate(_INFLOW_HALF_LIVES_S):
            keep = 0.5 ** (lasted_s / half_life_s)
            self._unbounded_size[which] = keep * self._unbounded_size[which] + asked
            self._lasted_s[which] = keep * self._lasted_s[which] + lasted_s

    @property
    def kv_per_s(self) -> float:
        """KV token-time requested per second; it falls when predictions are lowered."""
        rates = (a / s for a, s in zip(self._unbounded_size, self._lasted_s, strict=True))
        return max(0.0, min(rates))


class Promises:
    """Latest promised start of each waiting application.

    A promise is computed from the replicas present when the application is first seen. If the
    target time is later, the target is promised, so that the number of replicas may fall while the
    target is met.
    """

    def __init__(self) -> None:
        self._due_at: dict[ApplicationId, Seconds] = {}

    def replicas_needed(self, demand: Demand, kv_per_s: float, target_s: Seconds) -> int:
        """Update the promised starts; return the fewest replicas that keep all of them.

        A promise that the present replicas cannot keep requires all present replicas, but no more.
        """
        due_at = self._due_at
        self._due_at = {}
        if not demand.replicas:
            return 0
        floor = 0
        for name, work in demand.promises.items():
            in_s = work / (demand.replicas * kv_per_s)
            due = due_at.get(name, demand.at + max(target_s, in_s))
            self._due_at[name] = due
            left_s = due - demand.at
            needed = work / kv_per_s / left_s if left_s > 0 else demand.replicas
            floor = max(floor, min(demand.replicas, math.ceil(needed - _ROUNDING)))
        return floor


_ROUNDING = 1e-6
"""Relative tolerance: work that is served just in time requires no further replica."""


class Sizer:
    """Decides the number of replicas of a model from successive readings."""

    def __init__(self) -> None:
        self._rate = ReplicaRate()
        self._inflow = Inflow()
        self._promises = Promises()
        self._last: Demand | None = None
        self._late_since: Seconds | None = None
        """Time since which the requested replicas are too few to serve all work within the target.
        """

    def size(self, demand: Demand, rules: SizingRules, fleet: Fleet) -> SizeDecision:
        """Update the rates from a reading; return the wanted number of replicas.

        Args:
            demand: Present demand; readings come in order, about a second apart.
            rules: Limits and times set by the operator.
            fleet: Replicas that do not serve yet.
        """
        last = self._last
        if last is None:
            self._last = demand
            self._rate.observe(demand, demand)
        elif demand.at - last.at >= _LEAST_APART_S:
            self._last = demand
            if demand.served < last.served:  # a new scheduler counts service from 0
                self._inflow = Inflow()
            else:
                self._rate.observe(last, demand)
                self._inflow.observe(last, demand)
        kv_per_s = self._rate.kv_per_s(demand)
        load_s = rules.load_s if fleet.load_s is None else fleet.load_s
        floor = 0
        if kv_per_s is not None:
            floor = self._promises.replicas_needed(demand, kv_per_s, rules.target_drain_s)
        asked, reason = self._unbounded_size(demand, rules, fleet, load_s, kv_per_s)
        if floor > asked:
            asked, reason = floor, SizeReason.PROMISE
        return SizeDecision(
            wanted=rules.bounded(asked),
            asked=asked,
            reason=reason,
            drain_s=_drain_time_s(demand, kv_per_s, load_s),
            work=demand.work,
            inflow_kv_per_s=self._inflow.kv_per_s,
            replica_kv_per_s=kv_per_s,
            load_s=load_s,
            floor=floor,
            replicas=demand.replicas,
            starting=fleet.starting,
        )

    def _unbounded_size(
        self,
        demand: Demand,
        rules: SizingRules,
        fleet: Fleet,
        load_s: Seconds,
        kv_per_s: float | None,
    ) -> tuple[int, SizeReason]:
        if not demand.applications and not demand.waiting and not demand.running:
            return 0, SizeReason.NOTHING
        if kv_per_s is None:
            return 1, SizeReason.OPEN  # a first replica measures the service rate
        have = demand.replicas + fleet.starting
        served = kv_per_s * (demand.replicas + fleet.starting / 2) * load_s
        later = max(0.0, demand.work + self._inflow.kv_per_s * load_s - served)
        usable = _useful_replicas(demand)
        standing = min(self._inflow.kv_per_s / kv_per_s, usable) / _MOST_BUSY
        now_needed = demand.work / rules.target_drain_s / kv_per_s
        # Work must fill a new replica for at least as long as it loads, because both times cost.
        later_needed = later / max(rules.target_drain_s, load_s) / kv_per_s
        if self._overload_lasts(now_needed > have, demand.at, load_s):
            # A replica that was started when the backlog began would serve by now.
            draining = now_needed
        elif later_needed > have:
            draining = later_needed
        else:
            # Work that is served before a new replica has loaded only keeps present replicas.
            draining = min(have, max(now_needed, later_needed))
        needed, reason = max(
            (standing, SizeReason.INFLOW),
            (min(draining, usable), SizeReason.USABLE if usable < draining else SizeReason.DRAIN),
        )
        asked = math.ceil(needed - _ROUNDING)
        return (asked, reason) if asked > 1 else (1, SizeReason.OPEN)

    def _overload_lasts(self, is_late: bool, at: Seconds, load_s: Seconds) -> bool:
        """Record whether the work exceeds the target; return whether for at least `load_s`."""
        if not is_late:
            self._late_since = None
        elif self._late_since is None:
            self._late_since = at
        return self._late_since is not None and at - self._late_since >= load_s


def _useful_replicas(demand: Demand) -> float:
    """Return the number of replicas that all waiting and running inferences would fill."""
    if not demand.replicas:
        return math.inf
    by_kv = demand.usable_kv_tokens / max(1.0, USUAL_USE * demand.kv_tokens / demand.replicas)
    by_seats = demand.sequences / max(1.0, demand.seats / demand.replicas)
    return max(by_kv, by_seats)


def _drain_time_s(demand: Demand, kv_per_s: float | None, load_s: Seconds) -> Seconds:
    if not demand.work:
        return 0.0
    loading_s = 0.0 if demand.replicas else load_s
    if kv_per_s is None:
        return loading_s
    return loading_s + demand.work / (max(1, demand.replicas) * kv_per_s)
