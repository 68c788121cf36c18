"""The policies that are compared on live engines."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arm:
    """A policy and its options; hashable."""

    name: str
    policy: str
    options: tuple[tuple[str, object], ...] = ()


NOMINAL = Arm("justitia-nominal", "justitia", (("clock", "nominal"),))
"""The paper's clock, which moves at the rate of full engines."""
JUSTITIA = Arm("justitia", "justitia", (("clock", "served"),))
FCFS, SRJF = Arm("fcfs", "fcfs"), Arm("srjf", "srjf")
ARMS = (FCFS, Arm("app-fcfs", "app-fcfs"), Arm("vtc", "vtc"), SRJF, NOMINAL, JUSTITIA)


def rotated(arms: Sequence[Arm], by: int) -> list[Arm]:
    """Return the arms in the order of the `by`th seed: no arm is always the first or the last."""
    start = by % len(arms)
    return [*arms[start:], *arms[:start]]
