"""The results of scripts/bench_live: simulated, compared, written, printed."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

from justitia_ray import __version__
from justitia_ray.bench.live_arms import ARMS
from justitia_ray.bench.live_bench import Plays
from justitia_ray.bench.live_elephant import elephant_figures, elephant_line
from justitia_ray.bench.live_figures import (
    MOST_ERROR,
    SeedFigures,
    class_table,
    cpu_line,
    live_results,
    order_of,
    over_seeds,
    printed,
    seed_figures,
)
from justitia_ray.bench.live_load import Size
from justitia_ray.bench.live_model import LiveModel, Prediction
from justitia_ray.bench.live_session import LiveRun
from justitia_ray.replacing import replacing_text
from justitia_ray.sim.result_files import write_results
from justitia_ray.sim.results import RunResult

LIVE = "live.json"
_Compared: TypeAlias = tuple[dict[str, RunResult], dict[str, Prediction]]
"""By arm, what was played, and the simulator's word on it."""


@dataclass(frozen=True, slots=True)
class Written:
    """What was written, and the figures for the table."""

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
) -> Written:
    """Simulate every play, and write `live.json` and the rows of every run.

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
        """Simulate the runs of one load, and write their rows beside the simulated ones."""
        live = _in_order(live_results(runs))
        predictions = {run.arm.name: model.predict(run, plays.history) for run in runs}
        said = _in_order({arm: p.result for arm, p in predictions.items()})
        for kind, results in (("live", live), ("simulated", said)):
            write_results(out / name / kind, results, {"seed": seed, **about})
        return live, predictions

    for seed, runs in plays.runs.items():
        figures.append(seed_figures(seed, runs, *simulated(f"seed-{seed}", seed, runs)))
        say(f"seed {seed} simulated")
    table = over_seeds(figures)
    live, predictions = simulated("elephant", plays.elephant_load.seed, plays.elephant_runs)
    say("elephant simulated")
    elephant = {
        "load": plays.elephant_load.document(),
        "arms": {name: elephant_figures(live[name], predictions[name]) for name in live},
    }
    written = Written(
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


def report(written: Written, model: LiveModel) -> str:
    """Return what is printed in the end."""
    cost = model.engine.iteration
    elephants = written.elephant["arms"]
    errors = {arm: row["error"]["median"] for arm, row in written.table.items() if row["error"]}
    errors |= {f"elephant, {arm}": found["error"] for arm, found in elephants.items()}
    missed = [
        f"{name} {error:+.0%}"
        for name, error in errors.items()
        if error is not None and abs(error) > MOST_ERROR
    ]
    same = "the same" if written.live_order == written.simulated_order else "NOT the same"
    lines = [
        printed(written.table),
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


def _in_order(results: Mapping[str, RunResult]) -> dict[str, RunResult]:
    """Return results in the order of the arms, however they were rotated."""
    return {arm.name: results[arm.name] for arm in ARMS if arm.name in results}
