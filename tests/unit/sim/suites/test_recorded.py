"""Conversion of recorded runs to inferences with predecessors."""

from pathlib import Path
from typing import Any

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.sim.suites.recorded import inferences_of, load_runs
from justitia_ray.sim.workload import WorkloadInference
from tests.unit.sim.data_directory import REAL, needs_real_data, write_lines


def graph_of(tmp_path: Path, *stages: dict[str, Any]) -> tuple[WorkloadInference, ...]:
    """Return the inferences of a run with these stages, read from a file."""
    run = {"item_id": None, "class": "XY", "stages": stages}
    write_lines(tmp_path / "recorded" / "XY.jsonl", run)
    [read] = load_runs(tmp_path, "XY")
    return inferences_of(read)


def subtask_line(needs: list[int], exec_s: float, *calls: list[Any]) -> dict[str, Any]:
    return {"task": "any", "dep": needs, "exec_s": exec_s, "llm_calls": list(calls)}


PLANNED = {"name": "plan", "calls": [[10, 1]]}
RESPONSE = {"name": "response", "calls": [[20, 2]]}


def planned_graph(tmp_path: Path, *subtasks: dict[str, Any]) -> tuple[WorkloadInference, ...]:
    """Return the inferences of a plan, its subtasks, and the response."""
    return graph_of(tmp_path, PLANNED, {"name": "s", "subtasks": subtasks}, RESPONSE)


def test_stages_are_consecutive_and_their_calls_parallel(tmp_path: Path) -> None:
    inferences = graph_of(
        tmp_path,
        {"name": "extract_claims", "calls": [[631, 138]]},
        {"name": "generate_queries", "calls": [[291, 20], [289, 19]]},
        {"name": "verify_claims", "calls": [[426, 128], [418, 108]], "gap_before_s": 1.182},
    )

    assert inferences == (
        WorkloadInference("0", 631, 138),
        WorkloadInference("1", 291, 20, ("0",)),
        WorkloadInference("2", 289, 19, ("0",)),
        WorkloadInference("3", 426, 128, ("1", "2"), 1.182),
        WorkloadInference("4", 418, 108, ("1", "2"), 1.182),
    )


def test_tool_time_before_the_first_stage_delays_it(tmp_path: Path) -> None:
    [inference] = graph_of(tmp_path, {**PLANNED, "gap_before_s": 2.5})

    assert WorkloadInference("0", 10, 1, (), 2.5) == inference


def test_tool_time_of_a_subtask_without_a_model_call_counts(tmp_path: Path) -> None:
    """One subtask of this recorded plan has a tool and no call.

    The first recorded plan, shortened: a tool of 18.64 s, a call, tools of 3.65 s and 1.45 s.
    """
    inferences = planned_graph(
        tmp_path,
        subtask_line([-1], 18.64),
        subtask_line([0], 3.65, ["choose_model", 442, 106]),
        subtask_line([1], 1.45),
    )

    assert inferences == (
        WorkloadInference("0", 10, 1),
        WorkloadInference("1", 442, 106, ("0",), 18.64),
        WorkloadInference("2", 20, 2, ("1",), 5.1),
    )


def test_calls_of_a_subtask_are_consecutive_and_precede_its_tool(tmp_path: Path) -> None:
    inferences = planned_graph(tmp_path, subtask_line([-1], 4.0, ["a", 30, 3], ["b", 40, 4]))

    assert [(), ("0",), ("1",), ("2",)] == [i.after for i in inferences]
    assert [0.0, 0.0, 0.0, 4.0] == [i.delay_s for i in inferences]


def test_subtasks_that_need_only_the_plan_are_parallel(tmp_path: Path) -> None:
    inferences = planned_graph(
        tmp_path, subtask_line([-1], 4.0, ["a", 30, 3]), subtask_line([-1], 1.0, ["b", 40, 4])
    )

    assert [(), ("0",), ("0",), ("1", "2")] == [i.after for i in inferences]
    assert [0.0, 0.0, 0.0, 4.0] == [i.delay_s for i in inferences]


def test_indirect_predecessor_of_a_recorded_call_is_omitted(tmp_path: Path) -> None:
    """A subtask that needs two others depends only on the one that ends last.

    Subtask 2 needs a tool of 7 s and a call that itself waited for 5 s of tool before.

    Of the 7 s, 5 are over when that call is submitted, so that at most 2 are left at its end; its
    own tool takes 1 s. Subtask 2 therefore follows that call alone, after 2 s.
    """
    inferences = planned_graph(
        tmp_path,
        subtask_line([-1], 5.0),
        subtask_line([0], 1.0, ["a", 30, 3]),
        subtask_line([-1], 7.0),
        subtask_line([1, 2], 0.0, ["b", 40, 4]),
    )

    assert [(), ("0",), ("1",), ("2",)] == [i.after for i in inferences]
    assert [0.0, 5.0, 2.0, 0.0] == [i.delay_s for i in inferences]


@pytest.mark.parametrize(
    ("subtasks", "complaint"),
    [
        ([], r"subtasks: Tuple should have at least 1 item"),
        ([subtask_line([0], 1.0)], r"subtasks\[0\]\.dep must be a list of indices below 0"),
        (
            [subtask_line([-1], -1.0)],
            r"subtasks\[0\]\.exec_s: Input should be greater than or equal",
        ),
        ([subtask_line([-1], 1.0, ["a", 0, 3])], r"subtasks\[0\]\.llm_calls\[0\]\[1\]: .*, got 0"),
    ],
)
def test_error_names_the_wrong_subtask(tmp_path: Path, subtasks: list[Any], complaint: str) -> None:
    """A subtask that needs itself or a later one would never run."""
    with pytest.raises(ConfigError, match=rf"XY\.jsonl:1: stages\[1\]\.{complaint}"):
        graph_of(tmp_path, PLANNED, {"name": "s", "subtasks": subtasks})


@needs_real_data
@pytest.mark.parametrize("name", ["ALFWI", "CC", "CG", "DM", "EV", "FV", "KBQAV", "MRS", "PE"])
def test_workload_contains_every_recorded_token_once(name: str) -> None:
    import json

    lines = (REAL / "recorded" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    for line, run in zip(lines, load_runs(REAL, name), strict=True):
        expected: list[list[int]] = []
        for stage in json.loads(line)["stages"]:
            expected += stage.get("calls", [])
            for task in stage.get("subtasks", []):
                expected += [call[1:] for call in task["llm_calls"]]

        assert expected == [[i.prompt_tokens, i.output_tokens] for i in inferences_of(run)]
