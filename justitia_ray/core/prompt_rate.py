"""Time that a replica needs for a computed prompt token, learned from its reports while it is busy.

In a stretch of N iterations without idle time, in which u prompt tokens are computed and g output
tokens made, a replica takes about N·a + u·b + g·c seconds. Unlike the length of a lease, which
contains the prompts of others that were computed meanwhile, this tells what a prompt token costs
the whole replica. Least squares over all replicas, with decaying weights.
"""

from dataclasses import dataclass

from justitia_ray.units import ReplicaId, Seconds, Tokens

_ITERATIONS = 16
"""Least length of a stretch. A prompt counts with its first token, although it may have been
computed in part before the stretch."""
_KEEP = 0.98
"""Weight of all earlier stretches with each new one: some 50 count."""
_LEAST_STRETCHES = 8.0
_LEAST_PIVOT = 1e-3
"""Share of a diagonal element that elimination must leave: with less, stretches are too much alike
to tell prompts from iterations.
"""


@dataclass(slots=True)
class _Stretch:
    began_at: Seconds
    iterations: int = 0
    output_tokens: Tokens = 0
    computed_tokens: Tokens = 0


class PromptRate:
    """Fits the time of a prompt token. O(1) a report."""

    def __init__(self) -> None:
        self._stretches: dict[ReplicaId, _Stretch] = {}
        self._weight = 0.0
        self._sums = [[0.0] * 4 for _ in range(3)]
        """Sums of products of (N, g, u) with (N, g, u, seconds)."""
        self.token_s: Seconds | None = None
        """Seconds for a prompt token; None: not known yet."""

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
        """Record what a replica has done since its last report.

        Args:
            replica_id: The replica.
            iterations: Output tokens of the sequence that made most.
            output_tokens: Output tokens of all sequences.
            computed_tokens: Computed prompt tokens of sequences that have made their first token.
            now: Time of the report.
            is_busy: Whether anything still runs on the replica.
        """
        stretch = self._stretches.get(replica_id)
        if stretch is not None:
            stretch.iterations += iterations
            stretch.output_tokens += output_tokens
            stretch.computed_tokens += computed_tokens
            if stretch.iterations >= _ITERATIONS:
                self._add(stretch, now - stretch.began_at)
                stretch = None
        if not is_busy:
            self._stretches.pop(replica_id, None)
        elif stretch is None:
            self._stretches[replica_id] = _Stretch(now)

    def _add(self, stretch: _Stretch, lasted_s: Seconds) -> None:
        row = (stretch.iterations, stretch.output_tokens, stretch.computed_tokens)
        for sums, value in zip(self._sums, row, strict=True):
            for place, other in enumerate((*row, lasted_s)):
                sums[place] = _KEEP * sums[place] + value * other
        self._weight = _KEEP * self._weight + 1
        if self._weight >= _LEAST_STRETCHES:
            token_s = _last_unknown(self._sums)
            if token_s is not None and token_s > 0:
                self.token_s = token_s


def _last_unknown(equations: list[list[float]]) -> float | None:
    """Return the last unknown of linear equations; None if they leave it open."""
    rows = [[*row] for row in equations]
    for pivot in range(len(rows) - 1):
        if rows[pivot][pivot] <= _LEAST_PIVOT * equations[pivot][pivot]:
            continue  # proportional to the unknowns before: those stand for it
        for row in rows[pivot + 1 :]:
            factor = row[pivot] / rows[pivot][pivot]
            for place in range(pivot, len(row)):
                row[place] -= factor * rows[pivot][place]
    last = rows[-1]
    if last[-2] <= _LEAST_PIVOT * equations[-1][-2]:
        return None
    return last[-1] / last[-2]
