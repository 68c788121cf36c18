"""Shadow of VTC by its literal rules: every step examines every application.

`core.clock.shadow` does the same with heaps and cached sums. Exact in fractions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from justitia_ray.core.stages import ExpectedStage


@dataclass
class Member:
    """Application in the simulated schedule of VTC, with its current stage."""

    weight: Any
    sequence: int
    stages: list[ExpectedStage]
    came: Any = Fraction(0)
    """Virtual time of the simulated VTC schedule at the application's arrival."""
    at: int = 0
    entered: Any = Fraction(0)
    took: Any = Fraction(0)
    """Service in KV token-time of the stage's first inference."""
    first_since: Any = None
    first_iteration_s: Any = None
    first_until: Any = None
    """End of the stage's first inference, in seconds; None after it has ended."""
    started_at: Any = None
    ready_at: Any = None
    next_level: Any = None
    """Virtual time of the application's next event; None if it waits for no virtual time."""
    next_time: Any = None
    """Time in seconds at which the application's next event happens; None if it waits for no time.
    """

    @property
    def is_last(self) -> bool:
        return self.at == len(self.stages) - 1

    @property
    def is_through(self) -> bool:
        """Return whether the last inference of the application has started."""
        return self.at >= len(self.stages) or (self.is_last and self.started_at is not None)

    @property
    def first_rate(self) -> Any:
        """Return the service per second of the stage's first inference, while it runs."""
        return self.took / (self.first_until - self.first_since)

    def levels(self, number: int) -> Any:
        """Return by how much virtual time rises during a stage."""
        return Fraction(self.stages[number].compute_tokens) / self.weight

    def levels_of_starts(self, number: int) -> Any:
        """Return by how much virtual time rises until the stage's last inference starts."""
        inferences = max(1, self.stages[number].inferences)
        return self.levels(number) * (inferences - 1) / inferences

    def ratio(self) -> Any:
        """Return a stage's KV token-time per unit of virtual time: ω·k/w with the weight ω."""
        stage = self.stages[self.at]
        if not stage.compute_tokens:
            return Fraction(0)
        return self.weight * stage.kv_token_time / Fraction(stage.compute_tokens)


@dataclass
class Cohort:
    """Inferences that start within 32 iterations of each other, simulated together."""

    gathers_until: Any
    service: Any = Fraction(0)
    rate: Any = Fraction(0)
    """Service per second of all inferences of the cohort."""
    flies: bool = False

    @property
    def until(self) -> Any:
        """Return when the cohort ends: its gathering time plus the inferences' mean duration."""
        if not self.rate:
            return self.gathers_until
        return self.gathers_until + self.service / self.rate

    def rest(self, now: Any) -> Any:
        """Return the remaining service of the cohort."""
        return self.rate * (self.until - now) if self.flies else self.service


class LiteralShadow:
    """Simulated schedule of applications under VTC, computed event by event as an oracle."""

    def __init__(self, iteration_s: Any) -> None:
        self.iteration_s = iteration_s
        self.kv_tokens: Any = Fraction(0)
        self.members: dict[str, Member] = {}
        self.level: Any = Fraction(0)
        self.owed: Any = Fraction(0)
        self.now: Any = None
        self.cohorts: list[Cohort] = []

    def density(self) -> Any:
        """Return the work of all waiting applications per unit of virtual time."""
        return sum(m.ratio() for m in self.members.values() if m.next_level is not None)

    def in_flight(self) -> Any:
        """Return the remaining service of running work, plus a mean length per free KV token."""
        if (length := self.mean_length()) is None:
            return None
        held = self.running_rate() + sum(cohort.rate for cohort in self._gathering())
        free = self.kv_tokens - held * self.iteration_s
        if not any(self._starts(m) for m in self.members.values()):
            free = max(Fraction(0), free)
        return self.rest() + free * length

    def mean_length(self) -> Any:
        """Return the mean length in iterations of the inferences that start next, or None."""
        asking = [m for m in self.members.values() if m.next_level is not None and m.ratio()]
        starting = [m for m in asking if self._starts(m)] or asking
        if not starting:
            return None
        lengths = sum(m.ratio() * m.stages[m.at].mean_output_tokens for m in starting)
        return lengths / sum(m.ratio() for m in starting)

    def rest(self) -> Any:
        """Return the remaining service of all running inferences."""
        running_rate = [m for m in self.members.values() if m.first_until is not None]
        first_ones = sum(m.first_rate * (m.first_until - self.now) for m in running_rate)
        return first_ones + sum(cohort.rest(self.now) for cohort in self.cohorts)

    def running_rate(self) -> Any:
        """Return the service per second of all running inferences, except newly started ones."""
        first_ones = sum(m.first_rate for m in self.members.values() if m.first_until is not None)
        return first_ones + sum(cohort.rate for cohort in self.cohorts if cohort.flies)

    def overdue(self) -> Any:
        """Return by how much service is behind what the running inferences will deliver."""
        in_flight = self.in_flight()
        return Fraction(0) if in_flight is None else max(Fraction(0), self.owed - in_flight)

    def add(self, name: str, weight: Any, sequence: int, stages: Sequence[ExpectedStage]) -> None:
        """Add an application, which enters its first stage."""
        member = self.members[name] = Member(weight, sequence, [*stages], self.level)
        self._enter(member, 0)

    def remove(self, name: str) -> None:
        """Remove an application, and the service due to its first inference."""
        self.owed = max(Fraction(0), self.owed - self.members.pop(name).took)

    def change(self, name: str, weight: Any, stages: Sequence[ExpectedStage]) -> None:
        member = self.members[name]
        was_beyond = member.at >= len(member.stages)
        tokens = (self.level - member.entered) * member.weight
        member.stages, member.weight = [*stages], weight
        member.entered = self.level - tokens / weight
        if member.at >= len(stages):
            member.at = len(stages)
            if member.started_at is None:
                member.started_at = self.now
            member.next_level = member.next_time = None
        elif was_beyond:
            self._enter(member, member.at)
        else:
            self._take_first(member)
            if member.started_at is not None:
                self._start_last(member, member.started_at)
            self._continue_member(member)

    def advance(self, amount: Any, now: Any) -> None:
        """Spread `amount` of service evenly over the time since the last call."""
        if self.now is None:
            self.now = now
        while True:
            for member in self.members.values():
                if member.first_until is not None and member.first_until <= self.now:
                    member.first_until = None
            for cohort in self.cohorts:
                cohort.flies = cohort.gathers_until <= self.now
            self.cohorts = [c for c in self.cohorts if not c.flies or c.until > self.now]
            if (due := self._first_waiting_for("next_time")) and due.next_time <= self.now:
                self._continue_member(due)
                continue
            self._raise_level()
            if (first := self._first_waiting_for("next_level")) and self._owed_for(
                first.next_level
            ) <= 0:
                self._reach(first)
                continue
            if self.now == now:
                lacking = self._owed_for(first.next_level) if first else None
                part = amount if lacking is None else min(amount, lacking)
                self.owed, amount = self.owed - part, amount - part
                if part == lacking:
                    continue
                self._raise_level()
                return
            ends = [m.first_until for m in self.members.values() if m.first_until is not None]
            ends += [c.until if c.flies else c.gathers_until for c in self.cohorts]
            until = min([*ends, *([due.next_time] if due else []), now])
            rate = amount / (now - self.now)
            faster = rate - self.running_rate()
            opens = None
            if first and faster > 0:
                if self._paying() and not self._gathering():
                    opens = self.now + self.overdue() / faster
                    if opens == self.now:
                        self.cohorts.append(Cohort(self.now + 32 * self.iteration_s))
                        continue
                    until = min(until, opens)
                until = min(until, self.now + self._owed_for(first.next_level) / faster)
            amount -= rate * (until - self.now)
            self.owed -= rate * (until - self.now)
            self.now = until
            self._raise_level()  # The level rises before later events of the same time.
            if self.now == opens:
                self.cohorts.append(Cohort(self.now + 32 * self.iteration_s))

    def _paying(self) -> Any:
        """Return the KV token-time of inferences that start per unit of virtual time."""
        return sum(m.ratio() for m in self.members.values() if self._starts(m))

    def _owed_for(self, level: Any) -> Any:
        """Return the service needed to reach a virtual time; 0 if no application waits."""
        in_flight = self.in_flight()
        if in_flight is None:
            return Fraction(0)
        return self.owed + (level - self.level) * self._paying() - in_flight

    def _raise_level(self) -> None:
        """Start inferences that fit in memory, up to the next event; unusable service is lost."""
        if not (paying := self._paying()):
            self.owed = max(self.rest(), self.owed)
            return
        first, in_flight = self._first_waiting_for("next_level"), self.in_flight()
        levels = first.next_level - self.level if first else Fraction(0)
        if in_flight is not None:
            levels = min(levels, (in_flight - self.owed) / paying)
        if levels > 0:
            self._start(levels * paying)
            self.level += levels

    def _start(self, service: Any) -> None:
        """Start inferences of the stages that start them evenly over virtual time."""
        self.owed += service
        if not service or not (length := self.mean_length()):
            return
        if not self._gathering():
            self.cohorts.append(Cohort(self.now + 32 * self.iteration_s))
        for cohort in self._gathering():
            cohort.service += service
            cohort.rate += service / (length * self.iteration_s)

    def _gathering(self) -> list[Cohort]:
        return [cohort for cohort in self.cohorts if not cohort.flies]

    def _reach(self, first: Member) -> None:
        self._start((first.next_level - self.level) * self._paying())
        self.level = first.next_level
        self._continue_member(first)

    def deadline(self, name: str, now: Any, kv_per_s: Any) -> Any:
        """Return the time at which an application's last inference would end under VTC."""
        member = self.members[name]
        tail = member.stages[-1].output_tokens * self.iteration_s
        if member.is_through:
            return member.started_at + tail
        density = self.density() + (0 if member.next_level is not None else member.ratio())
        level_s = density / kv_per_s
        enters = self.overdue() / kv_per_s
        level = self.level + (self.level - member.came) / 6
        rest = member.levels(member.at)
        if member.started_at is None:
            starts = max(0, member.entered + member.levels_of_starts(member.at) - level)
            rest -= member.levels_of_starts(member.at)
            enters += starts * level_s
            if member.is_last:
                return now + enters + tail
            enters += max(rest * level_s, self._path_s(member.stages[member.at]))
        else:
            enters += max(0, member.entered + rest - level) * level_s
            enters = max(enters, member.ready_at - now)
        for number in range(member.at + 1, len(member.stages)):
            starts = member.levels_of_starts(number)
            enters += starts * level_s
            if number < len(member.stages) - 1:
                rest = (member.levels(number) - starts) * level_s
                enters += max(rest, self._path_s(member.stages[number]))
        return now + enters + tail

    def _path_s(self, stage: ExpectedStage) -> Any:
        return stage.output_tokens * self.iteration_s + stage.gap_s

    def _starts(self, member: Member) -> bool:
        return member.next_level is not None and member.started_at is None

    def _first_waiting_for(self, of: str) -> Member | None:
        waiting = [m for m in self.members.values() if getattr(m, of) is not None]
        return min(waiting, key=lambda m: (getattr(m, of), m.sequence), default=None)

    def _enter(self, member: Member, at: int) -> None:
        member.at, member.entered, member.started_at = at, self.level, None
        member.took, member.first_since = Fraction(0), self.now
        member.first_iteration_s = self.iteration_s
        self._take_first(member)
        self._continue_member(member)

    def _take_first(self, member: Member) -> None:
        stage = member.stages[member.at]
        took = Fraction(stage.kv_token_time) / max(1, stage.inferences)
        self.owed += took - member.took
        member.took = took
        until = member.first_since + stage.mean_output_tokens * member.first_iteration_s
        member.first_until = until if until > self.now else None

    def _start_last(self, member: Member, at: Any) -> None:
        member.started_at = at
        member.ready_at = at + self._path_s(member.stages[member.at])

    def _continue_member(self, member: Member) -> None:
        """Move an application to its next event or its next stage."""
        member.next_level = member.next_time = None
        last_starts = member.entered + member.levels_of_starts(member.at)
        if last_starts > self.level:
            member.started_at, member.next_level = None, last_starts
            return
        if member.started_at is None:
            self._start_last(member, self.now)
        if member.is_last:
            return
        counter = member.entered + member.levels(member.at)
        if counter > self.level:
            member.next_level = counter
        if member.ready_at > self.now:
            member.next_time = member.ready_at
        if member.next_level is None and member.next_time is None:
            self._enter(member, member.at + 1)
