"""Simulate the last minutes of a service with its own core, unchanged and with other choices.

The service runs `python -m justitia_ray.console.what_if` in a separate process, with limits of time
and memory; question and answer are JSON. Both the unchanged and the changed run are simulated, so
that what the simulation leaves out is missing in both; the measured times are reported beside them.
A call follows the simulated end of the call that it followed, after the recorded time in tools.
"""

import json
import resource
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from justitia_ray.config.scheduling import SchedulingConfig
from justitia_ray.console.history import History, PastApplication
from justitia_ray.core.policies.options import COMMON
from justitia_ray.core.tenants import TenantNode, TenantTree, ancestors
from justitia_ray.errors import ConfigError, JustitiaError
from justitia_ray.protocol.console_answers import Change, Setting, Times, WhatIfAnswer
from justitia_ray.protocol.status import read_answer
from justitia_ray.sim.engine_profile import EngineProfile, IterationCost
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import simulate
from justitia_ray.sim.trace_import import InferenceSpan, application_of_spans
from justitia_ray.sim.workload import WorkloadApplication
from justitia_ray.units import ApplicationId, ClientId, Seconds

MOST_MEMORY_BYTES = 3 * 1024**3
MOST_CPU_S = 60
_MANY_REPLICAS = 4
"""Largest number of simulated replicas that all report after every iteration."""
_REPORT_S: Seconds = 1.0
_NOTES = (
    "engines are simulated with the mean time per token of the calls, whatever their load",
    "lengths of outputs are known in advance, costs as they were predicted",
    "quotas, reserved shares of memory, tiers and deadlines are left out",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Settings to try in a what-if simulation; None or empty keeps the present ones."""

    policy: str | None = None
    weights: Mapping[ClientId, float] = field(default_factory=dict)
    replicas: int | None = None


def estimate(history: History, asked: Question) -> WhatIfAnswer:
    """Simulate the recorded queue with and without changed settings, and compare.

    Raises:
        ConfigError: If the policy is not allowed, or nothing can be replayed.
    """
    began_at = time.perf_counter()
    settings = SchedulingConfig.parse(dict(history.settings))
    fitting = [one for one in history.applications if _fits_replica(one, history)]
    if not fitting:
        raise ConfigError("no recorded application fits the KV memory of a replica")
    past = {one.application_id: one for one in fitting}
    policy = settings.policy if asked.policy is None else asked.policy
    replicas = history.replicas if asked.replicas is None else asked.replicas
    before = _simulate(history, settings, past, settings.policy, {}, history.replicas)
    after = _simulate(history, settings, past, policy, asked.weights, replicas)
    finished = {
        name: one.finished_at - one.arrived_at
        for name, one in past.items()
        if one.finished_at is not None
    }
    tenants = sorted({one.tenant for one in fitting})
    notes = list(_NOTES)
    if history.left_out:
        notes.append(f"{history.left_out} applications are left out: not all calls were recorded")
    unfinished = len(past) - len(finished)
    if unfinished:
        notes.append(f"{unfinished} applications have not finished: they end with the last call")
    return WhatIfAnswer(
        model=history.model,
        start=history.start,
        end=history.end,
        applications=len(past),
        inferences=sum(len(one.calls) for one in fitting),
        before=Setting(policy=settings.policy, replicas=history.replicas),
        after=Setting(policy=policy, weights=asked.weights, replicas=replicas),
        all=compare_completion_times(before, after),
        tenants={
            tenant: compare_completion_times(
                _times_of_tenant(tenant, past, before), _times_of_tenant(tenant, past, after)
            )
            for tenant in tenants
        },
        measured=times_of(finished.values()),
        simulated=times_of([before[name] for name in finished]),
        notes=tuple(notes),
        took_s=round(time.perf_counter() - began_at, 3),
    )


def compare_completion_times(
    before: Mapping[ApplicationId, Seconds], after: Mapping[ApplicationId, Seconds]
) -> Change:
    """Compare the completion times of applications before and after a change."""
    was, will = times_of(before.values()), times_of(after.values())
    no_later = sum(after[name] <= before[name] + 1e-6 for name in before)
    return Change(
        before=was,
        after=will,
        mean=_relative_change(was.mean_s, will.mean_s),
        p90=_relative_change(was.p90_s, will.p90_s),
        worst=_relative_change(was.worst_s, will.worst_s),
        no_later=no_later / len(before) if before else None,
    )


def times_of(times: Iterable[Seconds]) -> Times:
    """Return mean, p90 and maximum of completion times."""
    ordered = sorted(times)
    if not ordered:
        return Times(applications=0, mean_s=None, p90_s=None, worst_s=None)
    place = 0.9 * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    p90 = ordered[low] + (ordered[high] - ordered[low]) * (place - low)
    mean = sum(ordered) / len(ordered)
    return Times(applications=len(ordered), mean_s=mean, p90_s=p90, worst_s=ordered[-1])


def _relative_change(before: Seconds | None, after: Seconds | None) -> float | None:
    return after / before - 1 if before and after is not None else None


def _times_of_tenant(
    tenant: str, past: Mapping[ApplicationId, PastApplication], times: Mapping[str, Seconds]
) -> dict[ApplicationId, Seconds]:
    return {name: time_s for name, time_s in times.items() if past[name].tenant == tenant}


def _fits_replica(one: PastApplication, history: History) -> bool:
    room = history.kv_tokens - history.block_size
    return all(call.prompt_tokens + call.output_tokens <= room for call in one.calls)


def _simulate(
    history: History,
    settings: SchedulingConfig,
    past: Mapping[ApplicationId, PastApplication],
    policy: str,
    weights: Mapping[ClientId, float],
    replicas: int,
) -> dict[ApplicationId, Seconds]:
    options: Mapping[str, object] = settings.policy_options
    if policy != settings.policy:  # Another policy may lack the present policy's own options.
        common = {option.name for option in COMMON}
        options = {name: value for name, value in options.items() if name in common}
    run = RunSettings(
        EngineProfile(
            history.kv_tokens,
            block_size=history.block_size,
            max_num_seqs=history.max_num_seqs,
            iteration=IterationCost(base_s=history.iteration_s),
            admission="prompt" if settings.admission == "prompt" else "peak",
            overflow="recompute",
            prefix_caching=history.caches_prefixes,
        ),
        policy,
        options,
        tenants=tree_with_weights(settings.tenant_tree, weights),
        replicas=replicas,
        report_interval_s=0.0 if replicas <= _MANY_REPLICAS else _REPORT_S,
        prediction="table",
        predicted_costs={name: one.predicted_kv_token_time for name, one in past.items()},
        lengths_are_known=True,
    )
    workload = [_replayed_application(one, history, weights) for one in past.values()]
    result = simulate(workload, run)
    return {row.application_id: row.jct_s for row in result.applications if row.jct_s is not None}


def tree_with_weights(tree: TenantTree, weights: Mapping[ClientId, float]) -> TenantTree:
    """Return the tree of tenants, with other weights for some nodes."""
    described: dict[str, TenantNode] = {
        path: replace(node, weight=weights[path]) if path in weights else node
        for path, node in tree.described.items()
    }
    return TenantTree(described, {**tree.weights, **weights})


def _replayed_application(
    one: PastApplication, history: History, weights: Mapping[ClientId, float]
) -> WorkloadApplication:
    spans = [
        InferenceSpan(
            one.application_id,
            one.application_class or "default",
            one.tenant,
            _nanoseconds(call.submitted_at - history.start),
            _nanoseconds((call.ended_at or history.end) - history.start) + 1,
            call.prompt_tokens,
            call.output_tokens,
        )
        for call in one.calls
    ]
    made = application_of_spans(one.application_id, spans, 0)
    first_s = made.arrived_at_s - max(0.0, one.arrived_at - history.start)
    named = [path for path in ancestors(one.tenant) if path in weights]
    return replace(
        made,
        arrived_at_s=max(0.0, one.arrived_at - history.start),
        weight=weights[named[-1]] if named else one.weight,
        inferences=tuple(
            call if call.after else replace(call, delay_s=call.delay_s + max(0.0, first_s))
            for call in made.inferences
        ),
    )


def _nanoseconds(seconds: Seconds) -> int:
    return max(0, round(seconds * 1e9))


def answer_to(question: Mapping[str, Any]) -> dict[str, Any]:
    """Read a recorded history and a what-if question, and return the answer or error as JSON."""
    try:
        history = read_answer(History, question["history"], "history")
        asked = read_answer(Question, question["asked"], "question")
        return {"answer": asdict(estimate(history, asked))}
    except JustitiaError as error:
        return {"error": str(error)}


def main() -> int:
    """Read a what-if question as JSON from standard input; print its answer or its error."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
    json.dump(answer_to(json.load(sys.stdin)), sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
