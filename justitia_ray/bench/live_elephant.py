"""The figures of scripts/bench_live: an elephant among mice, on engines and simulated."""

from typing import Any

from justitia_ray.bench.live_figures import off_by
from justitia_ray.bench.live_model import Prediction
from justitia_ray.sim.results import RunResult, mean_jct_s
from justitia_ray.units import Seconds


def elephant_figures(live: RunResult, prediction: Prediction) -> dict[str, Any]:
    """Return the figures under one arm.

    Args:
        live: The rows of the play, the elephant's first.
        prediction: The simulator's word on it.

    Returns:
        Completion times in seconds, of the elephant, of the mice in the mean and of all in the
        mean, live and simulated; `error`, how far the last is off as a share of the live one; lag
        and bound as the scheduler exports them; how slow the machine was.
    """
    elephant = live.applications[0].application_id
    lateness = live.lateness.get(elephant)
    measured, simulated = (_times(of, elephant) for of in (live, prediction.result))
    return {
        **measured,
        **{f"simulated_{name}": value for name, value in simulated.items()},
        "error": off_by(simulated["mean_jct_s"], measured["mean_jct_s"]),
        "lag_s": None if lateness is None else lateness.lag_s,
        "bound_s": None if lateness is None else lateness.bound_s,
        "slowness": prediction.slowness,
    }


def elephant_line(arm: str, found: dict[str, Any]) -> str:
    """Return the figures under one arm as a sentence."""
    times = ", ".join(
        f"{what} {_seconds(found[name])} ({_seconds(found[f'simulated_{name}'])})"
        for what, name in (
            ("its time", "elephant_jct_s"),
            ("that of mice", "mice_jct_s"),
            ("of all", "mean_jct_s"),
        )
    )
    off = "–" if found["error"] is None else f"{found['error']:+.0%}"
    return (
        f"Elephant under {arm}, live (simulated): {times}, off by {off}; lag"
        f" {_seconds(found['lag_s'])}, bound {_seconds(found['bound_s'])}; machine slower"
        f" {found['slowness']:.2f}."
    )


def _times(result: RunResult, elephant: str) -> dict[str, Seconds | None]:
    rows = result.applications
    return {
        "elephant_jct_s": mean_jct_s([row for row in rows if row.application_id == elephant]),
        "mice_jct_s": mean_jct_s([row for row in rows if row.application_id != elephant]),
        "mean_jct_s": mean_jct_s(rows),
    }


def _seconds(value: Seconds | None) -> str:
    return "–" if value is None else f"{value:.1f} s"
