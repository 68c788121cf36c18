"""Results of a run: a row for each application and inference, and the figures in `summary.json`.

Rows have the same fields in the same order as the files; times are seconds from the start of the
workload. A live replay writes the same rows, so that a simulated and a real run can be compared.
Completion times are of finished applications only; a figure without any value is None.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from justitia_ray.core.entities import Outcome
from justitia_ray.sim.workload import WorkloadApplication
from justitia_ray.units import ApplicationId, InferenceId, KvTokenTime, Seconds, Tokens, VirtualTime


@dataclass(slots=True)
class InferenceResult:
    """Row of `inferences.jsonl`; fields are None for events that did not happen or are unknown."""

    application_id: ApplicationId
    inference_id: InferenceId
    replica: int | str | None
    submitted_at_s: Seconds
    dispatched_at_s: Seconds | None
    first_token_at_s: Seconds | None
    finished_at_s: Seconds | None
    prompt_tokens: Tokens
    output_tokens: Tokens
    preemptions: int = 0


@dataclass(slots=True)
class ApplicationResult:
    application_id: ApplicationId
    application_class: str
    tenant: str
    arrived_at_s: Seconds
    finished_at_s: Seconds | None
    jct_s: Seconds | None
    kv_token_time: KvTokenTime
    predicted_kv_token_time: KvTokenTime
    virtual_finish_time: VirtualTime | None
    gps_finished_at_s: Seconds | None
    """When ideal fair sharing (GPS) would have finished the application, with the service of this
    run.
    """
    outcome: str


def row_on_arrival(
    application: WorkloadApplication, arrived_at_s: Seconds, outcome: Outcome
) -> ApplicationResult:
    """Return the row of an application before it has run."""
    return ApplicationResult(
        application_id=application.application_id,
        application_class=application.application_class,
        tenant=application.tenant,
        arrived_at_s=arrived_at_s,
        finished_at_s=None,
        jct_s=None,
        kv_token_time=0.0,
        predicted_kv_token_time=0.0,
        virtual_finish_time=None,
        gps_finished_at_s=None,
        outcome=outcome.value,
    )


@dataclass(slots=True)
class Lateness:
    """How late an application ended against ideal fair sharing, and the bound, in seconds."""

    lag_s: Seconds
    bound_s: Seconds | None


@dataclass(slots=True)
class RunResult:
    applications: list[ApplicationResult] = field(default_factory=list)
    """Result rows of the applications, in the order of the workload."""
    inferences: list[InferenceResult] = field(default_factory=list)
    """Result rows of the inferences, in the order of the workload."""
    lateness: dict[ApplicationId, Lateness] = field(default_factory=dict)
    """Seconds by which each application ended later than under ideal fair sharing (GPS)."""
    makespan_s: Seconds = 0.0
    """Time from the first arrival to the last end."""
    kv_utilization: float | None = None
    """Mean share of all replicas' KV memory that was in use, over the makespan."""
    preemptions: int = 0
    front_end_s: Seconds = 0.0
    """Mean seconds that a call spends in the front end, in one direction."""
    decisions: int = 0
    """Number of events that the scheduler core has handled."""
    kv_samples: list[tuple[Seconds, ApplicationId, Tokens]] = field(default_factory=list)
    """KV that each application holds over time, if `sample_kv` is set (Justitia, Fig. 3)."""


def mean_jct_s(applications: Iterable[ApplicationResult]) -> Seconds | None:
    """Return the mean completion time of the ended applications; None if none has ended."""
    ended = [one.jct_s for one in applications if one.jct_s is not None]
    return statistics.fmean(ended) if ended else None


REFERENCE_POLICY = "vtc"
"""Policy to which the papers compare completion times."""
SAME_INSTANT_S: Seconds = 1e-6
"""Largest difference in seconds between times that count as equal: times are sums of floats."""

Summary: TypeAlias = dict[str, float | int | None]
"""Figures of a run by their names in `summary.json`."""


def summarise(results: Mapping[str, RunResult]) -> dict[str, Summary]:
    """Return figures of each policy's run on the same workload.

    `mean_jct_s`, `p50_jct_s`, `p90_jct_s`, `p99_jct_s`, `max_jct_s`: completion times of the
    finished applications; percentiles are interpolated linearly, as in numpy.

    `makespan_s`: from the first arrival to the last end.

    `kv_utilization`: mean share of all KV memory in use, over the makespan.

    `output_tokens_per_s`: output of the finished inferences, over the makespan.

    `no_later_than_vtc`: share of the applications finished under `vtc` that ended here no later
    than there, within `SAME_INSTANT_S`; an application that did not finish here counts as later.

    `worst_ratio_to_vtc`: largest ratio of the completion time here to that under `vtc`, of an
    application that finished in both. Both are None without a run of `vtc`.

    `max_gps_lag_s`, `delay_bound_s`: largest lag behind GPS of any application, and largest bound
    on it; None if none is known, or the policy guarantees none.

    `preemptions`: number of times that a running inference lost its memory.
    """
    reference = results.get(REFERENCE_POLICY)
    return {policy: _summary_of(run, reference) for policy, run in results.items()}


def ratios_to_reference(
    run: RunResult, reference: RunResult
) -> list[tuple[ApplicationId, float, Seconds]]:
    """Return completion times over the times under `reference`, in workload order.

    Each is a tuple of application, ratio and completion time under `reference`.

    Only applications that finished in both runs are listed, with a reference time above zero.
    """
    theirs = _finished_applications(reference)
    found = []
    for here in run.applications:
        there = theirs.get(here.application_id)
        if here.jct_s is not None and there is not None and there.jct_s:
            found.append((here.application_id, here.jct_s / there.jct_s, there.jct_s))
    return found


def percentile(values: Sequence[float], percent: int) -> float | None:
    """Return a percentile (1 to 99), interpolated linearly; None without values.

    The percentile is the value at position (n − 1) · percent / 100 of the sorted values, from 0.
    """
    if len(values) < 2:
        return values[0] if values else None
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _summary_of(run: RunResult, reference: RunResult | None) -> Summary:
    jcts = [a.jct_s for a in run.applications if a.jct_s is not None]
    lags: list[Lateness] = list(run.lateness.values())
    tokens = sum(i.output_tokens for i in run.inferences if i.finished_at_s is not None)
    return {
        "mean_jct_s": mean_jct_s(run.applications),
        "p50_jct_s": percentile(jcts, 50),
        "p90_jct_s": percentile(jcts, 90),
        "p99_jct_s": percentile(jcts, 99),
        "max_jct_s": max(jcts, default=None),
        "makespan_s": run.makespan_s if jcts else None,
        "kv_utilization": run.kv_utilization,
        "output_tokens_per_s": tokens / run.makespan_s if tokens and run.makespan_s > 0 else None,
        "no_later_than_vtc": None if reference is None else _share_no_later(run, reference),
        "worst_ratio_to_vtc": None
        if reference is None
        else max((ratio for _, ratio, _ in ratios_to_reference(run, reference)), default=None),
        "max_gps_lag_s": max((late.lag_s for late in lags), default=None),
        "delay_bound_s": max(
            (late.bound_s for late in lags if late.bound_s is not None), default=None
        ),
        "preemptions": run.preemptions,
    }


def _share_no_later(run: RunResult, reference: RunResult) -> float | None:
    ours, theirs = _finished_applications(run), _finished_applications(reference)
    if not theirs:
        return None
    no_later = sum(
        name in ours and _end_or_infinity(ours[name]) <= _end_or_infinity(there) + SAME_INSTANT_S
        for name, there in theirs.items()
    )
    return no_later / len(theirs)


def _finished_applications(run: RunResult) -> dict[ApplicationId, ApplicationResult]:
    return {a.application_id: a for a in run.applications if a.jct_s is not None}


def _end_or_infinity(application: ApplicationResult) -> Seconds:
    assert application.finished_at_s is not None
    return application.finished_at_s
