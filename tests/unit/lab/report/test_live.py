"""Recorded live runs on the page of a report."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.lab.report.build import build_report
from justitia_ray.lab.report.experiments.live import live_experiments
from tests.unit.lab.report.small import SCALE

ARMS = ("fcfs", "vtc", "srjf", "justitia")
CONTROL = "vtc-again"
MEAN_S = {"fcfs": 30.0, "vtc": 25.0, "srjf": 19.0, "justitia": 20.0, CONTROL: 26.0}


def figures_of_seed(seed: int, error: float, arms: Sequence[str]) -> dict[str, Any]:
    """Return the figures of a seed in the format of scripts/bench_live."""
    live = {
        arm: {
            "mean_jct_s": MEAN_S[arm] + seed,
            "p90_jct_s": 50.0,
            "no_later_than_vtc": 0.8,
            "worst_ratio_to_vtc": 2.0,
            "kv_utilization": 0.75,
            "preemptions": 0,
        }
        for arm in arms
    }
    decisions = {"count": 9, "p50_s": 50e-6, "p99_s": 400e-6, "total_s": 0.1}
    row = {"applications": 3, "mean_jct_s": 9.0, "p90_jct_s": 9.5, "simulated_mean_jct_s": 9.9}
    return {
        "seed": seed,
        "live": live,
        "simulated": {a: {"mean_jct_s": (1 + error) * f["mean_jct_s"]} for a, f in live.items()},
        "error": dict.fromkeys(arms, error),
        "machine": {arm: {"decisions": decisions} for arm in arms},
        "classes": {"KBQAV": dict.fromkeys(arms, row)},
    }


def write_recording(directory: Path, error: float = 0.05, control: str | None = None) -> Path:
    """Write a `live.json` of two seeds, with or without a control arm."""
    arms = ARMS if control is None else (*ARMS, control)
    elephant = {
        "elephant_jct_s": 40.0,
        "mice_jct_s": 3.0,
        "lag_s": 1.0,
        "bound_s": 5.0,
        "simulated_elephant_jct_s": 41.0,
        "simulated_mice_jct_s": 3.0,
        "mean_jct_s": 4.0,
        "simulated_mean_jct_s": 4.0 * (1 + error),
        "error": error,
    }
    document = {
        "version": "0.1.0",
        "arms": list(arms),
        "machine": {"cpu": "a <processor>", "cores": "2"},
        "load": {
            "applications": 60,
            "window_s": 2.5,
            "replicas": 2,
            "kv_tokens": 7360,
            "config": "local-cpu.yaml",
        },
        "model": {"call_latency_s": 0.05},
        "seeds": [figures_of_seed(1, error, arms), figures_of_seed(2, error, arms)],
        "elephant": {
            "load": {
                "elephant": "MRS",
                "mice": 30,
                "mouse_every_s": 1.0,
                "mice_load": 1.0,
                "seed": 1,
            },
            "arms": {"srjf": elephant | {"elephant_jct_s": 80.0}, "justitia": elephant},
        },
    }
    if control is not None:
        document["control"] = control
    (directory / "live.json").write_text(json.dumps(document), encoding="utf-8")
    return directory


def report_page(directory: Path, out: Path) -> str:
    """Return the page of a report that contains only the live runs."""
    sections = build_report(live_experiments(directory), SCALE, out, workers=1)
    assert [] == [section.failure for section in sections if section.failure]
    return (out / "report.html").read_text(encoding="utf-8")


def test_report_page_shows_recorded_runs_without_new_runs(tmp_path: Path) -> None:
    """The seeds are those of the recording, not those of the report."""
    page = report_page(write_recording(tmp_path), tmp_path / "out")

    lines = (tmp_path / "out" / "results.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert {1, 2} == {row["seed"] for row in rows if row["seed"] is not None}
    means = [
        row["value"]
        for row in rows
        if (row["experiment"], row["arm"], row["metric"], row["statistic"])
        == ("live", "vtc", "mean_jct_s", "run")
    ]
    assert [26.0, 27.0] == means
    assert "60 applications a seed, arriving in 2.5 s" in page
    assert "played once more" not in page
    assert "a &lt;processor&gt;" in page


def test_simulator_errors_beyond_their_limit_are_shown_first(tmp_path: Path) -> None:
    page = report_page(write_recording(tmp_path, error=-0.2), tmp_path / "out")

    targets = page[page.index("<h2>Targets") : page.index("<nav>")]
    assert len(ARMS) + 2 == targets.count("missed")
    assert targets.count("simulated mean JCT of elephant and mice") == 2
    assert len(ARMS) == targets.count("simulated mean JCT against that on real engines")

    within = tmp_path / "within"
    within.mkdir()
    page = report_page(write_recording(within), tmp_path / "out-within")
    assert "missed" not in page[page.index("<h2>Targets") : page.index("<nav>")]


def test_mean_completion_time_of_each_arm_is_compared_with_justitia(tmp_path: Path) -> None:
    report_page(write_recording(tmp_path), tmp_path / "out")

    lines = (tmp_path / "out" / "results.jsonl").read_text(encoding="utf-8").splitlines()
    differences = [
        row["value"]
        for row in map(json.loads, lines)
        if (row["experiment"], row["arm"], row["metric"], row["statistic"], row["against"])
        == ("live", "vtc", "mean_jct_s", "difference", "justitia")
    ]
    assert [pytest.approx((5 / 21 + 5 / 22) / 2)] == differences


def test_control_arm_is_listed_without_a_target(tmp_path: Path) -> None:
    """A second run of one policy says nothing about the simulator."""
    page = report_page(write_recording(tmp_path, error=-0.2, control=CONTROL), tmp_path / "out")

    start, end = page.index("<h2>Targets"), page.index("<nav>")
    assert len(ARMS) == page[start:end].count("simulated mean JCT against that on real engines")
    assert CONTROL not in page[start:end]
    assert f"<tr><th>{CONTROL}</th>" in page[end:]
    assert f"{CONTROL} is vtc played once more" in page[end:]


def test_recording_of_another_format_is_refused(tmp_path: Path) -> None:
    """A wrong directory gives an error message and no traceback."""
    with pytest.raises(ConfigError, match=r"live\.json: cannot be read"):
        live_experiments(tmp_path)
    (tmp_path / "live.json").write_text('{"arms": []}', encoding="utf-8")
    with pytest.raises(ConfigError, match="lacks seeds, machine, load, model, elephant, version"):
        live_experiments(tmp_path)
