"""A calibration on runs of a known engine finds its profile and predicts unseen runs."""

import gzip
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from justitia_ray.errors import ConfigError, ResponseError
from justitia_ray.sim.calibration.fit import (
    ComparedFigure,
    calibrate,
    compare,
    simulate_run,
    validate,
)
from justitia_ray.sim.calibration.live import designed_load, measure_live
from justitia_ray.sim.calibration.measured import (
    COLUMNS,
    MeasuredRun,
    TimedRequest,
    read_run,
    write_run,
)
from justitia_ray.sim.calibration.regression import fit_iterations
from justitia_ray.sim.engine_profile import EngineProfile, IterationCost, load_profile_file
from justitia_ray.sim.workload import checked_application
from tests.harness.simulation.virtual_loop import run_virtually
from tests.unit.sim.data_directory import measured_run_path
from tests.unit.sim.fake_service import FakeService

_H100_RUNS = sorted((Path(__file__).parents[3] / "scripts/bench/h100").glob("h100-llama2-7b-*.csv"))
COST = IterationCost(0.02, 0.0004, 2e-6, 0.0002, 1, 0.03)
ENGINE = EngineProfile(
    kv_tokens=3000,
    name="known",
    iteration=COST,
    prefill="separate",
    max_batched_tokens=1024,
    admission="peak",
    admit_every=10,
)


def measured_run(seed: int, engine: EngineProfile = ENGINE, policy: str = "fcfs") -> MeasuredRun:
    """Return a run of an engine at twice its capacity: 80 requests of two clients in 20 s."""
    lots = random.Random(f"calibration/{seed}")
    asked = tuple(
        TimedRequest(
            client=lots.choice("ab"),
            arrived_at_s=round(lots.uniform(0, 20), 3),
            prompt_tokens=lots.randint(20, 400),
            output_tokens=lots.randint(20, 200),
            first_token_at_s=0.0,
            finished_at_s=0.0,
        )
        for _ in range(80)
    )
    run = MeasuredRun(f"{policy}__{seed}", policy, asked)
    return replace(run, requests=tuple(simulate_run(run, engine)))


@pytest.mark.slow
def test_profile_fitted_under_one_policy_predicts_another_policy() -> None:
    """The profile is fitted on FCFS runs and tried on a VTC run of other requests.

    The regression assumes that each request's tokens come evenly, which prefills disturb: costs are
    right within 10 %, their sums within 2 %.
    """
    start = replace(ENGINE, iteration=IterationCost(1.0))
    found = calibrate([measured_run(1), measured_run(2)], start)
    cost = found.profile.iteration

    assert 0.02 == pytest.approx(cost.base_s, rel=0.1)
    assert 0.0002 == pytest.approx(cost.per_prefill_token_s, rel=0.1)
    assert replace(ENGINE, iteration=cost) == found.profile
    (unseen,) = validate(found.profile, [measured_run(3, policy="vtc")])
    assert abs(unseen.tokens_per_s.error or 0) < 0.01
    assert abs(unseen.mean_first_token_latency_s.error or 0) < 0.02


@pytest.mark.slow
def test_fitted_profile_has_no_mean_throughput_error() -> None:
    """A systematic error of throughput would be multiplied in every wait.

    One machine was 5 % slower than the other; the profile lies between them.
    """
    slow = replace(ENGINE, speedup=1 / 1.05)
    found = calibrate([measured_run(1), measured_run(2, slow)], ENGINE)

    errors = [run.tokens_per_s.error or 0.0 for run in found.runs]
    assert abs(sum(errors)) < 0.01
    assert errors[0] < 0 < errors[1]
    assert 1.05 == pytest.approx(found.regression.speeds[1] / found.regression.speeds[0], rel=0.01)


def test_profile_fit_without_requests_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one run"):
        calibrate([], ENGINE)


HEADER = ",".join(COLUMNS)


def csv_file(directory: Path, *lines: str, name: str = "run.csv", header: str = HEADER) -> Path:
    path = directory / name
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_latencies_count_from_the_arrival_without_aborted_requests(
    tmp_path: Path,
) -> None:
    """The file contains latencies, while the measures need instants."""
    run = read_run(csv_file(tmp_path, "7,2.0,256,128,0.5,9.25"))

    assert (TimedRequest("7", 2.0, 256, 128, 2.5, 11.25),) == run.requests
    assert 0.5 == run.requests[0].first_token_latency_s
    run = read_run(csv_file(tmp_path, "7,2.0,256,128,,", "7,2.0,256,128,0.5,9.25"))
    assert 1 == run.aborted
    assert 1 == len(run.requests)


def test_policy_is_read_from_the_file_name(tmp_path: Path) -> None:
    """A file name without a policy means FCFS."""
    line = "7,2.0,256,128,0.5,9.25"
    named = {name: csv_file(tmp_path, line, name=name) for name in ("vtc__real.csv", "mine__x.csv")}

    assert "vtc" == read_run(named["vtc__real.csv"]).policy
    assert "fcfs" == read_run(named["mine__x.csv"]).policy
    assert "lcf" == read_run(named["vtc__real.csv"], "lcf").policy


def test_gzipped_file_with_reordered_columns_and_blank_lines_is_read(tmp_path: Path) -> None:
    path = tmp_path / "fcfs__a.csv.gz"
    header = ",".join(reversed(COLUMNS))
    path.write_bytes(gzip.compress(f"{header}\n\n9.25,0.5,128,256,2.0,7\n".encode()))

    assert (TimedRequest("7", 2.0, 256, 128, 2.5, 11.25),) == read_run(path).requests


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("7,soon,1,1,1,2", "arrival_s must be a number >= 0, got 'soon'"),
        ("7,0,0,1,1,2", "prompt_tokens must be a whole number >= 1, got '0'"),
        ("7,0,1,1.5,1,2", "output_tokens must be a whole number >= 1, got '1.5'"),
        ("7,0,1,1,3,2", "latency_s must be at least first_token_latency_s = 3, got 2"),
    ],
)
def test_error_names_field_value_and_allowed_values_of_a_wrong_line(
    line: str, said: str, tmp_path: Path
) -> None:
    path = csv_file(tmp_path, "7,2.0,256,128,0.5,9.25", line)
    with pytest.raises(ConfigError, match=f"^{re.escape(f'{path}:3: {said}')}$"):
        read_run(path)


def test_file_with_another_header_and_empty_file_are_refused(tmp_path: Path) -> None:
    """A file of arrivals contains no times to fit a profile to."""
    arrivals = csv_file(
        tmp_path, "0,1,1", name="a.csv", header="arrival_s,input_tokens,output_tokens"
    )
    only_aborted = csv_file(tmp_path, "7,2.0,256,128,,", name="b.csv")
    for path, said in (
        (arrivals, f"{arrivals}:1: the header must name {', '.join(COLUMNS)}, each once"),
        (only_aborted, f"{only_aborted}: must hold at least one request with a latency"),
        (tmp_path / "none.csv", f"{tmp_path / 'none.csv'}: cannot be read"),
    ):
        with pytest.raises(ConfigError, match=f"^{re.escape(said)}"):
            read_run(path)


@pytest.mark.parametrize("name", ["live.csv", "live.csv.gz"])
def test_stored_calibration_requests_can_be_read_back(tmp_path: Path, name: str) -> None:
    """A live calibration can be repeated from its stored requests, gzipped or not."""
    requests = (TimedRequest("a", 0.25, 16, 64, 1.5, 4.75), TimedRequest("b", 1.0, 8, 1, 2.0, 2.0))
    path = tmp_path / name
    write_run(path, requests)

    assert requests == read_run(path).requests
    assert [name] == [entry.name for entry in tmp_path.iterdir()]


def service_with_replicas(replicas: int = 1) -> FakeService:
    """Return a service that takes 1 s to the first token and 0.5 s per further token."""
    made = FakeService()
    made.status["replicas"] = {f"r{i}": {"kv_tokens": 4000} for i in range(replicas)}
    return made


def measure_service(fake: FakeService) -> tuple[list[TimedRequest], int]:
    """Measure the calibration's requests in virtual time."""
    return run_virtually(measure_live("http://service", network=fake.network()))


def test_calibration_finds_the_costs_of_a_live_service() -> None:
    requests, kv_tokens = measure_service(service_with_replicas())
    fit = fit_iterations([MeasuredRun("live", "fcfs", tuple(requests))])

    assert 4000 == kv_tokens
    assert 0.5 == pytest.approx(fit.cost.base_s, rel=1e-6)
    assert 0 == pytest.approx(fit.cost.per_sequence_s, abs=1e-6)
    assert 0 == pytest.approx(fit.cost.per_prefill_token_s, abs=1e-6)


def test_calibration_stages_follow_each_other_within_the_memory() -> None:
    """Waits for memory and preemptions would be fitted as costs.

    All requests of a stage wait for the stage before, and hold at most 3,200 tokens together.
    """
    load = designed_load("x", room=3200, longest=1000)
    checked_application(load)
    stages: dict[tuple[str, ...], list[int]] = {}
    for inference in load.inferences:
        total = inference.prompt_tokens + inference.output_tokens
        assert total <= 1000
        stages.setdefault(inference.after, []).append(total)

    assert all(sum(totals) <= 3200 for totals in stages.values())
    # 1 to 32 short requests at the same time, then 1, 4 and 8 long ones
    assert [1, 2, 4, 8, 16, 32, 1, 4, 8] == [len(totals) for totals in stages.values()][:9]


def test_calibration_of_two_replicas_is_refused() -> None:
    """With two replicas it is not visible which requests ran together."""
    with pytest.raises(ConfigError, match=r"^--url must be a service with one replica, .* has 2$"):
        measure_service(service_with_replicas(replicas=2))


def test_failed_request_fails_the_calibration() -> None:
    """The fit would fill a missing request with a guess."""
    fake = service_with_replicas()
    fake.streams[64] = "error"
    with pytest.raises(ResponseError, match="a request to http://service failed"):
        measure_service(fake)


def timed_request(client: str, arrived: float, first: float, end: float) -> TimedRequest:
    """Return a request of 100 prompt and 50 output tokens, which costs 200 in VTC's units."""
    return TimedRequest(client, arrived, 100, 50, first, end)


def test_calibration_report_has_measured_and_simulated_figures() -> None:
    measured = (timed_request("a", 10, 12, 20), timed_request("b", 10, 14, 30))
    simulated = [timed_request("a", 10, 12, 20), timed_request("b", 10, 20, 40)]
    result = compare(MeasuredRun("r", "fcfs", measured), simulated)

    assert ComparedFigure(15.0, 10.0, 10.0 / 15.0 - 1) == result.tokens_per_s
    assert ComparedFigure(3.0, 6.0, 1.0) == result.mean_first_token_latency_s
    assert ComparedFigure(3.8, 9.2, 9.2 / 3.8 - 1) == result.p90_first_token_latency_s
    assert ComparedFigure(15.0, 20.0, 20.0 / 15.0 - 1) == result.mean_latency_s
    assert ("r", "fcfs", 2) == (result.run, result.policy, result.requests)


def test_service_error_is_the_share_served_at_a_wrong_time_or_to_a_wrong_client() -> None:
    measured = (
        timed_request("a", 0, 80, 100),
        timed_request("b", 0, 80, 100),
        timed_request("c", 630, 2000, 2001),
    )
    late = [measured[0], timed_request("b", 0, 5000, 5020), measured[2]]
    run = MeasuredRun("r", "fcfs", measured)
    result = compare(run, late)

    assert 0.5 == pytest.approx(result.service_error)
    assert [0, -1, None] == [result.client_service_per_s[c].error for c in "abc"]
    assert 0 == compare(run, list(measured)).service_error


def test_simulated_vtc_serves_the_client_that_received_less_first() -> None:
    """Client b arrives late with one request, behind ten of client a.

    The engine runs one request at a time, each 10 iterations of 0.1 s. At 1.0 s, when the first of
    a is done, b (arrived at 0.5 s) has received no service: its request ends at 2.0 s. Under FCFS
    it is the last, at 11 s.
    """
    engine = EngineProfile(kv_tokens=100, max_num_seqs=1, iteration=IterationCost(0.1))
    asked = [TimedRequest("a", 0.0, 10, 10, 0.0, 0.0) for _ in range(10)]
    asked.append(TimedRequest("b", 0.5, 10, 10, 0.0, 0.0))
    ends = {
        policy: simulate_run(MeasuredRun("r", policy, tuple(asked)), engine)[-1].finished_at_s
        for policy in ("vtc", "fcfs")
    }

    assert {"vtc": 2.0, "fcfs": 11.0} == pytest.approx(ends)


def test_reported_prompt_lengths_exclude_tokens_that_the_engine_adds() -> None:
    """A BOS token costs time and memory, but the caller did not send it."""
    engine = EngineProfile(kv_tokens=100, iteration=IterationCost(0.1, per_prefill_token_s=1.0))
    run = MeasuredRun("r", "fcfs", (TimedRequest("a", 0.0, 10, 1, 0.0, 0.0),))
    (request,) = simulate_run(run, engine, added_prompt_tokens=2)

    assert 10 == request.prompt_tokens
    assert 12.1 == pytest.approx(request.finished_at_s)


@pytest.mark.parametrize(
    ("name", "throughput", "latency"),
    [
        # errors of the shipped profile, which was fitted on FCFS runs only, with a margin
        ("vtc__real.csv.gz", 0.05, 0.15),
        ("vtc__overload.csv.gz", 0.05, 0.10),
        ("vtc__proportional.csv.gz", 0.05, 0.15),
    ],
)
def test_shipped_profile_predicts_runs_outside_its_fit(
    name: str, throughput: float, latency: float
) -> None:
    """The target is 5 % of throughput, and 10 % of mean first-token latency in the median."""
    content = load_profile_file("a10g-llama2-7b")
    assert content.fitted is not None
    assert name not in [run.file for run in content.fitted.runs]
    run = read_run(measured_run_path(name))
    (result,) = validate(content.profile, [run], content.fitted.added_prompt_tokens)

    assert abs(result.tokens_per_s.error or 0) < throughput
    assert abs(result.mean_first_token_latency_s.error or 0) < latency


def test_shipped_h100_profile_follows_from_the_stored_requests() -> None:
    shipped = load_profile_file("h100-llama2-7b").profile

    fitted = calibrate([read_run(path, "fcfs") for path in _H100_RUNS], shipped, 0).profile

    assert shipped == fitted
