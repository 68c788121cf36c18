"""The order of live runs; all arms have the same load and the same predictions."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from justitia_ray.errors import JustitiaError, ResponseError
from justitia_ray.lab.report.build import build_report
from justitia_ray.lab.report.experiment import Scale
from justitia_ray.lab.report.experiments.live import live_experiments
from justitia_ray.observability.scheduler_metrics import DecisionMeter
from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.result_files import read_results
from justitia_ray.sim.suites.papers import MIXES
from justitia_ray.units import Seconds
from scripts import bench_live
from scripts.bench.live import (
    FULL,
    QUICK,
    Plays,
    Size,
    calibration,
    nine_classes,
    play_all,
)
from scripts.bench.live_records import to_simulation_result
from scripts.bench.live_report import report, write_all
from scripts.bench.live_session import (
    ARMS,
    CONTROL,
    FCFS,
    GUARD,
    JUSTITIA,
    NOMINAL,
    VTC,
    Arm,
    Session,
    decisions_between,
    shuffled,
)
from tests.harness.simulation.virtual_loop import run_virtually
from tests.unit.bench.live_fakes import LiveService, played_application

ENGINE = EngineProfile(kv_tokens=100_000, prefill="chunked", admission="peak")
SIZE = replace(QUICK, mix={"KBQAV": 6, "SC": 2, "MRS": 1}, mice_s=1.0)


def loop_time() -> Seconds:
    return asyncio.get_running_loop().time()


def live_session(service: LiveService) -> Session:
    return Session(
        "http://nowhere",
        service.configure,
        lambda pid: {"scheduler": 1.0} if pid == 7 else {},
        lambda _: service,
        loop_time,
    )


def play_benchmark(service: LiveService, data_dir: Path, *, known: bool = False) -> Plays:
    """Run the whole benchmark on an in-memory service, in virtual time."""

    async def play_all_arms() -> Plays:
        return await play_all(
            live_session(service),
            (1, 2),
            SIZE,
            data_dir,
            lambda line: None,
            lambda status: ENGINE,
            known=known,
        )

    return run_virtually(play_all_arms())


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with inputs of all application classes; their lengths are generated."""
    directory = tmp_path_factory.mktemp("data")
    (directory / "apps").mkdir()
    for name in MIXES["paper"]:
        inputs = [{"id": f"{name}-{n}", "input": f"{name} text {n}. " * 9} for n in range(20)]
        lines = "".join(json.dumps(one) + "\n" for one in inputs)
        (directory / "apps" / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def whole_benchmark(data_dir: Path) -> tuple[LiveService, Plays]:
    """Return a service and the results of a whole benchmark on it."""
    service = LiveService()
    return service, play_benchmark(service, data_dir)


def play_empty_load(service: LiveService, arm: Arm) -> Seconds:
    async def time_empty_load() -> Seconds:
        began_at = loop_time()
        await live_session(service).play(arm, [])
        return loop_time() - began_at

    return run_virtually(time_empty_load())


@pytest.mark.slow
def test_all_benchmark_arms_of_a_seed_get_the_same_inputs(
    whole_benchmark: tuple[LiveService, Plays],
) -> None:
    """Arms with different inputs would differ by their loads."""
    _, plays = whole_benchmark

    for runs in plays.runs.values():
        first = [(one.planned.text, one.planned.arrived_at_s) for one in runs[0].played]
        for run in runs:
            assert first == [(one.planned.text, one.planned.arrived_at_s) for one in run.played]
    one, other = ([p.planned.text for p in runs[0].played] for runs in plays.runs.values())
    assert one != other


def test_order_of_the_benchmark_arms_depends_on_the_seed(
    whole_benchmark: tuple[LiveService, Plays],
) -> None:
    """An arm that always ran last would run in the state left by the other arms."""
    _, plays = whole_benchmark

    for seed, runs in plays.runs.items():
        assert shuffled(ARMS, seed) == [run.arm for run in runs]
        assert set(ARMS) == {run.arm for run in runs}
    firsts = [shuffled([JUSTITIA, GUARD], seed)[0] for seed in range(200)]
    assert 80 <= firsts.count(JUSTITIA) <= 120


def test_each_run_has_separate_classes_with_the_same_training(
    whole_benchmark: tuple[LiveService, Plays],
) -> None:
    """The training of one arm must not improve the predictions of the next arm."""
    service, plays = whole_benchmark

    by_run: dict[str, list[object]] = {}
    for sample in service.samples:
        name, _, run = sample["application_class"].partition(".")
        by_run.setdefault(run, []).append((name, sample["sample"], sample["stages"]))
    histories = list(by_run.values())
    assert all(histories[0] == other for other in histories)
    calibrations_taught = len(plays.calibration)
    assert len(ARMS) * 2 + len(plays.elephant_runs) + calibrations_taught == len(histories)
    runs = {c.partition(".")[2] for _, c, _ in service.opened} - {"calibration.fcfs"}
    assert runs == set(by_run)


@pytest.mark.slow
def test_predictor_is_trained_with_an_earlier_run_of_each_known_application(data_dir: Path) -> None:
    """All arms of a seed are trained with the same observation of each application."""
    service = LiveService()
    plays = play_benchmark(service, data_dir, known=True)

    lessons = plays.history[-2 * SIZE.applications :]
    for number, (seed, runs) in enumerate(plays.runs.items()):
        own = lessons[number * SIZE.applications :][: SIZE.applications]
        expected = sorted((one.application_class, one.to_dict()["sample"]) for one in own)
        for run in runs:
            suffix = f".seed-{seed}.{run.arm.name}"
            taught = sorted(
                (name.removesuffix(suffix), one["sample"])
                for one in service.samples
                if (name := one["application_class"]).endswith(suffix) and name.count(".") == 3
            )
            assert expected == taught
            opened = [name for _, name, _ in service.opened if name.endswith(suffix)]
            assert sorted(opened) == sorted(name + suffix for name, _ in expected)
        said = plays.model.predict(runs[0], plays.history).result
        shown = to_simulation_result(runs[0].played, 0.5, 0)
        for rows in (said.applications, shown.applications):
            assert set(SIZE.mix) == {row.application_class for row in rows}


def test_control_arm_is_vtc_under_another_name(whole_benchmark: tuple[LiveService, Plays]) -> None:
    """The difference between the control arm and VTC is the noise of the measurement."""
    service, _ = whole_benchmark

    assert (VTC.policy, VTC.options) == (CONTROL.policy, CONTROL.options)
    for seed in (1, 2):
        opened = [
            (policy, text)
            for policy, name, text in service.opened
            if name.endswith(f".seed-{seed}.{CONTROL.name}")
        ]
        assert ["vtc"] * SIZE.applications == [policy for policy, _ in opened]
    assert CONTROL.name in bench_live.parse_arguments([]).arms
    assert ["vtc-again"] == bench_live.parse_arguments(["--arms", "vtc-again"]).arms


def test_large_application_arrives_before_the_small_ones(
    whole_benchmark: tuple[LiveService, Plays],
) -> None:
    """Policies are compared by how long the large application delays the small ones."""
    _, plays = whole_benchmark

    for run in plays.elephant_runs:
        classes = [one.record.application_class for one in run.played]
        assert SIZE.elephant == classes[0]
        assert SIZE.elephant not in classes[1:]


def test_failed_calibration_ends_the_benchmark(data_dir: Path) -> None:
    """An engine profile of the successful calls alone would describe another load."""
    service = LiveService()
    service.fails = "KBQAV"

    with pytest.raises(ResponseError, match=r"calibration, fcfs: [1-9] failed, one of: "):
        play_benchmark(service, data_dir)


@pytest.mark.parametrize(("in_force", "wanted"), [(JUSTITIA, FCFS), (NOMINAL, JUSTITIA)])
def test_benchmark_ends_if_a_policy_or_its_options_are_not_in_force(
    in_force: Arm, wanted: Arm
) -> None:
    """Figures under the wrong policy's name would look right."""
    service = LiveService()
    asyncio.run(service.configure(in_force))
    service.ignores_policies = True

    with pytest.raises(JustitiaError, match=f"not under {wanted.policy}"):
        play_empty_load(service, wanted)


def test_next_benchmark_run_waits_for_the_end_of_the_last_run() -> None:
    """Unfinished applications would be served beside those of the next arm."""
    service = LiveService()
    service.leftover = 4

    assert 3 * 0.25 == pytest.approx(play_empty_load(service, FCFS))


def test_benchmark_cancels_an_application_whose_close_failed() -> None:
    """An open application would stay for minutes and delay the next run."""
    service = LiveService()
    service.loses_closes = True

    async def play_one_application() -> None:
        await live_session(service).play(FCFS, [played_application(0, 0.0, []).planned])

    run_virtually(play_one_application())
    assert ["/v1/applications/app-0"] == service.cancelled


def test_cpu_time_of_a_run_is_a_difference_of_two_readings(
    whole_benchmark: tuple[LiveService, Plays],
) -> None:
    """The service's counters include earlier runs."""
    _, plays = whole_benchmark

    run = plays.runs[1][0]
    assert 0.1 == pytest.approx(run.kv_utilization)
    assert (0, 9) == (run.preemptions, run.decisions.count)
    assert {"scheduler": 0.0} == run.cpu_s


@pytest.mark.slow
def test_live_report_is_built_from_the_result_file(
    whole_benchmark: tuple[LiveService, Plays], tmp_path: Path
) -> None:
    _, plays = whole_benchmark
    about = {"machine": {"cores": "2"}, "config": "some.yaml", "quick": True}
    written = write_all(tmp_path, plays, SIZE, about, lambda line: None)

    scale = Scale(seeds=(7,), data_dir=tmp_path)
    sections = build_report(live_experiments(tmp_path), scale, tmp_path / "page", workers=1)
    assert [None] * 3 == [section.failure for section in sections]
    stored = read_results(tmp_path / "seed-2" / "simulated")
    assert [arm.name for arm in ARMS] == list(stored.runs)
    text = report(written, plays.model)
    for arm in ARMS:
        assert f"\n{arm.name} " in text
    assert "Elephant under srjf" in text
    assert "\nvtc-again is " in text
    live = json.loads((tmp_path / "live.json").read_text(encoding="utf-8"))
    judged = sorted(arm.name for arm in ARMS if arm is not CONTROL)
    assert [judged, judged] == [sorted(order) for order in live["order"].values()]
    assert ("vtc-again", SIZE.window_s) == (live["control"], live["load"]["window_s"])


@pytest.mark.parametrize(("options", "size"), [([], FULL), (["--quick"], QUICK)])
def test_command_line_option_sets_the_arrival_window(options: list[str], size: Size) -> None:
    assert size == bench_live.chosen_size(bench_live.parse_arguments(options))
    given = bench_live.parse_arguments([*options, "--window-s", "2.5"])
    assert replace(size, window_s=2.5) == bench_live.chosen_size(given)


def test_halving_the_arrival_window_halves_the_arrival_times(data_dir: Path) -> None:
    half = replace(SIZE, window_s=SIZE.window_s / 2)

    for draw in (nine_classes, calibration):
        usual, denser = (draw(1, size, data_dir) for size in (SIZE, half))
        assert [one.text for one in usual] == [one.text for one in denser]
        expected = [one.arrived_at_s / 2 for one in usual]
        assert expected == pytest.approx([one.arrived_at_s for one in denser], abs=1e-6)


@pytest.mark.parametrize("window", ["0", "-3", "nan", "inf", "soon"])
def test_invalid_window_of_arrivals_is_refused(
    window: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the option, its value and the allowed values."""
    with pytest.raises(SystemExit):
        bench_live.parse_arguments([f"--window-s={window}"])

    assert (
        f"argument --window-s: must be a positive number of seconds, got '{window}'"
        in capsys.readouterr().err
    )


@pytest.mark.slow
def test_window_of_arrivals_is_logged_and_written_to_the_files(
    whole_benchmark: tuple[LiveService, Plays],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Runs with different windows have different loads, so every file must name its window."""
    _, plays = whole_benchmark
    sizes: list[Size] = []

    def return_recorded_plays(options: object, size: Size, *others: object) -> Plays:
        sizes.append(size)
        return plays

    monkeypatch.setattr(bench_live, "play", return_recorded_plays)
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_worker_niceness"):
        monkeypatch.setenv(name, "0")
    window = ["--quick", "--window-s", "2.5"]

    assert 0 == bench_live.main([*window, "--data", str(tmp_path), "--out", str(tmp_path)])
    assert [replace(QUICK, window_s=2.5)] == sizes
    assert "26 applications in 2.5 s, seeds 1;" in capsys.readouterr().out
    live = json.loads((tmp_path / "live.json").read_text(encoding="utf-8"))
    rows = json.loads((tmp_path / "seed-1" / "live" / "run.json").read_text(encoding="utf-8"))
    assert [2.5] * 3 == [live["window_s"], live["load"]["window_s"], rows["window_s"]]


def test_decisions_of_an_arm_are_counted_between_two_readings() -> None:
    """The service's counters only grow and include the decisions of earlier arms."""
    meter = DecisionMeter()
    for _ in range(50):
        meter.record_decisions(1.0)
    before = meter.totals()
    for duration_s in (*(100e-6,) * 98, 5e-3, 5e-3):
        meter.record_decisions(duration_s)

    found = decisions_between(before, meter.totals())
    assert found.p50_s is not None
    assert found.p99_s is not None
    assert 100 == found.count
    assert 98 * 100e-6 + 2 * 5e-3 == pytest.approx(found.total_s)
    assert 100e-6 <= found.p50_s <= 1.26 * 100e-6
    assert 5e-3 <= found.p99_s <= 1.26 * 5e-3
