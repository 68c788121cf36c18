"""When VTC would end each live application, and who is urgent because of that.

`shadow` says what VTC would have started by now, with the stages of each application as they are
known (`known_stages`). Looking ahead, a level is taken to cost what it does now: the sum of ω·k/w
over those that will ask for more, at the present pace. An application's *deadline* is when VTC ends
it. It is *urgent* when little more than what remains of its own longest path fits before that:
now ≥ deadline − path − margin. The margin is as long as the path, and 150 iterations at most: with
150 for all, short applications would be urgent from the first.

An application that ends keeps its shadow until that is through, as VTC would still be serving it:
without that the others are foretold twice too early.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from justitia_ray.core.policies.guarded.known_stages import CriticalPath, KnownStages, call_of
from justitia_ray.core.policies.guarded.pace import Pace
from justitia_ray.core.policies.guarded.shadow import Shadow, ShadowClock, record_of, restored
from justitia_ray.core.queue import LazyHeap
from justitia_ray.core.records import RecordReader
from justitia_ray.core.stages import read_stages
from justitia_ray.units import ApplicationId, KvTokenTime, RequestId, Seconds

if TYPE_CHECKING:
    from justitia_ray.core.entities import Application, Inference
    from justitia_ray.core.policies.base import Delivery

_MARGIN_ITERATIONS = 150
"""Most by which an application becomes urgent before its longest path must begin, in iterations:
4.5 s of a 7B model on an A10G."""
_BAND = 2.0
"""Factor by which rates may move before a place in the order of urgency says nothing any more."""
_RENEWED_FROM = 1.5
"""Factor from which on the places are made anew, one for each inference that a report names."""


def _with_margin(path: CriticalPath) -> CriticalPath:
    """Return a path longer by the margin: how long before its deadline one is urgent."""
    margin = min(_MARGIN_ITERATIONS, path.iterations)
    return CriticalPath(path.iterations + margin, path.gap_s)


class _Rates(NamedTuple):
    """The rates by which places in the order of urgency were made."""

    kv_per_s: float
    iteration_s: Seconds
    density: float

    def is_near(self, other: _Rates, band: float = _BAND) -> bool:
        """Return whether no rate is further from its other than the band."""
        for here, there in zip(self, other, strict=True):
            if here != there and not (there and 1 / band < here / there < band):
                return False
        return True

    def least_wait_s(self, levels: float, own_density: float) -> Seconds:
        """Return the least time that X may take for so many levels, within the band."""
        return levels * (self.density / _BAND + own_density) / (self.kv_per_s * _BAND)

    def least_s(self, iterations: float) -> Seconds:
        """Return the least that iterations may take within the band; they may be below 0."""
        factor = 1 / _BAND if iterations > 0 else _BAND
        return iterations * self.iteration_s * factor


class _Candidate(NamedTuple):
    """An application that may be urgent, with what tells cheaply that it is not.

    It is urgent some iterations and a gap before its last inference starts under VTC.
    """

    shadow: Shadow
    level_of_end: float
    """Level before which that does not start; 0: no level keeps it from starting."""
    lead: CriticalPath
    """The iterations, which may be below 0, and the gap."""


class ForetoldVtc:
    """Deadlines of live applications by a shadow of VTC, and which of them are urgent.

    A policy passes on its hooks, in their order; `now` never falls. Between two questions each
    event costs O(log N), and O(n) for an application with n stages. `urgent` costs O(c) for c
    candidates, applications that would be urgent if X were up to four times as fast, and an
    iteration twice as long; O(n) for each whose deadline the level alone does not put off; and
    O(u log u) for the u that are urgent. While rates move, all are placed anew, one for each
    inference of a report; all at once, in O(N log N), only after a leap out of the band in which
    that holds.

    Args:
        kv_tokens: Returns the KV memory of the replicas, or the part of it that is shared here;
            None: what it was.
        pace: The speed of the replicas.
    """

    def __init__(self, kv_tokens: Callable[[], float | None], pace: Pace | None = None) -> None:
        self._kv_tokens = kv_tokens
        self.pace = Pace() if pace is None else pace
        self.clock = ShadowClock(self.pace)
        self._stages: dict[ApplicationId, KnownStages] = {}
        self._rates: _Rates | None = None
        """Rates that places are made by; None while no service is known."""
        self._former: _Rates | None = None
        """Rates that those of `_to_renew` are of."""
        self._to_renew: dict[ApplicationId, None] = {}
        self._found: tuple[Seconds, list[ApplicationId]] | None = None
        """The last answer of `urgent` and its instant; None: something has changed since."""
        self._may_renew = 0
        """How many places may be made anew for what has been reported since the last question."""
        self._by_level = LazyHeap()
        """Applications in a stage, by a level before which they are not urgent."""
        self._by_time = LazyHeap()
        """All others of which a deadline is known, by an instant before which they are not."""
        self._candidates: dict[ApplicationId, _Candidate] = {}
        """Applications whose level or instant has come, until they are placed anew."""
        self._told_before: dict[ApplicationId, dict[RequestId, Seconds]] = {}
        """When the last scheduler was told of what runs, until that is adopted."""

    # --- hooks

    def arrived(self, application: Application, now: Seconds) -> None:
        """Begin a shadow with the stages that are expected; nothing if none are, or if known."""
        if application.application_id not in self._stages:
            self._begin(application)
            self._renew(application, now)

    def reweighed(self, application: Application, now: Seconds) -> None:
        """Note the weight of an application; also done with all that it submits."""
        if application.application_id in self._stages:
            self._renew(application, now)

    def submitted(self, application: Application, inference: Inference, now: Seconds) -> None:
        """Count an inference that is about to wait, by its predicted length; again: no change."""
        name = application.application_id
        self.pace.leave(inference.request_id)
        if name not in self._stages:
            self._begin(application)
        stages = self._stages[name]
        stages.expect(application.expected_stages)
        call = call_of(inference, inference.expected_output)
        stages.begin(inference.stage, inference.request_id, call)
        self._renew(application, now)

    def dispatched(self, inference: Inference, now: Seconds) -> None:
        """Note that an inference was leased."""
        self.pace.begin(inference.request_id, now)

    def adopted(self, inference: Inference, now: Seconds) -> None:
        """Note that an inference runs that was leased before; told of again after `submitted`."""
        told_at = self._told_before.get(inference.application_id, {})
        request_id = inference.request_id
        self.pace.begin(request_id, now, told_at.pop(request_id, None))

    def served(self, deliveries: Sequence[Delivery], now: Seconds) -> None:
        """Raise the level by the service of a report, and measure the pace."""
        self._found = None
        self._may_renew += len(deliveries)
        self._advance(self.pace.observe(deliveries, now), now)

    def ended(self, application: Application, inference: Inference, now: Seconds) -> None:
        """Count the true sizes of an inference; nothing of one that produced nothing."""
        self.pace.leave(inference.request_id)
        stages = self._stages.get(application.application_id)
        if stages is None:
            return
        made = inference.output_tokens
        call = call_of(inference, made) if made else None
        stages.end(inference.stage, inference.request_id, call)
        self._renew(application, now)

    def application_ended(self, application: Application, now: Seconds) -> None:
        """Tell no more of an application; its shadow goes on with what it has submitted."""
        name = application.application_id
        stages = self._stages.get(name)
        if stages is None:
            return
        stages.expect_no_more()
        if name in self.clock.shadows and stages.has_calls:
            self._renew(application, now)
            self.clock.release(name)
        else:
            self.clock.remove(name)
        del self._stages[name]
        self._told_before.pop(name, None)
        self._found = None
        self._by_level.drop(name)
        self._by_time.drop(name)
        self._candidates.pop(name, None)

    # --- answers

    def deadline(self, application_id: ApplicationId, now: Seconds) -> Seconds | None:
        """Return when VTC would have ended it; None if its stages or the pace are not known."""
        if application_id not in self._stages or application_id not in self.clock.shadows:
            return None
        return self.clock.ends_at(application_id, now)

    def critical_path(self, application_id: ApplicationId) -> CriticalPath:
        """Return the longest path of what an application has not done yet, by what is known.

        A call that runs counts whole: only what waits asks whether it is urgent.
        """
        stages = self._stages.get(application_id)
        return CriticalPath(0, 0) if stages is None else stages.path()

    def is_urgent(self, application_id: ApplicationId, now: Seconds) -> bool:
        """Return whether nothing but its own longest path fits before its deadline."""
        deadline = self.deadline(application_id, now)
        return deadline is not None and self._is_urgent(application_id, deadline, now)

    def urgent(
        self, now: Seconds, waits: Callable[[ApplicationId], bool] | None = None
    ) -> list[ApplicationId]:
        """Return the applications that are urgent now: by deadline, then by arrival.

        Args:
            now: The instant; asked again at one, it answers what it did if nothing was told since.
            waits: Tells whether an application has anything to start, for the others need not be
                looked at; None: all may have.
        """
        if self._found is not None and self._found[0] == now:
            return self._found[1]
        self._place_moved()
        for heap, reached in ((self._by_level, self.clock.level), (self._by_time, now)):
            while (name := heap.first()) is not None and heap.key(name)[0] <= reached:
                heap.drop(name)
                self._candidates[name] = self._candidate(name)
        found = []
        for name in self._close():
            if waits is not None and not waits(name):
                continue
            deadline = self.deadline(name, now)
            if deadline is not None and self._is_urgent(name, deadline, now):
                found.append((deadline, self.clock.shadows[name].sequence, name))
        self._found = (now, [name for _, _, name in sorted(found)])
        return self._found[1]

    # --- what outlives the scheduler

    def state(self) -> dict[str, Any]:
        """Return level, memory and pace, and the shadows of ended applications, as JSON."""
        clock = self.clock
        shadows = clock.shadows.items()
        return {
            "level": clock.level,
            "owed": clock.owed,
            "kv_tokens": clock.kv_tokens,
            "cohorts": clock.flights.state(),
            "pace": self.pace.state(),
            "ended": {name: record_of(shadow) for name, shadow in shadows if shadow.released},
        }

    def application_state(self, application_id: ApplicationId) -> dict[str, Any] | None:
        """Return what is known of a live application beside what it runs, as JSON; None: nothing.

        What it runs is submitted again to whoever restores it.
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
        """Restore what `state` returned, into an object that has been told nothing.

        Of a state of release 0.2.0, whose shadow was another, the pace alone.

        Raises:
            ValueError: If it is not of that form.
        """
        if "owed" not in state:
            self.pace.restore(RecordReader(state, ("level", "pace", "ended"), None).mapping("pace"))
            return
        fields = ("level", "owed", "kv_tokens", "cohorts", "pace", "ended")
        reader = RecordReader(state, fields, None)
        self.pace.restore(reader.mapping("pace"))
        self.clock.level, self.clock.owed = reader.number("level"), reader.number("owed")
        self.clock.kv_tokens = reader.not_negative("kv_tokens")
        self.clock.flights.restore(reader.value("cohorts"))
        for name, record in reader.mapping("ended").items():
            self.clock.put_back(name, restored(record))

    def restore_application(self, application: Application, state: Mapping[str, Any]) -> None:
        """Restore what `application_state` returned, after `restore`.

        One of release 0.2.0 is foretold anew when it submits, as if it came then.

        Raises:
            ValueError: If it is not of that form.
        """
        name = application.application_id
        if "gap_until" in RecordReader(state, ("shadow",), None).mapping("shadow"):
            return
        reader = RecordReader(state, ("shadow", "submitted", "told_at"))
        ended = [*read_stages(reader, "submitted")]
        told_at = reader.table("told_at", RecordReader.number)
        self.clock.remove(name)
        self.clock.put_back(name, restored(reader.value("shadow")))
        self._stages[name] = KnownStages(application.expected_stages, ended)
        self._told_before[name] = told_at

    def _is_urgent(self, name: ApplicationId, deadline: Seconds, now: Seconds) -> bool:
        path = _with_margin(self.critical_path(name))
        return now >= deadline - path.seconds(self.pace.iteration_s)

    def _begin(self, application: Application) -> None:
        """Begin with the stages expected; an ended application of this id is forgotten."""
        self.clock.remove(application.application_id)
        self._stages[application.application_id] = KnownStages(application.expected_stages)

    def _advance(self, amount: KvTokenTime, now: Seconds) -> None:
        """Let service flow, into the memory that there is now."""
        kv_tokens = self._kv_tokens()
        if kv_tokens is not None:
            self.clock.kv_tokens = kv_tokens
        self.clock.advance(amount, now)

    def _renew(self, application: Application, now: Seconds) -> None:
        """Let the shadow have the stages as they are known now."""
        self._found = None
        name = application.application_id
        self._advance(0, now)
        if not (stages := self._stages[name].all()):
            return
        if name in self.clock.shadows:
            self.clock.change(name, stages, application.weight)
        else:
            self.clock.add(name, application.weight, application.sequence, stages)
        self.clock.advance(0, now)  # it may be through with its stage, or its last may start

    def _place_moved(self) -> None:
        """Put at their places those that moved, and some or all others if the rates have."""
        moved = self.clock.take_moved()
        if self.pace.kv_per_s is None:
            return
        rates = _Rates(self.pace.kv_per_s, self.pace.iteration_s, self.clock.density.total)
        if self._rates is None or not rates.is_near(self._rates):
            self._rates, self._to_renew = rates, {}
            moved = [*self.clock.shadows]
        elif self._to_renew and self._former is not None and not rates.is_near(self._former):
            moved += self._to_renew
            self._to_renew = {}
        elif not self._to_renew and not rates.is_near(self._rates, _RENEWED_FROM):
            self._former, self._rates = self._rates, rates
            self._to_renew = dict.fromkeys(self.clock.shadows)
        for _ in range(min(max(1, self._may_renew), len(self._to_renew))):
            moved.append(self._to_renew.popitem()[0])
        self._may_renew = 0
        for name in moved:
            if name in self._stages and name in self.clock.shadows:
                self._place(name, self._rates)

    def _lead(self, name: ApplicationId) -> CriticalPath:
        """Return how long before the start of its last inference an application is urgent."""
        path, tail = _with_margin(self._stages[name].path()), self.clock.shadows[name].stages[-1]
        return CriticalPath(path.iterations - tail.output_tokens, path.gap_s)

    def _candidate(self, name: ApplicationId) -> _Candidate:
        shadow = self.clock.shadows[name]
        if shadow.is_through:
            return _Candidate(shadow, 0, CriticalPath(math.inf, 0))
        level = shadow.level_of_end() if shadow.density else 0
        return _Candidate(shadow, level, self._lead(name))

    def _close(self) -> list[ApplicationId]:
        """Return the candidates that may be urgent: X puts their last start off no longer."""
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

    def _place(self, name: ApplicationId, rates: _Rates) -> None:
        """Put an application where it cannot be urgent before, while rates stay in the band."""
        shadow, lead = self.clock.shadows[name], self._lead(name)
        spare_s = rates.least_s(-lead.iterations) - lead.gap_s
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
