"""A tenant that splits its application into many, to have a share for each of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from justitia_ray.report.experiment import (
    Arm,
    Comparison,
    Experiment,
    Measures,
    Metric,
    Outcomes,
    Scale,
    Task,
)
from justitia_ray.report.loads import SuiteLoad
from justitia_ray.report.tasks import Simulation
from justitia_ray.sim.suites.gaming import SPLITTER
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference

_PARTS = (1, 10, 100)
_POLICIES: dict[str, tuple[str, tuple[tuple[str, object], ...]]] = {
    "justitia, by application": ("justitia", ()),
    "justitia, by tenant": ("justitia", (("fairness", "tenant"),)),
    "vtc, by application": ("vtc", ()),
    "vtc, by tenant": ("vtc", (("unit", "tenant"),)),
    "fcfs": ("fcfs", ()),
}
_AS_ONE = "as one"


@dataclass(frozen=True, slots=True)
class SplitLoad:
    """The gaming suite, the splitter behind the others and its inferences in so many parts."""

    suite: SuiteLoad
    parts: int

    def build(self) -> list[WorkloadApplication]:
        """Build it: the first pieces take in the rest."""
        applications = self.suite.build()
        pieces = [a for a in applications if a.tenant == SPLITTER]
        size = len(pieces) // self.parts
        merged = []
        for number, first in enumerate(pieces[: self.parts]):
            inferences = tuple(
                WorkloadInference(str(k), i.prompt_tokens, i.output_tokens)
                for k, piece in enumerate(pieces[number * size : (number + 1) * size])
                for i in piece.inferences
            )
            merged.append(replace(first, inferences=inferences))
        return [a for a in applications if a.tenant != SPLITTER] + merged

    def configuration(self) -> Mapping[str, Any]:
        """Return the suite and the parts."""
        return {**self.suite.configuration(), "parts": self.parts}


def _name(parts: int) -> str:
    return _AS_ONE if parts == 1 else f"split in {parts}"


def _arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    arms: dict[Arm, Task] = {}
    for group, (policy, options) in _POLICIES.items():
        for parts in _PARTS:
            load = SplitLoad(SuiteLoad("gaming", seed, scale.data_dir), parts)
            arms[Arm(group, _name(parts))] = Simulation(load, policy, options)
    return arms


def _measure(_: Scale, outcomes: Outcomes) -> Measures:
    measured = {}
    for arm, run in outcomes.items():
        ends: dict[str, float] = {}
        for application in run.applications:
            if application.finished_at_s is not None:
                ends[application.tenant] = max(
                    application.finished_at_s, ends.get(application.tenant, 0.0)
                )
        honest = [end for tenant, end in ends.items() if tenant != SPLITTER]
        measured[arm] = {"splitter_end_s": ends[SPLITTER], "honest_end_s": fmean(honest)}
    return measured


TENANTS = Experiment(
    name="tenants",
    title="Gaming: one application split into many",
    source="beyond the papers, whose unit is the application (Justitia) or the client (VTC)",
    about=(
        "Three tenants submit 100 equal inferences each at the same instant; two in one "
        "application, the third, last in line, in one, 10 or 100. Splitting must not bring its "
        "last piece forward: worse is where it does."
    ),
    arms=_arms,
    measure=_measure,
    metrics=(
        Metric("splitter_end_s", "splitter’s last end", unit="s", better="high"),
        Metric("honest_end_s", "the honest tenants’ mean end", unit="s"),
    ),
    comparisons=(
        Comparison("splitter_end_s", _AS_ONE),
        Comparison("honest_end_s", _AS_ONE),
    ),
    is_drawn=False,
)
