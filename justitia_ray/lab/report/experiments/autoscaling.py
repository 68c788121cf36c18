"""Autoscaling by predicted drain time and by Serve's request count, and fixed sizes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from justitia_ray.core.served_rate import USUAL_ITERATION_S, assumed_kv_per_iteration
from justitia_ray.lab.autoscaling import EVERY_S, TRACES, HourLoad, run_scaled, scaled_figures
from justitia_ray.lab.report.experiment import (
    Arm,
    Chart,
    Experiment,
    Found,
    ReportMetric,
    Scale,
    Series,
    Task,
    compare_with,
    measure_each,
)
from justitia_ray.lab.report.tasks import PAPER_ENGINE, PAPER_KV_TOKENS
from justitia_ray.sim.autoscaling import Autoscaler, FixedSize
from justitia_ray.sim.settings import RunSettings
from justitia_ray.units import Seconds

_LOADS_S: tuple[Seconds, ...] = (30.0, 180.0)
_TARGET_S: Seconds = 60.0
_MOST, _FIRST = 10, 2
"""Largest number of replicas, and the number at the start of a run."""
_APPLICATIONS, _QUICK_APPLICATIONS = 720, 180
"""Applications per hour; 720 keep three replicas busy on average."""
_PREDICTION = "noisy:2"
_REPLICA_KV_PER_S = assumed_kv_per_iteration(PAPER_KV_TOKENS) / USUAL_ITERATION_S
"""Service per second of a full replica of the engine; the same value for all arms."""
_FITTING = 12.0
"""Number of concurrent requests that roughly fill a replica; an operator would have to measure it.
"""
_UP_S: Seconds = 10.0
_OURS, _SERVE = "drain time", "requests, Serve's defaults"
_FITTED, _SAME_DELAYS = "requests, 12 a replica", "requests, 12 a replica, our delays"
_FIXED = (3, 4, 6)


def _patience_s(load_s: Seconds) -> Seconds:
    """Return the default of `autoscaling.downscale_delay_s` for a replica's loading time."""
    return max(120.0, 2 * load_s)


@dataclass(frozen=True, slots=True)
class ScaledRun:
    """Simulated run with one autoscaler."""

    load: HourLoad
    load_s: Seconds
    """Seconds that a replica takes to load."""
    requests: float | None = None
    """Ray Serve's `target_ongoing_requests`; None: replicas are scaled by drain time."""
    up_s: Seconds = _UP_S
    down_s: Seconds = 600.0
    fixed: int | None = None
    """Constant number of replicas; None: an autoscaler decides."""

    def run(self) -> Mapping[str, float | None]:
        """Simulate a run with an autoscaler; return its completion times and its cost.

        Raises:
            ConfigError: If the data directory lacks files.
        """
        settings = RunSettings(
            PAPER_ENGINE,
            replicas=2 * _MOST,
            prediction=_PREDICTION,
            seed=self.load.seed,
            report_interval_s=1.0,
        )
        first = _FIRST if self.fixed is None else self.fixed
        run = run_scaled(self.load.build(), settings, self._new_autoscaler(), self.load_s, first)
        return scaled_figures(run, _TARGET_S, _REPLICA_KV_PER_S)

    def configuration(self) -> Mapping[str, Any]:
        load = {"trace": self.load.trace, "count": self.load.count, "seed": self.load.seed}
        own = {"load_s": self.load_s, "requests": self.requests, "fixed": self.fixed}
        delays = {"up_s": self.up_s, "down_s": self.down_s, "every_s": EVERY_S}
        return {
            "load": load,
            "engine": asdict(PAPER_ENGINE),
            "prediction": _PREDICTION,
            **own,
            **delays,
        }

    def _new_autoscaler(self) -> Autoscaler:
        if self.fixed is not None:
            return FixedSize(self.fixed)
        # The import is here because Ray takes seconds to import.
        from justitia_ray.lab.serve_scaling import DrainScaler, RequestsScaler, scaling_config

        config = scaling_config(1, _MOST, self.requests, self.up_s, self.down_s)
        if self.requests is not None:
            return RequestsScaler(config)
        rules = {"minimum": 1, "maximum": _MOST, "target_drain_s": _TARGET_S}
        return DrainScaler(config, rules)


def _arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    found: dict[Arm, Task] = {}
    count = _QUICK_APPLICATIONS if scale.is_quick else _APPLICATIONS
    for trace in scale.pick(TRACES, TRACES[1:2]):
        load = HourLoad(trace, count, seed, scale.data_dir)
        for load_s in _LOADS_S:
            group = _group_name(trace, load_s)
            down_s = _patience_s(load_s)
            found |= {
                Arm(group, _OURS): ScaledRun(load, load_s, None, _UP_S, down_s),
                Arm(group, _SERVE): ScaledRun(load, load_s, 2.0, 30.0),
                Arm(group, _FITTED): ScaledRun(load, load_s, _FITTING, 30.0),
                Arm(group, _SAME_DELAYS): ScaledRun(load, load_s, _FITTING, _UP_S, down_s),
            }
            for replicas in _FIXED:
                found[Arm(group, f"always {replicas}")] = ScaledRun(load, 0.0, fixed=replicas)
    return found


def _group_name(trace: str, load_s: Seconds) -> str:
    return f"{trace}, {load_s:g} s to load"


def _charts(scale: Scale, found: Found) -> list[Chart]:
    """Return charts of completion time over cost, for each trace and loading time."""
    charts = []
    for trace in scale.pick(TRACES, TRACES[1:2]):
        for load_s in _LOADS_S:
            group = _group_name(trace, load_s)
            names = [arm.name for arm in found[0][1] if arm.group == group]
            series = [Series(name, _curve_points(found, Arm(group, name))) for name in names]
            charts.append(
                Chart(
                    f"autoscaling-{trace}-{load_s:g}",
                    f"Completion and cost: {group}",
                    "replica-hours",
                    "mean completion (s)",
                    series,
                    kind="marks",
                )
            )
    return charts


def _curve_points(found: Found, arm: Arm) -> list[tuple[float, float]]:
    outcomes: list[Any] = [of_seed[arm] for _, of_seed in found]
    known = [one for one in outcomes if isinstance(one, Mapping)]
    if not known:
        return []
    count = len(known)
    return [
        (
            sum(one["replica_h"] for one in known) / count,
            sum(one["mean_jct_s"] for one in known) / count,
        )
    ]


AUTOSCALING = Experiment(
    name="autoscaling",
    title="Replicas by predicted drain time",
    source="the papers have fixed sizes only",
    about=(
        "An hour of recorded arrivals, thinned to 720 applications of nine classes, which keep "
        "three replicas busy in the mean; from 1 to 10 replicas, 2 at the start, that take 30 s or "
        "3 min to load. `drain time` is the service's policy: the class that Serve is given, the "
        "scheduler's sizing, and Serve's own functions for delays and bounds; costs are predicted "
        "with a noise of factor 2. `requests` is Serve's default policy, called as its controller "
        "does, with the requests that wait and run; with Serve's default of 2 a replica, and with "
        "the 12 that about fill one in this load. That is kind to it: in the service itself Serve "
        "does not see them. Reaction is the time from when the work that is truly left takes the "
        "replicas asked for more than 60 s, to when more are asked for. Arrivals of an hour rise "
        "and fall little: here a fixed size, if it is the right one, has the shortest completion "
        "times for its hours, and no autoscaler was told it."
    ),
    arms=_arms,
    measure=measure_each(lambda outcome: outcome),
    metrics=(
        ReportMetric("mean_jct_s", "mean completion", unit="s"),
        ReportMetric("p99_jct_s", "p99", unit="s"),
        ReportMetric("replica_h", "replica-hours", digits=2),
        ReportMetric("reaction_s", "reaction", unit="s"),
        ReportMetric("late_share", "time with more than 60 s of work", is_share=True),
        ReportMetric("peak", "most replicas", better=None),
    ),
    comparisons=(
        *compare_with(_SAME_DELAYS, "mean_jct_s", "p99_jct_s", "replica_h"),
        *compare_with(_SERVE, "mean_jct_s", "replica_h"),
    ),
    charts=_charts,
)
