"""Charges of an inference add up to h(p, g), whatever becomes of it; here h = p + 2d."""

import json

import pytest

from justitia_ray.core.entities import Inference
from justitia_ray.core.policies import Delivery
from justitia_ray.core.policies.meter import Meter
from justitia_ray.cost import profiled_quadratic, weighted_tokens
from justitia_ray.units import Tokens
from tests.unit.core.stub_policy import inference


@pytest.fixture
def meter() -> Meter:
    """Return a meter of p + 2d."""
    return Meter(weighted_tokens)


@pytest.fixture
def a1() -> Inference:
    """Return an inference of 10 prompt tokens."""
    made = inference("a1", 1)
    made.prompt_tokens = 10
    return made


def report(before: Tokens, after: Tokens, *, prompt: Tokens = 10, booked: float = 0) -> Delivery:
    """Return a report of a1, of whose service a share is booked already."""
    return Delivery("a", "a1", prompt, before, after, 1, unbooked=1 - booked)


def test_prompt_is_charged_on_admission_and_tokens_as_they_come(
    meter: Meter, a1: Inference
) -> None:
    """VTC's way to charge, and nothing is left for the end."""
    assert 10 == meter.admitted(a1)
    assert 2 * 3 == meter.delivered(report(0, 3))
    assert 2 * 4 == meter.delivered(report(3, 7))
    a1.output_tokens = 7
    assert 0 == meter.ended(a1)


def test_second_grant_is_free(meter: Meter, a1: Inference) -> None:
    """A client does not pay for a replica that died."""
    meter.admitted(a1)
    meter.delivered(report(0, 5))
    a1.output_tokens = 5

    assert 0 == meter.admitted(a1)
    assert 2 * 1 == meter.delivered(report(5, 6))


def test_tokens_reported_a_second_time_are_free(meter: Meter, a1: Inference) -> None:
    """A new scheduler does not know how many had been made before; the meter does."""
    meter.admitted(a1)
    meter.delivered(report(0, 8))
    meter.restore(json.loads(json.dumps(meter.state())))

    assert 0 == meter.delivered(report(0, 2, booked=0.3))
    assert 2 * 1 == meter.delivered(report(2, 9))
    a1.output_tokens = 3
    assert 0 == meter.ended(a1), "cancelled, and made anew only so far"


def test_service_that_was_not_reported_is_charged_with_the_next_report(
    meter: Meter, a1: Inference
) -> None:
    """After a restart the core takes some for booked, and a policy does not hear of it."""
    meter.admitted(a1)

    assert 2 * 6 == meter.delivered(report(4, 6))
    a1.output_tokens = 9
    assert 2 * 3 == meter.ended(a1)


def test_service_of_before_is_not_charged(meter: Meter, a1: Inference) -> None:
    """The policy was another one when it was granted, and another scheduler has booked half."""
    assert 2 * 4 / 2 == meter.delivered(report(5, 9, booked=0.5))
    a1.output_tokens = 9
    assert 0 == meter.ended(a1)
    assert 0 == meter.ended(a1)


def test_tokens_of_before_are_not_charged_with_a_later_grant(meter: Meter, a1: Inference) -> None:
    """It ran under another policy and was re-queued: its prompt is charged, as to everybody."""
    a1.output_tokens = 7

    assert 10 == meter.admitted(a1)
    assert 2 * 1 == meter.delivered(report(7, 8))


def test_prompt_is_charged_as_the_replica_counts_it(meter: Meter, a1: Inference) -> None:
    """The ingress estimates; a prompt found shorter gives nothing back, but is made up for."""
    meter.admitted(a1)

    assert 2 + 2 * 3 == meter.delivered(report(0, 3, prompt=12))
    assert 0 == meter.delivered(report(3, 4, prompt=5))
    assert 1 == meter.delivered(report(4, 7, prompt=5))


def test_sequences_of_a_lease_are_charged_each(a1: Inference) -> None:
    """Where h has a price for being called at all, or is not linear, several cost more than one."""
    a1.choices = 2

    assert 2 * profiled_quadratic(5, 0) == Meter(profiled_quadratic).admitted(a1)


def test_nothing_is_kept_of_what_ended(meter: Meter, a1: Inference) -> None:
    """Inferences and applications come without end."""
    meter.admitted(a1)
    assert {"a": {"a1": 10}} == meter.state()
    meter.ended(a1)
    assert {"a": {}} == meter.state()
    meter.forget_application("a")
    meter.forget_application("a")
    assert {} == meter.state()
