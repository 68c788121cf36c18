"""The figures of scripts/bench_predictor: tables, and verdicts on the targets."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from justitia_ray.bench.predictor_measures import (
    BATCH,
    SEVEN,
    WINDOW,
    Drift,
    Latency,
    Trial,
)
from justitia_ray.bench.serve_report import Verdict
from justitia_ray.text_table import text_table

OURS, BASELINE = "auto", "median"
MOST_ERROR = 0.35
MOST_MS = 0.5
MOST_TRAIN_S = 10.0
PAPER = "the paper's MLP over its nine classes 53.0 %, 2.16 ms, about 1 min on a V100"
"""Justitia v1, Table II."""


@dataclass(frozen=True, slots=True)
class OverSeven:
    """A figure, its mean over the seven classes, training set by training set."""

    mean: float
    """Of the sets."""
    low: float
    high: float


def over_seven(trials: Sequence[Trial], kind: str, figure: str) -> OverSeven:
    """Return the mean over the seven classes of a figure; each class counts once."""
    sets = sorted({trial.number for trial in trials if trial.kind == kind})
    means = [
        statistics.fmean(
            getattr(trial, figure)
            for trial in trials
            if (trial.kind, trial.number) == (kind, number) and trial.application_class in SEVEN
        )
        for number in sets
    ]
    return OverSeven(statistics.fmean(means), min(means), max(means))


def of_class(trials: Sequence[Trial], name: str, kind: str, figure: str) -> float:
    """Return the mean of a figure of a class over the training sets."""
    return statistics.fmean(
        getattr(trial, figure)
        for trial in trials
        if (trial.application_class, trial.kind) == (name, kind)
    )


def error_table(trials: Sequence[Trial], figure: str) -> str:
    """Return one error by class and kind, mean over the sets; over the seven: least to greatest."""
    kinds = list(dict.fromkeys(trial.kind for trial in trials))
    names = list(dict.fromkeys(trial.application_class for trial in trials))
    seven = [name for name in names if name in SEVEN]
    rows = [["class", *kinds]]
    rows += [
        [name, *(f"{of_class(trials, name, kind, figure):.1%}" for kind in kinds)]
        for name in [*seven, *(name for name in names if name not in SEVEN)]
    ]
    rows.insert(
        1 + len(seven),
        ["mean", *(f"{over_seven(trials, kind, figure).mean:.1%}" for kind in kinds)],
    )
    spreads = [over_seven(trials, kind, figure) for kind in kinds]
    rows.insert(2 + len(seven), ["  sets", *(f"{s.low:.1%}-{s.high:.1%}" for s in spreads)])
    return text_table(rows, numbers_from=1)


def coverage_table(trials: Sequence[Trial]) -> str:
    """Return, by class, what p10 to p90 held, the training time and what was chosen."""
    ours = [trial for trial in trials if trial.kind == OURS]
    rows = [["class", "p10-p90", "train CPU s", "samples", "chosen"]]
    for name in dict.fromkeys(trial.application_class for trial in ours):
        of = [trial for trial in ours if trial.application_class == name]
        chosen = Counter(trial.chosen for trial in of).most_common()
        rows.append(
            [
                name,
                f"{statistics.fmean(trial.covered for trial in of):.0%}",
                f"{statistics.median(trial.train_cpu_s for trial in of):.1f}",
                f"{of[0].trained_on}",
                ", ".join(f"{kind} {count}" for kind, count in chosen),
            ]
        )
    return text_table(rows, numbers_from=1)


def latency_table(latencies: Sequence[Latency]) -> str:
    """Return milliseconds a prediction by kind."""
    rows = [["kind", "p50", "p99", f"each of {BATCH}", "slowest class", "p50"]]
    rows += [
        [
            found.kind,
            f"{found.p50_ms:.3f}",
            f"{found.p99_ms:.3f}",
            f"{found.batched_ms:.3f}",
            found.slowest_class,
            f"{found.slowest_p50_ms:.3f}",
        ]
        for found in latencies
    ]
    return text_table(rows, numbers_from=1)


def curve_table(curve: Mapping[int, Sequence[Trial]]) -> str:
    """Return the mean error by class and number of samples; at most as many as a class has."""
    names = list(dict.fromkeys(t.application_class for ts in curve.values() for t in ts))
    rows = [["samples", *names, "mean of seven"]]
    for size, trials in curve.items():
        errors = [of_class(trials, name, OURS, "mean_error") for name in names]
        seven = over_seven(trials, OURS, "mean_error")
        rows.append([str(size), *(f"{error:.1%}" for error in errors), f"{seven.mean:.1%}"])
    return text_table(rows, numbers_from=1)


def drift_line(name: str, drift: Drift) -> str:
    """Return what the drift run showed, in a sentence."""
    noticed = (
        f"noticed after {drift.noticed_after}"
        if drift.noticed_after is not None
        else "not noticed as a change"
    )
    return (
        f"{name}: error over {WINDOW} applications {drift.before:.0%} before the switch,"
        f" {drift.at:.0%} at it, {drift.after:.0%} at the end ({drift.frozen:.0%} without"
        f" learning); {noticed}; {drift.trainings} trainings"
    )


def verdicts(trials: Sequence[Trial], latencies: Sequence[Latency]) -> list[Verdict]:
    """Return the targets and whether they were met."""
    error = over_seven(trials, OURS, "mean_error").mean
    names = list(dict.fromkeys(trial.application_class for trial in trials))
    worse = [
        name
        for name in names
        if of_class(trials, name, OURS, "mean_error")
        > of_class(trials, name, BASELINE, "mean_error")
    ]
    latency = next(found for found in latencies if found.kind == OURS)
    train_s = max(trial.train_cpu_s for trial in trials if trial.kind == OURS)
    return [
        Verdict(
            f"mean error over the seven <= {MOST_ERROR:.0%}", error <= MOST_ERROR, f"{error:.1%}"
        ),
        Verdict("every class no worse than its median", not worse, ", ".join(worse) or "all"),
        Verdict(
            f"a prediction <= {MOST_MS} ms (p50)",
            latency.p50_ms <= MOST_MS,
            f"{latency.p50_ms:.2f} ms",
        ),
        Verdict(
            f"training a class <= {MOST_TRAIN_S:.0f} s of CPU",
            train_s <= MOST_TRAIN_S,
            f"{train_s:.1f} s at most",
        ),
    ]
