"""The figures of each run, as `summary.json` has them.

Only applications that finished count in completion times; a figure of which there is nothing is
None.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from justitia_ray.sim.results import ApplicationResult, Lateness, RunResult, mean_jct_s
from justitia_ray.units import ApplicationId, Seconds

REFERENCE_POLICY = "vtc"
"""Whom the papers compare each application's end with."""
SAME_INSTANT_S: Seconds = 1e-6
"""Ends that are no further apart are one instant: times are sums of floats."""

Summary: TypeAlias = dict[str, float | int | None]
"""The figures of one run, by the names in `summary.json`."""


def summarise(results: Mapping[str, RunResult]) -> dict[str, Summary]:
    """Return the figures of each policy's run; all runs are of one workload.

    `mean_jct_s`, `p50_jct_s`, `p90_jct_s`, `p99_jct_s`, `max_jct_s`: completion times of the
    applications that finished; percentiles are interpolated linearly, as numpy does.
    `makespan_s`: from the first arrival to the last end.
    `kv_utilization`: mean share of all KV memory that was held, over the makespan.
    `output_tokens_per_s`: output of the inferences that finished, over the makespan.
    `no_later_than_vtc`: the share of the applications finished under `vtc` that ended here no later
    than there, within `SAME_INSTANT_S`; one that did not finish here is later.
    `worst_ratio_to_vtc`: the greatest ratio of completion times, here to there, of an application
    that finished in both. Both are None without a run of `vtc`.
    `max_gps_lag_s`, `delay_bound_s`: the greatest lag behind GPS of any application, and the
    greatest bound on one; None if none is known, or the policy promises none.
    `preemptions`: how often a running inference lost its memory.
    """
    reference = results.get(REFERENCE_POLICY)
    theirs = None if reference is None else _finished(reference)
    return {policy: _summary(run, theirs) for policy, run in results.items()}


def ratios_to_reference(
    run: RunResult, reference: RunResult
) -> list[tuple[ApplicationId, float, Seconds]]:
    """Return (application, ratio of completion times, JCT in `reference`) in workload order.

    Only of applications that finished in both, and whose time there is not zero.
    """
    return _ratios(run, _finished(reference))


def percentile(values: Sequence[float], percent: int) -> float | None:
    """Return a percentile (1 to 99) between the order statistics, linearly; None of nothing.

    It is the value at position (n − 1) · percent / 100 of the sorted values, counted from 0.
    """
    if len(values) < 2:
        return values[0] if values else None
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _summary(run: RunResult, theirs: Mapping[ApplicationId, ApplicationResult] | None) -> Summary:
    jcts = [a.jct_s for a in run.applications if a.jct_s is not None]
    lags: list[Lateness] = list(run.lateness.values())
    return {
        "mean_jct_s": mean_jct_s(run.applications),
        "p50_jct_s": percentile(jcts, 50),
        "p90_jct_s": percentile(jcts, 90),
        "p99_jct_s": percentile(jcts, 99),
        "max_jct_s": max(jcts, default=None),
        "makespan_s": run.makespan_s if jcts else None,
        "kv_utilization": run.kv_utilization,
        "output_tokens_per_s": _output_tokens_per_s(run),
        "no_later_than_vtc": None if theirs is None else _share_no_later(run, theirs),
        "worst_ratio_to_vtc": None
        if theirs is None
        else max((ratio for _, ratio, _ in _ratios(run, theirs)), default=None),
        "max_gps_lag_s": max((late.lag_s for late in lags), default=None),
        "delay_bound_s": max(
            (late.bound_s for late in lags if late.bound_s is not None), default=None
        ),
        "preemptions": run.preemptions,
    }


def _output_tokens_per_s(run: RunResult) -> float | None:
    tokens = sum(i.output_tokens for i in run.inferences if i.finished_at_s is not None)
    return tokens / run.makespan_s if tokens and run.makespan_s > 0 else None


def _share_no_later(
    run: RunResult, theirs: Mapping[ApplicationId, ApplicationResult]
) -> float | None:
    ours = _finished(run)
    if not theirs:
        return None
    no_later = sum(
        name in ours and _end(ours[name]) <= _end(there) + SAME_INSTANT_S
        for name, there in theirs.items()
    )
    return no_later / len(theirs)


def _ratios(
    run: RunResult, theirs: Mapping[ApplicationId, ApplicationResult]
) -> list[tuple[ApplicationId, float, Seconds]]:
    found = []
    for here in run.applications:
        there = theirs.get(here.application_id)
        if here.jct_s is not None and there is not None and there.jct_s:
            found.append((here.application_id, here.jct_s / there.jct_s, there.jct_s))
    return found


def _finished(run: RunResult) -> dict[ApplicationId, ApplicationResult]:
    return {a.application_id: a for a in run.applications if a.jct_s is not None}


def _end(application: ApplicationResult) -> Seconds:
    assert application.finished_at_s is not None
    return application.finished_at_s
