"""VTC with length prediction by hand: advance charges and refunds.

h = p + 2d; a replica of one seat, so that one inference runs.
"""

import pytest

from justitia_ray.core import events as ev
from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.snapshot import restore
from justitia_ray.units import Tokens
from tests.unit.core.policies.policy_driver import PolicyDriver, driver_with_two_clients


def _submit_with_lengths(
    driver: PolicyDriver, request_id: str, true: Tokens | None, predicted: Tokens = 7
) -> None:
    driver.handle(
        ev.InferenceSubmitted(
            request_id, request_id[0], request_id, "i0", 10, predicted, 100, true_output_tokens=true
        )
    )


def _predicted_tokens(driver: PolicyDriver, application_id: str = "a", choices: int = 1) -> Tokens:
    """Return the prediction for an inference submitted now."""
    sizes = (10, 10, 100, choices)
    inference = Inference("x", application_id, "x", "i0", *sizes, driver.now, 10**6)
    application: Application = driver.application(application_id)
    return driver.vtc.predicted_tokens(application, inference)


def test_predicted_output_is_charged_once_at_admission() -> None:
    """The prompt and each predicted token are charged once (VTC, Alg. 3, lines 25 and 26)."""
    driver = driver_with_two_clients("vtc-oracle")
    _submit_with_lengths(driver, "a1", true=20)
    charged = [driver.counter("a")]
    for tokens in (1, 19, 20):
        driver.report_tokens("a1", tokens)
        charged.append(driver.counter("a"))
    driver.finish("a1", 20)

    assert [50, 50, 50, 50] == charged
    assert 50 == driver.counter("a")


def test_tokens_beyond_the_predicted_output_are_charged_when_reported() -> None:
    """One report may bring tokens on both sides of the prediction (VTC, Alg. 3, lines 34 to 36)."""
    driver = driver_with_two_clients("vtc-oracle")
    _submit_with_lengths(driver, "a1", true=4)
    charged = []
    for tokens in (3, 6, 7):
        driver.report_tokens("a1", tokens)
        charged.append(driver.counter("a"))

    assert [18, 22, 24] == charged


def test_predicted_tokens_that_were_not_generated_are_refunded() -> None:
    driver = driver_with_two_clients("vtc-oracle")
    _submit_with_lengths(driver, "b1", true=20)
    _submit_with_lengths(driver, "b2", true=20)
    driver.submit("a1", "a")
    driver.report_tokens("b1", 5)
    assert (50, 50) == (driver.counter("a"), driver.counter("b"))

    assert ["b2"] == driver.finish("b1", 5)
    assert 20 + 50 == driver.counter("b")


def test_cancelled_inference_gets_a_refund_for_its_missing_output() -> None:
    """A caller that gives up early must not pay for the whole answer."""
    driver = driver_with_two_clients("vtc-oracle")
    _submit_with_lengths(driver, "a1", true=20)
    driver.report_tokens("a1", 3)
    driver.handle(ev.InferenceCancelled("a1"))
    driver.last_word(driver.holds["a1"], output=3)

    assert 16 == driver.counter("a")


def test_refund_uses_the_weight_at_the_time_of_the_charge() -> None:
    """A lower weight between charge and refund must not give a gain."""
    driver = driver_with_two_clients("vtc-oracle")
    driver.handle(ev.WeightChanged("a", 4))
    _submit_with_lengths(driver, "a1", true=20)
    driver.handle(ev.WeightChanged("a", 1))
    driver.finish("a1", 5)

    assert 5 == driver.counter("a")


def test_exact_output_prediction_gives_no_refund() -> None:
    """A counter of VTC never falls, even if the replica counts a shorter prompt."""
    driver = driver_with_two_clients("vtc-oracle")
    _submit_with_lengths(driver, "a1", true=20)
    lease_id = driver.lease_of("a1")
    driver.pull(progress=[ev.LeaseProgress(lease_id, 7, 20, running=True)], seats=1)
    driver.finish("a1", 20)

    assert 10 + 2 * 20 == driver.counter("a")


def test_requeued_inference_keeps_its_prepaid_output() -> None:
    """Tokens that a requeued inference generates again are prepaid already."""
    driver = driver_with_two_clients("vtc-oracle")
    _submit_with_lengths(driver, "a1", true=20)
    driver.report_tokens("a1", 8)
    driver.handle(ev.ReplicaLost("r0"))
    driver.pull(seats=1)
    driver.report_tokens("a1", 2)
    assert 50 == driver.counter("a")

    driver.handle(ev.InferenceCancelled("a1"))
    driver.last_word(driver.holds["a1"], output=2)
    assert 10 + 2 * 8 == driver.counter("a")


def test_restart_keeps_the_prepaid_output() -> None:
    driver = driver_with_two_clients("vtc-oracle")
    _submit_with_lengths(driver, "a1", true=20)
    driver.report_tokens("a1", 8)
    driver.take_over()
    assert 50 == driver.counter("a")

    driver.handle(ev.InferenceCancelled("a1"))
    assert 10 + 2 * 8 == driver.counter("a")


def test_tokens_generated_again_after_a_restart_are_counted_once() -> None:
    driver = driver_with_two_clients("vtc-oracle")
    _submit_with_lengths(driver, "a1", true=20)
    driver.report_tokens("a1", 8, seats=2)
    _submit_with_lengths(driver, "a2", true=0)
    driver.take_over()
    driver.wait(5)
    driver.pull(seats=2)
    driver.pull(progress={driver.holds["a2"]: 30, driver.holds["a1"]: 2}, seats=2)
    driver.handle(ev.InferenceCancelled("a1"))
    driver.last_word(driver.holds["a1"], output=2)

    assert (10 + 2 * 30) + (10 + 2 * 8) == driver.counter("a")


def test_predicted_output_is_the_mean_of_the_last_five_outputs() -> None:
    """Outputs of other clients do not count (VTC, Sec. 5.1)."""
    driver = driver_with_two_clients("vtc-predict")
    predicted = [_predicted_tokens(driver)]
    for number, output in enumerate((100, 1, 2, 3, 4, 10)):
        driver.submit(f"a{number}", "a", output=100)
        driver.finish(f"a{number}", output)
        predicted.append(_predicted_tokens(driver))

    assert [0, 100, 50, 34, 26, 22, 4] == predicted
    assert 0 == _predicted_tokens(driver, "b")


def test_predicted_output_without_a_history_is_zero() -> None:
    driver = driver_with_two_clients("vtc-predict")
    driver.submit("a1", "a")
    driver.report_tokens("a1", 3)
    assert 16 == driver.counter("a")

    driver.submit("a2", "a")
    driver.finish("a1", 6)
    assert 22 + 10 + 12 == driver.counter("a")


def test_predicted_output_grows_with_the_number_of_sequences() -> None:
    driver = driver_with_two_clients("vtc-predict")
    driver.submit("a1", "a", prompt=30, output=90, choices=3)
    driver.finish("a1", 30)

    assert [10, 20] == [_predicted_tokens(driver, choices=choices) for choices in (1, 2)]


def test_length_history_excludes_inferences_without_output() -> None:
    """An inference cancelled before its first token has no output length."""
    driver = driver_with_two_clients("vtc-predict")
    for name in ("a1", "a2"):
        driver.submit(name, "a")
    for name in ("a2", "a1"):
        driver.handle(ev.InferenceCancelled(name))

    assert {} == driver.vtc.counted()["outputs"]


def test_length_history_of_a_tenant_outlives_its_applications() -> None:
    driver = PolicyDriver("vtc-predict", {"unit": "tenant"})
    driver.open("a", tenant="a")
    driver.pull(seats=1)
    driver.submit("a1", "a")
    driver.handle(ev.ApplicationClosed("a"))
    driver.finish("a1", 6)
    driver.open("b", tenant="a")

    assert 6 == _predicted_tokens(driver, "b")


def test_length_history_survives_a_restart() -> None:
    driver = driver_with_two_clients("vtc-predict")
    for number, output in enumerate((9, 80, 7, 6, 5, 4)):
        driver.submit(f"a{number}", "a", output=100)
        driver.finish(f"a{number}", output)
    counter = driver.counter("a")
    driver.take_over()
    assert (counter, 20) == (driver.counter("a"), _predicted_tokens(driver))

    driver.pull(seats=1)
    driver.submit("a9", "a")
    driver.finish("a9", 20)
    assert round((20 + 4 + 5 + 6 + 7) / 5) == _predicted_tokens(driver)


def test_length_history_by_application_is_not_restored_by_tenant() -> None:
    """A scheduler whose clients are tenants must not read the histories of applications."""
    driver = driver_with_two_clients("vtc-predict")
    driver.submit("a1", "a")
    driver.finish("a1", 6)
    record = driver.record()
    other = PolicyDriver("vtc-predict", {"unit": "tenant"})
    restore(other.core, record["clock"], record["applications"])

    assert {} == other.vtc.counted()["outputs"]


@pytest.mark.parametrize(("true", "charged"), [(20, 50), (0, 10), (None, 24)])
def test_oracle_predicts_the_true_output_length_where_known(
    true: Tokens | None, charged: int
) -> None:
    """In service the true length is unknown."""
    driver = driver_with_two_clients("vtc-oracle")
    _submit_with_lengths(driver, "a1", true=true, predicted=7)

    assert charged == driver.counter("a")


def _noisy_predictions(seed: int, length: Tokens, count: int) -> list[Tokens]:
    """Return the predictions of `vtc-noisy` for inferences of one length."""
    driver = driver_with_two_clients("vtc-noisy", {"seed": seed})
    application = driver.application("a")
    predicted = []
    for number in range(count):
        inference = Inference(
            f"r{number}", "a", str(number), "i0", 1, 1, 9999, 1, 0.0, 1, true_output_tokens=length
        )
        predicted.append(driver.vtc.predicted_tokens(application, inference))
    return predicted


def test_noise_factor_is_uniform_between_half_and_one_and_a_half() -> None:
    """Table 5 of the paper has noise of ±50 %."""
    draws = _noisy_predictions(0, 100, 100)
    quarters = [sum(50 + 25 * k <= draw < 75 + 25 * k for draw in draws) for k in range(4)]

    assert min(draws) >= 50
    assert max(draws) <= 150
    assert 90 < sum(draws) / 100 < 110
    assert min(quarters) >= 15


@pytest.mark.parametrize(
    ("length", "allowed"), [(0, {0}), (1, {1}), (3, {2, 3, 4}), (4, {*range(2, 7)})]
)
def test_noisy_prediction_reaches_every_length_in_range(
    length: Tokens, allowed: set[Tokens]
) -> None:
    assert allowed == set(_noisy_predictions(1, length, 200))


def test_noise_factor_depends_only_on_the_seed_and_the_inference() -> None:
    """A run can be repeated, and another seed is another run."""
    assert _noisy_predictions(5, 1000, 20) == _noisy_predictions(5, 1000, 20)
    assert _noisy_predictions(5, 1000, 20) != _noisy_predictions(6, 1000, 20)
    assert 1 < len(set(_noisy_predictions(5, 1000, 20)))


def test_equal_inference_numbers_of_two_applications_have_different_noise() -> None:
    """Inference ids are unique only within their application."""
    driver = driver_with_two_clients("vtc-noisy")
    drawn = {
        driver.vtc.predicted_tokens(
            driver.application(name),
            Inference(name, name, "0", "i0", 1, 1, 9999, 1, 0.0, 1, true_output_tokens=10**6),
        )
        for name in "ab"
    }

    assert 2 == len(drawn)
