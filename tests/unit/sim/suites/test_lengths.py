"""Tests of the lengths that are planned for applications."""

import statistics
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.lab.workloads.play import WORKLOADS
from justitia_ray.sim.suites.load_plan import LengthPlan, PlannedCall, PlannedStage
from justitia_ray.sim.suites.measured_classes import STAGES
from justitia_ray.sim.suites.recorded import RecordedSubtask, load_runs
from tests.unit.sim.data_directory import write_lines

RUN = {
    "item_id": "KBQAV-7",
    "class": "KBQAV",
    "stages": [
        {"name": "extract_claims", "calls": [[400, 100]]},
        {"name": "generate_queries", "calls": [[200, 20], [204, 30]]},
        {"name": "verify_claims", "calls": [[300, 40], [100, 50]], "gap_before_s": 1.5},
    ],
}
OTHER = {
    "item_id": None,
    "class": "KBQAV",
    "stages": [
        {"name": "extract_claims", "calls": [[8, 8]]},
        {"name": "generate_queries", "calls": [[8, 8]]},
        {"name": "verify_claims", "calls": [[8, 8]]},
    ],
}


def plan_of(*kinds: str) -> list[dict[str, Any]]:
    """Return the stages of a plan with one subtask, which has an inference of each kind."""
    calls = [[kind, 10, 5] for kind in kinds]
    return [
        {"name": "task_planning", "calls": [[100, 10]]},
        {"name": "execute_subtasks", "subtasks": [{"dep": [-1], "llm_calls": calls, "exec_s": 4}]},
        {"name": "response", "calls": [[50, 20]]},
    ]


def _write_runs(data_dir: Path, *runs: Any, name: str = "KBQAV") -> None:
    write_lines(data_dir / "recorded" / f"{name}.jsonl", *runs)


def test_recorded_run_is_replayed_on_its_input(tmp_path: Path) -> None:
    _write_runs(tmp_path, *[OTHER] * 20, RUN, *[OTHER] * 20)

    lengths = LengthPlan(data_dir=tmp_path).draw("KBQAV", "KBQAV-7", 0)

    # at 0.75 words per token, 400 tokens are 300 words
    assert lengths.stages == {
        "extract_claims": PlannedStage((PlannedCall(300, 100),), 0.0),
        "generate_queries": PlannedStage((PlannedCall(150, 20), PlannedCall(153, 30)), 0.0),
        "verify_claims": PlannedStage((PlannedCall(225, 40), PlannedCall(75, 50)), 1.5),
    }


def test_scales_change_lengths_and_gaps_but_not_fan_outs(tmp_path: Path) -> None:
    """Scaled-down applications let a small machine play the same load."""
    _write_runs(tmp_path, RUN)
    plan = LengthPlan(data_dir=tmp_path, length_scale=0.1, gap_scale=0.2)

    verify = plan.draw("KBQAV", "KBQAV-7", 0).stages["verify_claims"]

    assert verify.calls == (PlannedCall(22, 4), PlannedCall(8, 5))
    assert verify.gap_s == pytest.approx(0.3)


def test_all_planned_lengths_are_within_the_bounds() -> None:
    """A context of 2,048 tokens must hold any prompt with its output."""
    plan = LengthPlan(max_prompt_words=120, max_output_tokens=64)

    for name in WORKLOADS:
        for number in range(20):
            lengths = plan.draw(name, "x", number)
            calls = [call for stage in lengths.stages.values() for call in stage.calls]
            assert max(call.prompt_words for call in calls) <= 120
            assert all(1 <= call.output_tokens <= 64 for call in calls)
            assert all(call.output_tokens <= 64 for call in lengths.limits.values())


def test_seed_draws_the_same_plan_in_any_order() -> None:
    """Two policies are compared on one load, whatever else was drawn before."""
    forwards = [LengthPlan(seed=3).draw("MRS", "x", number) for number in range(5)]
    plan = LengthPlan(seed=3)
    backwards = [plan.draw("MRS", "x", number) for number in reversed(range(5))]

    assert forwards == backwards[::-1]
    assert forwards != [LengthPlan(seed=4).draw("MRS", "x", number) for number in range(5)]
    assert forwards[0] != forwards[1]


def test_planned_fan_outs_equal_the_measured_fan_outs() -> None:
    plan = LengthPlan()
    drawn = {name: [plan.draw(name, "x", i) for i in range(300)] for name in WORKLOADS}

    assert {x.fan_out("sample") for x in drawn["SC"]} == {5}
    claims = [x.fan_out("generate_queries") for x in drawn["KBQAV"]]
    assert (min(claims), statistics.median(claims)) == (1, 3)
    assert max(claims) <= 13
    assert claims == [x.fan_out("verify_claims") for x in drawn["KBQAV"]]
    chunks = [x.fan_out("generate_summary") for x in drawn["MRS"]]
    assert statistics.median(chunks) == pytest.approx(21, abs=2)
    assert max(chunks) <= 44
    rounds = [len(plan.draw("MRS", "x", number).stages) - 2 for number in range(1000)]
    assert rounds.count(1) / 1000 == pytest.approx(85 / 117, abs=0.05)
    assert rounds.count(0) / 1000 == pytest.approx(16 / 117, abs=0.04)


def test_planned_lengths_are_limits_unless_forced() -> None:
    """A real model ends its answers by itself, up to the longest measured length."""
    lengths = LengthPlan(steered=False, max_prompt_words=3000).draw("MRS", "x", 0)

    most = STAGES["MRS"][1]
    assert lengths.call("collapse_4", 7) == PlannedCall(
        round(most.prompt_tokens.max * 0.75), round(most.output_tokens.max)
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"item_id": 3}, "item_id: Input should be a valid string, got 3"),
        ({"stages": []}, "stages: Tuple should have at least 1 item"),
        ({"stages": [{"name": "extract_claims"}]}, r"stages\[0\] must be calls or subtasks"),
        (
            {"stages": [{"name": "extract_claims", "calls": [[1, 0]]}]},
            r"stages\[0\]\.calls\[0\]\[1\]: Input should be greater than or equal to 1, got 0",
        ),
        (
            {"stages": [{"name": "extract_claims", "calls": [[1, 1]], "gap_before_s": -1}]},
            r"stages\[0\]\.gap_before_s: Input should be greater than or equal to 0, got -1",
        ),
        (
            {"stages": [{"name": "think", "calls": [[1, 1]]}]},
            "stages must be named extract_claims, generate_queries, verify_claims",
        ),
    ],
)
def test_error_names_the_wrong_recorded_run(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    _write_runs(tmp_path, RUN, {**RUN, **change})

    with pytest.raises(ConfigError, match=rf"KBQAV\.jsonl:2: .*{said}"):
        LengthPlan(data_dir=tmp_path)


@pytest.mark.parametrize(
    ("name", "stages", "said"),
    [
        ("FV", [{"name": "a", "calls": [[1, 1], [1, 1]]}], r"stages\[0\]\.calls must be one call"),
        ("PE", [{"name": "task_planning", "calls": [[1, 1]]}], "named task_planning, execute_sub"),
        ("PE", plan_of("llm_task", "llm_task"), r"llm_calls must be empty, or one call of kind"),
        ("PE", plan_of("guess"), r"stages\[1\]\.subtasks\[0\]\.llm_calls must be empty, or one"),
    ],
)
def test_error_names_the_recorded_runs_that_no_agent_can_play(
    tmp_path: Path, name: str, stages: list[dict[str, Any]], said: str
) -> None:
    """The simulator accepts them, but a live agent would request calls that are not planned."""
    _write_runs(tmp_path, {"item_id": None, "class": name, "stages": stages}, name=name)

    assert 1 == len(load_runs(tmp_path, name))
    with pytest.raises(ConfigError, match=rf"{name}\.jsonl:1: .*{said}"):
        LengthPlan(data_dir=tmp_path)


def test_subtasks_are_planned_with_their_tools(tmp_path: Path) -> None:
    _write_runs(tmp_path, {"item_id": None, "stages": plan_of("llm_task")}, name="PE")

    lengths = LengthPlan(data_dir=tmp_path, gap_scale=0.5).draw("PE", "x", 0)

    assert ["task_planning", "llm_task", "response"] == list(lengths.stages)
    assert [RecordedSubtask((), (("llm_task", 8, 5),), 2.0)] == lengths.subtasks


def test_vote_has_the_requested_number_of_samples_of_one_prompt() -> None:
    """With 40 samples of one prompt SC is the medium class of the paper."""
    sample = LengthPlan(samples=40, words_per_token=0.5).draw("SC", "x", 0).stages["sample"]

    assert 40 == len(sample.calls)
    assert 1 == len({call.prompt_words for call in sample.calls})
    assert 10 < len({call.output_tokens for call in sample.calls})


def test_fan_out_bound_limits_only_parallel_calls(tmp_path: Path) -> None:
    _write_runs(tmp_path, RUN)
    whole, cut = (
        LengthPlan(data_dir=tmp_path, most_fan_out=most).draw("KBQAV", "KBQAV-7", 0)
        for most in (None, 1)
    )

    assert {name: stage.calls[:1] for name, stage in whole.stages.items()} == {
        name: stage.calls for name, stage in cut.stages.items()
    }
    assert {n: s.gap_s for n, s in whole.stages.items()} == {
        n: s.gap_s for n, s in cut.stages.items()
    }
