"""Times that engines need for a prompt token and an iteration, learned from busy replicas' reports.

A replica that computes u prompt tokens and g output tokens in N iterations without idle time takes
about N·a + u·b + g·c seconds. The duration of a lease contains the time for prompts of other
leases; b is the time that a prompt token costs the whole replica. The coefficients a, b and c are
fitted to the reports of all replicas.
"""

from dataclasses import dataclass

from justitia_ray.core.least_squares import KEEP, DecayingFit
from justitia_ray.units import ReplicaId, Seconds, Tokens

_ITERATIONS = 16
"""Smallest number of iterations in a busy period whose times are used. A prompt counts with its
first output token, so a prompt that was computed in part before the period distorts the times of a
short one.
"""


@dataclass(slots=True)
class _BusyPeriod:
    began_at: Seconds
    iterations: int = 0
    output_tokens: Tokens = 0
    computed_tokens: Tokens = 0


class EngineTimes:
    """Fits the times of a prompt token and of an iteration to replicas' reports. O(1) a report."""

    def __init__(self) -> None:
        self._periods: dict[ReplicaId, _BusyPeriod] = {}
        self._fit = DecayingFit(3)
        self._lasted_s: Seconds = 0.0
        self._iterations = 0.0
        self.token_s: Seconds | None = None
        """Seconds of a replica's time for computing a prompt token; None if not known yet."""

    @property
    def iteration_s(self) -> Seconds:
        """Return the mean duration of an iteration in seconds, including computed prompts.

        0 before any report.
        """
        return self._lasted_s / self._iterations if self._iterations else 0.0

    def report(
        self,
        replica_id: ReplicaId,
        iterations: int,
        output_tokens: Tokens,
        computed_tokens: Tokens,
        now: Seconds,
        *,
        is_busy: bool,
    ) -> None:
        """Record the tokens and iterations that a replica has computed since its last report.

        Args:
            replica_id: The replica.
            iterations: Output tokens of the sequence that made the most output tokens.
            output_tokens: Output tokens of all sequences.
            computed_tokens: Computed prompt tokens of sequences that have made their first token.
            now: Time of the report.
            is_busy: Whether anything still runs on the replica.
        """
        period = self._periods.get(replica_id)
        if period is not None:
            period.iterations += iterations
            period.output_tokens += output_tokens
            period.computed_tokens += computed_tokens
            if period.iterations >= _ITERATIONS:
                self._add_period(period, now - period.began_at)
                period = None
        if not is_busy:
            self._periods.pop(replica_id, None)
        elif period is None:
            self._periods[replica_id] = _BusyPeriod(now)

    def _add_period(self, period: _BusyPeriod, lasted_s: Seconds) -> None:
        self._lasted_s = KEEP * self._lasted_s + lasted_s
        self._iterations = KEEP * self._iterations + period.iterations
        row = period.iterations, period.output_tokens, period.computed_tokens
        self._fit.add(row, lasted_s)
        token_s = self._fit.last_coefficient()
        if token_s is not None and token_s > 0:
            self.token_s = token_s
