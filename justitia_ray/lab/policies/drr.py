"""Adapted deficit round robin between clients (VTC, OSDI 2024, App. C.2), as an order of keys.

The source: clients stand in a ring, each with a balance (there: its debt C), 0 at first. A visit
refills a balance of at most 0 by a quantum Q; one above 0 then schedules inferences until the costs
of their prompts, subtracted, have used it up. Tokens are subtracted as they are made. A client with
nothing waiting is refilled below 0 only. The sweep goes on where it stopped.

Why a key can say the same. Between two grants nothing but refills happens on the way, and a refill
does not depend on who else is in the ring. So a waiting client's turn is known beforehand: with a
balance b ≤ 0 and its next visit in round r, the visit that brings it above 0 is that of round
r + floor(−b/Q); with b > 0 it is that of round r. Visits are ordered by (round, place in the ring),
so the least (round of the turn, place) is where the sweep stops next, however many rounds all are
in debt until then: they are taken at once. A charge moves the turn of its own client only. A sweep
moves no key: a visit that refills adds Q to b and 1 to r, and the turn stays. Hence the balance of
a waiting client is brought up to date only when it is charged or granted, and that of one with
nothing waiting when it is charged or comes back, from the visits that the sweep made meanwhile.

Where the source leaves it open: the sweep moves when it ends in a grant, so a client that comes
while nobody fits is not passed by. A client passed by a later one, because what it has waiting did
not fit, keeps its turn and is refilled for none of the visits that it misses. When a visit is over
the client waits for the sweep to come round again. Places in the ring go by the first application
of a client; balances have no weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies.base import PolicyContext
from justitia_ray.core.policies.client_policy import MeteredPolicy
from justitia_ray.core.policies.options import UNIT, Option, number
from justitia_ray.core.queue import Key
from justitia_ray.core.records import Fields, RecordReader
from justitia_ray.units import ClientId, KvTokenTime


@dataclass(slots=True)
class _Place:
    """A client in the ring."""

    index: int
    balance: KvTokenTime = 0
    """The balance before the visit of `round`, or in it."""
    round: int = 0
    """Round of its visit, if it is at its turn; otherwise of its next."""
    at_turn: bool = False
    waits: bool = False

    def refills(self, quantum: float) -> int:
        """Return how many refills bring the balance above 0."""
        return max(0, int(-self.balance // quantum) + 1)

    def turn(self, quantum: float) -> int:
        """Return the round of the visit that finds, or leaves, the balance above 0."""
        if self.at_turn:
            return self.round
        return self.round + max(0, self.refills(quantum) - 1)

    def take_turn(self, quantum: float) -> None:
        """Go on to that visit."""
        if not self.at_turn:
            refills, self.round = self.refills(quantum), self.turn(quantum)
            self.balance += quantum * refills
            self.at_turn = True


_PLACE_FIELDS: Fields = {
    "index": RecordReader.integer,
    "balance": RecordReader.number,
    "round": RecordReader.integer,
    "at_turn": RecordReader.flag,
    "waits": RecordReader.flag,
}


class DrrPolicy(MeteredPolicy):
    """Least (round of the turn, place in the ring) first, FIFO inside."""

    OPTIONS: ClassVar[tuple[Option, ...]] = (
        UNIT,
        # In the unit of `cost`: the prompt of VTC's synthetic loads (Sec. 5.2), so that a visit is
        # worth one of them. A small one comes near to `vtc` and costs nothing here.
        Option("quantum", 256, number(least=1e-6)),
    )
    DEFAULT_COST: ClassVar[str] = "compute"

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._quantum: float = self.options.own["quantum"]
        self._ring: dict[ClientId, _Place] = {}
        self._pointer = (0, 0)
        """Round and place of the last visit that the sweep made."""

    def key(self, client: ClientId, application: Application) -> Key:
        """Return (round of its turn, place in the ring)."""
        place = self._ring[client]
        return (place.turn(self._quantum), place.index)

    def submitted(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Let a client back in at the balance that the visits since have left it."""
        place = self._place(application)
        self._make_visits(place)
        place.waits = True
        return ()

    def left(self, client: ClientId) -> None:
        """Note that a client is not refilled above 0 any more."""
        self._ring[client].waits = False

    def dispatched(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Sweep on to the client's turn, and charge the prompt."""
        place = self._place(application)
        place.take_turn(self._quantum)
        self._pointer = max(self._pointer, (place.round, place.index))
        return super().dispatched(application, inference)

    def forget_client(self, client: ClientId) -> None:
        """Remove a client from the ring."""
        self._ring.pop(client, None)

    def counted(self) -> dict[str, Any]:
        """Return the ring and how far the sweep is, too."""
        return super().counted() | {
            "pointer": list(self._pointer),
            "ring": {client: asdict(place) for client, place in self._ring.items()},
        }

    def take_over(self, counted: Mapping[str, Any]) -> None:
        """Restore the ring and the sweep, too."""
        reader = RecordReader(counted, ("pointer", "ring"), None)
        sweep_round, index = reader.integers("pointer")
        self._pointer = (sweep_round, index)
        self._ring = reader.table("ring", lambda ring, c: _Place(**ring.record(c, _PLACE_FIELDS)))
        super().take_over(counted)

    def charge(self, application: Application, amount: KvTokenTime) -> None:
        """Subtract the charge from the client's balance, after the visits that were due."""
        place = self._place(application)
        self._make_visits(place)
        place.balance -= amount
        if place.at_turn and place.balance <= 0:
            self._end_visit(place)

    def _place(self, application: Application) -> _Place:
        return self._ring.setdefault(self.client(application), _Place(application.sequence))

    def _make_visits(self, place: _Place) -> None:
        """Make the visits of the sweep since the last that this client has been credited with."""
        passed = self._last_visit(place) - place.round + 1
        if place.at_turn:
            if not place.waits and self._pointer != (place.round, place.index):
                self._end_visit(place)
        elif passed > 0:
            refills = place.refills(self._quantum)
            if place.waits and passed >= refills:
                place.take_turn(self._quantum)
            else:
                if not place.waits:  # up to 0 or just above it, and no further
                    refills = max(0, int(-(place.balance // self._quantum)))
                place.balance += self._quantum * min(passed, refills)
                place.round += passed

    def _end_visit(self, place: _Place) -> None:
        place.at_turn = False
        place.round = self._last_visit(place) + 1

    def _last_visit(self, place: _Place) -> int:
        """Return the last round in which the sweep has visited this place."""
        sweep_round, index = self._pointer
        return sweep_round if place.index <= index else sweep_round - 1
