"""Service is h(p, g) of the tokens reported, counted once."""

import pytest

from justitia_ray.core import events as ev
from justitia_ray.core.entities import Outcome
from justitia_ray.cost import choices_kv_token_time, kv_token_time
from tests.core_driver import CoreDriver


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
    """The served clock: V is what one unit of weight has received."""
    running.open("b", 1000)
    running.submit("y", "b")
    running.pull(progress={"1": 3})

    assert running.core.order.fair_share.clock.virtual_time == 18  # 36 over two


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
    """The ingress estimates; the engine knows. 0 says that it does not know yet."""
    running.pull(progress=[ev.LeaseProgress("1", 0, 0, running=True)])
    running.pull(progress=[ev.LeaseProgress("1", 14, 3, running=True)])

    assert (running.inference("x").prompt_tokens, running.account().attained) == (14, 14 * 3 + 6)


def test_smaller_prompt_takes_no_service_back(running: CoreDriver) -> None:
    """What was booked was booked; the next tokens are counted at the true size."""
    running.pull(progress={"1": 4})  # 50 at a prompt of 10
    running.pull(progress=[ev.LeaseProgress("1", 5, 5, running=True)])  # h(5, 5) = 40

    assert running.account().attained == 50

    running.pull(progress=[ev.LeaseProgress("1", 5, 7, running=True)])

    assert kv_token_time(5, 7) == running.account().attained


def test_footprint_follows_the_progress(running: CoreDriver) -> None:
    """The room is judged by what runs now, and doubles its guess of one that outlives it."""
    core = running.core
    running.pull(progress={"1": 4})
    footprint = core.state.replicas["r0"].leases["1"]

    assert (footprint.context_tokens, footprint.remaining_tokens) == (14, 6)

    running.handle(ev.InferenceCancelled("x"))
    running.submit("y", output=10, max_output=40)
    running.pull(progress={"2": 0})
    running.pull(progress={"2": 12})
    footprint = core.state.replicas["r0"].leases["2"]

    assert (footprint.context_tokens, footprint.remaining_tokens) == (22, 8)


def test_choices_are_metered_evenly(core: CoreDriver) -> None:
    """Two choices of a prompt of 10 with 7 tokens: one made 4, the other 3."""
    core.open()
    core.submit("x", prompt=20, output=20, choices=2)
    core.pull()
    core.pull(progress={"1": 7})

    expected = kv_token_time(10, 4) + kv_token_time(10, 3)

    assert (expected, expected) == (core.account().attained, choices_kv_token_time(20, 7, 2))


def test_outcome_does_not_change_what_was_received(running: CoreDriver) -> None:
    """A failed inference used the machine all the same."""
    running.pull(finished=[ev.LeaseFinished("1", 10, 4, Outcome.FAILED)])

    assert kv_token_time(10, 4) == running.account().attained


def test_report_before_the_payload_books_nothing(running: CoreDriver) -> None:
    """An armed lease has no tokens."""
    running.pull(progress=[ev.LeaseProgress("1", 0, 0, running=False)])

    assert (running.account().attained, running.core.tag("a") - 155) == (0, 0)
    assert {"a"} == set(running.core.take_changed())
    assert running.core.take_changed() == []
