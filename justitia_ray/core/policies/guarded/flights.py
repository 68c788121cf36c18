"""Inferences that run in the shadow of VTC, each for its own length in time.

VTC starts the first inference of a stage at once, and a long inference holds a part of the memory
for minutes, while others run beside it. So each first inference is a *flight*: it holds its mean
memory until it ends. The other inferences of a stage start while the level X of VTC rises. Those
that start within 32 iterations form a *cohort*, which gathers them and then runs as one flight of
their mean length; until then all its service remains. The remaining work of all flights falls
linearly until the next flight ends.
"""

from __future__ import annotations

import heapq
import math
from typing import Any, NamedTuple

from justitia_ray.core.queue import LazyHeap
from justitia_ray.core.records import Fields, RecordReader, read_fields
from justitia_ray.units import ApplicationId, KvTokenTime, Seconds

_GATHERED_ITERATIONS = 32
"""Number of iterations during which inferences are gathered before they start together: about a
second of a 7B model on an A10G GPU.
"""


class _Cohort(NamedTuple):
    """Inferences that the policy VTC would have started together, and would be running now."""

    until: Seconds
    rate: float
    """Service per second of these inferences."""


_COHORT: Fields = {"until": RecordReader.number, "rate": RecordReader.positive}
_GATHERING: Fields = {
    "service": RecordReader.not_negative,
    "rate": RecordReader.not_negative,
    "until": RecordReader.number,
}


class Flights:
    """Inferences that would be running now if the policy VTC scheduled them.

    A change costs O(log N), a sum O(1).

    Attributes:
        rate: Service per second of all flights, token·iterations.
        next_change: Time at which the next flight ends, or the gathering cohort departs; infinite
            if there is none.
    """

    def __init__(self) -> None:
        self.rate: float = 0
        self.next_change: Seconds = math.inf
        self._rate_to_end: float = 0
        """Sum over all running inferences of service per second times the time at which each ends.
        """
        self._first: dict[ApplicationId, tuple[Seconds, float]] = {}
        """Time at which VTC would end each application's first inference, and its service per
        second.
        """
        self._by_end = LazyHeap()
        """Heap of applications by the time at which VTC would end their first inferences."""
        self._cohorts: list[_Cohort] = []
        """Heap of the groups of inferences with the same start, by the time of their end."""
        self._gathered: KvTokenTime = 0
        """Service of the inferences that will start together next."""
        self._gathered_rate: float = 0
        """Service per second of the inferences that will start together next."""
        self._gathers_until: Seconds = math.inf
        """Time at which the gathered inferences start; infinite if there are none."""

    def __contains__(self, name: ApplicationId) -> bool:
        return name in self._first

    @property
    def held_rate(self) -> float:
        """Return the service per second of all inferences that would hold memory under VTC."""
        return self.rate + self._gathered_rate

    def rest(self, now: Seconds) -> KvTokenTime:
        """Return the remaining service of the running inferences; none of them may have ended."""
        flying = self._rate_to_end - self.rate * now if self._first or self._cohorts else 0
        return flying + self._gathered

    def begin(
        self,
        name: ApplicationId,
        sequence: int,
        service: KvTokenTime,
        since: Seconds,
        until: Seconds,
    ) -> None:
        """Record that VTC would now run an application's first inference."""
        self.end(name)
        rate = service / (until - since)
        self._first[name] = (until, rate)
        self._by_end.put(name, (until, sequence))
        self._add_rate(until, rate)

    def end(self, name: ApplicationId) -> None:
        """Record that VTC would no longer run an application's first inference."""
        if (flight := self._first.pop(name, None)) is not None:
            self._by_end.drop(name)
            self._subtract_rate(*flight)

    @property
    def gathers(self) -> bool:
        """Return whether an inference that starts now starts together with earlier ones."""
        return self._gathers_until < math.inf

    def open(self, now: Seconds, iteration_s: Seconds) -> None:
        """Begin to gather inferences that will start together."""
        if not self.gathers:
            self._gathers_until = now + _GATHERED_ITERATIONS * iteration_s
            self._find_next()

    def gather(self, service: KvTokenTime, length_s: Seconds) -> None:
        """Add inferences of this length to the group that starts next."""
        if length_s:
            self._gathered += service
            self._gathered_rate += service / length_s

    def pass_next(self) -> ApplicationId | None:
        """Process the next start or end; return the application whose first inference ended."""
        if self._gathers_until == self.next_change:
            self._start_gathered_inferences()
        elif self._cohorts and self._cohorts[0].until == self.next_change:
            self._subtract_rate(*heapq.heappop(self._cohorts))
        else:
            name = self._by_end.first()
            assert name is not None
            self.end(name)
            return name
        return None

    def state(self) -> dict[str, Any]:
        """Return the groups of inferences as JSON, without first inferences."""
        gathering = None
        if self.gathers:
            values = (self._gathered, self._gathered_rate, self._gathers_until)
            gathering = dict(zip(_GATHERING, values, strict=True))
        return {"flying": [cohort._asdict() for cohort in self._cohorts], "gathering": gathering}

    def restore(self, state: object) -> None:
        """Restore the result of `state`, into an empty object.

        Raises:
            ValueError: If the state has another form.
        """
        reader = RecordReader(state, ("flying", "gathering"))
        cohorts = [
            _Cohort(**read_fields(record, _COHORT, where=f"flying[{number}]"))
            for number, record in enumerate(reader.items("flying"))
        ]
        if reader.value("gathering") is not None:
            gathering = reader.record("gathering", _GATHERING)
            self._gathered, self._gathered_rate = gathering["service"], gathering["rate"]
            self._gathers_until = gathering["until"]
        for cohort in cohorts:
            self._add_cohort(cohort)
        self._find_next()

    def _start_gathered_inferences(self) -> None:
        since, service, rate = self._gathers_until, self._gathered, self._gathered_rate
        self._gathered = self._gathered_rate = 0
        self._gathers_until = math.inf
        if rate:
            self._add_cohort(_Cohort(since + service / rate, rate))
        else:
            self._find_next()

    def _add_cohort(self, cohort: _Cohort) -> None:
        heapq.heappush(self._cohorts, cohort)
        self._add_rate(*cohort)

    def _add_rate(self, until: Seconds, rate: float) -> None:
        self.rate += rate
        self._rate_to_end += rate * until
        self._find_next()

    def _subtract_rate(self, until: Seconds, rate: float) -> None:
        self.rate -= rate
        self._rate_to_end -= rate * until
        if not self._first and not self._cohorts:  # no rounding errors
            self.rate = self._rate_to_end = 0
        self._find_next()

    def _find_next(self) -> None:
        ends = self._cohorts[0].until if self._cohorts else math.inf
        self.next_change = min(self._by_end.least_value(), ends, self._gathers_until)
