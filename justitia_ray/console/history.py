"""Recorded history of a core, which a what-if estimate replays."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from justitia_ray.console.calls import Call, RecordedApplication
from justitia_ray.console.watch import Watch
from justitia_ray.core import SchedulerCore
from justitia_ray.core.entities import Outcome
from justitia_ray.units import ApplicationId, InferenceId, KvTokenTime, Seconds, Tokens

MOST_CALLS = 8_000
"""Maximum number of calls in a replay; the applications that arrived last have priority."""


class PastCall(NamedTuple):
    """A recorded inference, to be replayed by the simulator."""

    inference_id: InferenceId
    submitted_at: Seconds
    ended_at: Seconds | None
    """Time at which the inference ended; None if it still runs."""
    prompt_tokens: Tokens
    output_tokens: Tokens
    """Output tokens of the inference; for one that still runs, the expected number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastApplication:
    """An application that arrived during the recording, with all its inferences."""

    application_id: ApplicationId
    application_class: str
    tenant: str
    weight: float
    arrived_at: Seconds
    finished_at: Seconds | None
    """Time at which the application ended; None if it has not ended successfully."""
    predicted_kv_token_time: KvTokenTime
    calls: tuple[PastCall, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The last minutes of a model's queue, recorded for a replay with other settings."""

    model: str
    start: Seconds
    end: Seconds
    settings: Mapping[str, Any]
    """Settings of the scheduler, with the keys of `SchedulingConfig`."""
    replicas: int
    kv_tokens: Tokens
    """KV memory of the largest replica, in tokens."""
    block_size: Tokens
    max_num_seqs: int
    caches_prefixes: bool
    iteration_s: Seconds
    """Mean seconds per output token, over all ended inferences."""
    applications: tuple[PastApplication, ...] = field(default=())
    left_out: int = 0
    """Number of applications that are not replayed because some of their calls were not recorded.
    """


def history_of(
    core: SchedulerCore,
    watch: Watch,
    model: str,
    settings: Mapping[str, Any],
    now: Seconds,
    lasts_s: Seconds,
) -> History | None:
    """Return the recorded history of a queue; None if no application can be replayed.

    Args:
        core: The core.
        watch: The recording of the core's events.
        model: Name of the model.
        settings: Scheduling settings in force.
        now: The core's time.
        lasts_s: Length of the history; at most the time since the recording began.
    """
    replicas = [one for one in core.state.replicas.values() if not one.draining]
    start = max(watch.calls.since, now - lasts_s)
    recorded = [one for one in watch.calls.applications() if _was_live_since(one, start)]
    whole = [one for one in recorded if one.is_from_arrival and one.calls]
    latest = list(_latest_arrivals(whole))
    if not replicas or not latest:
        return None
    largest = max((one.capacity for one in replicas), key=lambda one: one.kv_tokens)
    ended = [call for one in latest for call in one.calls.values() if call.ended_at is not None]
    return History(
        model=model,
        start=start,
        end=now,
        settings=settings,
        replicas=len(replicas),
        kv_tokens=largest.kv_tokens,
        block_size=largest.block_size,
        max_num_seqs=largest.max_num_seqs,
        caches_prefixes=largest.caches_prefixes,
        iteration_s=_iteration_s(ended) or core.outlooks.iteration_s,
        applications=tuple(_describe_past_application(core, one) for one in reversed(latest)),
        left_out=len(recorded) - len(latest),
    )


def _was_live_since(recorded: RecordedApplication, start: Seconds) -> bool:
    return recorded.end is None or recorded.end.ended_at >= start


def _latest_arrivals(applications: Iterable[RecordedApplication]) -> Iterator[RecordedApplication]:
    calls = 0
    for one in sorted(applications, key=lambda one: one.arrived_at, reverse=True):
        calls += len(one.calls)
        if calls > MOST_CALLS:
            return
        yield one


def _describe_past_application(
    core: SchedulerCore, recorded: RecordedApplication
) -> PastApplication:
    end = recorded.end
    is_finished = end is not None and end.outcome is Outcome.FINISHED
    return PastApplication(
        application_id=recorded.application_id,
        application_class=recorded.application_class,
        tenant=recorded.tenant,
        weight=recorded.weight,
        arrived_at=recorded.arrived_at,
        finished_at=end.ended_at if end is not None and is_finished else None,
        predicted_kv_token_time=max(1.0, recorded.predicted_kv_token_time),
        calls=tuple(_describe_past_call(core, call) for call in recorded.calls.values()),
    )


def _describe_past_call(core: SchedulerCore, call: Call) -> PastCall:
    output = call.output_tokens
    inference = core.state.inferences.get(call.request_id)
    if inference is not None:
        made = inference.output_tokens
        output = made + inference.expected_remaining(made)
    return PastCall(
        call.inference_id,
        call.submitted_at,
        call.ended_at,
        max(1, call.prompt_tokens),
        max(1, output),
    )


def _iteration_s(calls: Iterable[Call]) -> Seconds | None:
    """Return the mean seconds per output token of a sequence; None without ended calls."""
    ran_s, tokens = 0.0, 0
    for call in calls:
        made = call.output_tokens // call.choices
        if call.started_at is not None and call.ended_at is not None and made:
            ran_s += call.ended_at - call.started_at
            tokens += made
    return ran_s / tokens if ran_s > 0 else None
