"""Metrics of the ingress, the replica and the predictor."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Literal, get_args

from justitia_ray.core.actions import EndApplication
from justitia_ray.errors import JustitiaError
from justitia_ray.observability import metrics as m
from justitia_ray.observability.measures import OTHER, Measures
from justitia_ray.predictor.estimate import Source
from justitia_ray.predictor.observation import is_lesson
from justitia_ray.protocol.engine import KeptKv
from justitia_ray.protocol.errors import dropped_pairs, status_of
from justitia_ray.protocol.refusals import drop_reason
from justitia_ray.units import ApplicationId, Epoch, Seconds, Tokens

_MAX_SOURCES = 50_000
"""Maximum number of open applications for which the metrics keep how their cost was predicted. It
equals the default of `scheduler.max_open_applications`, and takes 10 MB.
"""


class IngressMetrics:
    """Counts cost estimates by their source, the errors of estimates, and dropped calls."""

    def __init__(self, measures: Measures) -> None:
        self._measures = measures
        self._asked: OrderedDict[ApplicationId, Source] = OrderedDict()
        self._sources: OrderedDict[ApplicationId, Source] = OrderedDict()
        """Source of the cost estimate of each open application."""
        self._missed = measures.counter(m.PREDICTOR_MISSED_TOTAL)
        self._dropped = {
            pair: measures.counter(m.DROPPED_CALLS_TOTAL, pair[0] or "none", pair[1].value)
            for pair in dropped_pairs()
        }
        self._predictions = {
            source: measures.counter(m.PREDICTIONS_TOTAL, source) for source in get_args(Source)
        }
        self._epoch_changes = measures.counter(m.EPOCH_CHANGES_TOTAL)
        self._epoch: Epoch = 0

    def record_estimate(self, application_id: ApplicationId, source: Source) -> None:
        """Record how the cost of an application was estimated before it is opened.

        The scheduler uses the first estimate, so a later one changes nothing.
        """
        if application_id not in self._sources and application_id not in self._asked:
            _store_source(self._asked, application_id, source)

    def record_opening(self, application_id: ApplicationId) -> None:
        """Record that the scheduler opened an application."""
        source = self._asked.pop(application_id, None)
        if source is not None:
            self._predictions[source].increase()
            _store_source(self._sources, application_id, source)

    def forget_application(self, application_id: ApplicationId) -> None:
        """Forget an application that has ended, or was not opened."""
        self._asked.pop(application_id, None)
        self._sources.pop(application_id, None)

    def note_opening(self, application_id: ApplicationId, is_open: bool) -> None:
        """Record whether the scheduler has opened an application."""
        if is_open:
            self.record_opening(application_id)
        else:
            self.forget_application(application_id)

    def record_recognition(self, rule: str) -> None:
        """Count an inference by the rule that found its application; "" without a rule."""
        self._measures.counter(m.RECOGNIZED_TOTAL, rule or "none").increase()

    def record_drop(self, error: JustitiaError) -> None:
        """Count a call that ended with an error after its admission."""
        reason = drop_reason(error)
        if reason is not None:
            self._dropped[status_of(error)[2] or "", reason].increase()

    def record_failed_stream(self, status: int) -> None:
        """Count a stream that failed after its headers were sent."""
        failed_with = "4xx" if status < 500 else "5xx"
        self._measures.counter(m.FAILED_STREAMS_TOTAL, failed_with).increase()

    def record_missed_estimate(self) -> None:
        """Count an estimate that the predictor did not return before its deadline."""
        self._missed.increase()

    def record_end(self, ended: EndApplication) -> None:
        """Record the error of the predicted cost of an application that has ended."""
        source = self._sources.get(ended.application_id)
        self.forget_application(ended.application_id)
        if source is None or not is_lesson(ended):
            return
        error = abs(ended.predicted_kv_token_time - ended.kv_token_time) / ended.kv_token_time
        label = self._measures.label("application_class", ended.application_class)
        self._measures.histogram(m.PREDICTION_RELATIVE_ERROR, label, source).observe(error)

    def measure(self, outstanding: int, epoch: Epoch) -> None:
        """Set the gauges of an ingress; count a change of the scheduler's leader.

        Args:
            outstanding: Number of inferences submitted and not answered.
            epoch: The scheduler's epoch; 0 before it is known.
        """
        self._measures.gauge(m.OUTSTANDING_INFERENCES).value = outstanding
        if epoch > self._epoch:
            self._epoch_changes.increase(self._epoch > 0)
            self._epoch = epoch


def _store_source(
    sources: OrderedDict[ApplicationId, Source], application_id: ApplicationId, source: Source
) -> None:
    sources[application_id] = source
    if len(sources) > _MAX_SOURCES:
        sources.popitem(last=False)


class ReplicaMetrics:
    """Sets the metrics of a replica from its engine and its leases.

    Args:
        measures: The series of a replica.
        kv_tokens: KV memory of its engine in tokens.
        host_kv_tokens: KV tokens that fit into its host memory; 0: it has none.
    """

    def __init__(self, measures: Measures, kv_tokens: Tokens, host_kv_tokens: Tokens = 0) -> None:
        self._measures = measures
        self._kv_tokens = kv_tokens
        self._host_kv_tokens = host_kv_tokens

    def measure(
        self,
        *,
        free_kv_tokens: Tokens,
        held_leases: int,
        stalled_s: Seconds | None,
        preemptions: int,
        prompt_tokens: Tokens,
        output_tokens: Tokens,
        cached_tokens: Tokens,
        kept: KeptKv | None = None,
    ) -> None:
        """Set a replica's gauges, and the totals of its engine and its leases."""
        measures, capacity = self._measures, self._kv_tokens
        measures.gauge(m.KV_CAPACITY_TOKENS).value = capacity
        measures.gauge(m.KV_UTILIZATION_RATIO).value = 1 - free_kv_tokens / capacity
        measures.gauge(m.HELD_LEASES).value = held_leases
        measures.gauge(m.STALLED_SECONDS).value = stalled_s or 0.0
        measures.counter(m.PREEMPTIONS_TOTAL).set_total(preemptions)
        measures.counter(m.PROMPT_TOKENS_TOTAL).set_total(prompt_tokens)
        measures.counter(m.OUTPUT_TOKENS_TOTAL).set_total(output_tokens)
        measures.counter(m.CACHED_TOKENS_TOTAL).set_total(cached_tokens)
        if kept is not None:
            self._measure_kept(kept)

    def _measure_kept(self, kept: KeptKv) -> None:
        """Set the gauges of contexts that the engine keeps in GPU and host memory."""
        for metric, value in (
            (m.HELD_CONTEXTS, kept.held_contexts),
            (m.HELD_KV_TOKENS, kept.held_kv_tokens),
            (m.HOST_KV_TOKENS, kept.host_kv_tokens),
            (m.HOST_KV_CAPACITY_TOKENS, self._host_kv_tokens or None),
        ):
            if value is not None:
                self._measures.gauge(metric).value = value


TrainingResult = Literal["took_over", "rejected", "failed"]


class PredictorMetrics:
    """Counts what a predictor has learned, and exports the model versions in use."""

    def __init__(self, measures: Measures) -> None:
        self._measures = measures
        self._learned = measures.counter(m.LEARNED_APPLICATIONS_TOTAL)

    def record_learning(self, applications: int) -> None:
        """Count finished applications from which the predictor has learned."""
        self._learned.increase(applications)

    def record_training(self, result: TrainingResult) -> None:
        """Count a completed training by its result."""
        self._measures.counter(m.TRAININGS_TOTAL, result).increase()

    def measure(self, versions: Mapping[str, int]) -> None:
        """Set the gauge of the model version of each application class.

        Args:
            versions: Version of the model in use by class; 0 if the mean of the class is used.
        """
        for application_class, version in versions.items():
            label = self._measures.label("application_class", application_class)
            if label != OTHER:
                self._measures.gauge(m.MODEL_VERSION, label).value = version
