"""The outlook of an application: why it waits, its position, and when it starts and ends.

The expectation assumes that the first inference in order starts when it fits by the predictions,
and that an application starts after all expected service of the applications before it, delivered
at the recent rate of the scarcer resource (memory or seats). Times are reported as quantiles
calibrated by earlier expectations. The scheduler uses them for one decision only: it refuses an
inference that cannot meet its deadline.

Outlooks are computed on request. The hooks cost O(1) for each action of the core, and a sum over
the replicas at most four times a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from justitia_ray.core.actions import Action, EndApplication, Grant
from justitia_ray.core.calibration import LEAST_S, Calibration, Expectation, Quantiles
from justitia_ray.core.entities import Application, HolderWait, Inference, Outcome
from justitia_ray.core.queue_profile import (
    Demand,
    QueueProfile,
    expected_demand,
    expected_remaining_service,
)
from justitia_ray.core.served_rate import SAMPLE_S
from justitia_ray.units import ApplicationId, ClientId, KvTokenTime, ReplicaId, Seconds, Tokens

if TYPE_CHECKING:
    from justitia_ray.core.scheduler import SchedulerCore
    from justitia_ray.core.start_forecast import StartForecast

_MAXIMUM_EXPECTATIONS = 4_096
"""Maximum number of stored forecasts whose outcome is not known yet."""
_MAXIMUM_EXPECTATIONS_OF_APPLICATION = 16
"""Maximum number of stored forecasts of one application. A caller that asks again after 1.5 times
its wait each time needs an hour for so many.
"""
WALK_KEPT_S: Seconds = 2.0
"""Maximum age in seconds of the cached queue profile by which a submission's deadline is checked.
"""
_WALK_KEPT_S_EACH: Seconds = 1e-3
"""Maximum age of the cached queue profile, per waiting application before the position that is
asked for. Visiting an application takes 10 µs.
"""
_REPLICAS_LOOKED_AT = 8
"""Maximum number of replicas for which the time until an inference fits is computed."""


class Reason(StrEnum):
    """Reason for which an application is not running. No other reasons exist."""

    RUNNING = "running"
    TURN = "turn"
    HEADROOM = "headroom"
    CONTEXT = "context"
    WORKING_SET = "working_set"
    REPLICA = "replica"
    QUOTA = "quota"
    TIER = "tier"
    TOOL = "tool"
    RECOVERY = "recovery"
    STORE = "store"


WHAT_WOULD_HELP: Mapping[Reason, str] = {
    Reason.RUNNING: "nothing: it is being served",
    Reason.TURN: "time, a larger weight, or more replicas: others come first",
    Reason.HEADROOM: "time, or a replica with free KV memory: it is first, and fits nowhere now",
    Reason.CONTEXT: "time: its context lies on the replica that is named, which is full",
    Reason.WORKING_SET: "time: it starts when it fits beside the contexts of started applications",
    Reason.REPLICA: "a replica: none is up that takes work now",
    Reason.QUOTA: "the next period of the quota, or a larger quota of the node that is named",
    Reason.TIER: "another service tier, or time: others have the share that is kept for theirs",
    Reason.TOOL: "its caller: nothing is asked of the model now",
    Reason.RECOVERY: "some seconds: replicas or an ingress are to report what they have",
    Reason.STORE: "Redis: the application is not stored yet, which durability strict asks for",
}
"""Remedies that a user can try, by reason."""


@dataclass(frozen=True, slots=True)
class Held:
    """A limit or a store for which an application waits, before the order of the queue applies."""

    reason: Reason
    node: ClientId | None = None
    """Tenant that has the limit; None: the limit is not a tenant's."""


HeldBy = Callable[[Application], Held | None]
"""Function that returns the limit or store for which an application waits; None: only the queue
delays the application.
"""


@dataclass(frozen=True, slots=True)
class Outlook:
    """Expected progress of one application, with the fields of the JSON answer."""

    reason: str
    """Reason for which the application is not running, as `reason_text` returns it."""
    what_would_help: str
    position: int | None = None
    """Number of applications before this one in the order; None: none of its inferences waits."""
    position_is_least: bool = False
    """Whether `position` is only a lower bound, because the count ends after thousands of
    applications.
    """
    ahead_kv_token_time: KvTokenTime | None = None
    """Service expected before the application starts, in token·iterations."""
    expected_start_s: Quantiles | None = None
    """Expected seconds until one of the application's inferences starts; None: none waits, or
    unknown.
    """
    expected_finish_s: Quantiles | None = None
    """Expected seconds until the application ends; None: unknown."""
    guaranteed_by_s: Seconds | None = None
    """Seconds until all waiting inferences of the application are guaranteed to have started, at
    the present speed; None: not guaranteed.
    """
    context_full_s: Seconds | None = None
    """Expected seconds until the replica with the application's cached context has memory, if
    `reason` is `context`; otherwise None.
    """
    missing_kv_tokens: Tokens | None = None
    """KV tokens that must become free before the application starts; None unless `reason` is
    `working_set`.
    """


def reason_text(reason: Reason, subject: ClientId | ReplicaId | None) -> str:
    """Return a reason with its subject, if any: `quota:acme/search`, `context:R2`.

    Args:
        reason: The reason.
        subject: Tenant node that has the limit, or replica that has the context.
    """
    return reason.value if subject is None else f"{reason.value}:{subject}"


class Outlooks:
    """Forecasts the progress of applications, and calibrates the forecasts by their outcomes.

    Attributes:
        held_by: Returns what holds an application back before the order applies; None by default.
    """

    def __init__(self, core: SchedulerCore) -> None:
        self.held_by: HeldBy = lambda application: None
        self._core = core
        self._rate = core.state.served_rate
        self.starts = Calibration()
        self.ends = Calibration()
        self._profile: QueueProfile | None = None
        self._forecasts: tuple[QueueProfile, StartForecast | None] | None = None
        """Profile of the queue at the last request. It contains a forecast of starts if the first
        application waits for cached contexts.
        """
        self._expected: dict[ApplicationId, list[Expectation]] = {}
        """Forecasts of starts whose outcomes are not known yet."""
        self._expected_ends: dict[ApplicationId, list[Expectation]] = {}
        self._sampled = 0
        self._calibrates = True
        """Whether forecasts are stored for calibration."""
        self._caller_now: Seconds = 0.0
        """Latest time passed to `ask`, from which expectations are computed."""

    # --- hooks

    def observe(self, actions: Sequence[Action]) -> None:
        """Learn from the actions of an event: leases, ended inferences, and the service so far."""
        core = self._core
        history = core.ledger.history
        if history.busy_s - self._rate.busy_s >= SAMPLE_S:
            replicas = core.state.replicas.values()
            held = sum(replica.context_tokens for replica in replicas)
            sequences = sum(replica.leases.sequences for replica in replicas)
            counters = core.state.counters
            ended = counters.iterations, counters.iterating_s
            decoded = sum(counters.served.values()) - counters.prefill
            self._rate.record(
                history.served,
                history.busy_s,
                held,
                sequences,
                counters.made_tokens,
                ended,
                decoded,
                waits=len(core.state.inferences) > len(core.state.leases),
            )
        for action in actions:
            if isinstance(action, Grant) and self._expected:
                inference = core.state.inferences.get(action.request_id)
                if inference is not None:
                    self._settle_expectations(self._expected, self.starts, inference.application_id)
            elif isinstance(action, EndApplication):
                self._forget_expectations(self._expected, self.starts, action.application_id)
                verb = (
                    self._settle_expectations
                    if action.outcome is Outcome.FINISHED
                    else self._forget_expectations
                )
                verb(self._expected_ends, self.ends, action.application_id)

    # --- queries

    def ask(
        self,
        application_ids: Iterable[ApplicationId],
        max_age_s: Seconds = 0.0,
        now: Seconds = 0.0,
        *,
        calibrates: bool = True,
    ) -> dict[ApplicationId, Outlook]:
        """Return the expected progress of the live applications among these.

        Args:
            application_ids: The applications.
            max_age_s: Maximum age of the cached profile of the queue; 0: a new profile.
            now: The driver's clock, from which times are computed; the time of the last event if
                that is later.
            calibrates: Whether later expectations are calibrated by the outcomes of these. False
                for a reader that asks each second.
        """
        self._calibrates = calibrates
        core = self._core
        self._caller_now = now
        asked = (core.state.applications.get(name) for name in application_ids)
        live = [application for application in asked if application is not None]
        if not live:
            return {}
        self.starts.note_time(self._current_time)
        self.ends.note_time(self._current_time)
        profile = self.queue_profile(max_age_s)
        return {one.application_id: self._compute_outlook(one, profile) for one in live}

    def count_reasons(self, applications: Iterable[Application]) -> Counter[Reason]:
        """Count live applications by the reasons for which they are not running."""
        profile = self.queue_profile(WALK_KEPT_S)
        return Counter(
            self._compute_reason(application, profile)[0] for application in applications
        )

    def sample(self, now: Seconds = 0.0) -> None:
        """Forecast the progress of one waiting application, to calibrate by its outcome.

        Args:
            now: The driver's clock.
        """
        queue, names = self._core.ledger.queue, [*self._core.state.applications]
        if not len(queue):
            return
        self._sampled = (self._sampled + 1) % len(names)  # a different application at each call
        in_turn = names[self._sampled :] + names[: self._sampled]
        name = next((name for name in in_turn if name in queue), None)
        if name is not None:
            self.ask([name], WALK_KEPT_S, now)

    def earliest_start_s(self, inference: Inference) -> Seconds:
        """Return p10 of the seconds until a waiting inference starts; 0 if unknown.

        The cached profile of the queue may be `WALK_KEPT_S` old, because this is called at each
        submission. An inference that the profile does not contain is expected to start after all
        applications in the profile.
        """
        if not self._has_replica():
            return 0.0
        core, profile = self._core, self.queue_profile(WALK_KEPT_S)
        application = core.state.applications[inference.application_id]
        place = profile.waiting_before_position(core.ledger.place(inference))
        expected_s = self._start_s(application, inference, place, profile)
        # An inference that is expected to start at once meets any deadline.
        return self.starts.quantiles(expected_s).p10 if expected_s > LEAST_S else 0.0

    def position(self, inference: Inference) -> int | None:
        """Return the number of applications before the application of a waiting inference.

        None: the inference is behind all applications in the profile of the queue. The cached
        profile may be a millisecond old for each waiting application, so that computing profiles
        takes at most a hundredth of the time.
        """
        core = self._core
        kept_s = min(WALK_KEPT_S, _WALK_KEPT_S_EACH * len(core.ledger.queue))
        profile = self.queue_profile(kept_s)
        place = profile.waiting_before(inference.application_id)
        if place is None:
            place = profile.waiting_before_position(core.ledger.place(inference))
        return place if place < len(profile) or profile.is_whole else None

    def guaranteed_work(self, application: Application) -> KvTokenTime | None:
        """Return the service after which all waiting inferences of an application have started.

        This is the service until V reaches the application's tag F and the bound is served. None if
        the order guarantees nothing.
        """
        core = self._core
        lag = core.lag(application.application_id)
        if lag is None or lag.bound_kv_token_time is None:
            return None
        if core.ledger.rank(application.application_id)[0]:
            return None  # applications beyond quota have no guarantee
        clock = core.ledger.fair_share.clock
        until_tag = core.tag(application.application_id) - clock.virtual_time
        if until_tag > 0:
            return until_tag * clock.active_weight + lag.bound_kv_token_time
        return max(0, lag.bound_kv_token_time - lag.kv_token_time)

    def seconds_for(self, work: KvTokenTime) -> Seconds:
        """Return the seconds that the replicas need for an amount of service at the recent rate."""
        return work / self._rate.kv_per_s(self._core.state.kv_tokens())

    def queue_profile(self, max_age_s: Seconds) -> QueueProfile:
        """Return a profile of the queue that is at most this many seconds old; 0: a new one."""
        state, profile = self._core.state, self._profile
        if profile is None or not max_age_s or self._current_time - profile.made_at > max_age_s:
            profile = self._profile = QueueProfile(state, self._core.ledger)
        return profile

    @property
    def iteration_s(self) -> Seconds:
        """Return the seconds of an engine's iteration, by the recent rate."""
        return self._rate.iteration_s

    # --- internals

    @property
    def _current_time(self) -> Seconds:
        return max(self._caller_now, self._core.state.now)

    def _compute_outlook(self, application: Application, profile: QueueProfile) -> Outlook:
        core, name = self._core, application.application_id
        reason, subject = self._compute_reason(application, profile)
        why, full_s = (reason_text(reason, subject), WHAT_WOULD_HELP[reason]), None
        wait = _holder_wait_of(application, core.state.now)
        if reason is Reason.CONTEXT and wait is not None:
            full_s = max(0.0, wait.full_until - self._current_time)
            remedy = f"time: its context lies on {subject}, which is full for {full_s:.1f} s"
            why = why[0], remedy
        missing = None
        forecast = self._start_forecast(profile)
        if reason is Reason.WORKING_SET and forecast is not None:
            missing = forecast.missing_tokens
        if not application.waiting:
            return Outlook(*why, expected_finish_s=self._end_of_run(application))
        place = profile.waiting_before(name)
        is_least = False
        if place is None:  # the queue profile lacks the application
            place = profile.waiting_before_position(core.ledger.place(application.waiting.first))
            is_least = place == len(profile) and not profile.is_whole
        if forecast is None:
            ahead_work = profile.ahead(place, core.ledger.rank(name)).kv_token_time
        elif name in forecast.passing:
            place, ahead_work, is_least = forecast.passing[name], 0, False
        else:
            ahead_work = forecast.served_until(place)
        start = finish = guaranteed_by_s = None
        if self._has_replica():
            guaranteed_by_s = self._guaranteed_by_s(application)
        if self._has_replica() and not is_least:
            start_s = self._start_s(application, application.waiting.first, place, profile)
            own_s = self._served_within_s(expected_demand(application))
            start = self._store_expectation(self._expected, self.starts, name, start_s)
            finish = self._store_expectation(self._expected_ends, self.ends, name, start_s + own_s)
            # Start and end are calibrated separately, but the end is never before the start.
            finish = finish.not_before(start)
        if missing is not None and start is not None:
            why = why[0], _reason_of_working_set(missing, start.p50)
        return Outlook(
            *why, place, is_least, ahead_work, start, finish, guaranteed_by_s, full_s, missing
        )

    def _has_replica(self) -> bool:
        """Return whether there is any replica on which inferences can start."""
        return any(replica.takes_leases for replica in self._core.state.replicas.values())

    def _compute_reason(
        self, application: Application, profile: QueueProfile
    ) -> tuple[Reason, ClientId | ReplicaId | None]:
        core = self._core
        held = self.held_by(application)
        if application.in_flight:
            return Reason.RUNNING, None
        if held is not None:
            return held.reason, held.node
        if application.held_back or (application.waiting and core.recovery.holding):
            return Reason.RECOVERY, None
        if not application.waiting:
            return Reason.TOOL, None
        if not self._has_replica():
            return Reason.REPLICA, None
        if core.is_held_by_tier(application):
            return Reason.TIER, None
        wait = _holder_wait_of(application, core.state.now)
        if wait is not None:
            return Reason.CONTEXT, wait.replica_id
        first = profile.first
        if first is None or first.application_id != application.application_id:
            return Reason.TURN, None
        if self._start_forecast(profile) is not None:
            return Reason.WORKING_SET, None
        inference = application.waiting.first
        fits = any(
            core.placement.fits(replica, inference)
            for replica in core.state.replicas.values()
            if replica.takes_leases
        )
        return (Reason.REPLICA if fits else Reason.HEADROOM), None

    def _start_s(
        self,
        application: Application,
        inference: Inference,
        place: int,
        profile: QueueProfile,
    ) -> Seconds:
        """Return when an inference of an application at this position is expected to start."""
        ahead = profile.ahead(place, self._core.ledger.rank(application.application_id))
        first = inference if not place else profile.first or inference
        served_s = self._current_time - profile.made_at
        wait = _holder_wait_of(application, self._core.state.now)
        if wait is not None:
            return max(0.0, wait.full_until - self._current_time)
        forecast = self._start_forecast(profile)
        if forecast is not None:
            if application.application_id in forecast.passing:
                return self._fits_in_s(inference)
            passed_s = self._current_time - forecast.made_at
            return max(0.0, self.seconds_for(forecast.served_until(place)) - passed_s)
        return self._fits_in_s(first) + max(0.0, self._served_within_s(ahead) - served_s)

    def _start_forecast(self, profile: QueueProfile) -> StartForecast | None:
        """Return the forecast of starts if the first application waits for contexts, else None."""
        if self._forecasts is None or self._forecasts[0] is not profile:
            self._forecasts = (profile, self._new_start_forecast(profile))
        return self._forecasts[1]

    def _new_start_forecast(self, profile: QueueProfile) -> StartForecast | None:
        core, first = self._core, profile.first
        gate = core.ledger.gate
        if gate is None or first is None:
            return None
        application = core.state.applications.get(first.application_id)
        if application is None or not application.waiting:
            return None  # the application has started meanwhile
        missing = gate.missing_tokens(application, application.waiting.first)
        if not missing:
            return None
        from justitia_ray.core.start_forecast import StartForecast

        return StartForecast(core.state, core.ledger, gate, profile, application, missing)

    def _served_within_s(self, demand: Demand) -> Seconds:
        """Return the seconds in which the replicas serve a demand, limited by memory or seats.

        The scarcer of memory and seats limits the use of both. Recent work may have needed them in
        another proportion than this demand.
        """
        rate, replicas = self._rate, self._core.state.replicas.values()
        memory_s = self.seconds_for(demand.kv_token_time)
        seats = sum(one.capacity.max_num_seqs for one in replicas)
        of_memory = rate.held_tokens / max(1, self._core.state.kv_tokens())
        of_seats = rate.sequences / max(1, seats)
        if not of_memory or not of_seats or not rate.made_per_s:
            return memory_s
        # Inferences of unknown lengths are assumed to be like recent inferences.
        later_tokens = demand.later_kv_token_time * rate.sequences / rate.held_tokens
        seats_s = (demand.tokens + later_tokens) / rate.made_per_s
        most = max(of_memory, of_seats)
        return max(memory_s * of_memory / most, seats_s * of_seats / most)

    def _fits_in_s(self, inference: Inference) -> Seconds:
        """Return the seconds until an inference fits on a replica, if no other is admitted."""
        core = self._core
        if inference.request_id not in core.state.inferences:
            return 0.0  # the inference has ended meanwhile
        replicas = [
            one
            for one in core.state.replicas.values()
            if one.takes_leases and core.placement.can_hold(one, inference)
        ]
        if len(replicas) > _REPLICAS_LOOKED_AT:
            replicas.sort(key=lambda one: one.context_tokens - one.leasable_tokens)
        lasts_s = [
            core.iterations_until_fit(inference.request_id, one.replica_id) * self._rate.iteration_s
            - (
                self._current_time - one.last_seen_at
            )  # time since the replica's last report, where the forecast starts
            for one in replicas[:_REPLICAS_LOOKED_AT]
        ]
        return max(0.0, min(lasts_s, default=0.0))

    def _end_of_run(self, application: Application) -> Quantiles | None:
        """Return when an application without waiting inferences ends; None if no inference runs."""
        state = self._core.state
        if not application.in_flight:
            return None
        runs = [state.inferences[name] for name in application.in_flight]
        longest = max(-(-one.expected_remaining(one.output_tokens) // one.choices) for one in runs)
        left_s = self.seconds_for(expected_remaining_service(application))
        expected_s = max(longest * self._rate.iteration_s, left_s)
        return self._store_expectation(
            self._expected_ends, self.ends, application.application_id, expected_s
        )

    def _guaranteed_by_s(self, application: Application) -> Seconds | None:
        """Return when an application's start is guaranteed, by its tag and the lag's bound."""
        work = self.guaranteed_work(application)
        return None if work is None else self.seconds_for(work)

    def _store_expectation(
        self,
        of: dict[ApplicationId, list[Expectation]],
        calibration: Calibration,
        name: ApplicationId,
        expected_s: Seconds,
    ) -> Quantiles:
        """Return the quantiles of an expected time, which is stored for calibration if possible."""
        known = of.get(name, ())
        is_full = (
            len(known) >= _MAXIMUM_EXPECTATIONS_OF_APPLICATION or len(of) >= _MAXIMUM_EXPECTATIONS
        )
        if is_full or not self._calibrates:
            return calibration.quantiles(expected_s)
        expectation = calibration.expect(expected_s, self._current_time)
        of.setdefault(name, []).append(expectation)
        return expectation.quantiles

    def _settle_expectations(
        self,
        of: dict[ApplicationId, list[Expectation]],
        calibration: Calibration,
        name: ApplicationId,
    ) -> None:
        for expectation in of.pop(name, ()):
            calibration.settle(expectation, self._core.state.now)

    def _forget_expectations(
        self,
        of: dict[ApplicationId, list[Expectation]],
        calibration: Calibration,
        name: ApplicationId,
    ) -> None:
        for expectation in of.pop(name, ()):
            calibration.forget(expectation)


def _reason_of_working_set(missing: Tokens, expected_s: Seconds) -> str:
    """Return the reason for which an application waits for memory of cached contexts."""
    tokens = f"{missing / 1_000:.0f}k" if missing >= 10_000 else f"{missing:,}"
    return f"time: it starts when {tokens} more KV tokens are free, expected in {expected_s:.0f} s"


def _holder_wait_of(application: Application, now: Seconds) -> HolderWait | None:
    """Return an application's wait for the replica with its cached context, or None."""
    wait = application.waiting.first.holder_wait if application.waiting else None
    return None if wait is None or now >= wait.until else wait
