"""What an ingress tells of one model: its predictions and their errors, the epochs it has seen."""

from collections import OrderedDict

from justitia_ray.core.actions import EndApplication
from justitia_ray.observability import metrics as m
from justitia_ray.observability.measures import Measures
from justitia_ray.predictor.estimate import Source
from justitia_ray.predictor.observation import is_lesson
from justitia_ray.units import ApplicationId, Epoch

_MOST = 50_000
"""Open applications of which the source of the estimate is kept; the oldest go first. As many as
`scheduler.max_open_applications`; they take 10 MB."""


class IngressMetrics:
    """Counts estimates by their source, and measures them when their applications end."""

    def __init__(self, measures: Measures) -> None:
        """Start to measure for an ingress."""
        self._measures = measures
        self._asked: OrderedDict[ApplicationId, Source] = OrderedDict()
        """Of those whose opening the scheduler has not answered."""
        self._sources: OrderedDict[ApplicationId, Source] = OrderedDict()
        """Of those that are open."""
        self._missed = measures.count(m.PREDICTOR_MISSED_TOTAL)
        self._epoch_changes = measures.count(m.EPOCH_CHANGES_TOTAL)
        self._epoch: Epoch = 0

    def estimated(self, application_id: ApplicationId, source: Source) -> None:
        """The scheduler was asked to open an application with an estimate.

        It takes that of the first who ask, so a later one changes nothing.
        """
        if application_id not in self._sources and application_id not in self._asked:
            _keep(self._asked, application_id, source)

    def opened(self, application_id: ApplicationId) -> None:
        """The scheduler has opened it; told again, or of one opened elsewhere, nothing happens."""
        source = self._asked.pop(application_id, None)
        if source is not None:
            self._measures.count(m.PREDICTIONS_TOTAL, source).add()
            _keep(self._sources, application_id, source)

    def forget(self, application_id: ApplicationId) -> None:
        """It is over, or was not opened."""
        self._asked.pop(application_id, None)
        self._sources.pop(application_id, None)

    def missed(self) -> None:
        """The predictor did not answer in time."""
        self._missed.add()

    def ended(self, ended: EndApplication) -> None:
        """An application that was opened here is over; what was cut short says nothing."""
        source = self._sources.get(ended.application_id)
        self.forget(ended.application_id)
        if source is None or not is_lesson(ended):
            return
        error = abs(ended.predicted_kv_token_time - ended.kv_token_time) / ended.kv_token_time
        label = self._measures.label("application_class", ended.application_class)
        self._measures.observations(m.PREDICTION_RELATIVE_ERROR, label, source).add(error)

    def look(self, outstanding: int, epoch: Epoch) -> None:
        """Set the gauges, and see whether another scheduler is in office than at the last look.

        Args:
            outstanding: Inferences submitted and not answered.
            epoch: Of the scheduler; 0 before it was heard of.
        """
        self._measures.gauge(m.OUTSTANDING_INFERENCES).value = outstanding
        if epoch > self._epoch:
            self._epoch_changes.add(self._epoch > 0)
            self._epoch = epoch


def _keep(
    sources: OrderedDict[ApplicationId, Source], application_id: ApplicationId, source: Source
) -> None:
    sources[application_id] = source
    if len(sources) > _MOST:
        sources.popitem(last=False)
