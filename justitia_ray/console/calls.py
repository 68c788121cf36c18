"""Calls of applications as they were queued, started and ended, recorded while there are viewers.

The recording is bounded: it keeps each application's latest calls, and the applications that ended
last.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Abort, Action, EndApplication, Grant
from justitia_ray.core.entities import Application, Inference
from justitia_ray.units import (
    ApplicationId,
    InferenceId,
    KvTokenTime,
    LeaseId,
    ReplicaId,
    RequestId,
    Seconds,
    Tokens,
)

MOST_CALLS_OF_ONE = 256
"""Maximum number of calls that the console records for one application."""
MOST_CALLS = 50_000
MOST_ENDED = 5_000
"""Maximum number of ended applications that the console keeps."""
KEPT_S: Seconds = 900.0
"""Seconds for which the console keeps an ended application."""


@dataclass(slots=True)
class Call:
    """The console's record of an inference and of its last lease."""

    request_id: RequestId
    inference_id: InferenceId
    stage: int
    submitted_at: Seconds
    prompt_tokens: Tokens
    predicted_output_tokens: Tokens
    choices: int
    replica_id: ReplicaId | None = None
    started_at: Seconds | None = None
    first_token_at: Seconds | None = None
    ended_at: Seconds | None = None
    outcome: str | None = None
    attempts: int = 0
    output_tokens: Tokens = 0
    cached_tokens: Tokens | None = None

    def forget_lost_lease(self) -> None:
        """Forget a lease that was lost before the inference ended."""
        self.started_at = self.first_token_at = self.replica_id = None


@dataclass(slots=True)
class RecordedApplication:
    """The console's record of an application and its calls."""

    application_id: ApplicationId
    application_class: str
    recognized_by: str
    tenant: str
    tier: str
    weight: float
    arrived_at: Seconds
    predicted_kv_token_time: KvTokenTime
    """Predicted cost when the application was first recorded, or a later, higher prediction."""
    calls: dict[RequestId, Call] = field(default_factory=dict)
    left_out: int = 0
    """Number of the application's calls that were dropped from the record."""
    is_from_arrival: bool = True
    """Whether all calls since the application's arrival were recorded."""
    end: EndApplication | None = None


class EndedLease(NamedTuple):
    replica_id: ReplicaId
    application_id: ApplicationId
    kv_tokens: Tokens | None
    """KV tokens that the lease held at its end; None if the replica did not report them."""


class CallRecorder:
    """Records the calls of a scheduler's applications from the events of its core."""

    def __init__(self, core: SchedulerCore, now: Seconds) -> None:
        """Begin the record with the inferences that run now.

        Args:
            core: The core.
            now: The core's time.
        """
        self.since = now
        """Time at which the recording began."""
        self._core = core
        self._applications: dict[ApplicationId, RecordedApplication] = {}
        self._ended: deque[RecordedApplication] = deque()
        self._running: dict[LeaseId, tuple[ReplicaId, RecordedApplication, Call]] = {}
        self._reading: dict[LeaseId, Call] = {}
        self._count = 0
        """Number of recorded inferences."""
        for lease in core.state.leases.values():
            self._record_start(lease.request_id, lease.lease_id, lease.replica_id, lease.granted_at)

    # --- events

    def observe(
        self, event: ev.Event, actions: Sequence[Action], now: Seconds
    ) -> Iterator[EndedLease]:
        """Record an event that the scheduler core has handled; yield the leases that it ended."""
        if isinstance(event, ev.ReplicaPulled | ev.ReplicaReported):
            if self._reading:
                self._note_first_tokens(event.progress or (), now)
            for finished in event.finished:
                yield from self._record_finish(finished, now)
        for action in actions:
            if isinstance(action, Grant):
                self._record_start(action.request_id, action.lease_id, action.replica_id, now)
            elif isinstance(action, Abort):
                yield from self._end_lease(action.lease_id, "cancelled", now)
            elif isinstance(action, EndApplication):
                self._end_application(action)

    def look(self, now: Seconds) -> None:
        """Record leases that ended without an event, and drop records that are too old."""
        leases = self._core.state.leases
        for lease_id in [name for name in self._running if name not in leases]:
            for _ in self._end_lease(lease_id, "failed", now):
                pass
        live = self._core.state.applications
        for recorded in [
            one for name, one in self._applications.items() if one.end is None and name not in live
        ]:
            self._drop_record(recorded)
        while self._ended and (
            now - (end.ended_at if (end := self._ended[0].end) else now) > KEPT_S
            or len(self._ended) > MOST_ENDED
            or self._count > MOST_CALLS
        ):
            self._drop_record(self._ended.popleft())

    # --- queries

    def application(self, application_id: ApplicationId) -> RecordedApplication | None:
        """Return the record of an application; None if the id is unknown."""
        return self._applications.get(application_id)

    def applications(self) -> Iterable[RecordedApplication]:
        return self._applications.values()

    # --- internals

    def _record_start(
        self, request_id: RequestId, lease_id: LeaseId, replica_id: ReplicaId, now: Seconds
    ) -> None:
        inference = self._core.state.inferences.get(request_id)
        if inference is None:
            return
        application = self._core.state.applications[inference.application_id]
        recorded = self._record_of(application)
        call = recorded.calls.get(request_id)
        if call is None:
            call = recorded.calls[request_id] = call_of(inference)
            self._count += 1
            if len(recorded.calls) > MOST_CALLS_OF_ONE:
                self._drop_oldest_call(recorded)
        call.replica_id, call.started_at, call.first_token_at = replica_id, now, None
        call.attempts += 1
        self._running[lease_id] = (replica_id, recorded, call)
        if inference.output_tokens and call.attempts == 1:
            call.first_token_at = now  # The first token came before the console began to record.
        else:
            self._reading[lease_id] = call

    def _record_of(self, application: Application) -> RecordedApplication:
        recorded = self._applications.get(application.application_id)
        if recorded is not None and recorded.end is not None:  # the id was opened again
            self._ended.remove(recorded)
            self._drop_record(recorded)
            recorded = None
        if recorded is None:
            recorded = self._applications[application.application_id] = RecordedApplication(
                application.application_id,
                application.application_class,
                application.recognized_by,
                application.tenant,
                application.tier,
                application.weight,
                application.arrived_at,
                application.predicted_kv_token_time,
                is_from_arrival=not application.inferences and application.arrived_at >= self.since,
            )
        return recorded

    def _note_first_tokens(self, progress: Iterable[ev.LeaseProgress], now: Seconds) -> None:
        for one in progress:
            if one.output_tokens and one.lease_id in self._reading:
                call = self._reading.pop(one.lease_id)
                call.first_token_at = now
                call.cached_tokens = one.cached_tokens

    def _record_finish(self, finished: ev.LeaseFinished, now: Seconds) -> Iterator[EndedLease]:
        running = self._running.get(finished.lease_id)
        if running is None:
            return  # This lease's end has been reported before.
        call = running[2]
        call.output_tokens = max(call.output_tokens, finished.output_tokens)
        if finished.prompt_tokens and finished.outcome is not None:
            call.prompt_tokens = finished.prompt_tokens
        if finished.cached_tokens is not None:
            call.cached_tokens = finished.cached_tokens
        if finished.output_tokens and call.first_token_at is None:
            call.first_token_at = now
        outcome = None if finished.outcome is None else finished.outcome.value
        kv_tokens = finished.prompt_tokens + finished.output_tokens
        yield from self._end_lease(finished.lease_id, outcome, now, kv_tokens or None)

    def _end_lease(
        self, lease_id: LeaseId, outcome: str | None, now: Seconds, kv_tokens: Tokens | None = None
    ) -> Iterator[EndedLease]:
        """End a lease; the inference has ended too, unless it waits for another lease."""
        running = self._running.pop(lease_id, None)
        if running is None:
            return
        self._reading.pop(lease_id, None)
        replica_id, recorded, call = running
        if call.request_id in self._core.state.inferences:
            call.forget_lost_lease()
        else:
            call.ended_at, call.outcome = now, outcome or "failed"
        yield EndedLease(replica_id, recorded.application_id, kv_tokens)

    def _end_application(self, end: EndApplication) -> None:
        recorded = self._applications.get(end.application_id)
        if recorded is not None and recorded.end is None:
            recorded.end = end
            recorded.predicted_kv_token_time = end.predicted_kv_token_time
            self._ended.append(recorded)

    def _drop_record(self, recorded: RecordedApplication) -> None:
        self._count -= len(recorded.calls)
        del self._applications[recorded.application_id]

    def _drop_oldest_call(self, recorded: RecordedApplication) -> None:
        """Drop the first ended call of an application, or its first call if none has ended."""
        calls = recorded.calls
        name = next((name for name, call in calls.items() if call.ended_at is not None), None)
        del calls[next(iter(calls)) if name is None else name]
        recorded.left_out += 1
        recorded.is_from_arrival = False
        self._count -= 1


def call_of(inference: Inference) -> Call:
    """Return a new record of an inference that has no lease yet."""
    return Call(
        inference.request_id,
        inference.inference_id,
        inference.stage,
        inference.submitted_at,
        inference.prompt_tokens,
        inference.predicted_output_tokens,
        inference.choices,
        output_tokens=inference.output_tokens,
    )
