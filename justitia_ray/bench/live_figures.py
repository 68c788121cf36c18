"""The figures of scripts/bench_live: of each arm on each seed, and over the seeds."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from justitia_ray.bench.live_model import Prediction
from justitia_ray.bench.live_rows import as_result
from justitia_ray.bench.live_session import LiveRun
from justitia_ray.bench.statistics import Spread, paired_ratios, spread
from justitia_ray.sim.results import ApplicationResult, RunResult, mean_jct_s
from justitia_ray.sim.summary import Summary, percentile, summarise
from justitia_ray.text_table import text_table

REFERENCES = ("vtc", "fcfs")
MOST_ERROR = 0.15
"""Of the simulated mean completion time: beyond it the model, or the system, is to be mended."""

Outcomes = Mapping[str, RunResult]
"""By arm."""


@dataclass(frozen=True, slots=True)
class SeedFigures:
    """One load under every arm."""

    seed: int
    live: dict[str, Summary]
    simulated: dict[str, Summary]
    classes: dict[str, dict[str, dict[str, float | int | None]]]
    """By class and arm: applications, live mean and p90, simulated mean."""
    machine: dict[str, dict[str, Any]]
    """By arm: decisions, CPU time by role, seconds, failed applications; how slow the machine was,
    and what is simulated without that."""

    @property
    def arms(self) -> list[str]:
        """The arms, in alphabetical order."""
        return sorted(self.live)

    def error(self, arm: str) -> float | None:
        """Return how far the simulated mean completion time is off, as a share of the live one."""
        return self._off(arm, self.simulated[arm]["mean_jct_s"])

    def error_at_usual_speed(self, arm: str) -> float | None:
        """Return the same of what is simulated as if the machine were always equally fast."""
        return self._off(arm, self.machine[arm]["simulated_at_usual_speed_jct_s"])

    def _off(self, arm: str, simulated: float | None) -> float | None:
        return off_by(simulated, self.live[arm]["mean_jct_s"])

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {**asdict(self), "error": {arm: self.error(arm) for arm in self.arms}}


def off_by(simulated: float | None, live: float | None) -> float | None:
    """Return how far a simulated figure is off, as a share of the live one; None of nothing."""
    return simulated / live - 1 if live and simulated is not None else None


def live_results(runs: Sequence[LiveRun]) -> dict[str, RunResult]:
    """Return the rows of each arm's run."""
    return {
        run.arm.name: as_result(run.played, run.kv_utilization, run.preemptions) for run in runs
    }


def seed_figures(
    seed: int,
    runs: Sequence[LiveRun],
    live: Outcomes,
    predictions: Mapping[str, Prediction],
) -> SeedFigures:
    """Return the figures of one seed."""
    simulated = {arm: prediction.result for arm, prediction in predictions.items()}
    names = sorted({a.application_class for run in live.values() for a in run.applications})
    classes = {
        name: {
            arm: {
                "applications": len(_of(live[arm], name)),
                "mean_jct_s": mean_jct_s(_of(live[arm], name)),
                "p90_jct_s": _p90(_of(live[arm], name)),
                "simulated_mean_jct_s": mean_jct_s(_of(simulated[arm], name)),
            }
            for arm in live
        }
        for name in names
    }
    machine = {
        run.arm.name: {
            "decisions": asdict(run.decisions),
            "cpu_s": {role: round(s, 2) for role, s in sorted(run.cpu_s.items())},
            "wall_s": run.wall_s,
            "slowness": predictions[run.arm.name].slowness,
            "simulated_at_usual_speed_jct_s": mean_jct_s(
                predictions[run.arm.name].usual.applications
            ),
            "failed": run.failed,
        }
        for run in runs
    }
    return SeedFigures(seed, summarise(live), summarise(simulated), classes, machine)


def over_seeds(seeds: Sequence[SeedFigures]) -> dict[str, dict[str, Any]]:
    """Return, by arm, the median and spread of each figure, and paired ratios to the references."""
    table: dict[str, dict[str, Any]] = {}
    for arm in [name for name in seeds[0].live if all(name in s.live for s in seeds)]:
        row = {
            name: _spread([s.live[arm][name] for s in seeds])
            for name in (
                "mean_jct_s",
                "p90_jct_s",
                "no_later_than_vtc",
                "worst_ratio_to_vtc",
                "kv_utilization",
                "preemptions",
            )
        }
        row["simulated_mean_jct_s"] = _spread([s.simulated[arm]["mean_jct_s"] for s in seeds])
        row["error"] = _spread([s.error(arm) for s in seeds])
        row["slowness"] = _spread([s.machine[arm]["slowness"] for s in seeds])
        row["error_at_usual_speed"] = _spread([s.error_at_usual_speed(arm) for s in seeds])
        for percent in ("p50_s", "p99_s"):
            row[f"decision_{percent}"] = _spread(
                [s.machine[arm]["decisions"][percent] for s in seeds]
            )
        for other in REFERENCES:
            for kind, part in (("", "live"), ("simulated_", "simulated")):
                ours, theirs = (
                    [getattr(s, part)[a]["mean_jct_s"] for s in seeds] for a in (arm, other)
                )
                row[f"{kind}mean_jct_over_{other}"] = _spread(paired_ratios(ours, theirs))
        table[arm] = {name: None if s is None else asdict(s) for name, s in row.items()}
    return table


def order_of(table: Mapping[str, Mapping[str, Any]], figure: str) -> list[str]:
    """Return the arms by the median of a figure, the smallest first."""
    return sorted(table, key=lambda arm: table[arm][figure]["median"])


def printed(table: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table over the seeds as text: median (least to greatest)."""
    heads = (
        *("arm", "mean JCT s", "p90 JCT s", "over vtc", "over fcfs", "no later than vtc"),
        *("worst to vtc", "KV", "preempted", "decision p50/p99 µs", "simulated s", "error"),
        *("machine slower", "error without that"),
    )
    lines = [heads]
    for arm, row in table.items():
        times = [row["decision_p50_s"], row["decision_p99_s"]]
        lines.append(
            (
                arm,
                _shown(row["mean_jct_s"], 1),
                _shown(row["p90_jct_s"], 1),
                _shown(row["mean_jct_over_vtc"], 2),
                _shown(row["mean_jct_over_fcfs"], 2),
                _shown(row["no_later_than_vtc"], 2),
                _shown(row["worst_ratio_to_vtc"], 2),
                _shown(row["kv_utilization"], 2),
                _shown(row["preemptions"], 0),
                "/".join("–" if t is None else f"{1e6 * t['median']:.0f}" for t in times),
                _shown(row["simulated_mean_jct_s"], 1),
                _shown(row["error"], 2),
                _shown(row["slowness"], 2),
                _shown(row["error_at_usual_speed"], 2),
            )
        )
    return text_table(lines, numbers_from=1)


def class_table(seeds: Sequence[SeedFigures]) -> str:
    """Return the median over the seeds of each class's mean completion time, by arm, as text."""
    arms = list(seeds[0].live)
    names = sorted({name for s in seeds for name in s.classes})
    lines = [("class", "count", *arms)]
    for name in names:
        having = [s.classes[name] for s in seeds if name in s.classes]
        counts = sum(int(next(iter(c.values()))["applications"] or 0) for c in having)
        cells = [_middle([c[arm]["mean_jct_s"] for c in having]) for arm in arms]
        lines.append((name, str(counts), *("–" if c is None else f"{c:.1f}" for c in cells)))
    return text_table(lines, numbers_from=1)


def cpu_line(seeds: Sequence[SeedFigures]) -> str:
    """Return where the CPU time of a run goes: the median over all runs, by role, and its length.

    What these engines lack besides memory can be read from it: they share the cores.
    """
    runs = [run for s in seeds for run in s.machine.values()]
    roles = {role: [run["cpu_s"].get(role, 0.0) for run in runs] for role in runs[0]["cpu_s"]}
    middles = {role: statistics.median(values) for role, values in roles.items()}
    shown = ", ".join(
        f"{role} {seconds:.1f}"
        for role, seconds in sorted(middles.items(), key=lambda item: -item[1])
    )
    wall_s = statistics.median(run["wall_s"] for run in runs)
    return f"CPU seconds of a run: {shown}; it takes {wall_s:.1f} s."


def _shown(found: Mapping[str, float] | None, digits: int) -> str:
    return "–" if found is None else Spread(**found).format(digits)


def _spread(values: Sequence[float | int | None]) -> Spread | None:
    known = [float(value) for value in values if value is not None]
    return spread(known) if len(known) == len(values) and known else None


def _middle(values: Sequence[float | int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _of(run: RunResult, application_class: str) -> list[ApplicationResult]:
    return [a for a in run.applications if a.application_class == application_class]


def _p90(rows: Sequence[ApplicationResult]) -> float | None:
    return percentile([row.jct_s for row in rows if row.jct_s is not None], 90)
