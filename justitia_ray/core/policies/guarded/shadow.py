"""The shadow of VTC: what VTC would have started by now, fed with the service of the replicas.

VTC (OSDI 2024) charges an inference p + 2d and starts next what waits of the smallest counter. So
all that wait are served up to one *level* X, the tokens p + 2d of each unit of weight, and whole
inferences ahead of it: an inference that has started is never held back. Of a stage with n
inferences, w = Σ (p + 2d), k = Σ h(p, d) and L = max d, of an application of weight ω:

- It is entered at a level e, and its first inference starts at once; the others start while X
  rises to Y = e + w/ω·(n − 1)/n.
- Its last inference starts when X is at Y, and it is over L iterations later. Then its tool gap
  passes, in wall time, and the next stage waits for X to reach e + w/ω, the counter of the
  application; it is entered where X is then.

What has started is *owed* until the replicas have served as much: k/n for a first inference, and ρ
for each level by which X rises, ρ being the sum of ω·k/w over those whose others start. X rises
only while no more is owed than VTC would have in flight. That is what is left of all that has
started, each inference running for its length in time (`flights`), and each token of the KV memory
that is free for the length of an inference, the mean over what starts now. Where more runs than
fits, that is taken off. So on empty replicas all starts at once, and on full ones newcomers hold X
up; but a long one only as far as its memory goes. What really runs says less: by the order of the
service that is short ones now and a long one then. Where nobody waits X goes to the next level at
which anything happens.

A fluid in which all are served evenly, and nothing ahead of the level, has X rise up to 1.4 times
too fast while the applications become more, and foretells long ones a quarter early.

Newcomers take most of the service then, and X rises by what they leave: where VTC served 1.5 % more
in five minutes than the order of the service did, X rose by 9 % less than VTC's level (seed 201 of
the suite, at 3x). So an application's own end is foretold as if X had risen by a sixth more since
it came.

When a stage changes, what its first inference owes changes by the difference. Stages that the
shadow has left change nothing any more.

An application is *through* when the last inference of its last stage has started; it ends L
iterations later. Exact in the arithmetic of its arguments, however often service is told.
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
"""An application's own end is foretold as if X had risen by one part in so many more."""


@dataclass(slots=True)
class Shadow:
    """An application in the shadow: the stage at which it is, and what of that has started."""

    weight: float
    sequence: int
    stages: list[ExpectedStage]
    came: float = 0
    """Level at which it came."""
    at: int = 0
    """Stage that it has entered last; as many as there are: all that it entered are gone."""
    entered: float = 0
    """Level at which it entered that."""
    owed: KvTokenTime = 0
    """Service that the first inference of the stage takes."""
    first_since: Seconds = 0
    """When the first inference of the stage started."""
    first_until: Seconds = 0
    """When that ends."""
    first_iteration_s: Seconds = 0
    """Length of an iteration when that started: a pace that changes later moves no end."""
    last_started_at: Seconds | None = None
    """When the last inference of the stage was started; None: it has not been."""
    ready_at: Seconds = 0
    """When it asks for its next stage; of no meaning before the last inference has started."""
    released: bool = False
    """Whether its application has ended: it is forgotten when it is through."""
    density: float = 0
    """ω·k/w, if it will ask for more when X has risen, else 0."""
    lasting: float = 0
    """The density times the mean length of the stage's inferences, in iterations."""
    starting: float = 0
    """ω·k/w, if inferences of the stage start while X rises, its part of ρ; else 0."""
    starting_lasting: float = 0
    """That times the mean length."""

    @property
    def is_through(self) -> bool:
        """Whether its last inference has started."""
        return self.at >= len(self.stages) or (self.is_last and self.last_started_at is not None)

    @property
    def is_last(self) -> bool:
        """Whether no stage follows the one at which it is."""
        return self.at == len(self.stages) - 1

    @property
    def level_of_last(self) -> float:
        """Y, at which the last inference of the stage starts."""
        return self.entered + _levels_of_starts(self.stages[self.at], self.weight)

    @property
    def level_of_next(self) -> float:
        """Level from which on it may enter the next stage."""
        return self.entered + self.stages[self.at].compute_tokens / self.weight

    def ahead(self, level: float) -> float:
        """Return the level by which its end is foretold when X is at one after it came."""
        return level + (level - self.came) / _AHEAD

    def before(self, level: float) -> float:
        """Return where X is when `ahead` is at a level."""
        return self.came + (level - self.came) * _AHEAD / (_AHEAD + 1)

    def ratio(self) -> float:
        """Return ω·k/w of the stage at which it is."""
        stage = self.stages[self.at]
        if not stage.compute_tokens:
            return 0
        return self.weight * stage.kv_token_time / stage.compute_tokens

    def level_of_end(self) -> float:
        """Return the level at which the last inference of the last stage starts, at the least."""
        if self.is_last:
            return self.level_of_last
        *between, last = self.stages[self.at + 1 :]
        tokens = sum(stage.compute_tokens for stage in between)
        return self.level_of_next + tokens / self.weight + _levels_of_starts(last, self.weight)


class Rise(NamedTuple):
    """How level X rises from now on."""

    wait_s: Seconds
    """Seconds until it rises again."""
    level_s: Seconds
    """Seconds a level from then on."""


class ShadowClock:
    """Level X and where each shadow is. Every step of a shadow costs O(log N).

    Service flows evenly from one call of `advance` to the next.

    Args:
        pace: The speed of the replicas.

    Attributes:
        kv_tokens: KV memory of the replicas; 0 until it is told.
    """

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.kv_tokens: float = 0
        self.level: float = 0
        self.owed: KvTokenTime = 0
        """Service of what has started, without what has been served."""
        self.flights = Flights()
        """Inferences that have started and have not ended."""
        self.shadows: dict[ApplicationId, Shadow] = {}
        self.density = WeightSum()
        """Sum over those that ask for more as X rises: what a level costs, looking ahead."""
        self._lasting = WeightSum()
        """Sum of the mean lengths of their inferences, weighted by that."""
        self._starting = WeightSum()
        """ρ."""
        self._starting_lasting = WeightSum()
        """Sum of the mean lengths of what starts as X rises, weighted by ω·k/w."""
        self._now: Seconds = -math.inf
        """Time that X is of; before all others until the first `advance`."""
        self._by_level = LazyHeap()
        """Shadows by the level at which something happens to them."""
        self._by_time = LazyHeap()
        """Shadows by when they ask for their next stage."""
        self._moved: dict[ApplicationId, None] = {}

    def take_moved(self) -> list[ApplicationId]:
        """Return the shadows that were changed, or went on, since the last call."""
        moved, self._moved = self._moved, {}
        return [name for name in moved if name in self.shadows]

    def add(
        self, name: ApplicationId, weight: float, sequence: int, stages: Sequence[ExpectedStage]
    ) -> None:
        """Let an application enter its first stage now; it has at least one."""
        shadow = self.shadows[name] = Shadow(weight, sequence, [*stages], self.level)
        self._enter(name, shadow, 0)

    def put_back(self, name: ApplicationId, shadow: Shadow) -> None:
        """Put back a shadow as it was at this clock's level; what it owes is in `owed`."""
        self.shadows[name] = shadow
        self._fly(name, shadow)
        self._place(name, shadow)

    def remove(self, name: ApplicationId) -> None:
        """Forget an application, and what it owes, at once; an unknown one changes nothing."""
        shadow = self.shadows.pop(name, None)
        if shadow is not None:
            self._displace(name, shadow)
            self.flights.end(name)
            self.owed = max(0, self.owed - shadow.owed)

    def release(self, name: ApplicationId) -> None:
        """Forget an application as soon as it is through with its stages."""
        shadow = self.shadows[name]
        shadow.released = True
        self._forget_released(name, shadow)

    def change(self, name: ApplicationId, stages: Sequence[ExpectedStage], weight: float) -> None:
        """Replace the stages of an application, at least one, and its weight.

        The tokens that it was served in its stage stay served. If there are fewer stages now than
        it has entered, it is through with all.
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
            self._place(name, shadow)
        elif had_left:
            self._enter(name, shadow, shadow.at)
        else:
            self._owe(name, shadow)
            if shadow.last_started_at is not None:
                self._await_next(shadow, shadow.last_started_at)
            self._place(name, shadow)

    def advance(self, amount: KvTokenTime, now: Seconds) -> None:
        """Let service flow since the last call, up to now, which is not before that."""
        self._now = now if self._now == -math.inf else min(self._now, now)
        lacking = self._settle()
        while amount > 0 or self._now < now:
            short = self._short()
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
                    self._reach()
            else:
                self._now = until
                self.owed -= part
                if gained > 0:
                    self._start_what_fits()  # before anything that happens then
            amount -= part
            lacking = self._settle()

    def ends_at(self, name: ApplicationId, now: Seconds) -> Seconds | None:
        """Return when an application ends at the present pace; None if that is not known.

        Each level is taken to cost what it does now. O(stages).
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
        """Return how X rises at a pace, as if nobody came or went."""
        overdue = max(0, self.owed - self._in_flight())
        return Rise(overdue / kv_per_s, self.density.total / kv_per_s)

    def _in_flight(self) -> KvTokenTime:
        """Return the service that VTC would have in flight; no limit where nobody waits."""
        if not self.density.total:
            return math.inf
        free = self.kv_tokens - self.flights.held_rate * self.pace.iteration_s
        if not self._starting.total:
            free = max(0, free)  # nobody has to wait for memory
        return self.flights.rest(self._now) + free * self._mean_length()

    def _mean_length(self) -> float:
        """Return the iterations of an inference that starts next, where anybody waits."""
        if self._starting.total:
            return self._starting_lasting.total / self._starting.total
        return self._lasting.total / self.density.total

    def _start(self, service: KvTokenTime) -> None:
        """Start inferences of the stages in which some start as X rises."""
        if service:
            self.owed += service
            iteration_s = self.pace.iteration_s
            self.flights.open(self._now, iteration_s)
            self.flights.gather(service, self._mean_length() * iteration_s)

    def _short(self) -> KvTokenTime | None:
        """Return the service after which a cohort begins to gather; None if none will, or does."""
        if not self._starting.total or self.flights.gathers:
            return None
        return max(0, self.owed - self._in_flight())

    def _settle(self) -> KvTokenTime:
        """Let happen all that happens now; return the service that the next level lacks."""
        while True:
            while self.flights.next_change <= self._now:
                if (name := self.flights.pass_next()) is not None:
                    self._forget_released(name, self.shadows[name])
            while self._by_time.least_value() <= self._now:
                self._place_first(self._by_time)
            lacking = self._start_what_fits()
            if lacking > 0:
                return lacking
            self._reach()

    def _start_what_fits(self) -> KvTokenTime:
        """Raise X by what may start, short of the next level; return what service that lacks."""
        if not self._starting.total:
            # nobody could use more: what runs is no faster than it is
            self.owed = max(self.flights.rest(self._now), self.owed)
        level = self._by_level.least_value()
        if level == math.inf:
            return math.inf
        room, starting = self._in_flight() - self.owed, self._starting.total
        lacking = (level - self.level) * starting - room
        if lacking > 0 and room > 0 and starting:
            # rounding must not carry X past what happens at a level
            self.level = min(self.level + room / starting, level)
            self._start(room)
        return lacking

    def _reach(self) -> None:
        """Raise X to the next level, and let happen what happens there."""
        level = self._by_level.least_value()
        self._start((level - self.level) * self._starting.total)
        self.level = level
        self._place_first(self._by_level)

    def _place_first(self, heap: LazyHeap) -> None:
        name = heap.first() or ""
        self._place(name, self.shadows[name])

    def _enter(self, name: ApplicationId, shadow: Shadow, at: int) -> None:
        """Let an application enter a stage where X is."""
        shadow.at, shadow.entered, shadow.owed, shadow.last_started_at = at, self.level, 0, None
        shadow.first_since, shadow.first_iteration_s = self._now, self.pace.iteration_s
        self._owe(name, shadow)
        self._place(name, shadow)

    def _owe(self, name: ApplicationId, shadow: Shadow) -> None:
        """Owe what the first inference of its stage takes, in place of what was taken for that."""
        stage = shadow.stages[shadow.at]
        levels = stage.compute_tokens / (max(1, stage.inferences) * shadow.weight)
        owed = levels * shadow.ratio()
        self.owed += owed - shadow.owed
        shadow.owed = owed
        length_s = stage.mean_output_tokens * shadow.first_iteration_s
        shadow.first_until = shadow.first_since + length_s
        self._fly(name, shadow)

    def _fly(self, name: ApplicationId, shadow: Shadow) -> None:
        """Let the first inference of its stage run, unless it has ended."""
        since, until = shadow.first_since, shadow.first_until
        if until > max(since, self._now):
            self.flights.begin(name, shadow.sequence, shadow.owed, since, until)
        else:
            self.flights.end(name)

    def _await_next(self, shadow: Shadow, started_at: Seconds) -> None:
        """Note when the last inference of its stage started, and so when it asks for the next."""
        stage = shadow.stages[shadow.at]
        shadow.last_started_at = started_at
        shadow.ready_at = started_at + stage.output_tokens * self.pace.iteration_s + stage.gap_s

    def _place(self, name: ApplicationId, shadow: Shadow) -> None:
        """Sort an application by the level and the time at which something happens to it next."""
        self._moved[name] = None
        self._displace(name, shadow)
        if shadow.at >= len(shadow.stages):
            self._forget_released(name, shadow)
            return
        ratio, level = shadow.ratio(), shadow.level_of_last
        if level > self.level:
            shadow.last_started_at = None
            self._ask(shadow, ratio)
            shadow.starting = self._starting.add(ratio)
            shadow.starting_lasting = self._starting_lasting.add(shadow.lasting)
            self._by_level.put(name, (level, shadow.sequence))
            return
        if shadow.last_started_at is None:
            self._await_next(shadow, self._now)
        if shadow.is_last:
            self._forget_released(name, shadow)
            return
        if (level := shadow.level_of_next) > self.level:
            self._ask(shadow, ratio)
            self._by_level.put(name, (level, shadow.sequence))
        if shadow.ready_at > self._now:
            self._by_time.put(name, (shadow.ready_at, shadow.sequence))
        elif level <= self.level:
            self._enter(name, shadow, shadow.at + 1)

    def _ask(self, shadow: Shadow, ratio: float) -> None:
        """Note that an application will ask for more as X rises."""
        shadow.density = self.density.add(ratio)
        shadow.lasting = self._lasting.add(ratio * shadow.stages[shadow.at].mean_output_tokens)

    def _displace(self, name: ApplicationId, shadow: Shadow) -> None:
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
    """A sum of positive terms that come and go: 0 when none is there, whatever the rounding."""

    __slots__ = ("_count", "total")

    def __init__(self) -> None:
        self.total: float = 0
        self._count = 0

    def add(self, term: float) -> float:
        """Add a term; return it. A term of 0 counts as none."""
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
    """Return the durable record of a shadow, as JSON."""
    record = {name: getattr(shadow, name) for name in _SHADOW}
    return record | {"stages": [[*stage] for stage in shadow.stages]}


def restored(record: object) -> Shadow:
    """Return the shadow of a record.

    Raises:
        ValueError: If it is not one of `record_of`.
    """
    reader = RecordReader(record, (*_SHADOW, "stages"))
    shadow = Shadow(stages=[*read_stages(reader, "stages")], **read_fields(record, _SHADOW))
    if not 0 <= shadow.at <= len(shadow.stages) or not shadow.stages:
        raise ValueError(f"at is {shadow.at}: must be one of {len(shadow.stages)} stages")
    return shadow


def _levels_of_starts(stage: ExpectedStage, weight: float) -> float:
    """Return the levels from the start of the first inference of a stage to that of its last."""
    inferences = max(1, stage.inferences)
    return stage.compute_tokens * (inferences - 1) / (inferences * weight)
