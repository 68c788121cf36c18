"""The stage of an inference in its application, and the measured service of each stage."""

import json
from typing import Any

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, EndApplication
from justitia_ray.core.snapshot import restore, snapshot
from justitia_ray.core.stages import (
    MAXIMUM_STAGES,
    UNKNOWN_STAGE,
    ExpectedStage,
    StagePosition,
    StageServed,
    replace_expected,
)
from justitia_ray.cost import kv_token_time
from justitia_ray.errors import StoreError
from tests.core_driver import CoreDriver


def _ended_stages(actions: list[Action]) -> tuple[StageServed, ...]:
    (end,) = [action for action in actions if isinstance(action, EndApplication)]
    return end.stages


def _expected_stage(sizes: list[tuple[int, int]]) -> ExpectedStage:
    """Return a stage from the (prompt, output) tokens of its inferences."""
    return ExpectedStage(
        len(sizes),
        sum(prompt + 2 * output for prompt, output in sizes),
        sum(kv_token_time(prompt, output) for prompt, output in sizes),
        max(output for _, output in sizes),
        0,
    )


def test_stage_begins_with_the_first_submission_after_an_end() -> None:
    """Inferences that are submitted before any of them ends belong to one stage."""
    position = StagePosition()
    stages = [position.submit(), position.submit()]
    position.finish(0)
    stages += [position.submit(), position.submit()]
    position.finish(0)
    stages.append(position.submit())
    position.finish(1)
    stages.append(position.submit())

    assert [0, 0, 1, 1, 1, 2] == stages


def test_reading_the_next_stage_of_an_application_does_not_enter_it() -> None:
    """A submission that is refused for lack of room must not enter the stage."""
    position = StagePosition()
    position.submit()

    assert [(0, 2), (0, 2)] == [position.next(), position.next()]

    position.finish(0)

    assert (1, 1) == position.next()


def test_core_adopts_a_higher_stage_number_from_an_ingress() -> None:
    """An ingress may learn of an end before the scheduler does."""
    position = StagePosition()
    position.submit()

    assert [3, 3] == [position.submit(3), position.submit(1)]

    position.finish(0)

    assert 3 == position.submit()


def test_number_of_stages_is_limited() -> None:
    """An agent may loop forever, but its record must not grow forever."""
    position = StagePosition()
    for _ in range(MAXIMUM_STAGES + 5):
        position.finish(position.submit())

    assert (MAXIMUM_STAGES - 1, 7) == position.next()
    assert MAXIMUM_STAGES - 1 == position.submit(10**9)


def test_end_of_an_application_reports_the_cost_of_each_stage(core: CoreDriver) -> None:
    core.open("a", 500)
    core.submit("x", prompt=10, output=2)
    core.submit("y", prompt=20, output=4)
    core.pull()
    core.pull(finished={"1": 2, "2": 4})
    core.submit("z", prompt=12, output=6, choices=3)
    core.handle(ev.ApplicationClosed("a"))
    core.pull()
    actions = core.pull(finished={"3": 6})

    first, second = StageServed(2, 2, 30, 6, 113, 4, 0.0), StageServed(1, 3, 12, 6, 33, 2, 0.0)
    assert (first, second) == _ended_stages(actions)


def test_longest_sequence_among_uneven_choices_is_rounded_up(core: CoreDriver) -> None:
    """If three sequences have seven tokens, one of them takes three iterations."""
    core.open("a", 500)
    core.submit("x", prompt=12, output=7, choices=3)
    core.submit("y", output=2)
    core.handle(ev.ApplicationClosed("a"))
    core.pull()

    (stage,) = _ended_stages(core.pull(finished={"1": 7, "2": 2}))
    assert 3 == stage.longest_output_tokens


def test_gap_between_stages_lasts_from_the_last_end_to_the_first_submission(
    core: CoreDriver,
) -> None:
    core.open("a", 500)
    core.submit("x", output=2)
    core.submit("y", output=4)
    core.pull()
    core.now += 1
    core.pull(finished={"1": 2})
    core.now += 1
    core.pull(finished={"2": 4})
    core.now += 5
    core.submit("z", output=3)
    core.now += 7
    core.submit("w", output=3)
    core.handle(ev.ApplicationClosed("a"))
    core.pull()

    stages = _ended_stages(core.pull(finished={"3": 3, "4": 3}))
    assert [5.0, 0.0] == [stage.gap_s for stage in stages]


def test_gap_between_overlapping_stages_is_zero(core: CoreDriver) -> None:
    core.open("a", 500)
    core.submit("x", output=2)
    core.submit("y", output=4)
    core.pull()
    core.pull(finished={"1": 2})
    core.submit("z", output=3)
    core.now += 3
    core.handle(ev.ApplicationClosed("a"))
    core.pull()

    stages = _ended_stages(core.pull(finished={"2": 4, "3": 3}))
    assert [(2, 0.0), (1, 0.0)] == [(stage.inferences, stage.gap_s) for stage in stages]


def test_gap_next_to_an_unobserved_stage_is_unknown(core: CoreDriver) -> None:
    """The earlier stage ran under another scheduler."""
    core.open("a", 500)
    core.submit("x", output=2)
    core.pull()
    core.pull(finished={"1": 2})
    core.now += 5
    core.submit("z", output=3, stage=2)
    core.handle(ev.ApplicationClosed("a"))
    core.pull()

    stages = _ended_stages(core.pull(finished={"2": 3}))
    assert [(1, None), (0, None), (1, 0.0)] == [(stage.inferences, stage.gap_s) for stage in stages]


def test_call_without_output_ends_no_stage(core: CoreDriver) -> None:
    core.open("a", 500)
    core.submit("x", output=2)
    core.submit("y")
    core.pull(seats=1)
    core.pull(finished={"1": 2}, draining=True)
    core.now += 4
    core.handle(ev.InferenceCancelled("y"))
    core.now += 1
    core.submit("z", output=3)
    core.handle(ev.ApplicationClosed("a"))
    core.pull()

    stages = _ended_stages(core.pull(finished={"2": 3}))
    assert [(1, 5.0), (1, 0.0)] == [(stage.inferences, stage.gap_s) for stage in stages]


def test_inference_without_output_is_no_part_of_a_stage(core: CoreDriver) -> None:
    core.open("a", 500)
    core.submit("x")
    core.handle(ev.InferenceCancelled("x"))
    core.submit("y", prompt=20, output=4)
    core.handle(ev.ApplicationClosed("a"))
    core.pull()

    assert (StageServed(1, 1, 20, 4, 90, 4, 0.0),) == _ended_stages(core.pull(finished={"1": 4}))


def test_incompletely_observed_stages_are_not_reported(core: CoreDriver) -> None:
    """The predictor must not learn that the class is half as large."""
    core.open("a", 500)
    core.submit("x")
    core.pull()
    core.pull(finished={"1": 10})
    core.hand_over(SchedulerCore(lease_prefix="2-"))

    assert () == _ended_stages(core.handle(ev.ApplicationClosed("a")))


def test_stages_are_not_reported_for_inferences_submitted_before_a_restart(
    core: CoreDriver,
) -> None:
    core.open("a", 500)
    core.submit("x", resubmitted=True)
    core.handle(ev.ApplicationClosed("a"))
    core.pull()

    assert () == _ended_stages(core.pull(finished={"1": 10}))


MAP = ExpectedStage(4, 400, 9000, 30, 1.5)
REDUCE = ExpectedStage(1, 100, 2000, 20, 0)


def _open_application(core: CoreDriver, *expected: ExpectedStage) -> None:
    core.handle(
        ev.ApplicationArrived("a", "EV", "t", 1.0, 100, "i0", expected_stages=tuple(expected))
    )


def _expected_stages(core: CoreDriver) -> tuple[ExpectedStage, ...]:
    return core.core.state.applications["a"].expected_stages


def _submit_in_stage(core: CoreDriver, *expected: ExpectedStage, stage: int | None) -> None:
    core.handle(
        ev.InferenceSubmitted("x", "a", "x", "i0", 10, 5, 5, stage=stage, expected_stages=expected)
    )


@pytest.mark.parametrize("sizes", [[(300, 40)] * 3, [(40, 300)] * 3, [(90, 90)], [(0, 1)]])
def test_stage_of_equal_inferences_has_their_length_as_its_mean(
    sizes: list[tuple[int, int]],
) -> None:
    """Long prompts with short outputs, and the reverse, keep their true lengths."""
    assert sizes[0][1] == _expected_stage(sizes).mean_output_tokens


def test_mean_length_of_uneven_inferences_lies_between_plain_and_weighted_mean() -> None:
    stage = _expected_stage([(250, 100), (250, 320)])

    assert 210 <= stage.mean_output_tokens <= 279


@pytest.mark.parametrize(
    ("stage", "length"),
    [
        (UNKNOWN_STAGE, 0),
        (ExpectedStage(2, 0, 0, 7, 0), 1),
        (ExpectedStage(2, 4000, 60_000, 12, 0), 12),
        (ExpectedStage(2, 4000, 60_000, 0, 0), 0),
    ],
)
def test_mean_inference_length_is_between_one_token_and_the_longest(
    stage: ExpectedStage, length: float
) -> None:
    assert length == stage.mean_output_tokens


def test_new_expectations_replace_the_expectations_of_all_later_stages() -> None:
    assert (MAP, REDUCE) == replace_expected((MAP, MAP, MAP), 1, (REDUCE,))
    assert (UNKNOWN_STAGE, UNKNOWN_STAGE, MAP) == replace_expected((), 2, (MAP,))


def test_submission_replaces_the_expectations_of_the_present_and_later_stages(
    core: CoreDriver,
) -> None:
    """An application's later predictions are better than those at its arrival."""
    _open_application(core, MAP, MAP, MAP)
    _submit_in_stage(core, REDUCE, stage=1)

    assert (MAP, REDUCE) == _expected_stages(core)


def test_submission_without_expectations_keeps_the_expected_stages(core: CoreDriver) -> None:
    """An ingress without a predictor does not mean an application without stages."""
    _open_application(core, MAP, REDUCE)
    _submit_in_stage(core, stage=1)

    assert (MAP, REDUCE) == _expected_stages(core)


def test_number_of_expected_stages_is_limited(core: CoreDriver) -> None:
    """Events from outside must not fill the store."""
    _open_application(core, *[MAP] * (MAXIMUM_STAGES + 1))

    assert MAXIMUM_STAGES == len(_expected_stages(core))


def test_expected_stages_survive_a_scheduler_restart(core: CoreDriver) -> None:
    """A new scheduler predicts like the last one."""
    _open_application(core, MAP, REDUCE)
    core.hand_over(SchedulerCore(lease_prefix="2-"))

    assert (MAP, REDUCE) == _expected_stages(core)


def test_records_without_expected_stages_are_read(core: CoreDriver) -> None:
    """A store of an earlier release lacks this field."""
    _open_application(core)
    record = snapshot(core.core)["applications"]["a"]
    core.hand_over(SchedulerCore(lease_prefix="2-"))

    assert "expected_stages" not in record
    assert () == _expected_stages(core)


@pytest.mark.parametrize("row", [[1, 2, 3, 4], [1, 2, 3, 4, -5.0], "stage", [1, 2, 3, 4, "5"]])
def test_error_of_damaged_expected_stages_names_the_field(core: CoreDriver, row: Any) -> None:
    """Damage is reported by field, not by a later index error."""
    _open_application(core, MAP)
    damaged = json.loads(json.dumps(snapshot(core.core)))
    damaged["applications"]["a"]["expected_stages"].append(row)

    with pytest.raises(StoreError, match=r"applications\[a\].*expected_stages\[1\]"):
        restore(SchedulerCore(), damaged["clock"], damaged["applications"])
