"""What the experiments on the nine-class suite share: load, policies, measures."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from justitia_ray.report.chart import Chart, Series
from justitia_ray.report.experiment import Arm, Found, Measures, Metric, Outcomes, Scale
from justitia_ray.report.loads import SuiteLoad
from justitia_ray.report.statistics import distribution, estimate
from justitia_ray.report.tasks import PAPER_ENGINE, PAPER_KV_TOKENS, Simulation
from justitia_ray.sim.results import ApplicationResult, RunResult
from justitia_ray.sim.summary import ratios_to_reference, summarise

GAP_AT_1X_S = 1080 / 300
"""Seconds an application at 1x: 300 in 18 minutes (v1, Sec. V-A)."""
BASELINES = ("fcfs", "sjf", "app-fcfs", "vtc", "srjf")
"""The paper's five: vLLM, vLLM-SJF, Parrot, VTC, SRJF."""

MEAN = Metric("mean_jct_s", "mean JCT", unit="s")
P90 = Metric("p90_jct_s", "p90 JCT", unit="s")
WORST_JCT = Metric("max_jct_s", "longest JCT", unit="s")
NO_LATER = Metric("no_later_than_vtc", "no later than under VTC", is_share=True, better="high")
WORST = Metric("worst_ratio_to_vtc", "worst against VTC", digits=2, unit="×")
LOAD = Metric("offered_load", "offered load", digits=2, better=None)
USED = Metric("kv_utilization", "memory held", is_share=True, better="high")
LAG = Metric("max_gps_lag_s", "largest lag behind GPS", unit="s")
PREEMPTIONS = Metric("preemptions", "preemptions", digits=0)
FAIRNESS = (MEAN, P90, NO_LATER, WORST)


def load(scale: Scale, seed: int, density: float, applications: int | None = None) -> SuiteLoad:
    """Return the suite at a density: 1 is 300 applications in 18 minutes."""
    count = applications or scale.applications
    return SuiteLoad(
        "nine-class",
        seed,
        scale.data_dir,
        count=count,
        window_s=round(count * GAP_AT_1X_S / density, 6),
    )


def policies(group: str, load: SuiteLoad, names: Sequence[str]) -> dict[Arm, Simulation]:
    """Return one arm for each policy, with its defaults."""
    return {Arm(group, name): Simulation(load, name) for name in names}


def offered_load(applications: Sequence[ApplicationResult]) -> float:
    """Return their cost over what a full replica would deliver from first to last arrival."""
    arrivals = [a.arrived_at_s for a in applications]
    work_s = sum(a.kv_token_time for a in applications) / PAPER_KV_TOKENS
    return work_s * PAPER_ENGINE.iteration.base_s / (max(arrivals) - min(arrivals))


def measure(_: Scale, outcomes: Outcomes) -> Measures:
    """Return the figures of `summary.json` for every arm, against the `vtc` of its group."""
    measured: dict[Arm, Mapping[str, float | None]] = {}
    for group in dict.fromkeys(arm.group for arm in outcomes):
        runs = {arm.name: run for arm, run in outcomes.items() if arm.group == group}
        for name, figures in summarise(runs).items():
            measured[Arm(group, name)] = figures
    return measured


def ratio_series(found: Found, group: str, names: Sequence[str]) -> list[Series]:
    """Return the distribution of completion times against `vtc`, over all seeds."""
    series = []
    for name in names:
        ratios: list[float] = []
        for _, outcomes in found:
            run: RunResult = outcomes[Arm(group, name)]
            reference = outcomes[Arm(group, "vtc")]
            ratios += [ratio for _, ratio, _ in ratios_to_reference(run, reference)]
        if ratios:
            series.append(Series(name, distribution(ratios)))
    return series


def bars(
    scale: Scale,
    found: Found,
    name: str,
    title: str,
    groups: Sequence[str],
    arms: Sequence[str],
    metric: Metric = MEAN,
) -> Chart:
    """Return a chart of one metric: bars of every arm, by group."""
    curves = scan(scale, found, name, title, "", list(enumerate(groups)), arms, metric)
    return replace(curves, kind="bars", categories=tuple(groups))


def mean_and_p90(
    scale: Scale, found: Found, name: str, groups: Sequence[str], arms: Sequence[str]
) -> list[Chart]:
    """Return two charts of completion times, `NAME-mean` and `NAME-p90`, as `bars` draws them."""
    return [
        bars(scale, found, f"{name}-mean", "Mean completion time", groups, arms, MEAN),
        bars(scale, found, f"{name}-p90", "90th percentile", groups, arms, P90),
    ]


def scan(
    scale: Scale,
    found: Found,
    name: str,
    title: str,
    x_label: str,
    places: Sequence[tuple[float, str]],
    arms: Sequence[str],
    metric: Metric = MEAN,
    *,
    is_log_x: bool = False,
    is_log_y: bool = False,
) -> Chart:
    """Return a chart of one metric over the groups, a curve for each arm.

    Args:
        scale: Of the report.
        found: Outcomes by seed.
        name: Of the chart.
        title: Of the chart.
        x_label: What the groups differ in.
        places: x and group.
        arms: Names of arms.
        metric: What is drawn.
        is_log_x: Whether x is logarithmic.
        is_log_y: Whether y is.
    """
    measured = [measure(scale, outcomes) for _, outcomes in found]
    series = []
    for arm in arms:
        points, low, high = [], [], []
        for x, group in places:
            values = [m.get(Arm(group, arm), {}).get(metric.name) for m in measured]
            known = [value for value in values if value is not None]
            if not known:
                continue
            got = estimate(known)
            points.append((x, got.mean))
            low.append(got.mean if got.low is None else got.low)
            high.append(got.mean if got.high is None else got.high)
        series.append(Series(arm, points, low, high))
    unit = f" ({metric.unit})" if metric.unit else ""
    return Chart(
        name,
        title,
        x_label,
        f"{metric.label}{unit}",
        series,
        kind="marks",
        is_log_x=is_log_x,
        is_log_y=is_log_y,
    )
