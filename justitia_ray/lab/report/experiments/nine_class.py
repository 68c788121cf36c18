"""Common parts of the experiments on the nine-class suite: load, policies, measures, charts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from justitia_ray.lab.report.experiment import (
    Arm,
    Arms,
    Chart,
    Charts,
    Found,
    Measure,
    Measures,
    Outcomes,
    ReportMetric,
    Scale,
    Series,
    Task,
)
from justitia_ray.lab.report.statistics import curve, distribution
from justitia_ray.lab.report.tasks import (
    PAPER_ENGINE,
    PAPER_KV_TOKENS,
    ExperimentLoad,
    PolicyOptions,
    SimulatedRun,
    SuiteLoad,
)
from justitia_ray.sim.results import ApplicationResult, ratios_to_reference, summarise

GAP_AT_1X_S = 1080 / 300
"""Mean seconds between arrivals at density 1: 300 applications in 18 minutes (v1, Sec. V-A)."""
BASELINES = ("fcfs", "sjf", "app-fcfs", "vtc", "srjf")
"""The paper's five baselines: vLLM, vLLM-SJF, Parrot, VTC, SRJF."""

MEAN = ReportMetric("mean_jct_s", "mean JCT", unit="s")
P90 = ReportMetric("p90_jct_s", "p90 JCT", unit="s")
WORST_JCT = ReportMetric("max_jct_s", "longest JCT", unit="s")
NO_LATER = ReportMetric(
    "no_later_than_vtc", "no later than under VTC", is_share=True, better="high"
)
WORST = ReportMetric("worst_ratio_to_vtc", "worst against VTC", digits=2, unit="×")
LOAD = ReportMetric("offered_load", "offered load", digits=2, better=None)
USED = ReportMetric("kv_utilization", "memory held", is_share=True, better="high")
LAG = ReportMetric("max_gps_lag_s", "largest lag behind GPS", unit="s")
PREEMPTIONS = ReportMetric("preemptions", "preemptions", digits=0)
FAIRNESS = (MEAN, P90, NO_LATER, WORST)
MEAN_AND_P90 = {"mean": MEAN, "p90": P90}
TITLES = {
    "mean": "Mean completion time",
    "p90": "90th percentile",
    "longest": "Longest completion time",
}
_EARLIER = 1000
"""Difference between the seeds of a load and of the earlier load from which a predictor learns."""


def load(scale: Scale, seed: int, density: float, applications: int | None = None) -> SuiteLoad:
    """Return a load of nine application classes; density 1 is 300 applications in 18 minutes."""
    count = applications or scale.applications
    return SuiteLoad(
        "nine-class",
        seed,
        scale.data_dir,
        count=count,
        window_s=round(count * GAP_AT_1X_S / density, 6),
    )


def earlier_load(load: SuiteLoad) -> SuiteLoad:
    """Return an earlier load of this kind, from which a predictor has learned."""
    return replace(load, seed=load.seed + _EARLIER)


def policies(group: str, load: ExperimentLoad, names: Sequence[str]) -> dict[Arm, SimulatedRun]:
    return {Arm(group, name): SimulatedRun(load, name) for name in names}


def arms_at(
    densities: Sequence[float],
    names: Sequence[str],
    variants: Mapping[str, PolicyOptions] = MappingProxyType({}),
    quick_densities: Sequence[float] | None = None,
) -> Arms:
    """Return a function that lists the runs of several policies at several densities of the load.

    Args:
        densities: Densities of the load; each gives a group of arms: `1x`, `2x`, ….
        names: Policies, run with their default options.
        variants: Options of justitia by name of the arm.
        quick_densities: Densities of a quick report; None: all.
    """

    def arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
        found: dict[Arm, Task] = {}
        for density in scale.pick(densities, quick_densities or densities):
            group, suite = f"{density}x", load(scale, seed, density)
            found |= policies(group, suite, names)
            for name, options in variants.items():
                found[Arm(group, name)] = SimulatedRun(suite, "justitia", options)
        return found

    return arms


def offered_load(applications: Sequence[ApplicationResult]) -> float:
    """Return the arriving work as a multiple of the work that a full replica serves meanwhile."""
    arrivals = [a.arrived_at_s for a in applications]
    work_s = sum(a.kv_token_time for a in applications) / PAPER_KV_TOKENS
    return work_s * PAPER_ENGINE.iteration.base_s / (max(arrivals) - min(arrivals))


def measure(outcomes: Outcomes) -> Measures:
    """Return the figures of `summary.json` for each arm."""
    measured: dict[Arm, Mapping[str, float | None]] = {}
    for group in dict.fromkeys(arm.group for arm in outcomes):
        runs = {arm.name: run for arm, run in outcomes.items() if arm.group == group}
        for name, figures in summarise(runs).items():
            measured[Arm(group, name)] = figures
    return measured


def ratio_charts(name: str, title: str, arms: Sequence[str], level: float | None = None) -> Charts:
    """Return a function that charts completion times relative to the times under VTC.

    A curve is a cumulative distribution over all seeds: the share of applications below a ratio.
    """

    def charts(_scale: Scale, found: Found) -> list[Chart]:
        series = []
        for arm in arms:
            ratios: list[float] = []
            for _, outcomes in found:
                run, reference = outcomes[Arm("3x", arm)], outcomes[Arm("3x", "vtc")]
                ratios += [ratio for _, ratio, _ in ratios_to_reference(run, reference)]
            if ratios:
                series.append(Series(arm, distribution(ratios)))
        chart = Chart(name, title, "ratio to VTC", "share of applications", series, kind="step")
        return [replace(chart, is_log_x=True, y_limit=(0.0, 1.0), level=level)]

    return charts


def bar_charts(
    name: str, groups: Sequence[str], arms: Sequence[str], metrics: Mapping[str, ReportMetric]
) -> Charts:
    """Return a function that draws a bar chart of each metric."""
    places = list(enumerate(groups))

    def charts(_: Scale, found: Found) -> list[Chart]:
        drawn = []
        for key, metric in metrics.items():
            chart = Chart(f"{name}-{key}", TITLES[key], kind="bars", categories=groups)
            drawn.append(metric_chart(found, measure, chart, places, arms, metric))
        return drawn

    return charts


def metric_chart(
    found: Found,
    measure: Measure,
    chart: Chart,
    places: Sequence[tuple[float, str]],
    arms: Sequence[str],
    metric: ReportMetric = MEAN,
) -> Chart:
    """Return a line chart of a metric, with a curve for each variant.

    Args:
        found: Outcomes by seed.
        measure: Computes the metrics from outcomes.
        chart: Template with name, title, x label and scales.
        places: Position x and group of each point.
        arms: Names of the arms.
        metric: The metric that is drawn.
    """
    measured = [measure(outcomes) for _, outcomes in found]
    series = []
    for arm in arms:
        points = []
        for x, group in places:
            values = [m.get(Arm(group, arm), {}).get(metric.name) for m in measured]
            points.append((x, [value for value in values if value is not None]))
        series.append(curve(arm, points))
    unit = f" ({metric.unit})" if metric.unit else ""
    return replace(chart, y_label=f"{metric.label}{unit}", series=series)
