"""The shadow of VTC: which inferences VTC would have started by now, given the replicas' service.

VTC (OSDI 2024) charges an inference p + 2d and starts next the waiting inference of the client with
the smallest counter. So all waiting clients are served up to one *level* X, in tokens p + 2d per
unit of weight, and whole inferences ahead of it: a started inference is never held back. For a
stage with n inferences, w = Σ (p + 2d), k = Σ h(p, d) and L = max d, of an application of weight ω:

- It is entered at a level e, and its first inference starts at once; the others start while X rises
  to Y = e + w/ω·(n − 1)/n.
- Its last inference starts when X is at Y, and ends L iterations later. Then its tool gap passes,
  in wall time, and the next stage waits for X to reach e + w/ω, the counter of the application; it
  is entered at the level of X at that time.

Started work is *owed* until the replicas have served the same amount: k/n for a first inference,
and ρ for each level by which X rises, where ρ is the sum of ω·k/w over stages whose other
inferences start. X rises only while no more work is owed than VTC would have in flight. That amount
is the remaining work of everything started, each inference running for its length in time
(`flights`), plus each free token times the mean length of the inferences that start now; tokens are
free as long as the inferences in flight have fewer than those on full replicas. If more runs than
fits, the excess is subtracted. So on empty replicas all inferences
start at once, and on full replicas new applications delay X, but a long application only by the
memory that it holds. The inferences that really run are a worse estimate: in the service's own
order short inferences run now and a long one later. If no application waits, X moves to the next
level with an event.

A fluid model that serves all evenly, and nothing ahead of the level, raises X up to 1.4 times too
fast while the number of applications rises, and predicts that long applications end a quarter
early.

New applications take most of the service, and X rises by the remainder: when VTC served 1.5 % more
in five minutes than the order of the service did, X rose by 9 % less than VTC's level (seed 201 of
the suite, at 3x). So the time at which an application ends is predicted as if X had risen by a
sixth more since its arrival.

When a stage changes, the work owed to its first inference changes by the difference. Changes of
stages that the shadow has left have no effect.

An application is *through* when the last inference of its last stage has started; it ends L
iterations later. The result is exact in the arithmetic of its arguments, however often service is
reported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from justitia_ray.core.policies.guarded.flights import Flights
from justitia_ray.core.policies.guarded.pace import Pace
from justitia_ray.core.queue import LazyHeap
from justitia_ray.core.records import Fields, Record, RecordReader, read_fields
from justitia_ray.core.stages import ExpectedStage, read_stages
from justitia_ray.units import ApplicationId, KvTokenTime, Seconds

_AHEAD = 6
"""Safety margin: the end of an application is predicted as if VTC's level X had risen by one part
in `_AHEAD` more.
"""


@dataclass(slots=True)
class Shadow:
    """An application in the model of VTC, with its current stage."""

    weight: float
    sequence: int
    stages: list[ExpectedStage]
    came: float = 0
    """Level X of VTC when the application arrived."""
    at: int = 0
    """Number of the stage that the application entered last."""
    entered: float = 0
    """Level X of VTC when the application entered its current stage."""
    owed: KvTokenTime = 0
    """Service that VTC owes the first inference of the current stage."""
    first_since: Seconds = 0
    """Time at which VTC started the first inference of the current stage."""
    first_until: Seconds = 0
    """Time at which VTC ends the first inference of the current stage."""
    first_iteration_s: Seconds = 0
    """Length of an iteration when the first inference started. Later changes do not move its end.
    """
    last_started_at: Seconds | None = None
    """Time at which VTC started the last inference of the current stage; None: not yet."""
    ready_at: Seconds = 0
    """Time from which VTC may start the application's next stage; undefined before the last
    inference of the current stage has started.
    """
    released: bool = False
    """Whether the application has ended. The model drops it when it has completed its stages there.
    """
    density: float = 0
    """Service that the application requests while VTC's level X rises by 1: ω·k/w, or 0."""
    lasting: float = 0
    """Product of `density` and the mean length of the stage's inferences in iterations."""
    starting: float = 0
    """Service that this stage starts while VTC's level X rises by 1: ω·k/w, or 0 if no inference of
    the stage starts with X.
    """
    starting_lasting: float = 0
    """Product of `starting` and the mean length of the stage's inferences in iterations."""

    @property
    def is_through(self) -> bool:
        """Return whether VTC has started the last inference of the application."""
        return self.at >= len(self.stages) or (self.is_last and self.last_started_at is not None)

    @property
    def is_last(self) -> bool:
        """Return whether no stage follows the current stage."""
        return self.at == len(self.stages) - 1

    @property
    def level_of_last(self) -> float:
        """Return VTC's level X at which the last inference of the stage starts."""
        return self.entered + _levels_of_starts(self.stages[self.at], self.weight)

    @property
    def level_of_next(self) -> float:
        """Return VTC's level X from which on the application may enter the next stage."""
        return self.entered + self.stages[self.at].compute_tokens / self.weight

    def ahead(self, level: float) -> float:
        """Return the level by which an end is predicted when VTC's level X is at `level`."""
        return level + (level - self.came) / _AHEAD

    def before(self, level: float) -> float:
        return self.came + (level - self.came) * _AHEAD / (_AHEAD + 1)

    def ratio(self) -> float:
        stage = self.stages[self.at]
        if not stage.compute_tokens:
            return 0
        return self.weight * stage.kv_token_time / stage.compute_tokens

    def level_of_end(self) -> float:
        """Return VTC's lowest level X at which the application's last inference can start."""
        if self.is_last:
            return self.level_of_last
        *between, last = self.stages[self.at + 1 :]
        tokens = sum(stage.compute_tokens for stage in between)
        return self.level_of_next + tokens / self.weight + _levels_of_starts(last, self.weight)


class Rise(NamedTuple):
    """Predicted rise of VTC's level X from now on."""

    wait_s: Seconds
    """Seconds until VTC's level X rises again."""
    level_s: Seconds
    """Seconds in which VTC's level X rises by 1, once it rises."""


class VtcModel:
    """Model of the policy VTC: its level X and its applications. A step costs O(log N).

    Service is assumed even between two calls of `advance`.

    Args:
        pace: The speed of the replicas.

    Attributes:
        kv_in_flight: KV tokens of the inferences on full replicas, each counted whole; 0 until it
            is set.
    """

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.kv_in_flight: float = 0
        self.level: float = 0
        self.owed: KvTokenTime = 0
        """Service of all inferences that VTC has started, less the service that the replicas
        delivered.
        """
        self.flights = Flights()
        """Inferences that VTC has started and not ended."""
        self.shadows: dict[ApplicationId, Shadow] = {}
        self.density = WeightSum()
        """Service that applications request while VTC's level X rises by 1."""
        self._lasting = WeightSum()
        """Lengths of inferences that start as VTC's level X rises, weighted by the service
        requested.
        """
        self._starting = WeightSum()
        """Service that VTC starts while its level X rises by 1."""
        self._starting_lasting = WeightSum()
        """Lengths of inferences that start as VTC's level X rises, weighted by the service started.
        """
        self._now: Seconds = -math.inf
        """Time at which VTC's level X reached its present value; minus infinity before the first
        `advance`.
        """
        self._by_level = LazyHeap()
        """Applications by VTC's level X at their next event."""
        self._by_time = LazyHeap()
        """Applications by the time at which they request their next stage."""
        self._moved: dict[ApplicationId, None] = {}

    def take_moved_applications(self) -> list[ApplicationId]:
        """Return the applications whose predictions changed since the last call."""
        moved, self._moved = self._moved, {}
        return [name for name in moved if name in self.shadows]

    def add(
        self, name: ApplicationId, weight: float, sequence: int, stages: Sequence[ExpectedStage]
    ) -> None:
        """Add an application, which enters its first stage now."""
        shadow = self.shadows[name] = Shadow(weight, sequence, [*stages], self.level)
        self._enter_stage(name, shadow, 0)

    def restore_shadow(self, name: ApplicationId, shadow: Shadow) -> None:
        """Restore an application into the model of VTC."""
        self.shadows[name] = shadow
        self._start_flight(name, shadow)
        self._sort_application(name, shadow)

    def remove(self, name: ApplicationId) -> None:
        """Remove an application at once, with the work owed to it.

        An unknown application is ignored.
        """
        shadow = self.shadows.pop(name, None)
        if shadow is not None:
            self._remove_from_order(name, shadow)
            self.flights.end(name)
            self.owed = max(0, self.owed - shadow.owed)

    def release(self, name: ApplicationId) -> None:
        """Remove an application as soon as it has completed its stages under VTC."""
        shadow = self.shadows[name]
        shadow.released = True
        self._forget_released(name, shadow)

    def change(self, name: ApplicationId, stages: Sequence[ExpectedStage], weight: float) -> None:
        """Replace the expected stages and the weight of an application.

        Tokens served in its present stage stay served. If the application has entered more stages
        than there are now, it has completed all.
        """
        shadow = self.shadows[name]
        had_left, shadow.stages = shadow.at >= len(shadow.stages), [*stages]
        if weight != shadow.weight:
            shadow.entered = self.level - (self.level - shadow.entered) * shadow.weight / weight
            shadow.weight = weight
        if shadow.at >= len(stages):
            if shadow.last_started_at is None:
                shadow.last_started_at = self._now
            shadow.at = len(stages)
            self._sort_application(name, shadow)
        elif had_left:
            self._enter_stage(name, shadow, shadow.at)
        else:
            self._set_debt(name, shadow)
            if shadow.last_started_at is not None:
                self._schedule_next_stage(shadow, shadow.last_started_at)
            self._sort_application(name, shadow)

    def advance(self, amount: KvTokenTime, now: Seconds) -> None:
        """Serve `amount` evenly over the time from the last call to `now`."""
        self._now = now if self._now == -math.inf else min(self._now, now)
        lacking = self._process_events()
        while amount > 0 or self._now < now:
            short = self._service_until_cohort()
            if short == 0 and amount > self.flights.rate * (now - self._now):
                self.flights.open(self._now, self.pace.iteration_s)
            until = min(self._by_time.least_value(), self.flights.next_change, now)
            part = amount
            if until < now:
                part = amount * (until - self._now) / (now - self._now)
            gained = part - self.flights.rate * (until - self._now)
            wanted = short or lacking
            if wanted <= gained:
                part *= wanted / gained
                self._now = min(self._now + (until - self._now) * wanted / gained, until)
                self.owed -= part
                if short:
                    self.flights.open(self._now, self.pace.iteration_s)
                else:
                    self._rise_to_level()
            else:
                self._now = until
                self.owed -= part
                if gained > 0:
                    # Service before an event is delivered before the event is processed.
                    self._start_what_fits()
            amount -= part
            lacking = self._process_events()

    def ends_at(self, name: ApplicationId, now: Seconds) -> Seconds | None:
        """Return when VTC would end an application at the present speed; None if unknown.

        Each level is assumed to cost as much as now. O(stages).
        """
        shadow, iteration_s = self.shadows[name], self.pace.iteration_s
        tail_s = shadow.stages[-1].output_tokens * iteration_s
        if shadow.is_through:
            return (shadow.last_started_at or 0) + tail_s
        if (kv_per_s := self.pace.kv_per_s) is None:
            return None
        wait_s, level_s = self.rise(kv_per_s)
        if not shadow.density:
            level_s += shadow.ratio() / kv_per_s
        level = shadow.ahead(self.level)
        if shadow.last_started_at is None:
            wait_s += max(0, shadow.level_of_last - level) * level_s
            if shadow.is_last:
                return now + wait_s + tail_s
            stage = shadow.stages[shadow.at]
            rest = stage.compute_tokens / shadow.weight - _levels_of_starts(stage, shadow.weight)
            wait_s += max(rest * level_s, stage.output_tokens * iteration_s + stage.gap_s)
        else:
            wait_s += max(0, shadow.level_of_next - level) * level_s
            wait_s = max(wait_s, shadow.ready_at - now)
        for stage in shadow.stages[shadow.at + 1 : -1]:
            starts = _levels_of_starts(stage, shadow.weight)
            rest = stage.compute_tokens / shadow.weight - starts
            path_s = stage.output_tokens * iteration_s + stage.gap_s
            wait_s += starts * level_s + max(rest * level_s, path_s)
        wait_s += _levels_of_starts(shadow.stages[-1], shadow.weight) * level_s
        return now + wait_s + tail_s

    def rise(self, kv_per_s: float) -> Rise:
        """Return the future course of VTC's level X if no application arrives or ends."""
        overdue = max(0, self.owed - self._in_flight())
        return Rise(overdue / kv_per_s, self.density.total / kv_per_s)

    def _in_flight(self) -> KvTokenTime:
        """Return the service of VTC's running inferences; infinite if no application waits."""
        if not self.density.total:
            return math.inf
        free = self.kv_in_flight - self.flights.held_rate * self.pace.iteration_s
        if not self._starting.total:
            free = max(0, free)
        return self.flights.rest(self._now) + free * self._mean_length()

    def _mean_length(self) -> float:
        if self._starting.total:
            return self._starting_lasting.total / self._starting.total
        return self._lasting.total / self.density.total

    def _start_inferences(self, service: KvTokenTime) -> None:
        """Start inferences in all stages whose inferences start as VTC's level X rises."""
        if service:
            self.owed += service
            iteration_s = self.pace.iteration_s
            self.flights.open(self._now, iteration_s)
            self.flights.gather(service, self._mean_length() * iteration_s)

    def _service_until_cohort(self) -> KvTokenTime | None:
        if not self._starting.total or self.flights.gathers:
            return None
        return max(0, self.owed - self._in_flight())

    def _process_events(self) -> KvTokenTime:
        """Process all events that are due; return the service until the next one."""
        while True:
            while self.flights.next_change <= self._now:
                if (name := self.flights.pass_next()) is not None:
                    self._forget_released(name, self.shadows[name])
            while self._by_time.least_value() <= self._now:
                self._start_first_inference(self._by_time)
            lacking = self._start_what_fits()
            if lacking > 0:
                return lacking
            self._rise_to_level()

    def _start_what_fits(self) -> KvTokenTime:
        """Start work that fits the memory; return the service missing to the next level."""
        if not self._starting.total:
            # If no application waits, VTC owes at least the work of all running inferences.
            self.owed = max(self.flights.rest(self._now), self.owed)
        level = self._by_level.least_value()
        if level == math.inf:
            return math.inf
        room, starting = self._in_flight() - self.owed, self._starting.total
        lacking = (level - self.level) * starting - room
        if lacking > 0 and room > 0 and starting:
            # Rounding must not raise VTC's level past the level of the next event.
            self.level = min(self.level + room / starting, level)
            self._start_inferences(room)
        return lacking

    def _rise_to_level(self) -> None:
        """Advance simulated VTC to its next event, and process the event."""
        level = self._by_level.least_value()
        self._start_inferences((level - self.level) * self._starting.total)
        self.level = level
        self._start_first_inference(self._by_level)

    def _start_first_inference(self, heap: LazyHeap) -> None:
        name = heap.first() or ""
        self._sort_application(name, self.shadows[name])

    def _enter_stage(self, name: ApplicationId, shadow: Shadow, at: int) -> None:
        """Let an application enter a stage at VTC's current level X."""
        shadow.at, shadow.entered, shadow.owed, shadow.last_started_at = at, self.level, 0, None
        shadow.first_since, shadow.first_iteration_s = self._now, self.pace.iteration_s
        self._set_debt(name, shadow)
        self._sort_application(name, shadow)

    def _set_debt(self, name: ApplicationId, shadow: Shadow) -> None:
        stage = shadow.stages[shadow.at]
        levels = stage.compute_tokens / (max(1, stage.inferences) * shadow.weight)
        owed = levels * shadow.ratio()
        self.owed += owed - shadow.owed
        shadow.owed = owed
        length_s = stage.mean_output_tokens * shadow.first_iteration_s
        shadow.first_until = shadow.first_since + length_s
        self._start_flight(name, shadow)

    def _start_flight(self, name: ApplicationId, shadow: Shadow) -> None:
        """Start the first inference of a stage under VTC, unless the inference has ended."""
        since, until = shadow.first_since, shadow.first_until
        if until > max(since, self._now):
            self.flights.begin(name, shadow.sequence, shadow.owed, since, until)
        else:
            self.flights.end(name)

    def _schedule_next_stage(self, shadow: Shadow, started_at: Seconds) -> None:
        """Record when the stage's last inference starts, and when the next stage begins."""
        stage = shadow.stages[shadow.at]
        shadow.last_started_at = started_at
        shadow.ready_at = started_at + stage.output_tokens * self.pace.iteration_s + stage.gap_s

    def _sort_application(self, name: ApplicationId, shadow: Shadow) -> None:
        self._moved[name] = None
        self._remove_from_order(name, shadow)
        if shadow.at >= len(shadow.stages):
            self._forget_released(name, shadow)
            return
        ratio, level = shadow.ratio(), shadow.level_of_last
        if level > self.level:
            shadow.last_started_at = None
            self._add_requester(shadow, ratio)
            shadow.starting = self._starting.add(ratio)
            shadow.starting_lasting = self._starting_lasting.add(shadow.lasting)
            self._by_level.put(name, (level, shadow.sequence))
            return
        if shadow.last_started_at is None:
            self._schedule_next_stage(shadow, self._now)
        if shadow.is_last:
            self._forget_released(name, shadow)
            return
        if (level := shadow.level_of_next) > self.level:
            self._add_requester(shadow, ratio)
            self._by_level.put(name, (level, shadow.sequence))
        if shadow.ready_at > self._now:
            self._by_time.put(name, (shadow.ready_at, shadow.sequence))
        elif level <= self.level:
            self._enter_stage(name, shadow, shadow.at + 1)

    def _add_requester(self, shadow: Shadow, ratio: float) -> None:
        """Add an application whose requested service grows as VTC's level X rises."""
        shadow.density = self.density.add(ratio)
        shadow.lasting = self._lasting.add(ratio * shadow.stages[shadow.at].mean_output_tokens)

    def _remove_from_order(self, name: ApplicationId, shadow: Shadow) -> None:
        self._by_level.drop(name)
        self._by_time.drop(name)
        shadow.density = self.density.take(shadow.density)
        shadow.lasting = self._lasting.take(shadow.lasting)
        shadow.starting = self._starting.take(shadow.starting)
        shadow.starting_lasting = self._starting_lasting.take(shadow.starting_lasting)

    def _forget_released(self, name: ApplicationId, shadow: Shadow) -> None:
        if shadow.released and shadow.is_through and name not in self.flights:
            del self.shadows[name]


class WeightSum:
    """Sum of positive terms that are added and removed; exactly 0 without terms."""

    __slots__ = ("_count", "total")

    def __init__(self) -> None:
        self.total: float = 0
        self._count = 0

    def add(self, term: float) -> float:
        """Add a term to the sum and return the term; a term of 0 is not counted."""
        if term:
            self.total += term
            self._count += 1
        return term

    def take(self, term: float) -> float:
        """Remove a term that was added; return 0."""
        if term:
            self._count -= 1
            self.total = self.total - term if self._count else 0
        return 0


_SHADOW: Fields = {
    "weight": RecordReader.positive,
    "sequence": RecordReader.integer,
    "came": RecordReader.number,
    "at": RecordReader.integer,
    "entered": RecordReader.number,
    "owed": RecordReader.not_negative,
    "first_since": RecordReader.number,
    "first_until": RecordReader.number,
    "first_iteration_s": RecordReader.not_negative,
    "last_started_at": RecordReader.number_or_none,
    "ready_at": RecordReader.number,
    "released": RecordReader.flag,
}


def record_of(shadow: Shadow) -> Record:
    """Return the stored form of an application's state in the VTC model, as JSON."""
    record = {name: getattr(shadow, name) for name in _SHADOW}
    return record | {"stages": [[*stage] for stage in shadow.stages]}


def restored(record: object) -> Shadow:
    """Restore an application's state in the VTC model from its stored form.

    Raises:
        ValueError: If the record is not a result of `record_of`.
    """
    reader = RecordReader(record, (*_SHADOW, "stages"))
    shadow = Shadow(stages=[*read_stages(reader, "stages")], **read_fields(record, _SHADOW))
    if not 0 <= shadow.at <= len(shadow.stages) or not shadow.stages:
        raise ValueError(f"at is {shadow.at}: must be one of {len(shadow.stages)} stages")
    return shadow


def _levels_of_starts(stage: ExpectedStage, weight: float) -> float:
    inferences = max(1, stage.inferences)
    return stage.compute_tokens * (inferences - 1) / (inferences * weight)
