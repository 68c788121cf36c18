"""Timeline of one application: its calls, the time in tools, and its cost."""

from collections.abc import Iterable, Sequence

from justitia_ray.application_key import split_key
from justitia_ray.console.calls import Call, call_of
from justitia_ray.console.queue_view import queue_row
from justitia_ray.console.watch import Watch
from justitia_ray.core import SchedulerCore
from justitia_ray.core.entities import Application
from justitia_ray.core.outlook import WALK_KEPT_S
from justitia_ray.protocol.console_answers import CallSpan, Timeline, TimeSpan, Trace
from justitia_ray.units import ApplicationId, Seconds

_LEAST_TOOL_S: Seconds = 0.001


def timeline_of(
    core: SchedulerCore,
    watch: Watch,
    application_id: ApplicationId,
    now: Seconds,
    trace: Trace | None = None,
) -> Timeline | None:
    """Return all recorded calls and pauses of an application; None if nothing was recorded.

    Args:
        core: The core.
        watch: The recording of the core's events.
        application_id: Key of the application.
        now: The core's time.
        trace: The application's trace; None if it is not traced.
    """
    recorded = watch.calls.application(application_id)
    application = core.state.applications.get(application_id)
    if application is not None:
        return _live_timeline(core, watch, application, now, trace)
    if recorded is None or recorded.end is None:
        return None
    end, calls = recorded.end, list(recorded.calls.values())
    tenant, plain = split_key(application_id)
    return Timeline(
        at=now,
        recorded_from=watch.calls.since,
        application=application_id,
        tenant=tenant or recorded.tenant,
        application_id=plain,
        application_class=recorded.application_class,
        recognized_by=recorded.recognized_by,
        state="ended",
        tier=recorded.tier,
        weight=recorded.weight,
        arrived_at=end.arrived_at,
        ended_at=end.ended_at,
        outcome=end.outcome.value,
        predicted_kv_token_time=end.predicted_kv_token_time,
        kv_token_time=end.kv_token_time,
        prompt_tokens=end.prompt_tokens,
        cached_prompt_tokens=end.cached_tokens,
        output_tokens=end.output_tokens,
        inferences=end.inferences,
        calls=tuple(map(_call_span, calls)),
        tools=tuple(tool_intervals(calls, end.ended_at)),
        left_out=recorded.left_out,
        trace=trace,
    )


def _live_timeline(
    core: SchedulerCore,
    watch: Watch,
    application: Application,
    now: Seconds,
    trace: Trace | None,
) -> Timeline:
    state, recorded = core.state, watch.calls.application(application.application_id)
    calls = [] if recorded is None else [*recorded.calls.values()]
    known = {call.request_id for call in calls}
    unstarted = [*application.waiting.values(), *application.held_back.values()]
    calls += [call_of(one) for one in unstarted if one.request_id not in known]
    calls.sort(key=lambda call: call.submitted_at)
    for call in calls:
        inference = state.inferences.get(call.request_id)
        if inference is not None:
            call.output_tokens = max(call.output_tokens, inference.output_tokens)
    name = application.application_id
    tenant, plain = split_key(name)
    asked = core.outlooks.ask([name], WALK_KEPT_S, now, calibrates=False)
    waits = application.waiting_count or application.held_back
    is_from_start = recorded is not None and recorded.is_from_arrival
    begun = [application.arrived_at] if is_from_start else []
    return Timeline(
        at=now,
        recorded_from=watch.calls.since,
        application=name,
        tenant=tenant or application.tenant,
        application_id=plain,
        application_class=application.application_class,
        recognized_by=application.recognized_by,
        state=application.state.public_name,
        tier=application.tier,
        weight=application.weight,
        arrived_at=application.arrived_at,
        predicted_kv_token_time=application.predicted_kv_token_time,
        kv_token_time=core.ledger.fair_share.accounts[name].attained,
        prompt_tokens=application.prompt_tokens,
        cached_prompt_tokens=application.cached_tokens,
        output_tokens=application.output_tokens,
        inferences=application.inferences,
        waiting=application.waiting_count,
        running=len(application.in_flight),
        row=queue_row(core, application, asked[name], now) if waits else None,
        calls=tuple(map(_call_span, calls)),
        tools=tuple(tool_intervals(calls, now, begun)),
        left_out=0 if recorded is None else recorded.left_out,
        trace=trace,
    )


def tool_intervals(
    calls: Sequence[Call], until: Seconds, begun: Iterable[Seconds] = ()
) -> Iterable[TimeSpan]:
    """Yield the intervals, after an application's first call, in which none of its calls runs.

    Args:
        calls: The calls, in the order of submission.
        until: End of the last interval.
        begun: Arrival of the application, if all its calls are recorded: the time from the arrival
            to the first call is then an interval without a call.
    """
    busy_until: Seconds | None = next(iter(begun), None)
    for call in sorted(calls, key=lambda one: one.submitted_at):
        if busy_until is not None and call.submitted_at - busy_until > _LEAST_TOOL_S:
            yield TimeSpan(busy_until, call.submitted_at)
        ended_at = until if call.ended_at is None else call.ended_at
        busy_until = ended_at if busy_until is None else max(busy_until, ended_at)
    if busy_until is not None and until - busy_until > _LEAST_TOOL_S:
        yield TimeSpan(busy_until, until)


def _call_span(call: Call) -> CallSpan:
    return CallSpan(
        inference_id=call.inference_id,
        stage=call.stage,
        replica_id=call.replica_id,
        submitted_at=call.submitted_at,
        started_at=call.started_at,
        first_token_at=call.first_token_at,
        ended_at=call.ended_at,
        outcome=call.outcome,
        attempts=call.attempts,
        prompt_tokens=call.prompt_tokens,
        cached_prompt_tokens=call.cached_tokens,
        output_tokens=call.output_tokens,
        predicted_output_tokens=call.predicted_output_tokens,
    )
