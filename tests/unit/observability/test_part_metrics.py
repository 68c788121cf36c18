"""What ingresses, replicas and predictors tell of themselves."""

from dataclasses import replace

from justitia_ray.core.entities import Outcome
from justitia_ray.errors import AttemptsExhausted, QueueFull, QuotaExhausted, UnknownModel
from justitia_ray.observability.part_metrics import IngressMetrics, PredictorMetrics, ReplicaMetrics
from tests.unit.observability.recording_backend import ENDED, exported, measures


def test_prediction_is_that_of_an_application_that_was_opened() -> None:
    """The first of those that asked to open a: the scheduler took its estimate.

    100 predicted, 50 true: 100 % too much, told once. b was refused, opened when it came again and
    cut short, so that its true cost is not known; c was refused; d could not be stored, and f is to
    be heard of.
    """
    source = measures("ingress")
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
    told = exported(source)

    assert {"model": 1, "class": 1, "neighbours": 0, "prior": 0} == {
        key[1]: count for key, count in told.counts.items() if key[0] == "predictions_total"
    }
    assert {("prediction_relative_error", "vote", "model"): (1, 1.0)} == told.histograms


def test_first_epoch_is_no_change() -> None:
    """0 before the scheduler was heard of, 4 in office, 6 its successor.

    The service goes on without a predictor that is late: nobody would notice otherwise.
    """
    source = measures("ingress")
    metrics = IngressMetrics(source)
    metrics.record_missed_estimate()
    for epoch in (0, 4, 4, 6):
        metrics.measure(3, epoch)
    told = exported(source)

    assert 1 == told.counts["predictor_missed_total",]
    assert 1 == told.counts["epoch_changes_total",]
    assert 3 == told.gauges["outstanding_inferences",]


def test_replica_tells_its_memory_and_what_its_engine_counts() -> None:
    """A quarter of 1,000 tokens is free, so that 75 % are in use."""
    source = measures("replica")
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
    told = exported(source)

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


def test_predictor_tells_what_it_learns_and_what_serves() -> None:
    """The version of `other` would be that of no class."""
    source = measures("predictor", max_classes=1)
    metrics = PredictorMetrics(source)
    metrics.record_learning(5)
    for result in ("took_over", "rejected", "rejected", "failed"):
        metrics.record_training(result)
    metrics.measure({"vote": 3, "report": 1})
    told = exported(source)

    assert 5 == told.counts["learned_applications_total",]
    assert (1, 2, 1) == tuple(
        told.counts["trainings_total", result] for result in ("took_over", "rejected", "failed")
    )
    assert {("model_version", "vote"): 3} == told.gauges


def test_dropped_calls_are_told_by_code_and_reason() -> None:
    """A quota of minutes and a budget have one reason and two codes; 404s of models have none."""
    source = measures("ingress")
    metrics = IngressMetrics(source)
    for error in (
        QueueFull("full"),
        QuotaExhausted("spent", 1.0, {"period_s": 60.0}),
        QuotaExhausted("spent", None),
        AttemptsExhausted("gave up"),
        UnknownModel("no such model"),
    ):
        metrics.record_drop(error)
    told = exported(source).counts

    assert {
        ("queue_full", "queue_full"),
        ("rate_limit_exceeded", "quota"),
        ("insufficient_quota", "quota"),
        ("engine_error", "attempts"),
    } == {key[1:] for key, count in told.items() if key[0] == "dropped_calls_total" and count}
    assert 0 == told["dropped_calls_total", "deadline_missed", "deadline"]
