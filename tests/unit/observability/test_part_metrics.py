"""Metrics of ingresses, replicas and predictors."""

from dataclasses import replace

import pytest

from justitia_ray.core.entities import Outcome
from justitia_ray.errors import AttemptsExhausted, QueueFull, QuotaExhausted, UnknownModel
from justitia_ray.observability.part_metrics import IngressMetrics, PredictorMetrics, ReplicaMetrics
from justitia_ray.protocol.engine import KeptKv
from tests.unit.observability.recording_backend import ENDED, export_once, new_measures


def test_predicted_cost_is_compared_with_the_cost_of_the_ended_application() -> None:
    """The scheduler keeps the estimate of the first opening.

    100 predicted and 50 true is an error of 100 %, reported once. b was refused, opened on its
    retry and cut short, so its true cost is unknown; c was refused; d could not be stored, and f is
    still open.
    """
    source = new_measures("ingress")
    metrics = IngressMetrics(source)
    metrics.record_estimate("a", "model")
    for name in "abc":
        metrics.record_estimate(name, "prior")
    metrics.record_opening("a")
    metrics.record_estimate("a", "neighbours")
    metrics.record_opening("a")
    metrics.forget_application("b")
    metrics.forget_application("c")
    metrics.record_estimate("b", "class")
    metrics.record_opening("b")
    metrics.record_estimate("d", "class")
    for name in "bd":
        metrics.record_end(replace(ENDED, application_id=name, outcome=Outcome.CANCELLED))
    metrics.record_estimate("f", "class")
    metrics.record_end(ENDED)
    metrics.record_end(ENDED)
    for name in "cde":
        metrics.record_opening(name)
    told = export_once(source)

    assert {"model": 1, "class": 1, "neighbours": 0, "prior": 0} == {
        key[1]: count for key, count in told.counts.items() if key[0] == "predictions_total"
    }
    assert {("prediction_relative_error", "vote", "model"): (1, 1.0)} == told.histograms


def test_first_scheduler_epoch_does_not_count_as_a_scheduler_change() -> None:
    source = new_measures("ingress")
    metrics = IngressMetrics(source)
    metrics.record_missed_estimate()
    for epoch in (0, 4, 4, 6):
        metrics.measure(3, epoch)
    told = export_once(source)

    assert 1 == told.counts["predictor_missed_total",]
    assert 1 == told.counts["epoch_changes_total",]
    assert 3 == told.gauges["outstanding_inferences",]


def test_replica_exports_its_memory_and_engine_counters() -> None:
    source = new_measures("replica")
    metrics = ReplicaMetrics(source, 1_000)
    metrics.measure(
        free_kv_tokens=250,
        held_leases=3,
        stalled_s=1.5,
        preemptions=2,
        prompt_tokens=70,
        output_tokens=30,
        cached_tokens=60,
    )
    told = export_once(source)

    assert {
        ("kv_capacity_tokens",): 1_000,
        ("kv_utilization_ratio",): 0.75,
        ("held_leases",): 3,
        ("stalled_seconds",): 1.5,
    } == (told.gauges)
    assert (2, 70, 60, 30) == tuple(
        told.counts[f"{name}_total",]
        for name in ("preemptions", "prompt_tokens", "cached_tokens", "output_tokens")
    )


@pytest.mark.parametrize(
    ("host_kv_tokens", "kept", "exported"),
    [
        (0, None, {}),
        (
            0,
            KeptKv(held_contexts=2, held_kv_tokens=600),
            {"held_contexts": 2, "held_kv_tokens": 600},
        ),
        (
            5_000,
            KeptKv(host_kv_tokens=1_200),
            {"host_kv_tokens": 1_200, "host_kv_capacity_tokens": 5_000},
        ),
    ],
)
def test_replica_exports_only_the_kept_kv_that_its_engine_reports(
    host_kv_tokens: int, kept: KeptKv | None, exported: dict[str, int]
) -> None:
    source = new_measures("replica")
    ReplicaMetrics(source, 1_000, host_kv_tokens).measure(
        free_kv_tokens=250,
        held_leases=3,
        stalled_s=None,
        preemptions=0,
        prompt_tokens=0,
        output_tokens=0,
        cached_tokens=0,
        kept=kept,
    )
    told = export_once(source)

    assert exported == {
        name: value
        for (name,), value in told.gauges.items()
        if name
        not in {"kv_capacity_tokens", "kv_utilization_ratio", "held_leases", "stalled_seconds"}
    }


def test_predictor_exports_samples_and_serving_versions() -> None:
    source = new_measures("predictor", max_classes=1)
    metrics = PredictorMetrics(source)
    metrics.record_learning(5)
    for result in ("took_over", "rejected", "rejected", "failed"):
        metrics.record_training(result)
    metrics.measure({"vote": 3, "report": 1})
    told = export_once(source)

    assert 5 == told.counts["learned_applications_total",]
    assert (1, 2, 1) == tuple(
        told.counts["trainings_total", result] for result in ("took_over", "rejected", "failed")
    )
    assert {("model_version", "vote"): 3} == told.gauges


def test_dropped_calls_are_counted_by_code_and_reason() -> None:
    """Two refusals may share a reason but have different codes."""
    source = new_measures("ingress")
    metrics = IngressMetrics(source)
    for error in (
        QueueFull("full"),
        QuotaExhausted("spent", 1.0, {"period_s": 60.0}),
        QuotaExhausted("spent", None),
        AttemptsExhausted("gave up"),
        UnknownModel("no such model"),
    ):
        metrics.record_drop(error)
    told = export_once(source).counts

    assert {
        ("queue_full", "queue_full"),
        ("rate_limit_exceeded", "quota"),
        ("insufficient_quota", "quota"),
        ("engine_error", "attempts"),
    } == {key[1:] for key, count in told.items() if key[0] == "dropped_calls_total" and count}
    assert 0 == told["dropped_calls_total", "deadline_missed", "deadline"]
