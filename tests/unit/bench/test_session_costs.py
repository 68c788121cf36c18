"""Predictions for recorded sessions, by scripts/bench_predictor --sessions."""

import gzip
import json
from pathlib import Path

import pytest

from justitia_ray.sim.sessions.trace import SESSIONS_FILE
from scripts.bench.session_costs import (
    TURNS,
    computed_tokens,
    expected_tokens,
    measure_sessions,
    rank_correlation,
)
from scripts.bench_predictor import main
from tests.unit.sim.sessions.made import (
    ENGINE,
    growing_session,
    read_written,
    session_line,
    turn_line,
)


@pytest.mark.parametrize(
    ("pairs", "correlation"),
    [
        ([(1, 10), (2, 30), (3, 20)], 0.5),
        ([(1, 1), (2, 4), (3, 900)], 1.0),
        ([(1, 3), (2, 2), (3, 1)], -1.0),
        ([(1, 1), (1, 2), (2, 3)], 0.866),
        ([(7, 1), (7, 2), (7, 3)], 0.0),
        ([(1, 1)], 0.0),
    ],
)
def test_rank_correlation_equals_spearmans_coefficient(
    pairs: list[tuple[float, float]], correlation: float
) -> None:
    """Equal values have the mean of their ranks."""
    assert rank_correlation(pairs) == pytest.approx(correlation, abs=1e-3)


def test_expected_prompt_tokens_count_the_text_after_the_last_answer(
    tmp_path: Path,
) -> None:
    """A trace counts the last answer as new prompt tokens, although it is cached."""
    (session,) = read_written(
        tmp_path,
        session_line("a", turn_line(640, 20), turn_line(692, 20, 640), turn_line(64, 20, 0)),
    )

    assert computed_tokens(session.turns) == [640, 52, 64]
    assert expected_tokens(session.turns) == [640, 32, 64]


def test_predicted_session_costs_have_the_rank_order_of_true_costs(tmp_path: Path) -> None:
    sessions = read_written(
        tmp_path, *(growing_session(f"s{n}", turns=12, first=64 * (n + 2)) for n in range(20))
    )
    found = measure_sessions(sessions, ENGINE, sets=2, seed=1)

    reached = [turn for turn in TURNS if turn <= 12]
    for ranks in (found.ranks, found.ranks_with_prefill):
        assert [len(ranks[turn]) for turn in TURNS] == [2] * len(TURNS)
        assert min(min(ranks[turn]) for turn in reached) > 0.9
        assert ranks[40] == [0.0, 0.0]


def test_command_prints_prediction_errors_and_rank_correlations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / SESSIONS_FILE
    file.parent.mkdir()
    lines = (growing_session(f"s{n}", turns=8, first=64 * (n + 2)) for n in range(10))
    with gzip.open(file, "wt", encoding="utf-8") as out:
        out.writelines(json.dumps(one) + "\n" for one in lines)
    results = tmp_path / "results.json"

    assert main(["--sessions", "--quick", "--data", str(tmp_path), "--json", str(results)]) == 0
    assert "with prefill" in capsys.readouterr().out
    assert [one["profile"] for one in json.loads(results.read_text())["sessions"]]
