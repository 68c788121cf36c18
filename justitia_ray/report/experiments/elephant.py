"""An elephant among mice (Justitia v1, Fig. 11; v2, Fig. 9)."""

from collections.abc import Mapping

from justitia_ray.report.chart import Chart, Series
from justitia_ray.report.experiment import (
    Arm,
    Comparison,
    Experiment,
    Found,
    Measures,
    Metric,
    Outcomes,
    Scale,
    Target,
    Task,
)
from justitia_ray.report.experiments import nine_class
from justitia_ray.report.loads import SuiteLoad
from justitia_ray.report.statistics import estimate
from justitia_ray.report.tasks import Simulation
from justitia_ray.sim.results import RunResult

_POLICIES = ("srjf", "vtc", "justitia")
_PACES_S = {"one a second": 1.0, "one in 1.6 s": 1.6}
"""The paper's pace is more than this replica can serve; the other one about as much as it can."""


def _counts(scale: Scale) -> list[int]:
    return list(scale.pick((50, 200, 400, 800), (50, 400)))


def _group(count: int, pace: str) -> str:
    return f"{count} mice, {pace}"


def _arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    arms: dict[Arm, Task] = {}
    for pace, gap_s in _PACES_S.items():
        for count in _counts(scale):
            load = SuiteLoad(
                "elephant-mice", seed, scale.data_dir, count=count + 1, window_s=count * gap_s
            )
            group = _group(count, pace)
            arms |= {Arm(group, name): Simulation(load, name) for name in _POLICIES}
    return arms


def _measure(_: Scale, outcomes: Outcomes) -> Measures:
    return {arm: _elephant(run) for arm, run in outcomes.items()}


def _elephant(run: RunResult) -> Mapping[str, float | None]:
    elephant, mice = run.applications[0], run.applications[1:]
    ends = [a.jct_s for a in mice if a.jct_s is not None]
    late = run.lateness.get(elephant.application_id)
    share = None
    if late is not None and late.bound_s:
        share = late.lag_s / late.bound_s
    return {
        "elephant_jct_s": elephant.jct_s,
        "mice_load": nine_class.offered_load(mice),
        "mice_jct_s": sum(ends) / len(ends) if ends else None,
        "share_of_bound": share,
    }


def _charts(scale: Scale, found: Found) -> list[Chart]:
    return [
        Chart(
            f"elephant-{number}",
            f"Completion time of the elephant among mice, {pace}",
            "mice",
            "JCT of the elephant (s)",
            [_curve(scale, found, pace, policy) for policy in _POLICIES],
            kind="marks",
        )
        for number, pace in enumerate(_PACES_S, 1)
    ]


def _curve(scale: Scale, found: Found, pace: str, policy: str) -> Series:
    points, low, high = [], [], []
    for count in _counts(scale):
        arm = Arm(_group(count, pace), policy)
        ends = [outcomes[arm].applications[0].jct_s for _, outcomes in found]
        got = estimate([end for end in ends if end is not None])
        points.append((float(count), got.mean))
        low.append(got.mean if got.low is None else got.low)
        high.append(got.mean if got.high is None else got.high)
    return Series(policy, points, low, high)


ELEPHANT = Experiment(
    name="elephant",
    title="An elephant among mice",
    source="Justitia v1, Fig. 11; v2, Fig. 9",
    about=(
        "A map-reduce summary arrives, then a small application a second, of KBQAV, CC and ALFWI. "
        "The paper shows that SRJF delays the elephant for as long as mice come, and Justitia does "
        "not. At that pace mice alone are more than this replica can serve (their load is cost "
        "over what a full memory would deliver while they come), so that fair sharing itself, "
        "which Justitia follows, leaves the elephant an ever smaller share; at the slower pace the "
        "difference shows. vtc counts tokens, of which the elephant has few for its KV memory. The "
        "last column is its lag behind fair sharing over the bound that the scheduler exports: at "
        "most 1 if the bound holds, negative if it was ahead."
    ),
    arms=_arms,
    measure=_measure,
    metrics=(
        Metric("mice_load", "load of the mice", digits=2, better=None),
        Metric("elephant_jct_s", "JCT of the elephant", unit="s"),
        Metric("mice_jct_s", "mean JCT of the mice", unit="s"),
        Metric("share_of_bound", "lag over bound", digits=3, better=None),
    ),
    comparisons=(Comparison("elephant_jct_s", "srjf"), Comparison("elephant_jct_s", "vtc")),
    targets=(
        Target(
            "elephant’s lag behind fair sharing over the exported bound, 400 mice",
            Arm(_group(400, "one in 1.6 s"), "justitia"),
            "share_of_bound",
            at_most=1.0,
        ),
    ),
    charts=_charts,
)
