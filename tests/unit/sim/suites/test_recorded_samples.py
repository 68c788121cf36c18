"""Training samples from recorded runs cost the same as in the simulator."""

from pathlib import Path

import pytest

from justitia_ray.cost import kv_token_time
from justitia_ray.errors import ConfigError
from justitia_ray.predictor.input_features import features_of
from justitia_ray.sim.suites.recorded_samples import load_samples, recorded_classes
from tests.unit.sim.data_directory import REAL, needs_real_data, write_lines


def input_line(number: int) -> dict[str, object]:
    return {"id": f"X-{number}", "input": f"text {number}", "meta": {}}


def run_line(item_id: str | None, *calls: list[int]) -> dict[str, object]:
    return {"item_id": item_id, "stages": [{"name": "only", "calls": list(calls)}]}


def test_recorded_run_is_joined_to_its_input(tmp_path: Path) -> None:
    """Runs and inputs are joined by `item_id`."""
    write_lines(tmp_path / "apps" / "X.jsonl", input_line(1), input_line(2))
    write_lines(
        tmp_path / "recorded" / "X.jsonl", run_line("X-2", [10, 3], [20, 1]), run_line(None, [1, 1])
    )

    (sample,) = load_samples(tmp_path, "X")

    assert (10 * 3 + 6) + (20 + 1) == sample.kv_token_time
    assert (2, 4, "text 2") == (sample.inferences, sample.output_tokens, sample.input_text)
    assert features_of("text 2") == sample.features


def test_sample_includes_the_calls_of_subtasks(tmp_path: Path) -> None:
    """Without the calls of subtasks, class PE would cost a third less."""
    subtask = {"dep": [-1], "llm_calls": [["summarise", 100, 10]], "exec_s": 1.0}
    stages = [{"name": "plan", "calls": [[5, 1]]}, {"name": "execute", "subtasks": [subtask]}]
    write_lines(tmp_path / "apps" / "X.jsonl", input_line(1))
    write_lines(tmp_path / "recorded" / "X.jsonl", {"item_id": "X-1", "stages": stages})

    (sample,) = load_samples(tmp_path, "X")

    assert kv_token_time(5, 1) + kv_token_time(100, 10) == sample.kv_token_time


def test_runs_may_be_in_another_directory_than_their_inputs(tmp_path: Path) -> None:
    """Held-out runs come without the inputs, which are in the data directory."""
    write_lines(tmp_path / "data" / "apps" / "X.jsonl", input_line(1))
    write_lines(tmp_path / "held" / "recorded" / "X.jsonl", run_line("X-1", [1, 1]))

    assert ["X"] == recorded_classes(tmp_path / "held")
    assert 1 == len(load_samples(tmp_path / "data", "X", tmp_path / "held"))


def test_error_names_a_run_of_an_unknown_input(tmp_path: Path) -> None:
    """Runs and inputs may be of different versions, and skipped runs would skew the samples."""
    write_lines(tmp_path / "apps" / "X.jsonl", input_line(1))
    write_lines(tmp_path / "recorded" / "X.jsonl", run_line("X-7", [1, 1]))

    with pytest.raises(ConfigError, match=r"recorded/X.jsonl: item_id 'X-7' must be among"):
        load_samples(tmp_path, "X")


def test_directory_without_recorded_runs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="recorded: cannot be read"):
        recorded_classes(tmp_path)
    (tmp_path / "recorded").mkdir()
    with pytest.raises(ConfigError, match="must hold a file"):
        recorded_classes(tmp_path)


@needs_real_data
def test_every_recorded_run_except_those_of_mrs_has_its_input() -> None:
    counts = {name: len(load_samples(REAL, name)) for name in recorded_classes(REAL)}

    assert counts.pop("MRS") == 0
    assert 8 == len(counts)
    assert all(count >= 70 for count in counts.values())
