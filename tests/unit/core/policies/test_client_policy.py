"""Charges of an inference always add up to h(p, g); here h = p + 2d."""

import json

import pytest

from justitia_ray.core import events as ev
from justitia_ray.core.entities import Application, Inference, Outcome
from justitia_ray.core.policies import Delivery, parse_options, policy_path
from justitia_ray.cost import choices_kv_token_time, kv_token_time, profiled_quadratic
from justitia_ray.lab.policies.attained_service import MlfqPolicy
from justitia_ray.units import KvTokenTime, Tokens
from tests.core_driver import CoreDriver
from tests.unit.core.stub_policy import create_application, create_inference, stub_context


class Meter(MlfqPolicy):
    """Policy of one application that records its last charge."""

    def __init__(self, cost: str = "compute") -> None:
        self.a = create_application("a")
        super().__init__(stub_context(parse_options(policy_path("mlfq"), {"cost": cost}), self.a))
        self.last: KvTokenTime = 0

    def charge(self, application: Application, amount: KvTokenTime) -> None:
        self.last = amount

    def admitted(self, inference: Inference) -> KvTokenTime:
        """Return the charge of a grant."""
        self.dispatched(self.a, inference)
        return self.last

    def delivered(self, delivery: Delivery) -> KvTokenTime:
        """Return the charge of a report."""
        self.served([delivery])
        return self.last

    def finished(self, inference: Inference) -> KvTokenTime:
        """Return the charge of an end."""
        self.ended(self.a, inference)
        return self.last


@pytest.fixture
def meter() -> Meter:
    """Return a meter of p + 2d."""
    return Meter()


@pytest.fixture
def a1() -> Inference:
    """Return an inference of 10 prompt tokens."""
    made = create_inference("a1", 1)
    made.prompt_tokens = 10
    return made


def report(before: Tokens, after: Tokens, *, prompt: Tokens = 10, booked: float = 0) -> Delivery:
    """Return a report of a1, a share of whose service is booked already."""
    return Delivery("a", "a1", prompt, before, after, 1, unbooked=1 - booked)


def test_prompt_is_charged_on_admission_and_tokens_as_they_come(
    meter: Meter, a1: Inference
) -> None:
    """VTC charges this way; no charge is left for the end."""
    assert 10 == meter.admitted(a1)
    assert 2 * 3 == meter.delivered(report(0, 3))
    assert 2 * 4 == meter.delivered(report(3, 7))
    a1.output_tokens = 7
    assert 0 == meter.finished(a1)


def test_second_grant_is_free(meter: Meter, a1: Inference) -> None:
    """A client does not pay for a replica that died."""
    meter.admitted(a1)
    meter.delivered(report(0, 5))
    a1.output_tokens = 5

    assert 0 == meter.admitted(a1)
    assert 2 * 1 == meter.delivered(report(5, 6))


def test_tokens_reported_a_second_time_are_free(meter: Meter, a1: Inference) -> None:
    """A new scheduler has not seen the tokens made before; the meter has recorded them."""
    meter.admitted(a1)
    meter.delivered(report(0, 8))
    meter.take_over(json.loads(json.dumps(meter.counted())))

    assert 0 == meter.delivered(report(0, 2, booked=0.3))
    assert 2 * 1 == meter.delivered(report(2, 9))
    a1.output_tokens = 3
    assert 0 == meter.finished(a1), "cancelled, and made anew only so far"


def test_service_that_was_not_reported_is_charged_with_the_next_report(
    meter: Meter, a1: Inference
) -> None:
    """After a restart the core counts some service as booked without a report to the policy."""
    meter.admitted(a1)

    assert 2 * 6 == meter.delivered(report(4, 6))
    a1.output_tokens = 9
    assert 2 * 3 == meter.finished(a1)


def test_service_of_before_is_not_charged(meter: Meter, a1: Inference) -> None:
    """The inference was granted under another policy, and another scheduler has booked half."""
    assert 2 * 4 / 2 == meter.delivered(report(5, 9, booked=0.5))
    a1.output_tokens = 9
    assert 0 == meter.finished(a1)
    assert 0 == meter.finished(a1)


def test_tokens_of_before_are_not_charged_with_a_later_grant(meter: Meter, a1: Inference) -> None:
    """The inference ran under another policy and was re-queued: its prompt is charged."""
    a1.output_tokens = 7

    assert 10 == meter.admitted(a1)
    assert 2 * 1 == meter.delivered(report(7, 8))


def test_prompt_is_charged_as_the_replica_counts_it(meter: Meter, a1: Inference) -> None:
    """The ingress estimates; a smaller true prompt gives no refund, but is set off later."""
    meter.admitted(a1)

    assert 2 + 2 * 3 == meter.delivered(report(0, 3, prompt=12))
    assert 0 == meter.delivered(report(3, 4, prompt=5))
    assert 1 == meter.delivered(report(4, 7, prompt=5))


def test_sequences_of_a_lease_are_charged_each(a1: Inference) -> None:
    """If h has a price per call or is not linear, several sequences cost more than one."""
    a1.choices = 2

    assert 2 * profiled_quadratic(5, 0) == Meter("profiled").admitted(a1)


def test_ended_inferences_and_applications_leave_no_state(meter: Meter, a1: Inference) -> None:
    meter.admitted(a1)
    assert {"a": {"a1": 10}} == meter.counted()["charged"]
    meter.finished(a1)
    assert {"a": {}} == meter.counted()["charged"]
    meter.forget_application("a")
    meter.forget_application("a")
    assert {} == meter.counted()["charged"]


@pytest.fixture
def running(core: CoreDriver) -> CoreDriver:
    """Return a core with x (10 prompt tokens, 10 predicted) running on r0 under lease 1."""
    core.open("a", 155)
    core.submit("x")
    core.pull()
    core.handle(ev.PullAnswered("r0"))
    return core


def test_progress_is_metered_by_the_cost_formula(running: CoreDriver) -> None:
    """After g of its tokens an inference has received h(p, g): 10·3 + 6, then 10·5 + 15."""
    running.pull(progress={"1": 3})

    assert running.account().attained == 36

    running.pull(progress={"1": 5})

    assert (running.account().attained, running.inference("x").attained) == (65, 65)


def test_progress_moves_the_virtual_clock(running: CoreDriver) -> None:
    """In the served clock V is the service received per unit of weight."""
    running.open("b", 1000)
    running.submit("y", "b")
    running.pull(progress={"1": 3})

    assert running.core.ledger.fair_share.clock.virtual_time == 18  # 36 over two


def test_final_report_is_metered_before_the_inference_ends(running: CoreDriver) -> None:
    """The tokens since the last pull are service too, and the prediction was exact."""
    running.pull(progress={"1": 3})
    running.pull(finished={"1": 10})

    assert (
        running.account().attained,
        running.account().charged,
        running.account().withdrawn,
    ) == (155, 155, True)
    assert (running.application().inferences, running.application().output_tokens) == (1, 10)


def test_recomputed_tokens_are_not_service(running: CoreDriver) -> None:
    """An inference that starts again after its replica died is not charged twice."""
    running.pull(progress={"1": 6})
    attained = running.account().attained
    running.handle(ev.ReplicaLost("r0"))
    running.pull("r1")
    running.pull("r1", {"2": 4})

    assert (attained, 6) == (running.account().attained, running.inference("x").output_tokens)

    running.pull("r1", {"2": 7})

    assert kv_token_time(10, 7) == running.account().attained


def test_progress_that_goes_back_is_ignored(running: CoreDriver) -> None:
    """Reports may be repeated; service never falls."""
    running.pull(progress={"1": 6})
    running.pull(progress={"1": 2})

    assert kv_token_time(10, 6) == running.account().attained


def test_prompt_is_corrected_by_the_replicas_count(running: CoreDriver) -> None:
    """The ingress estimates the prompt; the engine counts it. 0 means not counted yet."""
    running.pull(progress=[ev.LeaseProgress("1", 0, 0, running=True)])
    running.pull(progress=[ev.LeaseProgress("1", 14, 3, running=True)])

    assert (running.inference("x").prompt_tokens, running.account().attained) == (14, 14 * 3 + 6)


def test_smaller_prompt_takes_no_service_back(running: CoreDriver) -> None:
    """Booked service stays booked; later tokens are counted at the true prompt size."""
    running.pull(progress={"1": 4})  # 50 at a prompt of 10
    running.pull(progress=[ev.LeaseProgress("1", 5, 5, running=True)])  # h(5, 5) = 40

    assert running.account().attained == 50

    running.pull(progress=[ev.LeaseProgress("1", 5, 7, running=True)])

    assert kv_token_time(5, 7) == running.account().attained


def test_footprint_follows_the_progress(running: CoreDriver) -> None:
    """Admission uses the present context, and doubles the prediction of one that exceeds it."""
    core = running.core
    running.pull(progress={"1": 4})
    footprint = core.state.replicas["r0"].leases["1"]

    assert (footprint.context_tokens, footprint.iterations) == (14, 6)

    running.handle(ev.InferenceCancelled("x"))
    running.submit("y", output=10, max_output=40)
    running.pull(progress={"2": 0})
    running.pull(progress={"2": 12})
    footprint = core.state.replicas["r0"].leases["2"]

    assert (footprint.context_tokens, footprint.iterations) == (22, 8)


def test_choices_are_metered_evenly(core: CoreDriver) -> None:
    """Two choices of a prompt of 10 with 7 tokens: one made 4, the other 3."""
    core.open()
    core.submit("x", prompt=20, output=20, choices=2)
    core.pull()
    core.pull(progress={"1": 7})

    expected = kv_token_time(10, 4) + kv_token_time(10, 3)

    assert (expected, expected) == (core.account().attained, choices_kv_token_time(20, 7, 2))


def test_outcome_does_not_change_the_received_service(running: CoreDriver) -> None:
    """A failed inference used the machine all the same."""
    running.pull(finished=[ev.LeaseFinished("1", 10, 4, Outcome.FAILED)])

    assert kv_token_time(10, 4) == running.account().attained


def test_report_before_the_payload_books_nothing(running: CoreDriver) -> None:
    running.pull(progress=[ev.LeaseProgress("1", 0, 0, running=False)])

    assert (running.account().attained, running.core.tag("a") - 155) == (0, 0)
    assert {"a"} == set(running.core.take_changed())
    assert running.core.take_changed() == []
