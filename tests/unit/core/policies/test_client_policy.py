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


class MeterPolicy(MlfqPolicy):
    """Policy of one application that records its last charge."""

    def __init__(self, cost: str = "compute") -> None:
        self.a = create_application("a")
        super().__init__(stub_context(parse_options(policy_path("mlfq"), {"cost": cost}), self.a))
        self.last: KvTokenTime = 0

    def charge(self, application: Application, amount: KvTokenTime) -> None:
        self.last = amount

    def charge_of_grant(self, inference: Inference) -> KvTokenTime:
        self.dispatched(self.a, inference)
        return self.last

    def charge_of_report(self, delivery: Delivery) -> KvTokenTime:
        self.served([delivery])
        return self.last

    def charge_of_end(self, inference: Inference) -> KvTokenTime:
        self.ended(self.a, inference)
        return self.last


@pytest.fixture
def meter_policy() -> MeterPolicy:
    """Return a policy whose cost is p + 2d for p prompt and d output tokens."""
    return MeterPolicy()


@pytest.fixture
def inference_a1() -> Inference:
    """Return an inference of 10 prompt tokens."""
    made = create_inference("a1", 1)
    made.prompt_tokens = 10
    return made


def create_delivery(
    before: Tokens, after: Tokens, *, prompt: Tokens = 10, booked: float = 0
) -> Delivery:
    """Return a report on inference a1, part of whose service was charged before."""
    return Delivery("a", "a1", prompt, before, after, 1, unbooked=1 - booked)


def test_prompt_is_charged_at_the_grant_and_each_token_when_reported(
    meter_policy: MeterPolicy, inference_a1: Inference
) -> None:
    assert 10 == meter_policy.charge_of_grant(inference_a1)
    assert 2 * 3 == meter_policy.charge_of_report(create_delivery(0, 3))
    assert 2 * 4 == meter_policy.charge_of_report(create_delivery(3, 7))
    inference_a1.output_tokens = 7
    assert 0 == meter_policy.charge_of_end(inference_a1)


def test_requeued_inference_is_not_charged_at_its_second_grant(
    meter_policy: MeterPolicy, inference_a1: Inference
) -> None:
    """A client does not pay for a replica that died."""
    meter_policy.charge_of_grant(inference_a1)
    meter_policy.charge_of_report(create_delivery(0, 5))
    inference_a1.output_tokens = 5

    assert 0 == meter_policy.charge_of_grant(inference_a1)
    assert 2 * 1 == meter_policy.charge_of_report(create_delivery(5, 6))


def test_tokens_reported_twice_are_charged_once(
    meter_policy: MeterPolicy, inference_a1: Inference
) -> None:
    """A new scheduler has not seen the earlier tokens, which the client has paid."""
    meter_policy.charge_of_grant(inference_a1)
    meter_policy.charge_of_report(create_delivery(0, 8))
    meter_policy.take_over(json.loads(json.dumps(meter_policy.counted())))

    assert 0 == meter_policy.charge_of_report(create_delivery(0, 2, booked=0.3))
    assert 2 * 1 == meter_policy.charge_of_report(create_delivery(2, 9))
    inference_a1.output_tokens = 3
    assert 0 == meter_policy.charge_of_end(inference_a1), "cancelled, and made anew only so far"


def test_unreported_service_is_charged_with_the_next_report(
    meter_policy: MeterPolicy, inference_a1: Inference
) -> None:
    meter_policy.charge_of_grant(inference_a1)

    assert 2 * 6 == meter_policy.charge_of_report(create_delivery(4, 6))
    inference_a1.output_tokens = 9
    assert 2 * 3 == meter_policy.charge_of_end(inference_a1)


def test_service_received_under_an_earlier_policy_is_not_charged(
    meter_policy: MeterPolicy, inference_a1: Inference
) -> None:
    assert 2 * 4 / 2 == meter_policy.charge_of_report(create_delivery(5, 9, booked=0.5))
    inference_a1.output_tokens = 9
    assert 0 == meter_policy.charge_of_end(inference_a1)
    assert 0 == meter_policy.charge_of_end(inference_a1)


def test_grant_charges_no_tokens_generated_under_an_earlier_policy(
    meter_policy: MeterPolicy, inference_a1: Inference
) -> None:
    inference_a1.output_tokens = 7

    assert 10 == meter_policy.charge_of_grant(inference_a1)
    assert 2 * 1 == meter_policy.charge_of_report(create_delivery(7, 8))


def test_prompt_is_charged_by_the_token_count_of_the_replica(
    meter_policy: MeterPolicy, inference_a1: Inference
) -> None:
    """A shorter true prompt gives no refund, but reduces later charges."""
    meter_policy.charge_of_grant(inference_a1)

    assert 2 + 2 * 3 == meter_policy.charge_of_report(create_delivery(0, 3, prompt=12))
    assert 0 == meter_policy.charge_of_report(create_delivery(3, 4, prompt=5))
    assert 1 == meter_policy.charge_of_report(create_delivery(4, 7, prompt=5))


def test_each_sequence_of_a_lease_is_charged(inference_a1: Inference) -> None:
    inference_a1.choices = 2

    assert 2 * profiled_quadratic(5, 0) == MeterPolicy("profiled").charge_of_grant(inference_a1)


def test_ended_inferences_and_applications_leave_no_state(
    meter_policy: MeterPolicy, inference_a1: Inference
) -> None:
    meter_policy.charge_of_grant(inference_a1)
    assert {"a": {"a1": 10}} == meter_policy.counted()["charged"]
    meter_policy.charge_of_end(inference_a1)
    assert {"a": {}} == meter_policy.counted()["charged"]
    meter_policy.forget_application("a")
    meter_policy.forget_application("a")
    assert {} == meter_policy.counted()["charged"]


@pytest.fixture
def running_core(core: CoreDriver) -> CoreDriver:
    """Return a core with x (10 prompt tokens, 10 predicted) running on r0 under lease 1."""
    core.open("a", 155)
    core.submit("x")
    core.pull()
    core.handle(ev.PullAnswered("r0"))
    return core


def test_service_in_progress_is_metered_by_the_cost_formula(running_core: CoreDriver) -> None:
    """With 10 prompt tokens 3 output tokens cost 10·3 + 6, and 5 cost 10·5 + 15."""
    running_core.pull(progress={"1": 3})

    assert running_core.account().attained == 36

    running_core.pull(progress={"1": 5})

    assert (running_core.account().attained, running_core.inference("x").attained) == (65, 65)


def test_reported_progress_moves_the_virtual_clock(running_core: CoreDriver) -> None:
    running_core.open("b", 1000)
    running_core.submit("y", "b")
    running_core.pull(progress={"1": 3})

    assert running_core.core.ledger.fair_share.clock.virtual_time == 18  # 36 over two


def test_tokens_of_the_final_report_are_metered(running_core: CoreDriver) -> None:
    """Tokens since the last report are charged as well."""
    running_core.pull(progress={"1": 3})
    running_core.pull(finished={"1": 10})

    assert (
        running_core.account().attained,
        running_core.account().charged,
        running_core.account().withdrawn,
    ) == (155, 155, True)
    assert (running_core.application().inferences, running_core.application().output_tokens) == (
        1,
        10,
    )


def test_recomputed_tokens_do_not_count_as_service(running_core: CoreDriver) -> None:
    """An inference that starts again after its replica died is not charged twice."""
    running_core.pull(progress={"1": 6})
    attained = running_core.account().attained
    running_core.handle(ev.ReplicaLost("r0"))
    running_core.pull("r1")
    running_core.pull("r1", {"2": 4})

    assert (attained, 6) == (
        running_core.account().attained,
        running_core.inference("x").output_tokens,
    )

    running_core.pull("r1", {"2": 7})

    assert kv_token_time(10, 7) == running_core.account().attained


def test_decreasing_progress_is_ignored(running_core: CoreDriver) -> None:
    """Reports may be repeated, but service never falls."""
    running_core.pull(progress={"1": 6})
    running_core.pull(progress={"1": 2})

    assert kv_token_time(10, 6) == running_core.account().attained


def test_prompt_length_is_corrected_by_the_replicas_count(running_core: CoreDriver) -> None:
    """The ingress only estimates the prompt, and the engine counts it."""
    running_core.pull(progress=[ev.LeaseProgress("1", 0, 0, running=True)])
    running_core.pull(progress=[ev.LeaseProgress("1", 14, 3, running=True)])

    assert (running_core.inference("x").prompt_tokens, running_core.account().attained) == (
        14,
        14 * 3 + 6,
    )


def test_shorter_prompt_than_predicted_refunds_no_service(
    running_core: CoreDriver,
) -> None:
    running_core.pull(progress={"1": 4})  # 50 at a prompt of 10
    running_core.pull(progress=[ev.LeaseProgress("1", 5, 5, running=True)])  # h(5, 5) = 40

    assert running_core.account().attained == 50

    running_core.pull(progress=[ev.LeaseProgress("1", 5, 7, running=True)])

    assert kv_token_time(5, 7) == running_core.account().attained


def test_memory_footprint_of_a_lease_follows_its_progress(running_core: CoreDriver) -> None:
    core = running_core.core
    running_core.pull(progress={"1": 4})
    footprint = core.state.replicas["r0"].leases["1"]

    assert (footprint.context_tokens, footprint.iterations) == (14, 6)

    running_core.handle(ev.InferenceCancelled("x"))
    running_core.submit("y", output=10, max_output=40)
    running_core.pull(progress={"2": 0})
    running_core.pull(progress={"2": 12})
    footprint = core.state.replicas["r0"].leases["2"]

    assert (footprint.context_tokens, footprint.iterations) == (22, 8)


def test_choices_of_a_call_are_metered_evenly(core: CoreDriver) -> None:
    core.open()
    core.submit("x", prompt=20, output=20, choices=2)
    core.pull()
    core.pull(progress={"1": 7})

    expected = kv_token_time(10, 4) + kv_token_time(10, 3)

    assert (expected, expected) == (core.account().attained, choices_kv_token_time(20, 7, 2))


def test_failed_inference_counts_as_received_service(running_core: CoreDriver) -> None:
    """A failed inference has used the machine as well."""
    running_core.pull(finished=[ev.LeaseFinished("1", 10, 4, Outcome.FAILED)])

    assert kv_token_time(10, 4) == running_core.account().attained


def test_report_before_the_prompt_arrives_meters_no_service(running_core: CoreDriver) -> None:
    running_core.pull(progress=[ev.LeaseProgress("1", 0, 0, running=False)])

    assert (running_core.account().attained, running_core.core.tag("a") - 155) == (0, 0)
    assert {"a"} == set(running_core.core.take_changed())
    assert running_core.core.take_changed() == []
