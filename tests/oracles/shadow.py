"""Shadow of VTC by its rules as they are written: every application is looked at in every step.

`core.clock.shadow` does the same with heaps and with sums that are kept. Exact in fractions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from justitia_ray.core.stages import ExpectedStage


@dataclass
class Member:
    """An application, the stage that it has entered last, and what of that has started."""

    weight: Any
    sequence: int
    stages: list[ExpectedStage]
    came: Any = Fraction(0)
    """Level at which it came."""
    at: int = 0
    entered: Any = Fraction(0)
    took: Any = Fraction(0)
    started_at: Any = None
    ready_at: Any = None
    next_level: Any = None
    """Level that it waits for; None: it waits for none."""
    next_time: Any = None
    """Instant that it waits for; None: it waits for none."""

    @property
    def is_last(self) -> bool:
        """Whether no stage follows."""
        return self.at == len(self.stages) - 1

    @property
    def is_through(self) -> bool:
        """Whether its last inference has started."""
        return self.at >= len(self.stages) or (self.is_last and self.started_at is not None)

    def levels(self, number: int) -> Any:
        """Return the levels that a stage is worth."""
        return Fraction(self.stages[number].compute_tokens) / self.weight

    def levels_of_starts(self, number: int) -> Any:
        """Return those until the last inference of the stage starts."""
        inferences = max(1, self.stages[number].inferences)
        return self.levels(number) * (inferences - 1) / inferences

    def ratio(self) -> Any:
        """Return ω·k/w of its stage."""
        stage = self.stages[self.at]
        if not stage.compute_tokens:
            return Fraction(0)
        return self.weight * stage.kv_token_time / Fraction(stage.compute_tokens)


class LiteralShadow:
    """All applications of the shadow, at one instant."""

    def __init__(self, iteration_s: Any) -> None:
        self.iteration_s = iteration_s
        self.kv_tokens: Any = Fraction(0)
        self.members: dict[str, Member] = {}
        self.level: Any = Fraction(0)
        self.owed: Any = Fraction(0)
        self.now: Any = None

    def density(self) -> Any:
        """Return the sum of ω·k/w over those that ask for more when the level has risen."""
        return sum(m.ratio() for m in self.members.values() if m.next_level is not None)

    def in_flight(self) -> Any:
        """Return half of the mean length of what asks for more, for each token of the memory."""
        asking = [m for m in self.members.values() if m.next_level is not None and m.ratio()]
        if not asking:
            return None
        length = sum(m.ratio() * m.stages[m.at].output_tokens for m in asking)
        return self.kv_tokens * length / sum(m.ratio() for m in asking) / 2

    def overdue(self) -> Any:
        """Return what is owed beyond what is in flight."""
        in_flight = self.in_flight()
        return Fraction(0) if in_flight is None else max(Fraction(0), self.owed - in_flight)

    def add(self, name: str, weight: Any, sequence: int, stages: Sequence[ExpectedStage]) -> None:
        """Let an application enter its first stage."""
        member = self.members[name] = Member(weight, sequence, [*stages], self.level)
        self._enter(member, 0)

    def remove(self, name: str) -> None:
        """Forget an application, and what its first inference owes."""
        self.owed = max(Fraction(0), self.owed - self.members.pop(name).took)

    def change(self, name: str, weight: Any, stages: Sequence[ExpectedStage]) -> None:
        """Replace the stages of an application and its weight."""
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
            self._take(member)
            if member.started_at is not None:
                self._start_last(member, member.started_at)
            self._go_on(member)

    def advance(self, amount: Any, now: Any) -> None:
        """Let service flow evenly since the last call, up to now."""
        if self.now is None:
            self.now = now
        while True:
            if (due := self._first("next_time")) and due.next_time <= self.now:
                self._go_on(due)
                continue
            until = min(due.next_time, now) if due else now
            part = amount
            if until < now:
                part = amount * (until - self.now) / (now - self.now)
            paying = sum(m.ratio() for m in self.members.values() if self._starts(m))
            first = self._first("next_level")
            if first is not None:
                starts = (first.next_level - self.level) * paying
                in_flight = self.in_flight()
                needed = Fraction(0)
                if in_flight is not None:
                    needed = max(needed, self.owed + starts - in_flight)
                if needed <= part:
                    if part:
                        self.now += (until - self.now) * needed / part
                    amount -= needed
                    self.level, self.owed = first.next_level, self.owed + starts - needed
                    self._go_on(first)
                    continue
            self.owed -= part
            if paying and self.owed < (in_flight := self.in_flight()):
                self.level += (in_flight - self.owed) / paying
                self.owed = in_flight
            self.owed = max(Fraction(0), self.owed)
            amount -= part
            self.now = until
            if until == now and not ((due := self._first("next_time")) and due.next_time <= now):
                return

    def deadline(self, name: str, now: Any, kv_per_s: Any) -> Any:
        """Return when the last inference has started and has run."""
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

    def _first(self, of: str) -> Member | None:
        waiting = [m for m in self.members.values() if getattr(m, of) is not None]
        return min(waiting, key=lambda m: (getattr(m, of), m.sequence), default=None)

    def _enter(self, member: Member, at: int) -> None:
        member.at, member.entered, member.started_at = at, self.level, None
        member.took = Fraction(0)
        self._take(member)
        self._go_on(member)

    def _take(self, member: Member) -> None:
        stage = member.stages[member.at]
        took = Fraction(stage.kv_token_time) / max(1, stage.inferences)
        self.owed += took - member.took
        member.took = took

    def _start_last(self, member: Member, at: Any) -> None:
        member.started_at = at
        member.ready_at = at + self._path_s(member.stages[member.at])

    def _go_on(self, member: Member) -> None:
        """Let an application wait for what comes next, or enter its next stage."""
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
