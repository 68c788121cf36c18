"""The figures of scripts/bench_predictor, worked out by hand."""

from scripts.bench.predictor import SEVEN, Latency, Trial, verdicts


def trial(name: str, kind: str, number: int, error: float) -> Trial:
    return Trial(name, kind, number, 100, kind, error, error / 2, 0.8, 2.0)


def trials(ours: float, median: float) -> list[Trial]:
    return [
        trial(name, kind, number, error + (0.1 if number else 0.0))
        for name in (*SEVEN, "CG")
        for kind, error in (("auto", ours), ("median", median))
        for number in (0, 1)
    ]


def test_verdicts_name_what_is_missed() -> None:
    """A class that the median serves better is named, whatever the mean."""
    fast = [Latency("auto", 0.2, 0.4, "DM", 0.5, 0.1)]
    good = verdicts(trials(0.2, 0.4), fast)
    bad = verdicts(trials(0.5, 0.4), [Latency("auto", 0.9, 1.0, "DM", 0.9, 0.1)])

    assert [True] * 4 == [verdict.met for verdict in good]
    assert [False, False, False, True] == [verdict.met for verdict in bad]
    assert ", ".join([*SEVEN, "CG"]) == bad[1].figure
