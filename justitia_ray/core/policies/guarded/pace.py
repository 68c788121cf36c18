"""Recent speed of the replicas: KV token-time served per second, and seconds per iteration.

Both are ratios of sums that decay with the time in which something ran, by half in `HALF_LIFE_S`.
Time in which nothing runs counts in neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from justitia_ray.core.records import Fields, RecordReader, read_fields
from justitia_ray.core.served_rate import HALF_LIFE_S, USUAL_ITERATION_S
from justitia_ray.units import KvTokenTime, RequestId, Seconds

if TYPE_CHECKING:
    from justitia_ray.core.policies.base import Delivery

_USUAL_WEIGHT = 100.0
"""Weight of the default length of an iteration, as a number of measured iterations."""

_SUMS: Fields = dict.fromkeys(
    ("service", "busy_s", "iterations", "iterating_s"), RecordReader.not_negative
)


class Pace:
    """Measured speed of all replicas together, and of one sequence.

    Every method costs O(1) for each inference that it names. The length of an iteration is the time
    per token of a lease between two reports, or from its dispatch to the first report, so that it
    includes the computation of prompts.

    Attributes:
        kv_per_s: KV token·iterations served per second; None before any service is reported.
        iteration_s: Seconds per iteration.
    """

    def __init__(self) -> None:
        self.kv_per_s: float | None = None
        self.iteration_s: Seconds = USUAL_ITERATION_S
        self._service: KvTokenTime = 0.0
        self._busy_s: Seconds = 0.0
        self._iterations = _USUAL_WEIGHT
        self._iterating_s: Seconds = _USUAL_WEIGHT * USUAL_ITERATION_S
        self._since: Seconds = 0.0
        """Time of the last report, or of the first lease after a time without running inferences.
        """
        self._told_at: dict[RequestId, Seconds] = {}
        """Time of the last report of each running inference, or of its lease if there is no report.
        """

    def begin(self, request_id: RequestId, now: Seconds, told_at: Seconds | None = None) -> None:
        """Record that an inference runs, from now on or with its last report at `told_at`."""
        if not self._told_at:
            self._since = now
        self._told_at[request_id] = now if told_at is None else told_at

    def told_at(self, request_ids: Iterable[RequestId]) -> dict[RequestId, Seconds]:
        """Return the time of the last report of each running inference, or of its lease."""
        return {name: self._told_at[name] for name in request_ids if name in self._told_at}

    def leave(self, request_id: RequestId) -> None:
        """Record that an inference no longer runs; an unknown one is ignored."""
        self._told_at.pop(request_id, None)

    def observe(self, deliveries: Iterable[Delivery], now: Seconds) -> KvTokenTime:
        """Add the service in a report; return the fraction that is counted for the first time.

        Inferences without a recorded lease count only in the service, not in the time of an
        iteration.
        """
        service, iterations, iterating_s = 0.0, 0.0, 0.0
        told = self._told_at
        for delivery in deliveries:
            service += delivery.amount
            told_at = told.get(delivery.request_id)
            if told_at is not None and now > told_at:
                made = delivery.tokens_after - delivery.tokens_before
                iterations += made / delivery.choices
                iterating_s += now - told_at
                told[delivery.request_id] = now
        if told:
            self._add_period(service, max(0.0, now - self._since), iterations, iterating_s)
        self._since = now
        return service

    def state(self) -> dict[str, Any]:
        """Return the sums from which the speed is measured, as JSON."""
        return {name: getattr(self, f"_{name}") for name in _SUMS}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`.

        Raises:
            ValueError: If the state has another form.
        """
        for name, value in read_fields(state, _SUMS).items():
            setattr(self, f"_{name}", value)
        self._update_rates()

    def _add_period(
        self, service: KvTokenTime, busy_s: Seconds, iterations: float, iterating_s: Seconds
    ) -> None:
        keep = 0.5 ** (busy_s / HALF_LIFE_S)
        self._service = keep * self._service + service
        self._busy_s = keep * self._busy_s + busy_s
        self._iterations = keep * self._iterations + iterations
        self._iterating_s = keep * self._iterating_s + iterating_s
        self._update_rates()

    def _update_rates(self) -> None:
        if self._service > 0 and self._busy_s > 0:
            self.kv_per_s = self._service / self._busy_s
        if self._iterations > 0 and self._iterating_s > 0:
            self.iteration_s = self._iterating_s / self._iterations
