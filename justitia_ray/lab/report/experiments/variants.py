"""Experiments beyond the papers: variants, offered load, replicas, policies, tenants."""

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean

from justitia_ray.core.policies import LAB_POLICIES, POLICIES
from justitia_ray.lab.report.experiment import (
    Arm,
    Chart,
    Experiment,
    Found,
    PairedComparison,
    ReportMetric,
    Scale,
    Task,
    compare_with,
    measure_each,
)
from justitia_ray.lab.report.experiments import nine_class
from justitia_ray.lab.report.tasks import (
    PAPER_ENGINE,
    ChangedLoad,
    PolicyOptions,
    SimulatedRun,
    SuiteLoad,
)
from justitia_ray.sim.results import RunResult
from justitia_ray.sim.suites.synthetic import SPLITTER
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference

_METRICS = (*nine_class.FAIRNESS, nine_class.LAG, nine_class.PREEMPTIONS)
_COMPARISONS = (
    PairedComparison("mean_jct_s", "justitia"),
    PairedComparison("no_later_than_vtc", "justitia", is_relative=False),
    PairedComparison("worst_ratio_to_vtc", "justitia", is_relative=False),
)
_NONE = "the papers have nothing like it"


def _compare_variants(
    name: str, title: str, about: str, variants: Mapping[str, PolicyOptions]
) -> Experiment:
    """Return an experiment that compares variants of justitia with justitia and vtc.

    Args:
        name: Name of the experiment.
        title: Heading of the section.
        about: What is run and how to read it.
        variants: Options of justitia by name of the arm.
    """
    return Experiment(
        name=name,
        title=title,
        source=_NONE,
        about=about,
        arms=nine_class.arms_at((1, 2, 3), ("vtc", "justitia"), variants, quick_densities=(3,)),
        measure=nine_class.measure,
        metrics=_METRICS,
        comparisons=_COMPARISONS,
        charts=nine_class.ratio_charts(
            name,
            "Completion time over that under VTC at 3x: share of the applications below",
            ("justitia", *variants),
        ),
    )


CLOCK = _compare_variants(
    "clock",
    "Served against nominal clock",
    "The paper’s clock runs at the nominal rate of the machine; justitia’s default moves by "
    "the service that was delivered, and settles charges, which the nominal clock does not. "
    "What settling alone is worth is shown with the prediction errors.",
    {"nominal clock": (("clock", "nominal"),)},
)

BACKFILL = _compare_variants(
    "backfill",
    "Backfill",
    "How often the first in line may be passed by what fits while it does not.",
    {f"backfill {passes}": (("backfill", passes),) for passes in (1, 8, "unlimited")},
)


def _admission_arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    load = nine_class.load(scale, seed, 3)
    found: dict[Arm, Task] = dict(nine_class.policies("3x", load, ("vtc", "justitia")))
    engine = replace(PAPER_ENGINE, admission="peak")
    found[Arm("3x", "peak")] = SimulatedRun(load, "justitia", engine=engine)
    return found


ADMISSION = Experiment(
    name="admission",
    title="Admission by prompt or by peak",
    source=_NONE,
    about=(
        "justitia admits what has room for its prompt, and what overflows is swapped out (the "
        "contract of the constant-iteration engine); peak admits only what will have room to its "
        "end, the default of the service. Swapping costs no time here, so peak’s advantage is "
        "what it is in spite of that."
    ),
    arms=_admission_arms,
    measure=nine_class.measure,
    metrics=_METRICS,
    comparisons=_COMPARISONS,
)


_POLICIES = ("fcfs", "vtc", "srjf", "justitia")


def at_offered_load(suite: SuiteLoad, load: float) -> list[WorkloadApplication]:
    """Return the suite's applications, with arrivals stretched to an offered load.

    The offered load is the total cost over the service of one replica in the window of arrivals, if
    its memory is always full.
    """
    applications = suite.build()
    assert suite.window_s is not None
    rate = PAPER_ENGINE.kv_tokens / PAPER_ENGINE.iteration.base_s
    window_s = sum(a.cost() for a in applications) / rate / load
    stretch = window_s / suite.window_s
    return [replace(a, arrived_at_s=a.arrived_at_s * stretch) for a in applications]


def _load_names(scale: Scale) -> dict[float, str]:
    loads = scale.pick((0.3, 0.6, 0.9, 1.5, 3, 6), (0.3, 0.9, 3))
    return {load: f"load {load:g}" for load in loads}


def _arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    arms: dict[Arm, Task] = {}
    for number, group in _load_names(scale).items():
        load = ChangedLoad(nine_class.load(scale, seed, 1), at_offered_load, number)
        arms |= nine_class.policies(group, load, _POLICIES)
    return arms


def _charts(scale: Scale, found: Found) -> list[Chart]:
    places = list(_load_names(scale).items())
    mean = Chart(
        "offered-load-mean",
        "Mean completion time by offered load",
        "offered load",
        kind="marks",
        is_log_x=True,
        is_log_y=True,
    )
    fair = replace(
        mean,
        name="offered-load-fair",
        title="Share that finishes no later than under VTC",
        is_log_y=False,
    )
    compared = ("fcfs", "srjf", "justitia")
    return [
        nine_class.metric_chart(found, nine_class.measure, mean, places, _POLICIES),
        nine_class.metric_chart(
            found, nine_class.measure, fair, places, compared, nine_class.NO_LATER
        ),
    ]


OFFERED_LOAD = Experiment(
    name="offered-load",
    title="Load from 0.3 to 6",
    source="the papers have 1x, 2x and 3x only",
    about=(
        "Load is the cost of all applications over what one replica could deliver while they "
        "arrive, if its memory were always full. What the paper calls 1x is more than 1 in this "
        "measure, as the first experiment shows. Below 1 there is little to schedule, and little "
        "to gain."
    ),
    arms=_arms,
    measure=nine_class.measure,
    metrics=(*nine_class.FAIRNESS, nine_class.USED),
    comparisons=(PairedComparison("mean_jct_s", "vtc"), PairedComparison("mean_jct_s", "srjf")),
    charts=_charts,
)


_REPLICAS_POLICIES = ("vtc", "justitia")
_EACH = 20
"""Number of applications per replica in runs with up to 64 replicas."""
_REPORT_INTERVAL_S = 1.0
"""Seconds between reports of simulated replicas; a report at every event would take hours."""


def _replica_count_names(scale: Scale) -> dict[int, str]:
    counts = scale.pick((1, 2, 4, 8, 16, 32, 64), (1, 4))
    return {count: f"{count} replicas" if count > 1 else "1 replica" for count in counts}


def _replicas_arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    arms: dict[Arm, Task] = {}
    for count, group in _replica_count_names(scale).items():
        load = nine_class.load(scale, seed, 3 * count, applications=_EACH * count)
        for name in _REPLICAS_POLICIES:
            arms[Arm(group, name)] = SimulatedRun(
                load, name, replicas=count, report_interval_s=_REPORT_INTERVAL_S
            )
    return arms


def _replicas_charts(scale: Scale, found: Found) -> list[Chart]:
    title = "Mean completion time by number of replicas, load in proportion"
    chart = Chart("replicas", title, "replicas", kind="marks", is_log_x=True)
    places = list(_replica_count_names(scale).items())
    return [nine_class.metric_chart(found, nine_class.measure, chart, places, _REPLICAS_POLICIES)]


REPLICAS = Experiment(
    name="replicas",
    title="One to 64 replicas",
    source="Justitia has one queue for its replicas, too, and shows one size",
    about=(
        f"{_EACH} applications for each replica, at 3x each, from one queue; replicas report "
        "once a second, as in service. With more replicas "
        "more of the large applications meet, and a single one can use more at once."
    ),
    arms=_replicas_arms,
    measure=nine_class.measure,
    metrics=nine_class.FAIRNESS,
    comparisons=compare_with("vtc", "mean_jct_s"),
    charts=_replicas_charts,
)


_OTHERS = {"vtc-predict", "vtc-oracle", "vtc-noisy", "rpm", "justitia-guarded"}
"""Policies that other experiments already compare."""
_NAMES = tuple(name for name in (*POLICIES, *LAB_POLICIES) if name not in _OTHERS)


ALL_POLICIES = Experiment(
    name="all-policies",
    title="Every policy",
    source="the papers have no MLFQ (FastServe), PLAS (Autellix) or DRR",
    about=(
        "Each with its defaults; those that compare clients compare applications. A mean that "
        "beats justitia’s is as plain here as one that does not: see what it does to the worst off."
    ),
    arms=nine_class.arms_at((1, 3), _NAMES),
    measure=nine_class.measure,
    metrics=(*nine_class.FAIRNESS, nine_class.WORST_JCT),
    comparisons=(
        PairedComparison("mean_jct_s", "plas"),
        PairedComparison("mean_jct_s", "mlfq"),
        PairedComparison("mean_jct_s", "srjf"),
        PairedComparison("max_jct_s", "vtc"),
    ),
    charts=nine_class.bar_charts(
        "all-policies",
        ("1x", "3x"),
        _NAMES,
        {"mean": nine_class.MEAN, "longest": nine_class.WORST_JCT},
    ),
)


_PARTS = (1, 10, 100)
_TENANTS_POLICIES: dict[str, tuple[str, PolicyOptions]] = {
    "justitia, by application": ("justitia", ()),
    "justitia, by tenant": ("justitia", (("fairness", "tenant"),)),
    "vtc, by application": ("vtc", ()),
    "vtc, by tenant": ("vtc", (("unit", "tenant"),)),
    "fcfs": ("fcfs", ()),
}
_AS_ONE = "as one"


def merge_parts(suite: SuiteLoad, number: float) -> list[WorkloadApplication]:
    """Return the workload with the parts of a split application merged again.

    There are `number` such applications.

    The applications of this tenant come last.
    """
    applications = suite.build()
    pieces = [a for a in applications if a.tenant == SPLITTER]
    size = len(pieces) // int(number)
    merged = []
    for start, first in zip(range(0, len(pieces), size), pieces[: int(number)], strict=False):
        inferences = tuple(
            WorkloadInference(str(k), i.prompt_tokens, i.output_tokens)
            for k, piece in enumerate(pieces[start : start + size])
            for i in piece.inferences
        )
        merged.append(replace(first, inferences=inferences))
    return [a for a in applications if a.tenant != SPLITTER] + merged


def _part_count_name(number: int) -> str:
    return _AS_ONE if number == 1 else f"split in {number}"


def _tenants_arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    arms: dict[Arm, Task] = {}
    for group, (policy, options) in _TENANTS_POLICIES.items():
        for number in _PARTS:
            load = ChangedLoad(SuiteLoad("gaming", seed, scale.data_dir), merge_parts, number)
            arms[Arm(group, _part_count_name(number))] = SimulatedRun(load, policy, options)
    return arms


def _last_end_times(run: RunResult) -> Mapping[str, float | None]:
    ends: dict[str, float] = {}
    for application in run.applications:
        if application.finished_at_s is not None:
            known = ends.get(application.tenant, 0.0)
            ends[application.tenant] = max(application.finished_at_s, known)
    honest = [end for tenant, end in ends.items() if tenant != SPLITTER]
    return {"splitter_end_s": ends[SPLITTER], "honest_end_s": fmean(honest)}


TENANTS = Experiment(
    name="tenants",
    title="Gaming: one application split into many",
    source="beyond the papers, whose unit is the application (Justitia) or the client (VTC)",
    about=(
        "Three tenants submit 100 equal inferences each at the same instant; two in one "
        "application, the third, last in line, in one, 10 or 100. Splitting must not bring its "
        "last piece forward: worse is where it does."
    ),
    arms=_tenants_arms,
    measure=measure_each(_last_end_times),
    metrics=(
        ReportMetric("splitter_end_s", "splitter’s last end", unit="s", better="high"),
        ReportMetric("honest_end_s", "the honest tenants’ mean end", unit="s"),
    ),
    comparisons=compare_with(_AS_ONE, "splitter_end_s", "honest_end_s"),
    is_drawn=False,
)
