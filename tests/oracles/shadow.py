"""Shadow of VTC by its rules as they are written: every application is looked at in every step.

`core.clock.foretold` does the same with levels and heaps. Exact in fractions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from justitia_ray.core.stages import ExpectedStage


@dataclass
class Member:
    """An application: the tokens that it was served in its stage, or the end of its gap."""

    weight: Any
    stages: list[ExpectedStage]
    at: int = 0
    served: Any = Fraction(0)
    gap_until: Any = None
    passed_at: Any = None

    @property
    def stage(self) -> ExpectedStage | None:
        """The stage that it is in."""
        is_in = self.gap_until is None and self.at < len(self.stages)
        return self.stages[self.at] if is_in else None

    def start_of_last(self) -> Any:
        """Return the tokens of the last stage served before its last inference starts."""
        last = self.stages[-1]
        inferences = max(1, last.inferences)
        return Fraction(last.compute_tokens * (inferences - 1)) / inferences

    def tokens_to_change(self) -> Any:
        """Return the tokens until its last inference starts, or its stage ends."""
        stage = self.stages[self.at]
        if self.at == len(self.stages) - 1 and self.passed_at is None:
            return max(0, self.start_of_last() - self.served)
        return max(0, stage.compute_tokens - self.served)


class LiteralShadow:
    """All applications of the shadow, at one instant."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.now: Any = None

    def density(self) -> Any:
        """Return ρ: the sum of ω·k/w over those in a stage."""
        return sum(_ratio(m) for m in self.members.values() if m.stage is not None)

    def add(self, name: str, weight: Any, stages: Sequence[ExpectedStage]) -> None:
        """Let an application enter its first stage."""
        self.members[name] = Member(weight, [*stages])

    def change(self, name: str, weight: Any, stages: Sequence[ExpectedStage]) -> None:
        """Replace the stages of an application and its weight."""
        member = self.members[name]
        was = member.stage, member.at == len(member.stages) - 1
        member.weight, member.stages = weight, [*stages]
        if was[0] is None and member.gap_until is None:
            if member.stage is not None:
                member.served, member.passed_at = Fraction(0), None
        elif was[0] is not None:
            is_last = member.at == len(stages) - 1
            if not (is_last and was[1] and member.served >= member.start_of_last()):
                member.passed_at = None

    def advance(self, amount: Any, now: Any) -> None:
        """Let service flow evenly since the last call, up to now."""
        at = now if self.now is None else self.now
        while True:
            for member in self.members.values():
                if member.gap_until is not None and member.gap_until <= at:
                    member.gap_until, member.served = None, Fraction(0)
            gaps = [m.gap_until for m in self.members.values() if m.gap_until is not None]
            until = min([now, *gaps])
            part = amount * (until - at) / (now - at) if until < now else amount
            inside = [m for m in self.members.values() if m.stage is not None]
            density = self.density()
            step = min((m.tokens_to_change() / m.weight for m in inside), default=None)
            if step is not None and step * density <= part:
                if part:
                    at += (until - at) * step * density / part
                amount -= step * density
                changing = next(m for m in inside if m.tokens_to_change() / m.weight == step)
                self._raise(inside, step)
                self._change(changing, at)
                continue
            if inside:
                self._raise(inside, part / density)
            amount, at = amount - part, until
            if until == now:
                self.now = now
                for member in self.members.values():
                    if member.gap_until is not None and member.gap_until <= now:
                        member.gap_until, member.served = None, Fraction(0)
                return

    def deadline(self, name: str, now: Any, kv_per_s: Any, iteration_s: Any) -> Any:
        """Return when the last inference has started and has run."""
        member = self.members[name]
        tail = member.stages[-1].output_tokens * iteration_s
        if member.passed_at is not None:
            return member.passed_at + tail
        tokens = sum(s.compute_tokens for s in member.stages[member.at : -1])
        tokens += member.start_of_last() - (member.served if member.stage is not None else 0)
        density, begins = self.density(), now
        if member.gap_until is not None:
            density += _ratio(member)
            begins = max(now, member.gap_until)
        gaps = sum(s.gap_s for s in member.stages[member.at : -1])
        return begins + gaps + max(0, tokens) / member.weight * density / kv_per_s + tail

    def _raise(self, inside: Sequence[Member], levels: Any) -> None:
        for member in inside:
            member.served += levels * member.weight

    def _change(self, member: Member, at: Any) -> None:
        if member.at == len(member.stages) - 1 and member.passed_at is None:
            member.passed_at = at
            return
        gap_s = member.stages[member.at].gap_s
        member.at, member.served = member.at + 1, Fraction(0)
        if member.at < len(member.stages) and gap_s:
            member.gap_until = at + gap_s


def _ratio(member: Member) -> Any:
    stage = member.stages[member.at]
    if not stage.compute_tokens:
        return Fraction(0)
    return member.weight * stage.kv_token_time / Fraction(stage.compute_tokens)
