"""What ingresses, replicas and predictors tell of themselves."""

from dataclasses import replace

from justitia_ray.core.entities import Outcome
from justitia_ray.observability.ingress_metrics import IngressMetrics
from justitia_ray.observability.predictor_metrics import PredictorMetrics
from justitia_ray.observability.replica_metrics import ReplicaMetrics
from tests.unit.observability.taken import ENDED, exported, measures


def test_error_of_a_prediction_is_told_by_what_it_rested_on() -> None:
    """100 predicted, 50 true: 100 % too much. So models can be held against class means."""
    source = measures("ingress")
    metrics = IngressMetrics(source)
    metrics.estimated("a", "model")
    metrics.opened("a")
    metrics.ended(ENDED)
    metrics.ended(ENDED)  # it was opened once
    told = exported(source)

    assert [1.0] == told.observed["prediction_relative_error", "vote", "model"]
    assert (1, 0) == (
        told.counts["predictions_total", "model"],
        told.counts["predictions_total", "prior"],
    )


def test_prediction_is_that_of_an_application_that_was_opened() -> None:
    """The first of those that asked to open a: the scheduler took its estimate.

    b was refused, and opened when it came again; c was refused; d could not be stored, and f is to
    be heard of.
    """
    source = measures("ingress")
    metrics = IngressMetrics(source)
    metrics.estimated("a", "model")
    for name in "abc":
        metrics.estimated(name, "prior")
    metrics.opened("a")
    metrics.estimated("a", "neighbours")
    metrics.opened("a")
    metrics.forget("b")
    metrics.forget("c")
    metrics.estimated("b", "class")
    metrics.opened("b")
    metrics.estimated("d", "class")
    metrics.ended(replace(ENDED, application_id="d", outcome=Outcome.CANCELLED))
    metrics.estimated("f", "class")
    metrics.ended(ENDED)
    for name in "cde":
        metrics.opened(name)
    told = exported(source)

    assert {"model": 1, "class": 1, "neighbours": 0, "prior": 0} == {
        key[1]: count for key, count in told.counts.items() if key[0] == "predictions_total"
    }
    assert [1.0] == told.observed["prediction_relative_error", "vote", "model"]


def test_what_was_cut_short_says_nothing_of_its_prediction() -> None:
    """Its true cost is not known."""
    source = measures("ingress")
    metrics = IngressMetrics(source)
    metrics.estimated("a", "class")
    metrics.ended(replace(ENDED, outcome=Outcome.CANCELLED))

    assert not exported(source).observed


def test_predictor_that_is_late_is_counted() -> None:
    """The service goes on without it; nobody would notice otherwise."""
    source = measures("ingress")
    metrics = IngressMetrics(source)
    metrics.missed()

    assert 1 == exported(source).counts["predictor_missed_total",]


def test_first_epoch_is_no_change() -> None:
    """0 before the scheduler was heard of, 4 in office, 6 its successor."""
    source = measures("ingress")
    metrics = IngressMetrics(source)
    for epoch in (0, 4, 4, 6):
        metrics.look(3, epoch)
    told = exported(source)

    assert 1 == told.counts["epoch_changes_total",]
    assert 3 == told.gauges["outstanding_inferences",]


def test_replica_tells_its_memory_and_what_its_engine_counts() -> None:
    """A quarter of 1,000 tokens is free, so that 75 % are in use."""
    source = measures("replica")
    metrics = ReplicaMetrics(source, 1_000)
    metrics.look(
        free_kv_tokens=250, held_leases=3, preemptions=2, prompt_tokens=70, output_tokens=30
    )
    told = exported(source)

    assert {
        ("kv_capacity_tokens",): 1_000,
        ("kv_utilization_ratio",): 0.75,
        ("held_leases",): 3,
    } == (told.gauges)
    assert (2, 70, 30) == tuple(
        told.counts[name,]
        for name in ("preemptions_total", "prompt_tokens_total", "output_tokens_total")
    )


def test_predictor_tells_what_it_learns_and_what_serves() -> None:
    """The version of `other` would be that of no class."""
    source = measures("predictor", max_classes=1)
    metrics = PredictorMetrics(source)
    metrics.learned(5)
    for result in ("took_over", "rejected", "rejected", "failed"):
        metrics.trained(result)
    metrics.look({"vote": 3, "report": 1})
    told = exported(source)

    assert 5 == told.counts["learned_applications_total",]
    assert (1, 2, 1) == tuple(
        told.counts["trainings_total", result] for result in ("took_over", "rejected", "failed")
    )
    assert {("model_version", "vote"): 3} == told.gauges
