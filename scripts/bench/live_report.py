"""Figures of `scripts/bench_live` by arm and seed and over the seeds, as files and as text."""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from justitia_ray import __version__
from justitia_ray.atomic_files import replacing_text
from justitia_ray.cli.text_table import text_table
from justitia_ray.sim.result_files import write_results
from justitia_ray.sim.results import (
    ApplicationResult,
    RunResult,
    Summary,
    mean_jct_s,
    percentile,
    summarise,
)
from justitia_ray.units import Seconds
from scripts.bench.live import Plays, Size
from scripts.bench.live_model import LiveModel, Prediction
from scripts.bench.live_records import to_simulation_result
from scripts.bench.live_session import ARMS, CONTROL, VTC, LiveRun
from scripts.bench.statistics import Spread, paired_ratios, spread

REFERENCES = ("vtc", "fcfs", "justitia")
MOST_ERROR = 0.15
"""Largest acceptable relative error of the simulated mean completion time; above it the model is
wrong.
"""

Outcomes = Mapping[str, RunResult]
"""Simulation result of each arm, by name."""


@dataclass(frozen=True, slots=True)
class SeedFigures:
    """Figures of one seed's load under every arm."""

    seed: int
    live: dict[str, Summary]
    simulated: dict[str, Summary]
    classes: dict[str, dict[str, dict[str, float | int | None]]]
    """Applications, live mean and p90, and simulated mean, by class and arm."""
    machine: dict[str, dict[str, Any]]
    """State of the machine under each arm: CPU time by role, failed applications, slowness and
    more.
    """

    @property
    def arms(self) -> list[str]:
        return sorted(self.live)

    def error(self, arm: str) -> float | None:
        """Return the relative error of the simulated mean completion time."""
        return self._error_of(arm, self.simulated[arm]["mean_jct_s"])

    def error_at_usual_speed(self, arm: str) -> float | None:
        """Return the relative error of the simulation that ignores the machine's slowness."""
        return self._error_of(arm, self.machine[arm]["simulated_at_usual_speed_jct_s"])

    def _error_of(self, arm: str, simulated: float | None) -> float | None:
        return relative_error_of(simulated, self.live[arm]["mean_jct_s"])

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "error": {arm: self.error(arm) for arm in self.arms}}


def relative_error_of(simulated: float | None, live: float | None) -> float | None:
    """Return the relative error of a simulated figure; None if a figure is missing."""
    return simulated / live - 1 if live and simulated is not None else None


def live_results(runs: Sequence[LiveRun]) -> dict[str, RunResult]:
    return {
        run.arm.name: to_simulation_result(run.played, run.kv_utilization, run.preemptions)
        for run in runs
    }


def figures_of_seed(
    seed: int,
    runs: Sequence[LiveRun],
    live: Outcomes,
    predictions: Mapping[str, Prediction],
) -> SeedFigures:
    simulated = {arm: prediction.result for arm, prediction in predictions.items()}
    names = sorted({a.application_class for run in live.values() for a in run.applications})
    classes = {
        name: {
            arm: {
                "applications": len(_results_of_class(live[arm], name)),
                "mean_jct_s": mean_jct_s(_results_of_class(live[arm], name)),
                "p90_jct_s": _p90_s(_results_of_class(live[arm], name)),
                "simulated_mean_jct_s": mean_jct_s(_results_of_class(simulated[arm], name)),
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
    """Return the median and spread of each figure, and ratios to the references, by arm."""
    table: dict[str, dict[str, Any]] = {}
    for arm in [name for name in seeds[0].live if all(name in s.live for s in seeds)]:
        row = {
            name: _formatted_spread([s.live[arm][name] for s in seeds])
            for name in (
                "mean_jct_s",
                "p90_jct_s",
                "no_later_than_vtc",
                "worst_ratio_to_vtc",
                "kv_utilization",
                "preemptions",
            )
        }
        row["simulated_mean_jct_s"] = _formatted_spread(
            [s.simulated[arm]["mean_jct_s"] for s in seeds]
        )
        row["error"] = _formatted_spread([s.error(arm) for s in seeds])
        row["slowness"] = _formatted_spread([s.machine[arm]["slowness"] for s in seeds])
        row["error_at_usual_speed"] = _formatted_spread(
            [s.error_at_usual_speed(arm) for s in seeds]
        )
        for percent in ("p50_s", "p99_s"):
            row[f"decision_{percent}"] = _formatted_spread(
                [s.machine[arm]["decisions"][percent] for s in seeds]
            )
        for other in REFERENCES:
            for kind, part in (("", "live"), ("simulated_", "simulated")):
                over = f"{kind}mean_jct_over_{other}"
                row[over] = None  # the reference arm is absent where only some arms are run
                if other in seeds[0].live:
                    ours, theirs = (
                        [getattr(s, part)[a]["mean_jct_s"] for s in seeds] for a in (arm, other)
                    )
                    row[over] = _formatted_spread(paired_ratios(ours, theirs))
        table[arm] = {name: None if s is None else asdict(s) for name, s in row.items()}
    return table


def order_of(table: Mapping[str, Mapping[str, Any]], figure: str) -> list[str]:
    """Return the arms without the control, ordered by the median of a figure, smallest first.

    The control repeats the policy of `vtc`, so the order of those two is noise.
    """
    return sorted(_without_control(table), key=lambda arm: table[arm][figure]["median"])


def seeds_table(table: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table of median (minimum to maximum) over all seeds, as text."""
    heads = (
        *("arm", "mean JCT s", "p90 JCT s", *(f"over {other}" for other in REFERENCES)),
        *("no later than vtc", "worst to vtc", "KV", "preempted", "decision p50/p99 µs"),
        *("simulated s", "error", "machine slower", "error without that"),
    )
    lines = [heads]
    for arm, row in table.items():
        times = [row["decision_p50_s"], row["decision_p99_s"]]
        lines.append(
            (
                arm,
                _format_spread_of(row["mean_jct_s"], 1),
                _format_spread_of(row["p90_jct_s"], 1),
                *(_format_spread_of(row[f"mean_jct_over_{other}"], 2) for other in REFERENCES),
                _format_spread_of(row["no_later_than_vtc"], 2),
                _format_spread_of(row["worst_ratio_to_vtc"], 2),
                _format_spread_of(row["kv_utilization"], 2),
                _format_spread_of(row["preemptions"], 0),
                "/".join("–" if t is None else f"{1e6 * t['median']:.0f}" for t in times),
                _format_spread_of(row["simulated_mean_jct_s"], 1),
                _format_spread_of(row["error"], 2),
                _format_spread_of(row["slowness"], 2),
                _format_spread_of(row["error_at_usual_speed"], 2),
            )
        )
    return text_table(lines, numbers_from=1)


def class_table(seeds: Sequence[SeedFigures]) -> str:
    """Return a table of each class's mean completion time by arm, as medians over the seeds."""
    arms = list(seeds[0].live)
    names = sorted({name for s in seeds for name in s.classes})
    lines = [("class", "count", *arms)]
    for name in names:
        having = [s.classes[name] for s in seeds if name in s.classes]
        counts = sum(int(next(iter(c.values()))["applications"] or 0) for c in having)
        cells = [_median_of([c[arm]["mean_jct_s"] for c in having]) for arm in arms]
        lines.append((name, str(counts), *("–" if c is None else f"{c:.1f}" for c in cells)))
    return text_table(lines, numbers_from=1)


def cpu_line(seeds: Sequence[SeedFigures]) -> str:
    """Return a line with the duration and CPU time by role, as medians over all runs.

    The engines share the cores, so the line shows what limits them besides memory.
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


def find_control_arm(arms: Iterable[str]) -> str | None:
    """Return the control arm's name (a repetition of `vtc`); None unless both arms were run."""
    return CONTROL.name if {VTC.name, CONTROL.name} <= set(arms) else None


def control_arm_line(table: Mapping[str, Mapping[str, Any]]) -> str:
    """Return an explanation of the control arm; empty if the control was not run."""
    control = find_control_arm(table)
    if control is None:
        return ""
    return (
        f'{control} is vtc played once more: its "worst to vtc" and "no later than vtc" are the'
        " noise of the measurement."
    )


def off_beyond_limit(
    table: Mapping[str, Mapping[str, Any]], elephants: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Return the arms whose simulated mean errs by more than `MOST_ERROR`, with the error.

    Args:
        table: Over the seeds, by arm; the control is left out.
        elephants: Figures of the elephant's plays, by arm.
    """
    errors = {
        arm: table[arm]["error"]["median"] for arm in _without_control(table) if table[arm]["error"]
    }
    errors |= {f"elephant, {arm}": found["error"] for arm, found in elephants.items()}
    return [
        f"{name} {error:+.0%}"
        for name, error in errors.items()
        if error is not None and abs(error) > MOST_ERROR
    ]


def _without_control(table: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the arms of a table without the control arm."""
    control = find_control_arm(table)
    return [arm for arm in table if arm != control]


def _format_spread_of(found: Mapping[str, float] | None, digits: int) -> str:
    return "–" if found is None else Spread(**found).format(digits)


def _formatted_spread(values: Sequence[float | int | None]) -> Spread | None:
    known = [float(value) for value in values if value is not None]
    return spread(known) if len(known) == len(values) and known else None


def _median_of(values: Sequence[float | int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _results_of_class(run: RunResult, application_class: str) -> list[ApplicationResult]:
    return [a for a in run.applications if a.application_class == application_class]


def _p90_s(rows: Sequence[ApplicationResult]) -> float | None:
    return percentile([row.jct_s for row in rows if row.jct_s is not None], 90)


def elephant_figures(live: RunResult, prediction: Prediction) -> dict[str, Any]:
    elephant = live.applications[0].application_id
    lateness = live.lateness.get(elephant)
    measured, simulated = (_formatted_ratio(of, elephant) for of in (live, prediction.result))
    return {
        **measured,
        **{f"simulated_{name}": value for name, value in simulated.items()},
        "error": relative_error_of(simulated["mean_jct_s"], measured["mean_jct_s"]),
        "lag_s": None if lateness is None else lateness.lag_s,
        "bound_s": None if lateness is None else lateness.bound_s,
        "slowness": prediction.slowness,
    }


def elephant_line(arm: str, found: dict[str, Any]) -> str:
    """Return a sentence with the figures of the large application under one arm."""
    times = ", ".join(
        f"{what} {_formatted_s(found[name])} ({_formatted_s(found[f'simulated_{name}'])})"
        for what, name in (
            ("its time", "elephant_jct_s"),
            ("that of mice", "mice_jct_s"),
            ("of all", "mean_jct_s"),
        )
    )
    off = "–" if found["error"] is None else f"{found['error']:+.0%}"
    return (
        f"Elephant under {arm}, live (simulated): {times}, off by {off}; lag"
        f" {_formatted_s(found['lag_s'])}, bound {_formatted_s(found['bound_s'])}; machine slower"
        f" {found['slowness']:.2f}."
    )


def _formatted_ratio(result: RunResult, elephant: str) -> dict[str, Seconds | None]:
    rows = result.applications
    return {
        "elephant_jct_s": mean_jct_s([row for row in rows if row.application_id == elephant]),
        "mice_jct_s": mean_jct_s([row for row in rows if row.application_id != elephant]),
        "mean_jct_s": mean_jct_s(rows),
    }


def _formatted_s(value: Seconds | None) -> str:
    return "–" if value is None else f"{value:.1f} s"


LIVE = "live.json"
_Compared: TypeAlias = tuple[dict[str, RunResult], dict[str, Prediction]]
"""Rows of each run, and the simulator's prediction of the run, by arm."""


@dataclass(frozen=True, slots=True)
class ReportFigures:
    """Figures of a benchmark in the forms needed for files and for tables."""

    seeds: list[SeedFigures]
    table: dict[str, dict[str, Any]]
    elephant: dict[str, Any]
    live_order: list[str]
    simulated_order: list[str]


def write_all(
    out: Path,
    plays: Plays,
    size: Size,
    about: Mapping[str, Any],
    say: Callable[[str], None],
) -> ReportFigures:
    """Simulate every run, and write `live.json` and the rows of every run.

    `OUT/seed-N/live`, `OUT/seed-N/simulated`, the two of `OUT/elephant`, `OUT/calibration/live` and
    `OUT/calibration/elephant` are result directories as `justitia simulate` writes them, with an
    arm for a policy.

    Args:
        out: The directory; it is made if it is not there.
        plays: What was played.
        size: How much was played.
        about: Machine and configuration, for the files.
        say: Told how far it is.

    Raises:
        ConfigError: If something cannot be written.
    """
    model, figures = plays.model, []
    calibrations = {"live": plays.calibration, "elephant": (plays.calibration_elephant,)}
    for name, fitted_on in calibrations.items():
        write_results(out / "calibration" / name, live_results(fitted_on), dict(about))

    def simulated(name: str, seed: int, runs: Sequence[LiveRun]) -> _Compared:
        """Simulate the runs of one load; write the measured and the simulated rows."""
        live = _in_arm_order(live_results(runs))
        predictions = {run.arm.name: model.predict(run, plays.history) for run in runs}
        said = _in_arm_order({arm: p.result for arm, p in predictions.items()})
        for kind, results in (("live", live), ("simulated", said)):
            write_results(out / name / kind, results, {"seed": seed, **about})
        return live, predictions

    for seed, runs in plays.runs.items():
        figures.append(figures_of_seed(seed, runs, *simulated(f"seed-{seed}", seed, runs)))
        say(f"seed {seed} simulated")
    table = over_seeds(figures)
    live, predictions = simulated("elephant", plays.elephant_load.seed, plays.elephant_runs)
    say("elephant simulated")
    elephant = {
        "load": plays.elephant_load.document(),
        "arms": {name: elephant_figures(live[name], predictions[name]) for name in live},
    }
    written = ReportFigures(
        figures,
        table,
        elephant,
        order_of(table, "mean_jct_s"),
        order_of(table, "simulated_mean_jct_s"),
    )
    applications = len(next(iter(plays.runs.values()))[0].played)
    document = {
        "version": __version__,
        **about,
        "arms": list(table),
        "control": find_control_arm(table),
        "load": {
            "applications": applications,
            "window_s": size.window_s,
            "replicas": model.replicas,
            "kv_tokens": model.engine.kv_tokens,
            "config": about["config"],
        },
        "model": {
            "engine": asdict(model.engine),
            "call_latency_s": model.call_latency_s,
            "dispatch_s": model.dispatch_s,
            "front_end_s": model.front_end_s,
            "hold_up_s": model.hold_up_s,
            "pace": model.pace,
            "residual": model.fit.residual,
            "fitted_on": [
                {"load": name, "arm": run.arm.name, "applications": len(run.played)}
                for name, runs in calibrations.items()
                for run in runs
            ],
        },
        "seeds": [one.document() for one in figures],
        "over_seeds": table,
        "order": {"live": written.live_order, "simulated": written.simulated_order},
        "elephant": elephant,
    }
    with replacing_text(out / LIVE) as file:
        file.write(json.dumps(document, indent=1, allow_nan=False) + "\n")
    return written


def report(written: ReportFigures, model: LiveModel) -> str:
    cost = model.engine.iteration
    elephants = written.elephant["arms"]
    missed = off_beyond_limit(written.table, elephants)
    same = "the same" if written.live_order == written.simulated_order else "NOT the same"
    lines = [
        seeds_table(written.table),
        *([noise] if (noise := control_arm_line(written.table)) else []),
        "",
        "Mean completion time of each class, s, median over the seeds:",
        class_table(written.seeds),
        "",
        cpu_line(written.seeds),
        f"Engine as fitted under load (residual {model.fit.residual:.0%} of a call's time): an"
        f" iteration {1e3 * cost.base_s:.2f} ms, {1e6 * cost.per_sequence_s:.0f} µs a sequence,"
        f" {1e6 * cost.per_context_token_s:.2f} µs a token held, a prompt"
        f" {1e3 * cost.prefill_base_s:.1f} ms and {1e6 * cost.per_prefill_token_s:.0f} µs a token;"
        f" {1e3 * (model.call_latency_s + model.dispatch_s):.0f} ms a call besides; two times each"
        f" {1e3 * model.front_end_s:.0f} ms of what all calls pass, and {1e3 * model.hold_up_s:.0f}"
        f" ms by which it holds up all engines. Pace {model.pace:.2f}.",
        f"Order of the arms by mean completion time, live and simulated: {same}"
        f" ({', '.join(written.live_order)}; {', '.join(written.simulated_order)}).",
        f"Simulated mean off by more than {MOST_ERROR:.0%}: {', '.join(missed) or 'none'}.",
    ]
    lines += [elephant_line(arm, found) for arm, found in elephants.items()]
    return "\n".join(lines)


def _in_arm_order(results: Mapping[str, RunResult]) -> dict[str, RunResult]:
    """Return results in the order of `ARMS`, not in the order in which the arms ran."""
    return {arm.name: results[arm.name] for arm in ARMS if arm.name in results}
