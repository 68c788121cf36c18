"""Autoscalers on one hour of recorded arrivals: creates the load, runs it, computes the results."""

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from justitia_ray.sim.autoscaling import AutoscaledSimulation, Autoscaler, FleetReading, ScaledRun
from justitia_ray.sim.results import percentile
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.suites.options import SuiteOptions, thinned_arrivals
from justitia_ray.sim.suites.papers import build_nine_class
from justitia_ray.sim.workload import WorkloadApplication
from justitia_ray.units import KvTokenTime, Seconds

EVERY_S: Seconds = 2.0
"""Seconds between two decisions of an autoscaler."""
TRACES = ("azure-conv", "azure-code", "mooncake")


@dataclass(frozen=True, slots=True)
class HourLoad:
    """Applications of nine classes that arrive as in a recorded hour of traffic."""

    trace: str
    count: int
    seed: int
    data_dir: Path

    def build(self) -> list[WorkloadApplication]:
        """Return the applications of the load in order of arrival.

        Raises:
            ConfigError: If the data directory lacks files.
        """
        rng = random.Random(f"{self.seed}/thinned")
        instants = thinned_arrivals(self.trace, self.count, rng, self.data_dir)
        options = SuiteOptions(count=self.count, seed=self.seed, data_dir=self.data_dir)
        applications = build_nine_class(options)
        return [
            replace(application, arrived_at_s=at)
            for application, at in zip(applications, instants, strict=True)
        ]


def run_scaled(
    applications: Sequence[WorkloadApplication],
    settings: RunSettings,
    autoscaler: Autoscaler,
    load_s: Seconds,
    initial: int,
) -> ScaledRun:
    """Simulate a load with an autoscaler.

    Args:
        applications: The load.
        settings: Settings of the run; `replicas` is the largest number at once, including draining
            replicas.
        autoscaler: Returns the number of replicas at every decision.
        load_s: Time that a replica takes to load.
        initial: Number of replicas that serve from the start.
    """
    run = AutoscaledSimulation(
        applications, settings, autoscaler, load_s=load_s, initial=initial, every_s=EVERY_S
    )
    return run.run_scaled()


def scaled_figures(
    run: ScaledRun, target_drain_s: Seconds, replica_kv_per_s: float
) -> Mapping[str, float | None]:
    """Return completion times, replica hours and reaction times of a run with an autoscaler.

    `mean_jct_s`, `p99_jct_s`: completion times. `replica_h`: hours from start to end of each
    replica, in total over the makespan. `reaction_s`: mean time from when the true remaining work
    exceeds what the requested replicas serve within the target, to the next rise of the target;
    None if there was none. `late_share`: share of the readings at which the true work exceeds what
    the running replicas serve within the target. `peak`: most replicas requested.
    """
    jcts = [one.jct_s for one in run.result.applications if one.jct_s is not None]
    one_s = target_drain_s * replica_kv_per_s
    reactions = reaction_times(run.readings, one_s)
    late = [reading.true_work > one_s * reading.running for reading in run.readings]
    return {
        "mean_jct_s": statistics.fmean(jcts) if jcts else None,
        "p99_jct_s": percentile(jcts, 99),
        "replica_h": run.replica_s / 3_600,
        "reaction_s": statistics.fmean(reactions) if reactions else None,
        "late_share": sum(late) / len(late) if late else None,
        "peak": max((reading.target for reading in run.readings), default=None),
    }


def reaction_times(readings: Sequence[FleetReading], one: KvTokenTime) -> list[Seconds]:
    """Return the seconds that each replica took from being needed to serving.

    A rise is necessary once the true work exceeds what the requested replicas serve within the
    target time. If the work falls again before a rise, no time is counted.

    Args:
        readings: The replicas and the true work, in order of time.
        one: Work that one replica serves within the target time.
    """
    reactions: list[Seconds] = []
    since: Seconds | None = None
    asked = readings[0].target if readings else 0
    for reading in readings:
        if since is None and reading.true_work > one * asked:
            since = reading.at
        if since is not None and reading.target > asked:
            reactions.append(reading.at - since)
            since = None
        elif reading.true_work <= one * asked:
            since = None
        asked = reading.target
    return reactions
