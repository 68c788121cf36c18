"""Predicted finish of each live application under VTC, and which applications are urgent by it.

`shadow` computes what VTC would have started by now, from the known stages of each application
(`known_stages`). Predictions assume that a level costs as much as now: the sum of ω·k/w over the
applications that will request more, at the present speed of the replicas. An application's
*deadline* is the time at which it would end under VTC. It is *urgent* when little more than its
longest remaining path of inferences fits before the deadline: now ≥ deadline − path − margin. The
margin is as long as the path, and at most 150 iterations: with 150 iterations for all, short
applications would be urgent from the start.

An ended application keeps its shadow until VTC would have finished it, because VTC would still be
serving it. Without these shadows, the times at which other applications end are predicted at half
their values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from justitia_ray.core.policies.guarded.known_stages import CriticalPath, KnownStages, call_of
from justitia_ray.core.policies.guarded.pace import Pace
from justitia_ray.core.policies.guarded.shadow import Shadow, VtcModel, record_of, restored
from justitia_ray.core.queue import LazyHeap
from justitia_ray.core.records import RecordReader
from justitia_ray.core.stages import read_stages
from justitia_ray.units import ApplicationId, KvTokenTime, RequestId, Seconds

if TYPE_CHECKING:
    from justitia_ray.core.entities import Application, Inference
    from justitia_ray.core.policies.base import Delivery

_MARGIN_ITERATIONS = 150
"""Maximum number of iterations by which an application becomes urgent before its longest path must
begin: 4.5 s of a 7B model on an A10G GPU.
"""
_VALID_RATE_FACTOR = 2.0
"""Factor by which measured service rates may change before an application must be sorted by urgency
again.
"""
_UPDATE_RATE_FACTOR = 1.5
"""Factor of change in measured service rates above which each report sorts some applications by
urgency again.
"""


def _length_with_margin(path: CriticalPath) -> CriticalPath:
    """Return a path's length plus the margin by which an application is urgent earlier."""
    margin = min(_MARGIN_ITERATIONS, path.iterations)
    return CriticalPath(path.iterations + margin, path.gap_s)


class _UrgencyRates(NamedTuple):
    """Measured service rates for which applications were sorted by urgency."""

    kv_per_s: float
    iteration_s: Seconds
    density: float

    def has_similar_rates(self, other: _UrgencyRates, band: float = _VALID_RATE_FACTOR) -> bool:
        """Return whether each rate differs from that of `other` by less than the factor `band`."""
        for here, there in zip(self, other, strict=True):
            if here != there and not (there and 1 / band < here / there < band):
                return False
        return True

    def least_wait_s(self, levels: float, own_density: float) -> Seconds:
        """Return the shortest time in which VTC's level X can rise this far at similar rates."""
        return (
            levels
            * (self.density / _VALID_RATE_FACTOR + own_density)
            / (self.kv_per_s * _VALID_RATE_FACTOR)
        )

    def least_duration_s(self, iterations: float) -> Seconds:
        """Return the shortest time of `iterations` (may be negative) at similar rates."""
        factor = 1 / _VALID_RATE_FACTOR if iterations > 0 else _VALID_RATE_FACTOR
        return iterations * self.iteration_s * factor


class _UrgentCandidate(NamedTuple):
    """An application that may be urgent, with two limits that quickly rule most applications out.

    It is urgent from the time `lead` before its last inference starts under VTC.
    """

    shadow: Shadow
    level_of_end: float
    """VTC's level X up to which the application's last inference does not start; 0: no level delays
    it.
    """
    lead: CriticalPath
    """How long before the start of its last inference an application becomes urgent, in iterations
    (may be negative) and seconds.
    """


class ForetoldVtc:
    """Predicts when the policy VTC would end each application, and which are urgent.

    A policy passes on its hooks, in their order; `now` never falls. Between two queries each event
    costs O(log N), and O(n) for an application with n stages. `urgent` costs O(c) for c candidates,
    applications that would be urgent if X rose up to four times as fast and an iteration took twice
    as long; O(n) for each whose deadline the level alone does not exclude; and O(u log u) for the u
    urgent ones. While rates change, the positions of applications are updated, one for each
    inference of a report. All are updated at once, in O(N log N), only after a rate has changed by
    more than `_VALID_RATE_FACTOR`.

    Args:
        kv_in_flight: Returns the KV tokens of the inferences on full replicas, each counted whole,
            or the part of them that is shared here; None: unchanged.
        pace: Speed of the replicas.
    """

    def __init__(self, kv_in_flight: Callable[[], float | None], pace: Pace | None = None) -> None:
        self._kv_in_flight = kv_in_flight
        self.pace = Pace() if pace is None else pace
        self.clock = VtcModel(self.pace)
        self._stages: dict[ApplicationId, KnownStages] = {}
        self._rates: _UrgencyRates | None = None
        """Measured service rates for which applications are sorted by urgency; None if no rate is
        known.
        """
        self._former: _UrgencyRates | None = None
        """Measured service rates for which the applications in `_to_renew` were sorted."""
        self._to_renew: dict[ApplicationId, None] = {}
        self._found: tuple[Seconds, list[ApplicationId]] | None = None
        """Cached result of `urgent` and its time; None after a change."""
        self._may_renew = 0
        """Number of applications that may be sorted again for the reports since the last query."""
        self._by_level = LazyHeap()
        """Applications sorted by a level of service (X of VTC) before which they are not urgent."""
        self._by_time = LazyHeap()
        """Applications sorted by a time before which they are not urgent."""
        self._candidates: dict[ApplicationId, _UrgentCandidate] = {}
        """Applications that may have become urgent, until they are sorted again."""
        self._told_before: dict[ApplicationId, dict[RequestId, Seconds]] = {}
        """Time of the last report of each inference that ran under an earlier scheduler."""

    # --- hooks

    def arrived(self, application: Application, now: Seconds) -> None:
        """Add an application to the model of VTC by its expected stages, unless it is there."""
        if application.application_id not in self._stages:
            self._begin_shadow(application)
            self._renew_shadow(application, now)

    def reweighed(self, application: Application, now: Seconds) -> None:
        if application.application_id in self._stages:
            self._renew_shadow(application, now)

    def submitted(self, application: Application, inference: Inference, now: Seconds) -> None:
        """Count a waiting inference by its predicted length; may be repeated."""
        name = application.application_id
        self.pace.leave(inference.request_id)
        if name not in self._stages:
            self._begin_shadow(application)
        stages = self._stages[name]
        stages.expect(application.expected_stages)
        call = call_of(inference, inference.expected_output)
        stages.begin(inference.stage, inference.request_id, call)
        self._renew_shadow(application, now)

    def dispatched(self, inference: Inference, now: Seconds) -> None:
        self.pace.begin(inference.request_id, now)

    def adopted(self, inference: Inference, now: Seconds) -> None:
        """Record an inference that runs already. Called after `submitted`."""
        told_at = self._told_before.get(inference.application_id, {})
        request_id = inference.request_id
        self.pace.begin(request_id, now, told_at.pop(request_id, None))

    def served(self, deliveries: Sequence[Delivery], now: Seconds) -> None:
        """Advance the model of VTC by a report, and measure the speed of the replicas."""
        self._found = None
        self._may_renew += len(deliveries)
        self._advance_shadows(self.pace.observe(deliveries, now), now)

    def ended(self, application: Application, inference: Inference, now: Seconds) -> None:
        """Count the true sizes of an ended inference; drop one without output."""
        self.pace.leave(inference.request_id)
        stages = self._stages.get(application.application_id)
        if stages is None:
            return
        made = inference.output_tokens
        call = call_of(inference, made) if made else None
        stages.end(inference.stage, inference.request_id, call)
        self._renew_shadow(application, now)

    def application_ended(self, application: Application, now: Seconds) -> None:
        """Drop an ended application's deadline.

        Its shadow runs until VTC would have finished it.
        """
        name = application.application_id
        stages = self._stages.get(name)
        if stages is None:
            return
        stages.expect_no_more()
        if name in self.clock.shadows and stages.has_calls:
            self._renew_shadow(application, now)
            self.clock.release(name)
        else:
            self.clock.remove(name)
        del self._stages[name]
        self._told_before.pop(name, None)
        self._found = None
        self._by_level.drop(name)
        self._by_time.drop(name)
        self._candidates.pop(name, None)

    # --- queries

    def deadline(self, application_id: ApplicationId, now: Seconds) -> Seconds | None:
        """Return when an application would end under VTC; None if stages or rates are unknown."""
        if application_id not in self._stages or application_id not in self.clock.shadows:
            return None
        return self.clock.ends_at(application_id, now)

    def critical_path(self, application_id: ApplicationId) -> CriticalPath:
        """Return the longest remaining path of an application, by its known stages.

        A running inference counts as a whole, because urgency matters only for waiting inferences.
        """
        stages = self._stages.get(application_id)
        return CriticalPath(0, 0) if stages is None else stages.path()

    def is_urgent(self, application_id: ApplicationId, now: Seconds) -> bool:
        """Return whether an application has just time for its longest path before its deadline."""
        deadline = self.deadline(application_id, now)
        return deadline is not None and self._is_urgent(application_id, deadline, now)

    def urgent(
        self, now: Seconds, waits: Callable[[ApplicationId], bool] | None = None
    ) -> list[ApplicationId]:
        """Return the urgent applications, by deadline, then by arrival.

        Args:
            now: The time; the result is cached until the time changes or an event arrives.
            waits: Returns whether an application has an inference to start; others are skipped.
                None: all may have one.
        """
        if self._found is not None and self._found[0] == now:
            return self._found[1]
        self._sort_changed_applications()
        for heap, reached in ((self._by_level, self.clock.level), (self._by_time, now)):
            while (name := heap.first()) is not None and heap.key(name)[0] <= reached:
                heap.drop(name)
                self._candidates[name] = self._candidate_of(name)
        found = []
        for name in self._close_candidates():
            if waits is not None and not waits(name):
                continue
            deadline = self.deadline(name, now)
            if deadline is not None and self._is_urgent(name, deadline, now):
                found.append((deadline, self.clock.shadows[name].sequence, name))
        self._found = (now, [name for _, _, name in sorted(found)])
        return self._found[1]

    # --- durable state

    def state(self) -> dict[str, Any]:
        """Return the state of the model of VTC without live applications, as JSON."""
        clock = self.clock
        shadows = clock.shadows.items()
        return {
            "level": clock.level,
            "owed": clock.owed,
            "kv_tokens": clock.kv_in_flight,
            "cohorts": clock.flights.state(),
            "pace": self.pace.state(),
            "ended": {name: record_of(shadow) for name, shadow in shadows if shadow.released},
        }

    def application_state(self, application_id: ApplicationId) -> dict[str, Any] | None:
        """Return a live application's state in the model of VTC, as JSON; or None.

        Running inferences are submitted again after a restart.
        """
        stages = self._stages.get(application_id)
        shadow = self.clock.shadows.get(application_id)
        if stages is None or shadow is None:
            return None
        return {
            "shadow": record_of(shadow),
            "submitted": [[*stage.ended] for stage in stages.submitted],
            "told_at": {
                **self._told_before.get(application_id, {}),
                **self.pace.told_at(stages.running()),
            },
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a result of `state`, before any event.

        From a state of release 0.2.0, with another kind of shadow, only the pace is restored.

        Raises:
            ValueError: If the state has another form.
        """
        if "owed" not in state:
            self.pace.restore(RecordReader(state, ("level", "pace", "ended"), None).mapping("pace"))
            return
        fields = ("level", "owed", "kv_tokens", "cohorts", "pace", "ended")
        reader = RecordReader(state, fields, None)
        self.pace.restore(reader.mapping("pace"))
        self.clock.level, self.clock.owed = reader.number("level"), reader.number("owed")
        self.clock.kv_in_flight = reader.not_negative("kv_tokens")
        self.clock.flights.restore(reader.value("cohorts"))
        for name, record in reader.mapping("ended").items():
            self.clock.restore_shadow(name, restored(record))

    def restore_application(self, application: Application, state: Mapping[str, Any]) -> None:
        """Restore a result of `application_state`, after `restore`.

        A state of release 0.2.0 is ignored: the application's prediction starts when it submits, as
        if it arrived then.

        Raises:
            ValueError: If the state has another form.
        """
        name = application.application_id
        if "gap_until" in RecordReader(state, ("shadow",), None).mapping("shadow"):
            return
        reader = RecordReader(state, ("shadow", "submitted", "told_at"))
        ended = [*read_stages(reader, "submitted")]
        told_at = reader.table("told_at", RecordReader.number)
        self.clock.remove(name)
        self.clock.restore_shadow(name, restored(reader.value("shadow")))
        self._stages[name] = KnownStages(application.expected_stages, ended)
        self._told_before[name] = told_at

    def _is_urgent(self, name: ApplicationId, deadline: Seconds, now: Seconds) -> bool:
        path = _length_with_margin(self.critical_path(name))
        return now >= deadline - path.seconds(self.pace.iteration_s)

    def _begin_shadow(self, application: Application) -> None:
        """Start to predict an application under VTC, in place of an ended one with this id."""
        self.clock.remove(application.application_id)
        self._stages[application.application_id] = KnownStages(application.expected_stages)

    def _advance_shadows(self, amount: KvTokenTime, now: Seconds) -> None:
        """Advance the model of VTC by delivered service, with the present tokens in flight."""
        kv_in_flight = self._kv_in_flight()
        if kv_in_flight is not None:
            self.clock.kv_in_flight = kv_in_flight
        self.clock.advance(amount, now)

    def _renew_shadow(self, application: Application, now: Seconds) -> None:
        """Update an application in the model of VTC to its stages as currently known."""
        self._found = None
        name = application.application_id
        self._advance_shadows(0, now)
        if not (stages := self._stages[name].all()):
            return
        if name in self.clock.shadows:
            self.clock.change(name, stages, application.weight)
        else:
            self.clock.add(name, application.weight, application.sequence, stages)
        self.clock.advance(0, now)

    def _sort_changed_applications(self) -> None:
        """Sort changed applications by urgency, and others if the service rates have changed."""
        moved = self.clock.take_moved_applications()
        if self.pace.kv_per_s is None:
            return
        rates = _UrgencyRates(self.pace.kv_per_s, self.pace.iteration_s, self.clock.density.total)
        if self._rates is None or not rates.has_similar_rates(self._rates):
            self._rates, self._to_renew = rates, {}
            moved = [*self.clock.shadows]
        elif (
            self._to_renew
            and self._former is not None
            and not rates.has_similar_rates(self._former)
        ):
            moved += self._to_renew
            self._to_renew = {}
        elif not self._to_renew and not rates.has_similar_rates(self._rates, _UPDATE_RATE_FACTOR):
            self._former, self._rates = self._rates, rates
            self._to_renew = dict.fromkeys(self.clock.shadows)
        for _ in range(min(max(1, self._may_renew), len(self._to_renew))):
            moved.append(self._to_renew.popitem()[0])
        self._may_renew = 0
        for name in moved:
            if name in self._stages and name in self.clock.shadows:
                self._sort_candidate(name, self._rates)

    def _urgent_before_start(self, name: ApplicationId) -> CriticalPath:
        """Return the time before its last start from which an application is urgent."""
        path, tail = (
            _length_with_margin(self._stages[name].path()),
            self.clock.shadows[name].stages[-1],
        )
        return CriticalPath(path.iterations - tail.output_tokens, path.gap_s)

    def _candidate_of(self, name: ApplicationId) -> _UrgentCandidate:
        shadow = self.clock.shadows[name]
        if shadow.is_through:
            return _UrgentCandidate(shadow, 0, CriticalPath(math.inf, 0))
        level = shadow.level_of_end() if shadow.density else 0
        return _UrgentCandidate(shadow, level, self._urgent_before_start(name))

    def _close_candidates(self) -> list[ApplicationId]:
        """Return applications whose last inference VTC may soon start, which makes them urgent."""
        if (kv_per_s := self.pace.kv_per_s) is None:
            return []
        level, iteration_s = self.clock.level, self.pace.iteration_s
        wait_s, level_s = self.clock.rise(kv_per_s)
        found = []
        for name, (shadow, end, lead) in self._candidates.items():
            spare_s = lead.seconds(iteration_s) - wait_s
            if spare_s >= 0 and (end - shadow.ahead(level)) * level_s <= spare_s:
                found.append(name)
        return found

    def _sort_candidate(self, name: ApplicationId, rates: _UrgencyRates) -> None:
        """Sort an application by a level or a time before which it is certainly not urgent."""
        shadow, lead = self.clock.shadows[name], self._urgent_before_start(name)
        spare_s = rates.least_duration_s(-lead.iterations) - lead.gap_s
        self._candidates.pop(name, None)
        if shadow.density and not shadow.is_through:
            levels = max(0, -spare_s) / rates.least_wait_s(1, 0)
            level = shadow.before(shadow.level_of_end() - levels)
            self._by_time.drop(name)
            self._by_level.put(name, (level, shadow.sequence))
            return
        if shadow.is_through:
            starts_at = shadow.last_started_at or 0
        else:
            levels = shadow.level_of_end() - shadow.level_of_next
            starts_at = shadow.ready_at + rates.least_wait_s(max(0, levels), shadow.ratio())
        self._by_level.drop(name)
        self._by_time.put(name, (starts_at + spare_s, shadow.sequence))
