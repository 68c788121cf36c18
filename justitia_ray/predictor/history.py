"""The latest finished applications of one class, and which of them still say what comes next."""

from collections import deque
from collections.abc import Iterable

from justitia_ray.predictor.sample import Sample

KEPT_BEFORE_CHANGE = 3
"""The change is seen some samples late or early; a few from before it do no harm."""


class ClassHistory:
    """Samples of one class in the order of their ends, bounded; those before a change are out."""

    def __init__(self, bound: int) -> None:
        """Start empty.

        Args:
            bound: Samples kept, at least 1; the oldest go first.
        """
        self._samples: deque[Sample] = deque(maxlen=bound)
        self._valid = 0
        """So many of the latest are used; the rest was before a change."""
        self._with_features = 0
        """Of those in use."""

    def add(self, sample: Sample) -> None:
        """Take in an application that has just finished."""
        if self._valid == self._samples.maxlen:
            self._valid -= 1
            self._with_features -= self._samples[0].features is not None
        self._samples.append(sample)
        self._valid += 1
        self._with_features += sample.features is not None

    def note_change(self, since: int) -> None:
        """Use only the latest `since` samples, and a few before them, from now on."""
        self._use(min(self._valid, since + KEPT_BEFORE_CHANGE))

    def latest(self, count: int) -> tuple[Sample, ...]:
        """Return the latest `count` samples, or as many as there are."""
        return tuple(self._samples)[max(0, len(self._samples) - count) :]

    def usable(self) -> tuple[Sample, ...]:
        """Return the samples to learn from, oldest first: their inputs are known."""
        latest = self.latest(self._valid)
        return tuple(sample for sample in latest if sample.features is not None)

    @property
    def usable_count(self) -> int:
        """How many `usable` returns."""
        return self._with_features

    @property
    def valid(self) -> int:
        """How many of the latest samples are used, with those whose inputs are not known."""
        return self._valid

    def restore(self, samples: Iterable[Sample], valid: int) -> None:
        """Hold these samples instead, the latest `valid` of them in use."""
        self._samples = deque(samples, maxlen=self._samples.maxlen)
        self._use(min(valid, len(self._samples)))

    def _use(self, latest: int) -> None:
        self._valid = latest
        self._with_features = len(self.usable())
