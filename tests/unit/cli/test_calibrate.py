"""`justitia calibrate`: fit an engine profile to measured requests, and check one."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from justitia_ray.cli.main import main
from justitia_ray.sim.calibration.fit import simulate_run
from justitia_ray.sim.calibration.measured import MeasuredRun, TimedRequest, write_run
from justitia_ray.sim.engine_profile import IterationCost, load_profile, load_profile_file


def run(*arguments: str | Path) -> int:
    return main(["calibrate", *map(str, arguments)])


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Write requests measured on an engine of 0.05 s per iteration with the A10G's rules."""
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


def fitted(measured: Path, *more: str) -> Path:
    out = measured.with_name("mine.yaml")
    assert 0 == run("--runs", measured, "--kv-tokens", "2000", "--out", out, *more)
    return out


def test_fitted_profile_names_its_data(measured: Path) -> None:
    """The profile names its command and data without their directory, so it can be repeated."""
    out = fitted(measured, "--name", "my-engine")
    content = load_profile_file(str(out))

    assert "my-engine" == content.profile.name
    assert 2000 == content.profile.kv_tokens
    assert "chunked" == content.profile.prefill
    assert content.fitted is not None
    assert [("fcfs__mine.csv", 20)] == [(r.file, r.requests) for r in content.fitted.runs]
    assert "justitia calibrate --runs fcfs__mine.csv --kv-tokens 2000" in out.read_text()
    assert str(measured.parent) not in out.read_text()
    assert out.read_bytes() == fitted(measured, "--name", "my-engine").read_bytes()


def test_admission_rules_come_from_the_initial_profile(measured: Path) -> None:
    """Times show the engine's costs but not how it admits requests."""
    out = fitted(measured, "--start", "a10g-llama2-7b")
    profile = load_profile_file(str(out)).profile
    start = load_profile_file("a10g-llama2-7b").profile

    assert "mine" == profile.name
    assert replace(start, name="mine", kv_tokens=2000, iteration=profile.iteration) == profile
    assert 0.05 == pytest.approx(profile.iteration.base_s, rel=0.02)


def test_check_prints_and_writes_how_far_a_profile_errs(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Measured value, simulated value and error of each figure are printed and written as JSON."""
    profile = fitted(measured, "--start", "a10g-llama2-7b")
    out = measured.with_name("check.json")
    capsys.readouterr()
    assert 0 == run("--check", measured, "--profile", profile, "--out", out)
    written = json.loads(out.read_text())
    printed = capsys.readouterr().out

    (row,) = written["runs"]
    assert abs(row["tokens_per_s"]["error"]) < 0.02
    assert {"version", "profile", "added_prompt_tokens", "median_absolute_error", "runs"} == set(
        written
    )
    assert "fcfs__mine.csv (fcfs, 20 requests)" in printed
    assert "median absolute error: tokens_per_s" in printed


def test_request_larger_than_the_memory_is_named_and_nothing_written(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The measured engine cannot have run a request larger than its memory."""
    out = measured.with_name("mine.yaml")

    assert 2 == run("--runs", measured, "--kv-tokens", "80", "--out", out)
    assert "must be at most the KV memory of a replica, 80 tokens" in capsys.readouterr().err
    assert not out.exists()
