"""Both orders of justitia and its guard, with known and learned costs, on several loads."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from justitia_ray.lab.report.experiment import (
    Arm,
    Arms,
    Chart,
    Experiment,
    Found,
    Measures,
    Outcomes,
    PairedComparison,
    ReportMetric,
    Scale,
    Target,
    Task,
)
from justitia_ray.lab.report.experiments import nine_class
from justitia_ray.lab.report.experiments.predictors import Predicted
from justitia_ray.lab.report.experiments.variants import at_offered_load
from justitia_ray.lab.report.tasks import (
    PAPER_ENGINE,
    AloneRuns,
    ChangedLoad,
    ExperimentLoad,
    KnownTimesRun,
    PolicyOptions,
    SimulatedRun,
    SuiteLoad,
)
from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.results import RunResult, percentile

PASSING: PolicyOptions = (("order", "sgps"), ("guard_iterations", 0), ("backfill", 8))
GUARD: PolicyOptions = (("order", "sgps"), ("guard_iterations", 300), ("backfill", 8))
_VARIANTS: Mapping[str, PolicyOptions] = {
    "sgps": PASSING,
    "guard": GUARD,
    "finish with the guard": (("order", "finish"), ("guard_iterations", 300)),
}
_ALONE, _VTC, _GUARDED = "alone", "vtc", "justitia-guarded"
_TOLD = "guard told VTC’s ends"

_METRICS = (
    *nine_class.FAIRNESS,
    ReportMetric("p99_regret_s", "p99 later than under VTC", unit="s"),
    ReportMetric("max_regret_s", "most later than under VTC", unit="s"),
    ReportMetric("p99_slowdown", "p99 slowdown", unit="×"),
    ReportMetric("max_slowdown", "largest slowdown", unit="×"),
)
_COMPARISONS = (
    PairedComparison("mean_jct_s", "justitia"),
    PairedComparison("mean_jct_s", "srjf"),
    PairedComparison("no_later_than_vtc", "justitia", is_relative=False),
    PairedComparison("worst_ratio_to_vtc", "justitia", is_relative=False),
)


def _relative_figures(outcomes: Outcomes) -> Measures:
    """Return each variant's completion times relative to VTC, and to running alone."""
    measured = {arm: dict(figures) for arm, figures in nine_class.measure(outcomes).items()}
    for arm, run in outcomes.items():
        under_vtc, alone = outcomes[Arm(arm.group, _VTC)], outcomes[Arm(arm.group, _ALONE)]
        regrets = [max(0.0, here - there) for here, there in _paired_times(run, under_vtc)]
        slowdowns = [here / there for here, there in _paired_times(run, alone)]
        measured[arm] |= {
            "p99_regret_s": percentile(regrets, 99),
            "max_regret_s": max(regrets, default=None),
            "p99_slowdown": percentile(slowdowns, 99),
            "max_slowdown": max(slowdowns, default=None),
        }
    return measured


def _paired_times(run: RunResult, other: RunResult) -> Sequence[tuple[float, float]]:
    """Return the two completion times of each application that ended in both runs."""
    theirs = {row.application_id: row.jct_s for row in other.applications}
    pairs = ((row.jct_s, theirs.get(row.application_id)) for row in run.applications)
    return [(here, there) for here, there in pairs if here is not None and there]


def _arms_with_known_costs(
    group: str,
    load: ExperimentLoad,
    variants: Mapping[str, PolicyOptions] = _VARIANTS,
    replicas: int = 1,
    engine: EngineProfile = PAPER_ENGINE,
) -> dict[Arm, Task]:
    """Return the variants for one load, whose costs and stages are known in advance."""
    policies: dict[str, tuple[str, PolicyOptions]] = {name: (name, ()) for name in (_VTC, "srjf")}
    policies |= {"justitia": ("justitia", ())}
    policies |= {name: (_GUARDED, options) for name, options in variants.items()}
    found: dict[Arm, Task] = {Arm(group, _ALONE): AloneRuns(load)}
    for name, (policy, options) in policies.items():
        found[Arm(group, name)] = SimulatedRun(
            load, policy, options, engine=engine, replicas=replicas
        )
    return found


def _arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    found: dict[Arm, Task] = {}
    for density in scale.pick((1, 2, 3), (3,)):
        group, load = f"{density}x", nine_class.load(scale, seed, density)
        found |= _arms_with_known_costs(group, load)
        found[Arm(group, _TOLD)] = KnownTimesRun(SimulatedRun(load, _GUARDED, GUARD))
    return found


def _learned_arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    found: dict[Arm, Task] = {}
    for density in scale.pick((1, 2, 3), (3,)):
        group, load = f"{density}x", nine_class.load(scale, seed, density)
        earlier = nine_class.earlier_load(load)
        found[Arm(group, _ALONE)] = AloneRuns(load)
        found[Arm(group, _VTC)] = SimulatedRun(load, _VTC)
        found[Arm(group, "srjf")] = Predicted("mlp", load, policy="srjf")
        plain = Predicted("mlp", load, is_served=True, earlier=earlier)
        found[Arm(group, "justitia")] = plain
        for name, options in _VARIANTS.items():
            found[Arm(group, name)] = replace(plain, policy=_GUARDED, options=options)
    return found


def _other_arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    """Return the variants for loads that were not used to tune the policy."""
    variants = {"sgps": PASSING, "guard": GUARD}
    at_1x = nine_class.load(scale, seed, 1)
    mice = scale.pick((400,), (50,))[0]
    loads: dict[str, ExperimentLoad] = {
        "load 0.65": ChangedLoad(at_1x, at_offered_load, 0.65),
        "recorded mix, 2x": replace(nine_class.load(scale, seed, 2), mix="recorded"),
        f"elephant, {mice} mice": SuiteLoad(
            "elephant-mice", seed, scale.data_dir, count=mice + 1, window_s=1.6 * mice
        ),
    }
    found: dict[Arm, Task] = {}
    for group, load in loads.items():
        found |= _arms_with_known_costs(group, load, variants)
    peak = replace(PAPER_ENGINE, admission="peak")
    found |= _arms_with_known_costs(
        "3x, peak", nine_class.load(scale, seed, 3), variants, engine=peak
    )
    live = SuiteLoad("nine-class-live", seed, scale.data_dir, count=52, window_s=4.0)
    found |= _arms_with_known_costs("live suite in 4 s, two replicas", live, variants, replicas=2)
    four = nine_class.load(scale, seed, 8)
    return found | _arms_with_known_costs("four replicas, 2x each", four, variants, replicas=4)


_GUARD_TARGETS = (
    ("1x", 1.4, 0.0, 0.96),
    ("2x", 1.25, 0.0, 0.98),
    ("3x", 1.25, 0.01, 0.985),
)


def _guard_targets() -> tuple[Target, ...]:
    found: list[Target] = []
    for group, worst, mean, share in _GUARD_TARGETS:
        arm = Arm(group, "guard")
        found += [
            Target(f"worst against VTC, guard, {group}", arm, "worst_ratio_to_vtc", at_most=worst),
            Target(
                f"mean JCT against SRJF, guard, {group}",
                arm,
                "mean_jct_s",
                at_most=mean,
                against="srjf",
            ),
            Target(
                f"finish no later than under VTC, guard, {group}",
                arm,
                "no_later_than_vtc",
                at_least=share,
            ),
        ]
    return tuple(found)


def _new_experiment(
    name: str,
    title: str,
    about: str,
    arms: Arms,
    targets: tuple[Target, ...] = (),
    chart: str | None = None,
) -> Experiment:
    """Return an experiment; `chart` is the title of its chart, None for no chart."""
    drawn = ("justitia", *_VARIANTS)
    return Experiment(
        name=name,
        title=title,
        source="the papers have nothing like it",
        about=about,
        arms=arms,
        measure=_relative_figures,
        metrics=_METRICS,
        comparisons=_COMPARISONS,
        targets=targets,
        charts=nine_class.ratio_charts(name, chart, drawn) if chart else _no_charts,
    )


def _no_charts(_scale: Scale, _found: Found) -> list[Chart]:
    return []


_ABOUT = (
    "The paper serves in the order of completion under GPS (`order: finish`, the default: "
    "`justitia`). `sgps` serves the shortest first wherever GPS’s promise to others is not "
    "touched; the guard puts those first that VTC would have done by now, inside a budget of 300 "
    "iterations of all replicas. Slowdown is the completion time over that of the application "
    "alone on an empty replica. "
)
ORDERS = (
    _new_experiment(
        "orders",
        "Shortest first inside the promise, and the guard",
        f"{_ABOUT}Costs and stages are known. The guard has to foretell when VTC ends an "
        f"application; `{_TOLD}` is the same guard with the true instants, of the run under `vtc`, "
        "which no scheduler can know. What lies between the two is owed to foretelling; what the "
        "told guard itself misses is the price of the promise.",
        _arms,
        _guard_targets(),
        "Completion time over that under VTC at 3x: share of the applications below",
    ),
    _new_experiment(
        "orders-learned",
        "The same with learned predictions",
        f"{_ABOUT}Costs are predicted out of fold and charged as the service charges; stages are "
        "those learned of the applications of another seed, which have ended before. `srjf` is "
        "told the same costs, `vtc` needs none.",
        _learned_arms,
        chart="Completion time over that under VTC at 3x, learned predictions: share below",
    ),
    _new_experiment(
        "orders-elsewhere",
        "The same on other loads",
        f"{_ABOUT}Costs and stages are known. A load of 0.65 has little to schedule; the recorded "
        "mix has more of large applications; of an elephant among mice the elephant is the worst "
        "off; four replicas share one queue; `peak` is the admission of the service, under which "
        "no memory overflows; the live suite is what `scripts/bench_live` plays, there with costs "
        "predicted by the mean of each class.",
        _other_arms,
    ),
)
