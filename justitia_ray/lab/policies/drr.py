"""Adapted deficit round robin between clients (VTC, OSDI 2024, App. C.2), as an order of keys.

In the source, clients are in a ring, each with a balance (there called debt C) that is 0 at first.
A sweep visits them in turn. A visit adds a quantum Q to a balance of at most 0; a client whose
balance is then above 0 schedules inferences until the costs of their prompts have used up the
balance. Output tokens are subtracted as they are generated. A client without waiting inferences is
refilled only while its balance is below 0. The sweep continues where it stopped.

A sort key can express the same order: between two grants the sweep only refills balances, and a
refill does not depend on the other clients. So the turn of a waiting client is known in advance:
with a balance b ≤ 0 and its next visit in round r, the visit that brings it above 0 is in round r +
floor(−b/Q); with b > 0 it is in round r. Visits are ordered by (round, position in the ring), so
the sweep stops next at the least (round of the turn, position); rounds in which no balance is above
0 are skipped at once. A charge changes the turn of its own client only. A sweep changes no key: a
visit that refills adds Q to b and 1 to r, and the turn stays. Hence the balance of a waiting client
is updated only when it is charged or granted, and the balance of a client without waiting
inferences when it is charged or submits again, from the visits that the sweep has made since.

The source leaves these choices open: The sweep advances only when an inference is granted, so it
does not pass a client that arrives while no inference fits. A client that is overtaken because its
next inference did not fit keeps its turn and gets no refill for the visits that it misses. After a
visit the client waits for the next round. Positions in the ring follow the first application of
each client; balances have no weights.
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
class _RingState:
    """State of one client in deficit round robin."""

    index: int
    balance: KvTokenTime = 0
    """Service that the client may still receive, negative after an overdraft."""
    round: int = 0
    at_turn: bool = False
    waits: bool = False

    def refills_needed(self, quantum: float) -> int:
        return max(0, int(-self.balance // quantum) + 1)

    def turn(self, quantum: float) -> int:
        if self.at_turn:
            return self.round
        return self.round + max(0, self.refills_needed(quantum) - 1)

    def take_turn(self, quantum: float) -> None:
        if not self.at_turn:
            refills, self.round = self.refills_needed(quantum), self.turn(quantum)
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
    """Deficit round robin between clients; first come, first served within a client."""

    OPTIONS: ClassVar[tuple[Option, ...]] = (
        UNIT,
        # The default is a prompt of VTC's synthetic loads (Sec. 5.2).
        Option("quantum", 256, number(least=1e-6)),
    )
    DEFAULT_COST: ClassVar[str] = "compute"

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._quantum: float = self.options.own["quantum"]
        self._ring: dict[ClientId, _RingState] = {}
        self._pointer = (0, 0)

    def key(self, client: ClientId, application: Application) -> Key:
        place = self._ring[client]
        return (place.turn(self._quantum), place.index)

    def submitted(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        place = self._ring_state_of(application)
        self._apply_visits(place)
        place.waits = True
        return ()

    def left(self, client: ClientId) -> None:
        """Mark a client as not waiting; an idle client is not refilled above 0."""
        self._ring[client].waits = False

    def dispatched(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        place = self._ring_state_of(application)
        place.take_turn(self._quantum)
        self._pointer = max(self._pointer, (place.round, place.index))
        return super().dispatched(application, inference)

    def forget_client(self, client: ClientId) -> None:
        self._ring.pop(client, None)

    def counted(self) -> dict[str, Any]:
        return super().counted() | {
            "pointer": list(self._pointer),
            "ring": {client: asdict(place) for client, place in self._ring.items()},
        }

    def take_over(self, counted: Mapping[str, Any]) -> None:
        reader = RecordReader(counted, ("pointer", "ring"), None)
        sweep_round, index = reader.integers("pointer")
        self._pointer = (sweep_round, index)
        self._ring = reader.table(
            "ring", lambda ring, c: _RingState(**ring.record(c, _PLACE_FIELDS))
        )
        super().take_over(counted)

    def charge(self, application: Application, amount: KvTokenTime) -> None:
        """Subtract a charge from the client's balance."""
        place = self._ring_state_of(application)
        self._apply_visits(place)
        place.balance -= amount
        if place.at_turn and place.balance <= 0:
            self._end_visit(place)

    def _ring_state_of(self, application: Application) -> _RingState:
        return self._ring.setdefault(self.client(application), _RingState(application.sequence))

    def _apply_visits(self, place: _RingState) -> None:
        """Refill a client for all rounds since its balance was last updated."""
        passed = self._last_round_at(place) - place.round + 1
        if place.at_turn:
            if not place.waits and self._pointer != (place.round, place.index):
                self._end_visit(place)
        elif passed > 0:
            refills = place.refills_needed(self._quantum)
            if place.waits and passed >= refills:
                place.take_turn(self._quantum)
            else:
                if not place.waits:  # an idle client saves up no service
                    refills = max(0, int(-(place.balance // self._quantum)))
                place.balance += self._quantum * min(passed, refills)
                place.round += passed

    def _end_visit(self, place: _RingState) -> None:
        place.at_turn = False
        place.round = self._last_round_at(place) + 1

    def _last_round_at(self, place: _RingState) -> int:
        sweep_round, index = self._pointer
        return sweep_round if place.index <= index else sweep_round - 1
