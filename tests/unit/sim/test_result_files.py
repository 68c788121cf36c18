"""Result files are written completely or not at all, and read back equal."""

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

from justitia_ray import __version__
from justitia_ray.errors import ConfigError
from justitia_ray.sim.result_files import (
    check_writable,
    draw_figures,
    policy_directory,
    read_results,
    write_results,
)
from justitia_ray.sim.results import Lateness, RunResult
from tests.unit.sim.result_rows import run_of

ABOUT = {"seed": 3, "configuration": {"replicas": 2}}


def files_below(directory: Path) -> list[str]:
    """Return every file below a directory, including hidden ones."""
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())


def small_result() -> RunResult:
    run = run_of({"a": (0.5, 2.5), "b": (1.0, None)})
    run.kv_utilization, run.preemptions = 0.25, 4
    run.inferences[0].replica = "replica-1"
    return run


def test_result_directory_has_the_documented_files(tmp_path: Path) -> None:
    """Other tools expect these file names."""
    write_results(
        tmp_path / "new" / "out", {"justitia": small_result(), "vtc": small_result()}, ABOUT
    )

    assert [
        "out/justitia/applications.jsonl",
        "out/justitia/inferences.jsonl",
        "out/run.json",
        "out/summary.json",
        "out/vtc/applications.jsonl",
        "out/vtc/inferences.jsonl",
    ] == files_below(tmp_path / "new")
    write_results(tmp_path, {"fcfs": small_result()}, ABOUT)
    assert {"version": __version__, **ABOUT, "directories": {"fcfs": "fcfs"}} == json.loads(
        (tmp_path / "run.json").read_text()
    )


def test_result_rows_have_exactly_the_documented_fields(tmp_path: Path) -> None:
    write_results(tmp_path, {"fcfs": small_result()}, ABOUT)
    application, inference = (
        json.loads((tmp_path / "fcfs" / name).read_text().splitlines()[0])
        for name in ("applications.jsonl", "inferences.jsonl")
    )

    assert (
        "application_id, application_class, tenant, arrived_at_s, finished_at_s, jct_s,"
        " kv_token_time, predicted_kv_token_time, virtual_finish_time, gps_finished_at_s, outcome"
    ) == ", ".join(application)
    assert (
        "application_id, inference_id, replica, submitted_at_s, dispatched_at_s,"
        " first_token_at_s, finished_at_s, prompt_tokens, output_tokens, preemptions"
    ) == ", ".join(inference)


def test_stored_results_are_read_back_unchanged(tmp_path: Path) -> None:
    """A report is made from the files alone."""
    justitia = small_result()
    justitia.lateness = {"a": Lateness(1.0, 2.0)}
    written = write_results(tmp_path, {"vtc": small_result(), "justitia": justitia}, ABOUT)
    stored = read_results(tmp_path)

    assert written == stored.summary
    assert 2.0 == stored.summary["justitia"]["delay_bound_s"]
    assert 3 == stored.about["seed"]
    justitia.lateness = {}
    assert {"vtc": small_result(), "justitia": justitia} == stored.runs
    assert ["vtc", "justitia"] == list(stored.runs)


def test_result_directory_keeps_other_files(tmp_path: Path) -> None:
    """The option `--out .` must not delete other files."""
    (tmp_path / "notes.txt").write_text("mine")
    write_results(tmp_path, {"fcfs": small_result(), "vtc": small_result()}, ABOUT)
    write_results(tmp_path, {"fcfs": run_of({"z": (0.0, 1.0)})}, {"seed": 4})
    stored = read_results(tmp_path)

    assert "mine" == (tmp_path / "notes.txt").read_text()
    assert ["z"] == [a.application_id for a in stored.runs["fcfs"].applications]
    assert ["fcfs"] == list(stored.runs)
    assert (tmp_path / "vtc" / "applications.jsonl").exists()


def test_failed_write_leaves_the_previous_results(tmp_path: Path) -> None:
    """A value that is no JSON raises before any file is replaced."""
    write_results(tmp_path / "out", {"fcfs": small_result()}, ABOUT)
    before = {name: (tmp_path / name).read_bytes() for name in files_below(tmp_path)}
    broken = run_of({"a": (0.0, float("nan"))})

    with pytest.raises(ValueError, match="JSON compliant"):
        write_results(tmp_path / "out", {"fcfs": run_of({}), "vtc": broken}, ABOUT)
    with pytest.raises(ValueError, match="JSON compliant"):
        write_results(tmp_path / "other", {"vtc": broken}, ABOUT)
    assert before == {name: (tmp_path / name).read_bytes() for name in files_below(tmp_path)}
    assert ["out"] == os.listdir(tmp_path)


def test_directory_in_place_of_a_result_file_is_found_before_any_write(tmp_path: Path) -> None:
    """New results must not be mixed with old ones."""
    (tmp_path / "summary.json").mkdir()

    with pytest.raises(ConfigError, match=r"summary\.json is a directory"):
        write_results(tmp_path, {"fcfs": small_result()}, ABOUT)
    assert [] == files_below(tmp_path)


@pytest.mark.parametrize("below", ["file", "file/out"])
def test_output_path_that_is_a_file_is_refused(tmp_path: Path, below: str) -> None:
    """The error comes before the simulation and is one sentence."""
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match=r"--out .*: must be a directory, but .*file is a file"):
        check_writable(tmp_path / below)
    with pytest.raises(ConfigError, match="cannot be written"):
        write_results(tmp_path / below, {"fcfs": small_result()}, ABOUT)


@pytest.mark.parametrize("check", [check_writable, lambda out: write_results(out, {}, {})])
def test_unwritable_output_directory_is_refused(check: Any) -> None:
    """Even root cannot create a directory in /proc."""
    with pytest.raises(ConfigError, match="--out /proc/results: cannot be written: "):
        check(Path("/proc/results"))


def test_check_of_the_output_directory_leaves_no_file(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b")
    check_writable(tmp_path)

    assert [] == os.listdir(tmp_path)


@pytest.mark.parametrize(
    "policy", ["my.module:Policy", "../../etc", "..", "/", "", "-x", "run.json", "é", "x" * 500]
)
def test_policy_import_paths_give_safe_directory_names(policy: str) -> None:
    """An import path must not leave the directory, be hidden in it, or match its own files."""
    name = policy_directory(policy)

    assert name not in {"run.json", "summary.json", ""}
    assert name.isascii()
    assert name.replace("-", "").replace("_", "").isalnum()
    assert name[0].isalnum()
    assert len(name) <= 80


def test_policies_with_similar_names_have_different_directories(tmp_path: Path) -> None:
    """Without a suffix both `a.b:C` and `a-b:C` would be named `a-b-C`."""
    one, other = run_of({"a": (0.0, 1.0)}), run_of({"b": (0.0, 1.0)})
    write_results(tmp_path, {"a.b:C": one, "a-b:C": other}, ABOUT)

    assert {"a.b:C": one, "a-b:C": other} == read_results(tmp_path).runs


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("run.json", None, r"run\.json: cannot be read: No such file"),
        ("run.json", "{", r"run\.json: not JSON: "),
        ("run.json", "[]", r"run\.json: must be a JSON object, got \[\]"),
        ("run.json", "{}", r"run\.json: directories must name the directory of each policy"),
        ("summary.json", "{}", r"summary\.json: must have the policy 'fcfs' of run\.json"),
        ("fcfs/inferences.jsonl", None, r"inferences\.jsonl: cannot be read"),
        ("fcfs/inferences.jsonl", "\n{}\n", r"inferences\.jsonl:2: application_id: "),
        ("fcfs/applications.jsonl", "no", r"applications\.jsonl:1: .*JSON"),
    ],
)
def test_error_names_line_and_field_of_a_wrong_result_file(
    tmp_path: Path, file: str, text: str | None, complaint: str
) -> None:
    write_results(tmp_path, {"fcfs": small_result()}, ABOUT)
    (tmp_path / file).unlink()
    if text is not None:
        (tmp_path / file).write_text(text)

    with pytest.raises(ConfigError, match=complaint) as error:
        read_results(tmp_path)
    assert "\n" not in str(error.value)


FCFS = run_of({"a": (0.0, 5.0), "b": (0.0, 3.0), "c": (1.0, None)})
VTC = run_of({"a": (0.0, 4.0), "b": (0.0, 6.0), "c": (1.0, 8.0)})


def test_figures_are_drawn_as_png_and_svg(tmp_path: Path) -> None:
    note = draw_figures(tmp_path / "out", {"fcfs": FCFS, "vtc": VTC})

    assert note is None
    assert [
        "completion_times.png",
        "completion_times.svg",
        "ratios_to_vtc.png",
        "ratios_to_vtc.svg",
    ] == sorted(os.listdir(tmp_path / "out"))
    assert (tmp_path / "out" / "ratios_to_vtc.png").read_bytes().startswith(b"\x89PNG")


def test_missing_matplotlib_is_reported_with_its_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the figures are missing, and all other results are written."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    note = draw_figures(tmp_path, {"fcfs": FCFS})

    assert "no figures: they need matplotlib; pip install 'justitia-ray[figures]'" == note
    assert [] == os.listdir(tmp_path)
