"""`justitia simulate`: options, result directory and table; errors on one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.cli.main import main

APPLICATION = {
    "application_id": "a",
    "application_class": "c",
    "arrived_at_s": 0.0,
    "inferences": [
        {"inference_id": "0", "prompt_tokens": 4, "output_tokens": 3, "after": []},
        {"inference_id": "1", "prompt_tokens": 3, "output_tokens": 2, "after": []},
    ],
}
Simulate = Callable[[str], int]


@pytest.fixture
def simulate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Simulate:
    """Return a function that simulates one application and writes the results without figures."""
    monkeypatch.setattr("justitia_ray.cli.simulate.draw_figures", lambda out, results: None)
    workload = tmp_path / "workload.jsonl"
    workload.write_text(json.dumps(APPLICATION) + "\n")

    def run_simulation(arguments: str) -> int:
        fixed = ["--workload", str(workload), "--out", str(tmp_path / "out")]
        return main(["simulate", *fixed, *arguments.split()])

    return run_simulation


def read_result(directory: Path, name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((directory / "out" / name).read_text())
    return value


def test_results_of_a_simulation_are_written_and_summarised(
    simulate: Simulate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = simulate("--policy fcfs --policy vtc --kv-tokens 9 --iteration-s 1")
    printed = capsys.readouterr()

    assert 0 == status
    summary = read_result(tmp_path, "summary.json")
    assert ["fcfs", "vtc"] == list(summary)
    fcfs = summary["fcfs"]
    assert (4.0, 1, 1.0) == tuple(
        fcfs[name] for name in ("mean_jct_s", "preemptions", "no_later_than_vtc")
    )
    rows = (tmp_path / "out" / "fcfs" / "inferences.jsonl").read_text().splitlines()
    assert [3.0, 4.0] == [json.loads(row)["finished_at_s"] for row in rows]
    assert (tmp_path / "out" / "vtc" / "applications.jsonl").exists()
    head, *lines = printed.out.splitlines()
    assert head.startswith("policy  mean JCT s")
    assert ["fcfs", "4.0"] == lines[0].split()[:2]
    assert f"Results: {tmp_path / 'out'}" in printed.out
    assert "" == printed.err


def test_result_records_seed_configuration_and_version(simulate: Simulate, tmp_path: Path) -> None:
    """Every number can be traced to a seed, a configuration and a version."""
    arguments = (
        "--policy fcfs --policy justitia --kv-tokens 90 --max-num-seqs 7 --prefill-s-per-token 0.5"
        " --replicas 2 --prediction noisy:2 --seed 5 --admission peak --iteration-s 0.25"
        " --set justitia.backfill=3 --set justitia.clock=nominal"
    )
    simulate(arguments)
    run = read_result(tmp_path, "run.json")

    assert ("simulate", 5) == (run["command"], run["seed"])
    settings = run["settings"]["justitia"]
    assert {"backfill": 3, "clock": "nominal", "nominal_iteration_s": 0.25} == settings[
        "policy_options"
    ], "a nominal clock goes by the iterations of this engine"
    assert {} == run["settings"]["fcfs"]["policy_options"]
    assert (2, "noisy:2", 0.0) == tuple(
        settings[name] for name in ("replicas", "prediction", "report_interval_s")
    )
    engine = settings["engine"]
    assert (90, 7, "peak") == tuple(
        engine[name] for name in ("kv_tokens", "max_num_seqs", "admission")
    )
    assert 0.25 == engine["iteration"]["base_s"]
    assert 0.5 == engine["iteration"]["per_prefill_token_s"]


def recorded_settings(directory: Path, policy: str = "fcfs") -> dict[str, Any]:
    settings: dict[str, Any] = read_result(directory, "run.json")["settings"][policy]
    return settings


def test_all_policies_use_the_papers_clock(simulate: Simulate, tmp_path: Path) -> None:
    """The option `--clock nominal` moves virtual time at the rate of the simulated engine."""
    simulate("--policy justitia --policy fcfs --kv-tokens 90 --clock nominal")
    options = [recorded_settings(tmp_path, name)["policy_options"] for name in ("fcfs", "justitia")]

    assert [{"clock": "nominal", "nominal_iteration_s": 0.03}] * 2 == options


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [("", (10_000, "peak")), ("--kv-tokens 500 --admission prompt", (500, "prompt"))],
)
def test_profile_sets_memory_and_admission_rule_unless_overridden(
    simulate: Simulate, tmp_path: Path, overrides: str, expected: tuple[int, str]
) -> None:
    simulate(f"--policy fcfs --engine-profile a10g-llama2-7b {overrides}")
    engine = recorded_settings(tmp_path)["engine"]

    assert expected == (engine["kv_tokens"], engine["admission"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replicas", "expected"), [("5", 2.0), ("4", 0.0), ("5 --report-interval-s 0", 0.0)]
)
def test_simulated_replicas_report_every_two_seconds_in_a_large_cluster(
    simulate: Simulate, tmp_path: Path, replicas: str, expected: float
) -> None:
    """Reports at every event of 64 replicas would be too slow.

    For a few replicas they are exact.
    """
    simulate(f"--policy fcfs --kv-tokens 90 --replicas {replicas}")

    assert expected == recorded_settings(tmp_path)["report_interval_s"]


_ONE = "--policy fcfs --kv-tokens 90"


@pytest.mark.parametrize(
    "arguments",
    [
        "--kv-tokens 9",
        f"{_ONE} --kv-tokens many",
        f"{_ONE} --clock mine",
        f"{_ONE} --admission x",
        f"{_ONE} --recognised x",
    ],
)
def test_invalid_argument_exits_with_status_2(
    arguments: str, simulate: Simulate, tmp_path: Path
) -> None:
    """The error lists the valid policies, numbers and choices."""
    with pytest.raises(SystemExit, match="2"):
        simulate(arguments)

    assert ["workload.jsonl"] == [path.name for path in tmp_path.iterdir()]


def test_invalid_line_of_a_workload_is_named(
    simulate: Simulate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = {**APPLICATION, "application_id": "b", "weight": -1}
    file = tmp_path / "workload.jsonl"
    file.write_text(f"{json.dumps(APPLICATION)}\n{json.dumps(bad)}\n")

    assert 2 == simulate(_ONE)
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"justitia simulate: {file}:2: ")
    assert "weight: Input should be greater than 0, got -1" in line
    assert not (tmp_path / "out").exists()


def test_missing_figures_of_a_simulation_are_reported(
    simulate: Simulate,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the plotting library the other results are complete."""
    monkeypatch.setattr("justitia_ray.cli.simulate.draw_figures", lambda out, results: "no library")

    assert 0 == simulate(_ONE)
    assert f"Results: {tmp_path / 'out'} (no figures: no library)" in capsys.readouterr().out


def test_learned_predictions_are_recorded_with_the_results(
    simulate: Simulate, tmp_path: Path
) -> None:
    """A reader of the directory must see which predictions the scheduler used."""
    assert 0 == simulate("--policy justitia --kv-tokens 9 --prediction learned")

    rows = (tmp_path / "out" / "justitia" / "applications.jsonl").read_text().splitlines()
    # cost of a prompt of 4 tokens with 256 expected output tokens: 4·256 + 256·257/2
    assert 33_920 == json.loads(rows[0])["predicted_kv_token_time"]


def test_recognised_calls_of_a_simulation_are_counted(
    simulate: Simulate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = [
        {"inference_id": str(index), "prompt_tokens": size, "output_tokens": 2, "after": after}
        for index, (size, after) in enumerate([(4, []), (6, ["0"]), (5, ["0"])])
    ]
    agent = {**APPLICATION, "inferences": turns}
    (tmp_path / "workload.jsonl").write_text(json.dumps(agent) + "\n")

    assert 0 == simulate(f"{_ONE} --recognised conversation")
    assert "Put with an earlier call: 1 of 3, 2 of which follow one" in capsys.readouterr().out
    assert {"c": {"calls": 3, "following": 2, "recognised": 1}} == read_result(
        tmp_path, "run.json"
    )["recognised"]
    assert "conversation" == recorded_settings(tmp_path)["recognised"]
