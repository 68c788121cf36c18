"""`justitia calibrate`: fit an engine profile to measured requests, and check one."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from justitia_ray.cli.main import main
from justitia_ray.sim.calibration.fit import simulate_run
from justitia_ray.sim.calibration.measured import MeasuredRun, TimedRequest, write_run
from justitia_ray.sim.engine_profile import IterationCost, load_profile, load_profile_file


def run_calibrate(*arguments: str | Path) -> int:
    return main(["calibrate", *map(str, arguments)])


@pytest.fixture
def measurements_path(tmp_path: Path) -> Path:
    """Write requests measured on an engine with 0.05 s per iteration; return the file's path."""
    engine = replace(
        load_profile("a10g-llama2-7b"),
        kv_tokens=2000,
        iteration=IterationCost(0.05, per_prefill_token_s=0.001),
    )
    asked = tuple(TimedRequest("ab"[i % 2], i / 4, 50 + i, 20 + i, 0, 0) for i in range(20))
    served = MeasuredRun("", "fcfs", asked)
    path = tmp_path / "fcfs__mine.csv"
    write_run(path, simulate_run(served, engine))
    return path


def calibrated_profile_path(measured: Path, *more: str) -> Path:
    out = measured.with_name("mine.yaml")
    assert 0 == run_calibrate("--runs", measured, "--kv-tokens", "2000", "--out", out, *more)
    return out


def test_fitted_profile_names_its_command_and_data(measurements_path: Path) -> None:
    """The profile names its data without their directory, so that the command can be repeated."""
    out = calibrated_profile_path(measurements_path, "--name", "my-engine")
    content = load_profile_file(str(out))

    assert "my-engine" == content.profile.name
    assert 2000 == content.profile.kv_tokens
    assert "chunked" == content.profile.prefill
    assert content.fitted is not None
    assert [("fcfs__mine.csv", 20)] == [(r.file, r.requests) for r in content.fitted.runs]
    assert "justitia calibrate --runs fcfs__mine.csv --kv-tokens 2000" in out.read_text()
    assert str(measurements_path.parent) not in out.read_text()
    assert (
        out.read_bytes()
        == calibrated_profile_path(measurements_path, "--name", "my-engine").read_bytes()
    )


def test_fitted_profile_keeps_the_admission_rules_of_the_initial_profile(
    measurements_path: Path,
) -> None:
    """Measured times show the engine's costs but not how it admits requests."""
    out = calibrated_profile_path(measurements_path, "--start", "a10g-llama2-7b")
    profile = load_profile_file(str(out)).profile
    start = load_profile_file("a10g-llama2-7b").profile

    assert "mine" == profile.name
    assert replace(start, name="mine", kv_tokens=2000, iteration=profile.iteration) == profile
    assert 0.05 == pytest.approx(profile.iteration.base_s, rel=0.02)


def test_calibration_check_prints_and_writes_the_errors_of_a_profile(
    measurements_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = calibrated_profile_path(measurements_path, "--start", "a10g-llama2-7b")
    out = measurements_path.with_name("check.json")
    capsys.readouterr()
    assert 0 == run_calibrate("--check", measurements_path, "--profile", profile, "--out", out)
    written = json.loads(out.read_text())
    printed = capsys.readouterr().out

    (row,) = written["runs"]
    assert abs(row["tokens_per_s"]["error"]) < 0.02
    assert {"version", "profile", "added_prompt_tokens", "median_absolute_error", "runs"} == set(
        written
    )
    assert "fcfs__mine.csv (fcfs, 20 requests)" in printed
    assert "median absolute error: tokens_per_s" in printed


def test_request_larger_than_the_kv_memory_is_named_in_an_error(
    measurements_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The measured engine cannot have run a request larger than its memory."""
    out = measurements_path.with_name("mine.yaml")

    assert 2 == run_calibrate("--runs", measurements_path, "--kv-tokens", "80", "--out", out)
    assert "must be at most the KV memory of a replica, 80 tokens" in capsys.readouterr().err
    assert not out.exists()
