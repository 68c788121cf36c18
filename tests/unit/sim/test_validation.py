"""Measured against simulated: figures by hand, and the shipped profile on runs it never saw."""

import pytest

from justitia_ray.sim.calibration.measured import MeasuredRun, TimedRequest, read_run
from justitia_ray.sim.engine_profile import EngineProfile, IterationCost
from justitia_ray.sim.profile_file import load_profile_file
from justitia_ray.sim.validation import Comparison, compare, simulate_run, validate
from tests.unit.sim.measured_data import measured_run_path


def timed(client: str, arrived: float, first: float, end: float) -> TimedRequest:
    """Return a request of 100 prompt and 50 output tokens: h = 200."""
    return TimedRequest(client, arrived, 100, 50, first, end)


def test_figures_are_those_of_both_sides() -> None:
    """Two requests; measured from 10 s to 30 s, simulated until 40 s.

    Throughput 2 · 150 tokens over 20 s and over 30 s; first tokens after 2 and 4 s, simulated 2 and
    10 s; the 90th percentile of two values lies nine tenths of the way.
    """
    measured = (timed("a", 10, 12, 20), timed("b", 10, 14, 30))
    simulated = [timed("a", 10, 12, 20), timed("b", 10, 20, 40)]
    result = compare(MeasuredRun("r", "fcfs", measured), simulated)

    assert Comparison(15.0, 10.0) == result.tokens_per_s
    assert -1 / 3 == pytest.approx(result.tokens_per_s.error)
    assert Comparison(3.0, 6.0) == result.mean_first_token_latency_s
    assert Comparison(3.8, 9.2) == result.p90_first_token_latency_s
    assert Comparison(15.0, 20.0) == result.mean_latency_s
    assert ("r", "fcfs", 2) == (result.run, result.policy, result.requests)


def test_service_error_is_the_share_that_came_at_another_time_or_to_another() -> None:
    """Clients a and b receive 200 each about 90 s; simulated, b receives it long after all arrived.

    Half of what was measured is not there: an error of 0.5, all of it at b.
    """
    measured = (timed("a", 0, 80, 100), timed("b", 0, 80, 100), timed("c", 630, 2000, 2001))
    late = [measured[0], timed("b", 0, 5000, 5020), measured[2]]
    run = MeasuredRun("r", "fcfs", measured)
    result = compare(run, late)

    assert 0.5 == pytest.approx(result.service_error)
    assert [0, -1, None] == [result.client_service_per_s[c].error for c in "abc"]
    assert 0 == compare(run, list(measured)).service_error


def test_error_of_nothing_is_not_a_number_but_none() -> None:
    """A run without differences between clients has no relative error of them."""
    assert Comparison(0.0, 1.0).error is None
    assert {"measured": 0.0, "simulated": 1.0, "error": None} == Comparison(0.0, 1.0).row()


def test_row_is_what_json_has() -> None:
    """Every number on a page is traced to a line of JSON."""
    run = MeasuredRun("r", "vtc", (timed("a", 0, 1, 2),))
    row = compare(run, list(run.requests)).row()

    assert {"measured": 75.0, "simulated": 75.0, "error": 0.0} == row["tokens_per_s"]
    assert {"a"} == set(row["client_service_per_s"])


def test_client_is_what_vtc_compares() -> None:
    """Client b comes late with one request, behind ten of client a: VTC serves it first.

    The engine runs one request at a time, each 10 iterations of 0.1 s. At 1.0 s, when the first of
    a is done, b (arrived at 0.5 s) has received nothing: its request ends at 2.0 s. Under FCFS it
    is the last, at 11 s.
    """
    engine = EngineProfile(kv_tokens=100, max_num_seqs=1, iteration=IterationCost(0.1))
    asked = [TimedRequest("a", 0.0, 10, 10, 0.0, 0.0) for _ in range(10)]
    asked.append(TimedRequest("b", 0.5, 10, 10, 0.0, 0.0))
    ends = {
        policy: simulate_run(MeasuredRun("r", policy, tuple(asked)), engine)[-1].finished_at_s
        for policy in ("vtc", "fcfs")
    }

    assert {"vtc": 2.0, "fcfs": 11.0} == pytest.approx(ends)


def test_prompts_of_the_file_are_reported_whatever_the_engine_adds() -> None:
    """A BOS costs time and memory, but is not a token that anyone asked for."""
    engine = EngineProfile(kv_tokens=100, iteration=IterationCost(0.1, per_prefill_token_s=1.0))
    run = MeasuredRun("r", "fcfs", (TimedRequest("a", 0.0, 10, 1, 0.0, 0.0),))
    (request,) = simulate_run(run, engine, added_prompt_tokens=2)

    assert 10 == request.prompt_tokens
    assert 12.1 == pytest.approx(request.finished_at_s)


@pytest.mark.parametrize(
    ("name", "throughput", "latency"),
    [
        # Errors of the shipped profile, which was fitted on FCFS runs only, with some room.
        ("vtc__real.csv.gz", 0.05, 0.15),
        ("vtc__overload.csv.gz", 0.05, 0.10),
        ("vtc__proportional.csv.gz", 0.05, 0.15),
    ],
)
def test_shipped_profile_predicts_runs_it_was_not_fitted_on(
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
