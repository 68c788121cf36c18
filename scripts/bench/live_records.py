"""Records of a live run as the client saw it: rows, workload, observations."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from justitia_ray.client.calls import is_success
from justitia_ray.client.transport import Response, StreamedResponse, Transport
from justitia_ray.core.entities import Outcome
from justitia_ray.core.stages import StagePosition, StageServed
from justitia_ray.cost import kv_token_time
from justitia_ray.lab.workloads.play import ApplicationRecord
from justitia_ray.predictor.observation import Observation, Sample
from justitia_ray.protocol.endpoints import (
    APPLICATION_HEADER,
    CLASS_HEADER,
    LEASED_HEADER,
    RAN_HEADER,
    REPLICA_HEADER,
    WAITED_HEADER,
)
from justitia_ray.sim.results import ApplicationResult, InferenceResult, Lateness, RunResult
from justitia_ray.sim.suites.load_plan import PlannedApplication
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.units import ApplicationId, InferenceId, KvTokenTime, ReplicaId, Seconds, Tokens

_APPLICATIONS = "/v1/applications"
_INFERENCES = ("/v1/chat/completions", "/v1/completions")


@dataclass(frozen=True, slots=True)
class RecordedInference:
    """Answered inference; times are seconds from the start of the recording."""

    submitted_at_s: Seconds
    finished_at_s: Seconds
    prompt_tokens: Tokens
    output_tokens: Tokens
    replica: ReplicaId | None
    waited_s: Seconds
    """Time in the scheduler's queue, from submission to lease (seconds)."""
    ran_s: Seconds
    """Seconds at the replica, from the payload's arrival to the whole answer."""
    leased_s: Seconds
    """Seconds at the replica from the lease's arrival to the whole answer."""


@dataclass(slots=True)
class RecordedApplication:
    """Application as the service recorded it."""

    application_id: ApplicationId
    known_class: str
    """Class under which the application was opened, without the suffix."""
    predicted_kv_token_time: KvTokenTime
    inferences: list[RecordedInference] = field(default_factory=list)
    """Inferences in the order of their ends."""
    lateness: Lateness | None = None
    """Delay behind fair sharing, as reported by the scheduler after the last inference."""


class Recorder:
    """Transport wrapper that records requests and forwards them.

    Args:
        transport: The way to the service.
        class_suffix: Put after each application's class, so that the service knows of these
            classes what it was taught of them, whatever it has learned from other runs.
        clock: Tells the time in seconds.
        own_classes: By class and input, the class to open an application under in its place.
    """

    def __init__(
        self,
        transport: Transport,
        class_suffix: str = "",
        clock: Callable[[], Seconds] = time.monotonic,
        own_classes: Mapping[tuple[str, str], str] | None = None,
    ) -> None:
        self._transport = transport
        self._suffix = class_suffix
        self._own_classes = own_classes or {}
        self._clock = clock
        self._started_at = clock()
        self.applications: dict[ApplicationId, RecordedApplication] = {}
        self.left_open: dict[ApplicationId, str | None] = {}
        """Tenant of each application whose end the service has not confirmed."""

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Response:
        """Send a request, and record what it says about an application; see `Transport`."""
        if path == _APPLICATIONS:
            return await self._record_opening(method, headers, body)
        if path in _INFERENCES:
            return await self._record_inference(method, path, headers, body)
        if path.endswith("/close"):
            await self._request_lateness(path.removesuffix("/close"), headers)
        answer = await self._transport.request(method, path, headers, body)
        if is_success(answer.status) and (method == "DELETE" or path.endswith("/close")):
            self.left_open.pop(_application_of(path), None)
        return answer

    def stream(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> AbstractAsyncContextManager[StreamedResponse]:
        """Forward a streamed call without recording it; recorded agents make none."""
        return self._transport.stream(method, path, headers, body)

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def _record_opening(
        self, method: str, headers: Mapping[str, str], body: bytes
    ) -> Response:
        asked = json.loads(body)
        planned_class = asked["application_class"]
        known_class = self._own_classes.get((planned_class, asked.get("input", "")), planned_class)
        asked["application_class"] = known_class + self._suffix
        answer = await self._transport.request(
            method, _APPLICATIONS, headers, json.dumps(asked).encode()
        )
        if is_success(answer.status):
            told = json.loads(answer.body)
            opened = RecordedApplication(
                str(told["application_id"]), known_class, float(told["predicted_kv_token_time"])
            )
            self.applications[opened.application_id] = opened
            self.left_open[opened.application_id] = asked.get("tenant")
        return answer

    async def _record_inference(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Response:
        opened = self.applications.get(headers.get(APPLICATION_HEADER, ""))
        suffixed = dict(headers)
        if CLASS_HEADER in suffixed:
            known_class = suffixed[CLASS_HEADER] if opened is None else opened.known_class
            suffixed[CLASS_HEADER] = known_class + self._suffix
        submitted_at_s = self._seconds_since_start()
        answer = await self._transport.request(method, path, suffixed, body)
        finished_at_s = self._seconds_since_start()
        if opened is not None and is_success(answer.status):
            usage: dict[str, Any] = json.loads(answer.body)["usage"]
            opened.inferences.append(
                RecordedInference(
                    submitted_at_s,
                    finished_at_s,
                    int(usage["prompt_tokens"]),
                    int(usage.get("completion_tokens") or 0),
                    answer.headers.get(REPLICA_HEADER),
                    float(answer.headers.get(WAITED_HEADER, "0")),
                    float(answer.headers.get(RAN_HEADER, "0")),
                    float(answer.headers.get(LEASED_HEADER, "0")),
                )
            )
        return answer

    async def _request_lateness(self, application: str, headers: Mapping[str, str]) -> None:
        opened = self.applications.get(_application_of(application))
        if opened is None:
            return
        answer = await self._transport.request("GET", application, headers)
        if is_success(answer.status) and (lag := json.loads(answer.body).get("gps_lag")):
            opened.lateness = Lateness(lag["seconds"], lag["bound_s"])

    def _seconds_since_start(self) -> Seconds:
        return self._clock() - self._started_at


def _application_of(path: str) -> ApplicationId:
    """Return the application id in the path `/v1/applications/ID` or `…/ID/close`."""
    return unquote(path.removesuffix("/close").rpartition("/")[2])


@dataclass(frozen=True, slots=True)
class PlayedApplication:
    """Application of a run: its plan, its outcome and its recording."""

    planned: PlannedApplication
    record: ApplicationRecord
    recorded: RecordedApplication | None
    """Recording of the application; None if it was never opened."""

    @property
    def name(self) -> str:
        """Name in result files: the application's number in the load, equal in every arm."""
        return f"a{self.planned.number:03d}"

    @property
    def known_class(self) -> str:
        """Planned class of the application, without the suffix of the run."""
        recorded = self.recorded
        return self.record.application_class if recorded is None else recorded.known_class

    @property
    def inferences(self) -> list[RecordedInference]:
        """Inferences in the order of their submission."""
        rows = [] if self.recorded is None else self.recorded.inferences
        return sorted(rows, key=lambda row: (row.submitted_at_s, row.finished_at_s))

    @property
    def is_whole(self) -> bool:
        """Whether the application completed and all of its inferences were recorded."""
        return (
            self.record.outcome == "completed"
            and 0 < len(self.inferences) == self.record.inferences
        )


def as_workload(
    played: Sequence[PlayedApplication], call_latency_s: Seconds = 0.0
) -> list[WorkloadApplication]:
    """Return a run as a workload for the simulator: same arrivals, sizes, order, tool times.

    Args:
        played: Those that are not whole are left out.
        call_latency_s: Of each call, outside queue and engine; the simulator has no such thing, so
            that it is put before the submission.
    """
    return [_workload_application(one, call_latency_s) for one in played if one.is_whole]


def to_simulation_result(
    played: Sequence[PlayedApplication], kv_utilization: float | None, preemptions: int
) -> RunResult:
    """Return the rows of a run in the format of a simulation result."""
    result = RunResult(kv_utilization=kv_utilization, preemptions=preemptions)
    for one in played:
        record, recorded = one.record, one.recorded
        is_done = record.outcome == "completed"
        rows = one.inferences
        result.applications.append(
            ApplicationResult(
                application_id=one.name,
                application_class=record.application_class,
                tenant=record.tenant,
                arrived_at_s=record.arrived_at_s,
                finished_at_s=record.finished_at_s if is_done else None,
                jct_s=record.jct_s if is_done else None,
                kv_token_time=sum(kv_token_time(r.prompt_tokens, r.output_tokens) for r in rows),
                predicted_kv_token_time=0.0
                if recorded is None
                else recorded.predicted_kv_token_time,
                virtual_finish_time=None,
                gps_finished_at_s=None,
                outcome=(Outcome.FINISHED if is_done else Outcome.FAILED).value,
            )
        )
        result.inferences += [_result_row(one.name, number, row) for number, row in enumerate(rows)]
        if recorded is not None and recorded.lateness is not None:
            result.lateness[one.name] = recorded.lateness
    ends = [a.finished_at_s for a in result.applications if a.finished_at_s is not None]
    if ends:
        result.makespan_s = max(ends) - min(a.arrived_at_s for a in result.applications)
    return result


def to_observations(played: Sequence[PlayedApplication]) -> list[Observation]:
    """Return what a predictor learns from whole applications: costs by class and stage.

    Without input features no models are trained, so predictions are those of the class.
    """
    return [_observation(one) for one in played if one.is_whole]


def _workload_application(one: PlayedApplication, latency_s: Seconds) -> WorkloadApplication:
    rows = one.inferences
    inferences = []
    for number, row in enumerate(rows):
        before = _predecessors(rows, number)
        since = max((rows[i].finished_at_s for i in before), default=one.record.arrived_at_s)
        inferences.append(
            WorkloadInference(
                _inference_name(number),
                row.prompt_tokens,
                row.output_tokens,
                tuple(_inference_name(i) for i in before),
                max(0.0, row.submitted_at_s - since) + latency_s,
            )
        )
    return WorkloadApplication(
        one.name,
        one.known_class,
        one.record.arrived_at_s,
        tuple(inferences),
        one.record.tenant,
    )


def _predecessors(rows: Sequence[RecordedInference], number: int) -> list[int]:
    """Return an inference's direct predecessors: those that ended before its submission."""
    at = rows[number].submitted_at_s
    ended = [i for i in range(number) if rows[i].finished_at_s <= at]
    latest_start = max((rows[i].submitted_at_s for i in ended), default=at)
    return [i for i in ended if rows[i].finished_at_s > latest_start]


def _result_row(application_id: str, number: int, row: RecordedInference) -> InferenceResult:
    return InferenceResult(
        application_id=application_id,
        inference_id=_inference_name(number),
        replica=row.replica,
        submitted_at_s=row.submitted_at_s,
        dispatched_at_s=row.submitted_at_s + row.waited_s,
        first_token_at_s=None,
        finished_at_s=row.finished_at_s,
        prompt_tokens=row.prompt_tokens,
        output_tokens=row.output_tokens,
    )


def _observation(one: PlayedApplication) -> Observation:
    rows = one.inferences
    position, members = StagePosition(), list[list[RecordedInference]]()
    for kind, number in _submissions_and_ends(rows):
        if kind == "submit":
            stage = position.submit()
            while len(members) <= stage:
                members.append([])
            members[stage].append(rows[number])
        else:
            position.finish(_stage_of(members, rows[number]))
    calls = [(row.prompt_tokens, row.output_tokens) for row in rows]
    sample = Sample(
        float(sum(kv_token_time(p, d) for p, d in calls)),
        len(calls),
        sum(d for _, d in calls),
        None,
    )
    gaps = [*map(_gap_before_s, members, members[1:]), 0.0]
    return Observation(one.known_class, sample, tuple(map(_served_inference, members, gaps)))


def _submissions_and_ends(rows: Sequence[RecordedInference]) -> list[tuple[str, int]]:
    """Return submissions and ends in time order; at one instant, ends come first."""
    moments = [(row.submitted_at_s, 1, "submit", i) for i, row in enumerate(rows)]
    moments += [(row.finished_at_s, 0, "finish", i) for i, row in enumerate(rows)]
    return [(kind, number) for _, _, kind, number in sorted(moments)]


def _stage_of(members: Sequence[Sequence[RecordedInference]], row: RecordedInference) -> int:
    return next(stage for stage, rows in enumerate(members) if any(r is row for r in rows))


def _gap_before_s(
    rows: Sequence[RecordedInference], following: Sequence[RecordedInference]
) -> Seconds:
    ended_at = max(row.finished_at_s for row in rows)
    return max(0.0, min(row.submitted_at_s for row in following) - ended_at)


def _served_inference(rows: Sequence[RecordedInference], gap_s: Seconds) -> StageServed:
    return StageServed(
        len(rows),
        len(rows),
        sum(row.prompt_tokens for row in rows),
        sum(row.output_tokens for row in rows),
        float(sum(kv_token_time(row.prompt_tokens, row.output_tokens) for row in rows)),
        max(row.output_tokens for row in rows),
        gap_s,
    )


def _inference_name(number: int) -> InferenceId:
    return str(number)
