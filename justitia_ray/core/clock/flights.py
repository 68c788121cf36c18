"""First inferences that run in the shadow of VTC, each for its own length in time.

VTC starts the first inference of a stage at once, and a long one holds a part of the memory for
minutes, while others run beside it. So each is a *flight*: it holds its mean memory until it ends.
What is left of all of them falls in a straight line from one end to the next.
"""

from __future__ import annotations

import math

from justitia_ray.core.queue import LazyHeap
from justitia_ray.units import ApplicationId, KvTokenTime, Seconds


class Flights:
    """The flights of all applications, at most one each. A change costs O(log N), a sum O(1).

    Attributes:
        rate: Service that all together are given a second, token·iterations.
        next_end: When the next of them ends; infinite if there is none.
    """

    def __init__(self) -> None:
        self.rate: float = 0
        self.next_end: Seconds = math.inf
        self._rate_to_end: float = 0
        """Sum of the rates, each times the instant at which its flight ends."""
        self._flights: dict[ApplicationId, tuple[float, Seconds]] = {}
        """Rate and end of each."""
        self._by_end = LazyHeap()

    def __contains__(self, name: ApplicationId) -> bool:
        return name in self._flights

    def rest(self, now: Seconds) -> KvTokenTime:
        """Return the service that is left of them; none has ended before now. Of none it is 0."""
        return self._rate_to_end - self.rate * now if self._flights else 0

    def begin(
        self,
        name: ApplicationId,
        sequence: int,
        service: KvTokenTime,
        since: Seconds,
        until: Seconds,
    ) -> None:
        """Let a flight of so much service begin, in place of one that the application has."""
        self.end(name)
        rate = service / (until - since)
        self._flights[name] = (rate, until)
        self.rate += rate
        self._rate_to_end += rate * until
        self._by_end.put(name, (until, sequence))
        self.next_end = min(self.next_end, until)

    def end(self, name: ApplicationId) -> None:
        """End the flight of an application; nothing if it has none."""
        if (flight := self._flights.pop(name, None)) is None:
            return
        rate, until = flight
        self._by_end.drop(name)
        self.rate -= rate
        self._rate_to_end -= rate * until
        if not self._flights:  # whatever the rounding
            self.rate = self._rate_to_end = 0
        if until == self.next_end:
            self.next_end = self._by_end.least_value()

    def end_next(self) -> ApplicationId:
        """End the flight that ends next, of which there is one; return whose it was."""
        name = self._by_end.first()
        assert name is not None
        self.end(name)
        return name
