"""Which applications arrive when: a load that is the same for every policy under test."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, cycle
from pathlib import Path

from justitia_ray.errors import ConfigError
from justitia_ray.units import Seconds
from justitia_ray.workloads.inputs import Input, load_inputs
from justitia_ray.workloads.lengths import LengthPlan, Lengths
from justitia_ray.workloads.table import WORKLOADS

DEFAULT_MIX: Mapping[str, float] = {"KBQAV": 0.6, "SC": 0.3, "MRS": 0.1}
"""A small, a medium and a large class. The paper draws those sizes 72 %, 26 % and 2 % of the time
(v1, Sec. V-A); here large ones are more frequent, so that a short run meets some."""


@dataclass(frozen=True, slots=True)
class PlannedApplication:
    """One application of a load."""

    number: int
    """Its place in the order of arrival, from 0."""
    application_class: str
    item_id: str
    text: str
    """What its user submits."""
    tenant: str
    arrived_at_s: Seconds
    """From the start of the load."""
    lengths: Lengths


class LoadPlan:
    """Draws a load; the same arguments draw the same.

    Arrivals, classes, inputs and tenants are drawn apart: a change to one leaves the others.

    Args:
        lengths: Draws the lengths of the applications.
        count: How many applications.
        rate_per_s: How many arrive per second on average; arrivals are a Poisson process.
        seed: Of all draws but the lengths.
        mix: Share of each class, in any unit.
        tenants: On whose behalf applications run; each is as likely.
        data_dir: Where the inputs lie; see `load_inputs`.
        arrivals: Instants at which they arrive, sorted, in place of a Poisson process; `count` of
            them.
        dealt: Deal classes from shuffled decks, each with exactly the mix, whose shares must then
            be whole numbers. Otherwise each is drawn by itself.

    Raises:
        ConfigError: If an argument is out of range, or inputs cannot be loaded.
    """

    def __init__(
        self,
        lengths: LengthPlan,
        *,
        count: int,
        rate_per_s: float = 1.0,
        seed: int = 0,
        mix: Mapping[str, float] = DEFAULT_MIX,
        tenants: Sequence[str] = ("default",),
        data_dir: Path | None = None,
        arrivals: Sequence[Seconds] | None = None,
        dealt: bool = False,
    ) -> None:
        if count < 1:
            raise ConfigError(f"count must be >= 1, got {count}")
        if not 0 < rate_per_s < math.inf:
            raise ConfigError(f"rate_per_s must be a number > 0, got {rate_per_s}")
        if not tenants:
            raise ConfigError("tenants must name at least one tenant, got none")
        for name, share in mix.items():
            if name not in WORKLOADS:
                raise ConfigError(f"mix must name classes of {', '.join(WORKLOADS)}, got {name!r}")
            if not 0 <= share < math.inf:
                raise ConfigError(f"mix[{name}] must be a number >= 0, got {share}")
            if dealt and share != int(share):
                raise ConfigError(f"mix[{name}] must be a whole number to be dealt, got {share}")
        if arrivals is not None and (
            len(arrivals) != count or list(arrivals) != sorted(arrivals) or not arrivals[0] >= 0
        ):
            raise ConfigError(
                f"arrivals must be {count} instants >= 0 in order, got {len(arrivals)}"
            )
        if not sum(mix.values()) > 0:
            raise ConfigError(f"mix must have a share > 0, got {dict(mix)}")
        self._lengths = lengths
        self._count = count
        self._rate_per_s = rate_per_s
        self._seed = seed
        self._mix = {name: share for name, share in mix.items() if share > 0}
        self._tenants = tuple(tenants)
        self._arrivals = arrivals
        self._dealt = dealt
        self._inputs = {name: load_inputs(data_dir, name) for name in self._mix}

    def applications(self) -> list[PlannedApplication]:
        """Return the applications in order of arrival."""
        classes, tenants = self._classes(self._rng("classes")), self._rng("tenants")
        inputs = {name: self._shuffled(name) for name in self._mix}
        planned = []
        for number, arrived_at_s in enumerate(self._instants(self._rng("arrivals"))):
            name = next(classes)
            item = next(inputs[name])
            planned.append(
                PlannedApplication(
                    number=number,
                    application_class=name,
                    item_id=item.item_id,
                    text=item.text,
                    tenant=tenants.choice(self._tenants),
                    arrived_at_s=arrived_at_s,
                    lengths=self._lengths.draw(name, item.item_id, number),
                )
            )
        return planned

    def _instants(self, rng: random.Random) -> Sequence[Seconds]:
        if self._arrivals is not None:
            return self._arrivals
        return list(accumulate(rng.expovariate(self._rate_per_s) for _ in range(self._count)))

    def _classes(self, rng: random.Random) -> Iterator[str]:
        deck = [name for name, share in self._mix.items() for _ in range(int(share))]
        while self._dealt:
            rng.shuffle(deck)
            yield from deck
        while True:
            yield from rng.choices(list(self._mix), list(self._mix.values()))

    def _shuffled(self, application_class: str) -> Iterator[Input]:
        """Return the inputs of a class in random order, over again when they are used up."""
        inputs = list(self._inputs[application_class])
        self._rng(f"inputs/{application_class}").shuffle(inputs)
        return cycle(inputs)

    def _rng(self, purpose: str) -> random.Random:
        return random.Random(f"{self._seed}/{purpose}")
