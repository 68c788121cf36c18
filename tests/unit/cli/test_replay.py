"""`justitia replay`: options, result files and exit status."""

from pathlib import Path
from typing import Any

import pytest

from justitia_ray.cli import replay as command
from justitia_ray.cli.main import main
from justitia_ray.sim.replay import Replay, ReplayFailure
from justitia_ray.sim.result_files import read_results
from tests.unit.cli.test_simulate import APPLICATION
from tests.unit.sim.data_directory import write_lines
from tests.unit.sim.result_rows import run_of

FINISHED = Replay("vtc", run_of({"a": (0.0, 2.0)}), (), {"model": "tiny", "replicas": 1})


@pytest.fixture
def replay_arguments(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replace the replay by a fake with the result `done`; return its arguments."""
    asked: dict[str, Any] = {"done": FINISHED}

    async def fake_replay(url: str, applications: list[Any], **options: Any) -> Replay:
        asked.update(options, url=url, applications=[a.application_id for a in applications])
        done: Replay = asked["done"]
        return done

    def draw_no_figures(out: Path, results: Any) -> str:
        asked["drawn"] = (out, list(results))
        return "no figures: no pencil"

    monkeypatch.setattr(command, "replay_workload", fake_replay)
    monkeypatch.setattr(command, "draw_figures", draw_no_figures)
    return asked


@pytest.fixture
def workload_path(tmp_path: Path) -> Path:
    path = tmp_path / "workload.jsonl"
    write_lines(path, APPLICATION)
    return path


def run_replay(*arguments: object) -> int:
    return main(["replay", *map(str, arguments)])


def test_replay_writes_the_same_files_as_a_simulation(
    replay_arguments: dict[str, Any],
    workload_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    status = run_replay(
        "--url", "http://x", "--workload", workload_path, "--out", out, "--speed", "2"
    )
    stored = read_results(out)

    assert 0 == status
    assert {"vtc": run_of({"a": (0.0, 2.0)})} == stored.runs
    assert 2.0 == stored.summary["vtc"]["mean_jct_s"]
    assert "replay" == stored.about["command"]
    assert {
        "url": "http://x",
        "workload": str(workload_path),
        "model": "tiny",
        "speed": 2.0,
        "timeout_s": None,
    } == stored.about["configuration"]
    assert (out, ["vtc"]) == replay_arguments["drawn"]
    said = capsys.readouterr()
    assert f"1 of 1 applications finished; results in {out}\n" == said.out
    assert "justitia replay: no figures: no pencil\n" == said.err


def test_command_line_options_reach_the_replay(
    replay_arguments: dict[str, Any], workload_path: Path, tmp_path: Path
) -> None:
    """The defaults are the local service, its only model, real time and no time limit."""
    run_replay("--workload", workload_path, "--out", tmp_path / "out")
    defaults = dict(replay_arguments)
    run_replay(
        "--workload", workload_path, "--out", tmp_path / "out", "--model", "m", "--timeout-s", "60"
    )

    assert ("http://127.0.0.1:8000", ["a"]) == (defaults["url"], defaults["applications"])
    assert (None, 1.0, None) == tuple(defaults[n] for n in ("model", "speed", "timeout_s"))
    assert ("m", 60.0) == (replay_arguments["model"], replay_arguments["timeout_s"])


def test_failed_applications_are_counted_and_recorded(
    replay_arguments: dict[str, Any],
    workload_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    failures = (ReplayFailure("b", "7", "500: broken"), ReplayFailure("c", None, "400: refused"))
    run_ = run_of({"a": (0.0, 2.0), "b": (0.0, None), "c": (0.0, None)})
    replay_arguments["done"] = Replay("vtc", run_, failures, {"model": "tiny", "replicas": 1})
    status = run_replay("--workload", workload_path, "--out", tmp_path / "out")

    assert 1 == status
    assert (
        "justitia replay: 2 applications failed; the first failure: application 'b',"
        " inference '7': 500: broken\n"
    ) in capsys.readouterr().err
    assert [
        {"application_id": "b", "inference_id": "7", "error": "500: broken"},
        {"application_id": "c", "inference_id": None, "error": "400: refused"},
    ] == read_results(tmp_path / "out").about["failures"]
