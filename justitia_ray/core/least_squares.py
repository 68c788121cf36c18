"""Least squares through the origin, with weights that decay with each new sample."""

from collections.abc import Sequence

KEEP = 0.98
"""Factor on the weight of all earlier samples with each new one, so that some 50 samples count."""
_LEAST_WEIGHT = 8.0
"""Sum of sample weights below which the coefficients are unknown."""
_LEAST_PIVOT = 1e-3
"""Share of a diagonal element that elimination must leave. With less, the samples are too similar
to determine the coefficients separately.
"""


class DecayingFit:
    """Fits coefficients c to samples (x, y) with x·c ≈ y. A sample with n values takes O(n²)."""

    def __init__(self, unknowns: int) -> None:
        self._weight = 0.0
        self._sums = [[0.0] * (unknowns + 1) for _ in range(unknowns)]
        """Sums of products of x with (x, y): the normal equations."""

    def add(self, values: Sequence[float], result: float) -> None:
        """Add a sample with one value for each coefficient."""
        for sums, value in zip(self._sums, values, strict=True):
            for place, other in enumerate((*values, result)):
                sums[place] = KEEP * sums[place] + value * other
        self._weight = KEEP * self._weight + 1

    def last_coefficient(self) -> float | None:
        """Return the coefficient of each sample's last value; None if it is undetermined.

        Other coefficients may be undetermined: if their values are proportional in all samples, one
        of them accounts for all.
        """
        rows = self._eliminated_rows()
        return None if rows is None else rows[-1][-1] / rows[-1][-2]

    def _eliminated_rows(self) -> list[list[float]] | None:
        """Return eliminated normal equations, of which the last has one unknown coefficient.

        None if the samples do not determine this coefficient.
        """
        if self._weight < _LEAST_WEIGHT:
            return None
        rows = [[*row] for row in self._sums]
        for pivot in range(len(rows) - 1):
            if rows[pivot][pivot] <= _LEAST_PIVOT * self._sums[pivot][pivot]:
                continue
            for row in rows[pivot + 1 :]:
                factor = row[pivot] / rows[pivot][pivot]
                for place in range(pivot, len(row)):
                    row[place] -= factor * rows[pivot][place]
        is_open = rows[-1][-2] <= _LEAST_PIVOT * self._sums[-1][-2]
        return None if is_open else rows
