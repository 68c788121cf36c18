"""Loads whose calls are served as other applications than those of the results."""

from typing import Any

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.sim.recognition import IDLE_S, WAYS, count_recognised, first_calls_by_inference
from justitia_ray.sim.results import RunResult
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import simulate
from justitia_ray.sim.workload import WorkloadApplication
from tests.unit.sim.small_run import application_of, engine

ONE_SEAT = engine(100, max_num_seqs=1)
PRIOR_COST = 4 * 256 + 256 * 257 // 2
"""Predicted cost of an inference of four prompt tokens in a class without observations."""


def simulate_recognised(
    applications: list[WorkloadApplication], recognised: str, **settings: Any
) -> RunResult:
    """Run one call at a time, in the order in which applications arrived."""
    chosen = {"policy": "app-fcfs", "recognised": recognised, **settings}
    return simulate(applications, RunSettings(ONE_SEAT, **chosen))


def completion_times(run: RunResult) -> list[float | None]:
    return [row.jct_s for row in run.applications]


def two_call_agent(second_prompt: int = 6, delay_s: float = 0.0) -> WorkloadApplication:
    """Return an agent whose second call repeats 4 tokens and an answer of 2."""
    return application_of("a", (4, 2), (second_prompt, 2, ("0",), delay_s))


@pytest.mark.parametrize(
    ("second", "is_put"),
    [((6, 1, ("0",), 0.0), True), ((5, 1, ("0",), 0.0), False), ((9, 1), False)],
)
def test_call_continues_a_conversation_that_its_prompt_can_contain(
    second: Any, is_put: bool
) -> None:
    """Four tokens and an answer of two need a prompt of six."""
    assert {"0": "0", "1": "0" if is_put else "1"} == first_calls_by_inference(
        application_of("a", (4, 2), second)
    )


def test_call_with_two_predecessors_opens_a_new_conversation() -> None:
    """A reduce step contains the answers of several maps and repeats the messages of none."""
    reduce = application_of("a", (1, 1), (1, 1), (9, 1, ("0", "1"), 0.0))

    assert {"0": "0", "1": "1", "2": "2"} == first_calls_by_inference(reduce)


def test_forks_of_a_conversation_belong_to_one_application() -> None:
    forks = application_of(
        "a", (1, 1), (2, 1, ("0",), 0.0), (2, 1, ("0",), 0.0), (3, 1, ("2",), 0.0)
    )

    assert dict.fromkeys("0123", "0") == first_calls_by_inference(forks)


def test_turns_of_a_conversation_may_be_listed_in_any_order() -> None:
    turns = application_of("a", (9, 1, ("2",), 0.0), (1, 1), (4, 1, ("1",), 0.0))

    assert dict.fromkeys("012", "1") == first_calls_by_inference(turns)


@pytest.mark.parametrize(
    ("recognised", "expected"),
    [("application", [4.0, 5.5]), ("conversation", [4.0, 5.5]), ("inference", [6.0, 3.5])],
)
def test_unrecognised_calls_lose_the_queue_place_of_their_application(
    recognised: str, expected: list[float]
) -> None:
    """Application b runs between two calls of a only if a's conversation is not recognised.

    Both calls of a take 2 s, and so does b from 0.5 s on; b runs between them if not recognised.

    Completion times are still those of the workload's applications.
    """
    assert expected == completion_times(
        simulate_recognised([two_call_agent(), application_of("b", (1, 2), at=0.5)], recognised)
    )


def test_call_that_does_not_repeat_its_predecessor_is_not_recognised() -> None:
    assert [6.0, 3.5] == completion_times(
        simulate_recognised(
            [two_call_agent(5), application_of("b", (1, 2), at=0.5)], "conversation"
        )
    )


def test_idle_conversation_is_opened_again() -> None:
    [short] = simulate_recognised([two_call_agent(delay_s=IDLE_S - 1)], "conversation").applications
    run = simulate_recognised([two_call_agent(delay_s=IDLE_S + 1)], "conversation")
    [long] = run.applications

    assert (IDLE_S + 3, IDLE_S + 5) == (short.jct_s, long.jct_s)
    assert 2 * short.predicted_kv_token_time == long.predicted_kv_token_time
    assert IDLE_S + 5 == run.makespan_s


@pytest.mark.parametrize("recognised", WAYS)
def test_recognised_applications_report_the_class_and_cost_of_the_workload(recognised: str) -> None:
    """Recognition changes the applications of the scheduler, not those of the results."""
    [row] = simulate_recognised([two_call_agent()], recognised).applications

    assert ("c", "finished") == (row.application_class, row.outcome)
    assert row.kv_token_time == row.predicted_kv_token_time == two_call_agent().cost()


@pytest.mark.parametrize(
    ("recognised", "delay_s", "more"),
    [("inference", 0.0, 11), ("conversation", 0.0, 0), ("conversation", IDLE_S + 1, 11)],
)
def test_predictor_observes_recognised_applications(
    recognised: str, delay_s: float, more: int
) -> None:
    """The predictor receives the first prompt of each application, class `default` and no text.

    A single call is observed with its own cost, 4·2 + 3; a conversation when it was idle.
    """
    [row] = simulate_recognised(
        [two_call_agent(delay_s=delay_s)], recognised, prediction="learned"
    ).applications

    assert PRIOR_COST + more == row.predicted_kv_token_time


def test_recognised_applications_report_lags_and_finish_tags() -> None:
    """The scheduler has no tags of the workload's own applications."""
    told, untold = (
        simulate_recognised([two_call_agent()], name, policy="justitia") for name in WAYS[::2]
    )

    assert ["a"] == list(told.lateness)
    assert told.applications[0].gps_finished_at_s is not None
    assert {} == untold.lateness
    assert untold.applications[0].gps_finished_at_s is None


def test_recognised_calls_are_counted_by_class() -> None:
    counted = count_recognised([two_call_agent(), application_of("b", (1, 1))])

    assert {"c": (3, 1, 1)} == {
        name: (of.calls, of.following, of.recognised) for name, of in counted.items()
    }


def test_unknown_recognition_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="one of application, conversation, inference, got 'x'"):
        simulate_recognised([two_call_agent()], "x")
