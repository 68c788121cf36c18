"""The constant-iteration engine of DESIGN.md, section 5: runs computed by hand."""

from dataclasses import replace

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import simulate
from tests.unit.sim.small_run import application_of, engine, simulated_times


@pytest.mark.parametrize(
    ("kv_tokens", "second"),
    [(9, (0.0, 1.0, 4.0)), (8, (3.0, 4.0, 5.0))],
)
def test_prompt_is_admitted_if_each_running_sequence_has_room_for_a_token(
    kv_tokens: int, second: tuple[float, float, float]
) -> None:
    found = simulated_times([application_of("a", (4, 3), (3, 2))], engine(kv_tokens))

    assert {"a/0": (0.0, 1.0, 3.0), "a/1": second} == found


def test_last_sequence_in_queue_order_is_swapped_out_first() -> None:
    applications = [
        application_of("a", (3, 5), (3, 5), (3, 5)),
        application_of("b", (1, 1), at=0.5),
    ]
    result = simulate(applications, RunSettings(engine(12), "fcfs"))

    assert [5.0, 7.0, 10.0, 8.0] == [row.finished_at_s for row in result.inferences]
    assert [0, 1, 2, 0] == [row.preemptions for row in result.inferences]
    assert [1.0, 1.0, 1.0, 8.0] == [row.first_token_at_s for row in result.inferences]
    assert 3 == result.preemptions


def test_first_inference_that_does_not_fit_blocks_later_ones() -> None:
    found = simulated_times([application_of("a", (6, 2), (6, 1), (1, 1))], engine(10))

    assert (0.0, 1.0, 2.0) == found["a/0"]
    assert (2.0, 3.0, 3.0) == found["a/1"] == found["a/2"]


def test_arrival_waits_for_the_next_iteration_of_a_busy_engine() -> None:
    """An idle engine starts a new iteration at once.

    a/0 makes boundaries at 0.25 + k; b/0 of 0.5 s waits for 1.25; c/0 finds the server idle.
    """
    applications = [
        application_of("a", (1, 3), at=0.25),
        application_of("b", (1, 1), at=0.5),
        application_of("c", (1, 1), at=10.625),
    ]

    assert {
        "a/0": (0.25, 1.25, 3.25),
        "b/0": (1.25, 2.25, 2.25),
        "c/0": (10.625, 11.625, 11.625),
    } == simulated_times(applications, engine(100))


def test_delay_counts_from_the_end_of_the_last_predecessor() -> None:
    applications = [
        application_of("a", (1, 2), (1, 1), (1, 1, ("0", "1"), 0.5)),
        application_of("b", (1, 1, (), 0.75)),
        application_of("c", (1, 9)),
    ]
    result = simulate(applications, RunSettings(engine(100), "fcfs"))
    rows = {f"{row.application_id}/{row.inference_id}": row for row in result.inferences}

    assert (2.5, 3.0) == (rows["a/2"].submitted_at_s, rows["a/2"].dispatched_at_s)
    assert (0.75, 1.0) == (rows["b/0"].submitted_at_s, rows["b/0"].dispatched_at_s)


def test_successor_without_delay_starts_when_its_predecessor_ends() -> None:
    """Ends are processed before admission, so that turns lose no iteration."""
    found = simulated_times([application_of("a", (1, 2), (1, 1, ("0",), 0.0))], engine(100))

    assert (2.0, 3.0, 3.0) == found["a/1"]


def test_prefill_of_new_prompts_delays_all_running_sequences() -> None:
    """Each prompt token adds half a second to an iteration.

    At half a second per prompt token, a/0 has its tokens at 1 + 2 s and at 3 + 1 + 1 s.
    """
    applications = [application_of("a", (4, 2)), application_of("b", (2, 1), at=1.0)]

    assert {"a/0": (0.0, 3.0, 5.0), "b/0": (3.0, 5.0, 5.0)} == simulated_times(
        applications, engine(100, per_prefill_token_s=0.5)
    )


def test_idle_replicas_are_served_in_the_order_of_their_index() -> None:
    settings = RunSettings(engine(10), "fcfs", replicas=2)
    result = simulate([application_of("a", (6, 1), (6, 1), (1, 1))], settings)

    assert [0, 1, 1] == [row.replica for row in result.inferences]


def test_summary_of_a_simulation_has_the_means_of_the_whole_run() -> None:
    """Mean memory use is weighted by time.

    a/0 holds 2, then 3 of M = 10: on the mean of each iteration 2.5 and 3.5, over 2 of 3 s.

    b arrives at 2 s and holds 1.5 on the mean of the last: (2.5 + 3.5 + 1.5) / 30.
    """
    result = simulate(
        [application_of("a", (2, 2), at=1.0), application_of("b", (1, 1), at=3.0)],
        RunSettings(engine(10), "fcfs", sample_kv=True),
    )

    assert 3.0 == result.makespan_s
    assert 0.25 == result.kv_utilization
    assert ["finished", "finished"] == [a.outcome for a in result.applications]
    assert [2.0, 1.0] == [a.jct_s for a in result.applications]
    assert [7, 2] == [a.kv_token_time for a in result.applications]
    assert [(1.0, "a", 2), (3.0, "a", 0), (3.0, "b", 1), (4.0, "b", 0)] == result.kv_samples


def test_gps_clock_stands_still_while_no_inference_runs() -> None:
    b, c = application_of("b", (1, 4), at=100.0), application_of("c", (1, 4), at=100.0)
    applications = [application_of("x", (1, 1)), replace(b, weight=4.0), c]
    result = simulate(applications, RunSettings(engine(100), report_interval_s=2.0))

    assert [1.0, 101.0, 104.0] == [row.gps_finished_at_s for row in result.applications]


def test_empty_workload_has_a_result() -> None:
    """A filter of workload files may leave no application."""
    result = simulate([], RunSettings(engine(10)))

    assert (0.0, None, []) == (result.makespan_s, result.kv_utilization, result.applications)


@pytest.mark.parametrize(
    ("profile", "most"),
    [
        (engine(8), 8),
        (engine(10, reserved_tokens_per_client=2), 8),
        (engine(11, block_size=4), 8),
    ],
)
def test_inference_that_could_never_end_is_refused_by_name(profile: object, most: int) -> None:
    """An inference of 5 + 4 tokens would stay swapped out, and the run would never end."""
    applications = [application_of("a", (5, 3)), application_of("b", (5, 4))]
    with pytest.raises(ConfigError, match=rf"'b', inference '0': .* = 9 must .* {most} tokens"):
        simulate(applications, RunSettings(profile))  # type: ignore[arg-type]
