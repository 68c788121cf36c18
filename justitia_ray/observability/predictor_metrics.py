"""What a predictor tells of its learning."""

from collections.abc import Mapping
from typing import Literal

from justitia_ray.observability import metrics as m
from justitia_ray.observability.measures import OTHER, Measures

TrainingResult = Literal["took_over", "rejected", "failed"]


class PredictorMetrics:
    """Counts what is learned, and looks at the versions before an export."""

    def __init__(self, measures: Measures) -> None:
        """Start to measure for a predictor."""
        self._measures = measures
        self._learned = measures.count(m.LEARNED_APPLICATIONS_TOTAL)

    def learned(self, applications: int) -> None:
        """So many finished applications were taken in and saved."""
        self._learned.add(applications)

    def trained(self, result: TrainingResult) -> None:
        """A training has ended."""
        self._measures.count(m.TRAININGS_TOTAL, result).add()

    def look(self, versions: Mapping[str, int]) -> None:
        """Set the gauges; a version of `other` would be that of no class.

        Args:
            versions: By class, what answers for it: a version of its model, or 0 for its mean.
        """
        for application_class, version in versions.items():
            label = self._measures.label("application_class", application_class)
            if label != OTHER:
                self._measures.gauge(m.MODEL_VERSION, label).value = version
