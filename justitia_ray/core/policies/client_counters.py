"""How much service each client has received, a counter each (VTC, OSDI 2024, Sec. 4.1).

It holds the counters and knows how to outlive the scheduler; when they rise is the policy's
business (`vtc`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from justitia_ray.core.entities import Application
from justitia_ray.core.records import (
    checked_count,
    checked_mapping,
    checked_number,
    checked_weight,
)
from justitia_ray.units import ClientId, KvTokenTime


@dataclass(slots=True)
class ClientCounter:
    """The counter of one client."""

    value: KvTokenTime
    """Service received by weight, in the unit of the policy's cost; lifts included."""
    first_seen: int
    """Sequence number of the application by which the client was first seen; breaks ties."""
    weight: float
    opened: int
    """Sequence number of the application that the weight is from."""


class ClientCounters:
    """The counters of all clients, and which client was the last to leave the queue."""

    def __init__(self) -> None:
        self._counters: dict[ClientId, ClientCounter] = {}
        self._last_left: ClientId | None = None
        self._level_left: KvTokenTime = 0
        """The counter of the last that left, where it is forgotten."""

    def see(self, client: ClientId, application: Application) -> ClientCounter:
        """Return the counter of a client, new at 0, with the weight of this application.

        The applications of a tenant should have one weight. If they have not, that of the one
        opened last counts, once it has submitted; also after its end, until the next.
        """
        counter = self._counters.get(client)
        if counter is None:
            sequence = application.sequence
            counter = ClientCounter(0, sequence, application.weight, sequence)
            self._counters[client] = counter
        elif application.sequence >= counter.opened:
            counter.weight, counter.opened = application.weight, application.sequence
        return counter

    def __getitem__(self, client: ClientId) -> ClientCounter:
        return self._counters[client]

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._counters)

    def level(self, client: ClientId) -> KvTokenTime:
        """Return the counter of a client; 0 if it is not known."""
        counter = self._counters.get(client)
        return 0 if counter is None else counter.value

    def leave(self, client: ClientId) -> None:
        """Take in that nothing of a client waits any more."""
        self._last_left = client

    def level_left(self) -> KvTokenTime:
        """Return the counter, as it is now, of the last client that left the queue; 0 if none."""
        if self._last_left is None:
            return self._level_left
        return self.level(self._last_left)

    def forget(self, client: ClientId) -> None:
        """Take out a client that will not come back; nothing happens if it is not known."""
        if client == self._last_left:
            self._last_left, self._level_left = None, self.level(client)
        self._counters.pop(client, None)

    def state(self) -> dict[str, Any]:
        """Return all of it, as JSON."""
        return {
            "counters": {
                client: {
                    "value": counter.value,
                    "first_seen": counter.first_seen,
                    "weight": counter.weight,
                    "opened": counter.opened,
                }
                for client, counter in self._counters.items()
            },
            "last_left": self._last_left,
            "level_left": self._level_left,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned.

        Raises:
            KeyError, TypeError, ValueError: If it is not of that form.
        """
        counters = {
            client: ClientCounter(
                checked_number(record["value"]),
                checked_count(record["first_seen"]),
                checked_weight(record["weight"]),
                checked_count(record["opened"]),
            )
            for client, record in checked_mapping(state["counters"]).items()
        }
        last_left = state["last_left"]
        if last_left is not None and last_left not in counters:
            raise ValueError(f"last_left: {last_left!r} has no counter")
        self._level_left = checked_number(state["level_left"])
        self._counters, self._last_left = counters, last_left
