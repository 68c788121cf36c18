"""Replay a workload file against a live service, and write the result files of a simulation.

Only the service's HTTP interface is used, so the service may run anywhere. Each application is
opened at its arrival time, each inference sent when its predecessors have finished.
"""

import asyncio
import json
import random
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import httpx

from justitia_ray.client import Application, HttpTransport, JustitiaClient
from justitia_ray.client.calls import JsonCalls, path_for_model
from justitia_ray.client.load import LoadClock, LoadProgress, play_load
from justitia_ray.core.entities import Outcome
from justitia_ray.cost import kv_token_time
from justitia_ray.errors import ConfigError, JustitiaError, ResponseError
from justitia_ray.protocol.endpoints import APPLICATION_HEADER, CLASS_HEADER, TENANT_HEADER
from justitia_ray.protocol.status import KvTotals, SchedulerStatus, read_answer
from justitia_ray.sim.results import (
    ApplicationResult,
    InferenceResult,
    Lateness,
    RunResult,
    row_on_arrival,
)
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference, check_sizes
from justitia_ray.units import ApplicationId, InferenceId, Seconds, Tokens

_READY_WITHIN_S: Seconds = 15.0
"""Timeout in seconds for `/readyz`, above the 5 s that the service gives its scheduler."""
_TOKEN_IDS = range(10, 250)
"""Range of token ids that every vocabulary has, above most special tokens."""


@dataclass(frozen=True, slots=True)
class ReplayFailure:
    """Failed inference, or application that could not be opened."""

    application_id: ApplicationId
    inference_id: InferenceId | None
    """Id of the inference; None if the application could not be opened."""
    error: str


@dataclass(frozen=True, slots=True)
class Replay:
    """Results of a replay of a workload on a running service."""

    policy: str
    """Policy of the service at the start of the replay."""
    run: RunResult
    failures: tuple[ReplayFailure, ...]
    """Failures by application, in the order of the workload."""
    service: dict[str, Any]
    """Model, replicas and settings of the service, for `run.json`."""

    @property
    def failed_applications(self) -> int:
        """Number of applications that did not finish."""
        return sum(a.finished_at_s is None for a in self.run.applications)


async def replay_workload(
    url: str,
    applications: Sequence[WorkloadApplication],
    *,
    model: str | None = None,
    speed: float = 1.0,
    timeout_s: Seconds | None = None,
    on_progress: Callable[[LoadProgress], None] = lambda _: None,
    on_warning: Callable[[str], None] = lambda _: None,
    network: httpx.AsyncBaseTransport | None = None,
) -> Replay:
    """Run a workload's applications against the service at a URL.

    Args:
        url: URL of the service.
        applications: The workload. An application that fails stops no other.
        model: Model to call; None: the only model of the service.
        speed: Factor by which the workload's times and delays are divided. Results are in real
            seconds.
        timeout_s: Time after which an inference counts as failed; None: no limit.
        on_progress: Called after an application has arrived, and after one has ended.
        on_warning: Called with a message if the results are doubtful.
        network: Replaces the network in tests.

    Raises:
        ConfigError: If the URL is not valid, the model is not served, or an inference is longer
            than the service accepts.
        ConnectionError: If the service cannot be reached or is not ready.
        ResponseError: If the server does not answer as this service does.
    """
    async with aclosing(LiveService(url, network=network)) as service:
        await service.check_ready()
        facts = await service.facts(model)
        check_sizes(applications, facts.kv_tokens)
        if facts.max_model_len is not None:
            check_sizes(applications, facts.max_model_len, f"the context of {facts.model}")
        if others := facts.status.applications:
            on_warning(f"{others} applications are open on the service already; results mix")
        player = _WorkloadPlayer(service, facts.model, speed, timeout_s)
        played = await play_load(
            applications,
            player.play_application,
            arrived_at_s=lambda planned: planned.arrived_at_s / speed,
            has_failed=lambda one: bool(one.failures),
            on_progress=on_progress,
        )
        after = await service.status()
    return Replay(
        policy=facts.policy,
        run=_run_result(played, facts.status.kv, after.kv),
        failures=tuple(failure for one in played for failure in one.failures),
        service={
            "model": facts.model,
            "replicas": len(facts.status.replicas),
            "settings": facts.status.settings,
        },
    )


def prompt_token_ids(
    application_id: ApplicationId, inference_id: InferenceId, prompt_tokens: Tokens
) -> list[int]:
    """Return a prompt of `prompt_tokens` token ids, the same for every replay and tokenizer.

    Prompts of two inferences never begin alike, so that an engine with a prefix cache must compute
    each prompt: a workload file does not describe shared prefixes.
    """
    rng = random.Random(f"prompt/{application_id}/{inference_id}")
    return rng.choices(_TOKEN_IDS, k=prompt_tokens)


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """Facts about the service before a replay: model, context, policy, memory, status."""

    model: str
    max_model_len: Tokens | None
    """Maximum prompt plus output tokens; None if the service does not report it."""
    policy: str
    kv_tokens: Tokens
    """KV memory of the largest replica, in tokens."""
    status: SchedulerStatus


class LiveService:
    """HTTP client of a service, without a limit on connections; to be closed with `aclosing`.

    Args:
        url: URL of the service.
        network: Replaces the network in tests.

    Raises:
        ConfigError: If the URL is not an http(s) URL.
    """

    def __init__(self, url: str, *, network: httpx.AsyncBaseTransport | None = None) -> None:
        self._url = url
        self._http = HttpTransport(url, transport=network)
        self._client = JustitiaClient(self._http)
        self._calls = JsonCalls(self._http)
        self._cache_salt = uuid.uuid4().hex
        """Random cache salt, because the engine's cache may hold the same prompts of earlier
        replays.
        """
        self._queue: str | None = None

    async def aclose(self) -> None:
        await self._http.aclose()

    async def check_ready(self) -> None:
        """Raise an error if the service is not ready for inferences.

        Raises:
            ConnectionError: If the service cannot be reached, or is not ready; the message says
                why.
        """
        try:
            async with asyncio.timeout(_READY_WITHIN_S):
                answer = await self._http.request("GET", "/readyz", {})
        except TimeoutError as error:
            raise ConnectionError(
                f"{self._url}: no answer to /readyz within {_READY_WITHIN_S:g} s"
            ) from error
        if answer.status != 200:
            reason = _error_reason(answer.body) or f"/readyz answered with status {answer.status}"
            raise ConnectionError(f"{self._url} is not ready: {reason}")

    async def facts(self, model: str | None) -> ServiceFacts:
        """Request the service's model, policy and memory.

        Args:
            model: Model to call; None: the only model of the service.

        Raises:
            ConfigError: If the service has no such model, or `model` is None and the service has
                several.
            ResponseError: If the server does not answer as this service does.
            ConnectionError: If the service does not answer.
        """
        models = await self._calls.call("GET", "/v1/models")
        try:
            lengths = {str(m["id"]): m.get("max_model_len") for m in models["data"]}
        except (KeyError, TypeError, AttributeError) as error:
            raise self._is_other_model() from error
        if model is None and len(lengths) == 1:
            (model,) = lengths
        if model is None or model not in lengths:
            raise ConfigError(
                f"--model must be one that {self._url} serves ({', '.join(lengths) or 'none'}),"
                f" got {model!r}"
            )
        self._queue = model if len(lengths) > 1 else None
        status = await self.status()
        if status.policy is None or not status.replicas:
            raise self._is_other_model()
        kv_tokens = max(replica.kv_tokens for replica in status.replicas.values())
        return ServiceFacts(model, lengths[model], status.policy, kv_tokens, status)

    async def status(self) -> SchedulerStatus:
        """Return `/v1/status` of the replayed model.

        Raises:
            ResponseError: If the service answered with an error.
            ConnectionError: If the service did not answer.
        """
        answer = await self._calls.call("GET", path_for_model("/v1/status", self._queue))
        return read_answer(SchedulerStatus, answer, "status")

    def _is_other_model(self) -> ResponseError:
        return ResponseError(200, f"{self._url} does not answer as this service does")

    def application(self, planned: WorkloadApplication) -> Application:
        """Return a client application with the fields of a planned application, for `async with`.

        Raises:
            RequestError: If one of its names cannot be sent in a header.
        """
        return self._client.application(
            planned.application_class,
            input=planned.input,
            tenant=planned.tenant,
            weight=planned.weight,
            application_id=planned.application_id,
            model=self._queue,
        )

    def generate(
        self, planned: WorkloadApplication, model: str, inference: WorkloadInference
    ) -> AsyncGenerator[dict[str, Any]]:
        """Run an inference of exactly the planned length; yield the events of its stream.

        Raises:
            ResponseError: If the service answered, or ended the stream, with an error.
            ConnectionError: If the service did not answer, or the stream broke off.
        """
        body = {
            "model": model,
            "prompt": prompt_token_ids(
                planned.application_id, inference.inference_id, inference.prompt_tokens
            ),
            "cache_salt": self._cache_salt,
            "max_tokens": inference.output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = {
            APPLICATION_HEADER: planned.application_id,
            CLASS_HEADER: planned.application_class,
            TENANT_HEADER: planned.tenant,
        }
        return self._calls.events("/v1/completions", body, headers)


@dataclass(slots=True)
class _ReplayedApplication:
    """Application during a replay: its record, its inferences, its failures."""

    result: ApplicationResult
    inferences: list[InferenceResult] = field(default_factory=list)
    """Records of the sent inferences, in the order of the workload."""
    failures: list[ReplayFailure] = field(default_factory=list)
    lateness: Lateness | None = None


class _WorkloadPlayer:
    """Runs the applications of a workload, and measures their inferences."""

    def __init__(
        self, service: LiveService, model: str, speed: float, timeout_s: Seconds | None
    ) -> None:
        self._service = service
        self._model = model
        self._speed = speed
        self._timeout_s = timeout_s

    async def play_application(
        self, planned: WorkloadApplication, clock: LoadClock
    ) -> _ReplayedApplication:
        """Open an arrived application, run its inferences, and close it."""
        arrived_at_s = planned.arrived_at_s / self._speed
        played = _ReplayedApplication(row_on_arrival(planned, arrived_at_s, Outcome.FAILED))
        try:
            async with self._service.application(planned) as opened:
                if opened.predicted_kv_token_time is not None:
                    played.result.predicted_kv_token_time = opened.predicted_kv_token_time
                played.result.virtual_finish_time = opened.virtual_finish_time
                await self._run_inferences(planned, arrived_at_s, played, clock)
                await _request_lateness(opened, played)
        except (JustitiaError, ConnectionError) as error:
            played.failures.append(ReplayFailure(planned.application_id, None, str(error)))
        if not played.failures:
            _record_finish(played)
        return played

    async def _run_inferences(
        self,
        planned: WorkloadApplication,
        arrived_at_s: Seconds,
        played: _ReplayedApplication,
        clock: LoadClock,
    ) -> None:
        """Run an application's inferences; skip those whose predecessor failed or was skipped."""
        runs: dict[InferenceId, asyncio.Task[InferenceResult | None]] = {}

        async def run_after_predecessors(inference: WorkloadInference) -> InferenceResult | None:
            rows = [await runs[name] for name in inference.after]
            ends = [row.finished_at_s for row in rows if row and row.finished_at_s is not None]
            if len(ends) < len(rows):
                return None
            last_end_s = max(ends, default=arrived_at_s)
            await clock.wait_until(last_end_s + inference.delay_s / self._speed)
            return await self._run_inference(planned, inference, played.failures, clock)

        async with asyncio.TaskGroup() as group:
            # All tasks are created before the first one starts.
            for inference in planned.inferences:
                runs[inference.inference_id] = group.create_task(run_after_predecessors(inference))
        sent = [run.result() for run in runs.values()]
        played.inferences = [row for row in sent if row is not None]

    async def _run_inference(
        self,
        planned: WorkloadApplication,
        inference: WorkloadInference,
        failures: list[ReplayFailure],
        clock: LoadClock,
    ) -> InferenceResult:
        row = InferenceResult(
            application_id=planned.application_id,
            inference_id=inference.inference_id,
            replica=None,
            submitted_at_s=clock.now_s(),
            dispatched_at_s=None,
            first_token_at_s=None,
            finished_at_s=None,
            prompt_tokens=inference.prompt_tokens,
            output_tokens=0,
        )
        usage: Any = None
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                aclosing(self._service.generate(planned, self._model, inference)) as events,
            ):
                async for event in events:
                    if event.get("choices") and row.first_token_at_s is None:
                        row.first_token_at_s = clock.now_s()
                    usage = event.get("usage") or usage
            _count_tokens(row, usage)
            row.finished_at_s = clock.now_s()
        except (JustitiaError, ConnectionError, TimeoutError) as error:
            said = str(error)
            if isinstance(error, TimeoutError):
                said = f"not finished within {self._timeout_s:g} s (--timeout-s)"
            failures.append(ReplayFailure(planned.application_id, inference.inference_id, said))
        return row


def _count_tokens(row: InferenceResult, usage: Any) -> None:
    """Write the engine's token counts into the record of an inference."""
    try:
        row.prompt_tokens = int(usage["prompt_tokens"])
        row.output_tokens = int(usage["completion_tokens"])
    except (KeyError, TypeError, ValueError) as error:
        raise ResponseError(200, "the stream ended without usage") from error


async def _request_lateness(opened: Application, played: _ReplayedApplication) -> None:
    """Ask the service how late an application ended, compared with ideal fair sharing."""
    try:
        told = await opened.status()
    except (ResponseError, ConnectionError):
        return  # The service no longer knows the application.
    lag, tag = told.get("gps_lag"), told.get("virtual_finish_time")
    if tag is not None:
        played.result.virtual_finish_time = float(tag)
    if lag is not None:
        played.lateness = Lateness(lag["seconds"], lag["bound_s"])


def _record_finish(played: _ReplayedApplication) -> None:
    result = played.result
    result.finished_at_s = max(_end_times(played))
    result.jct_s = result.finished_at_s - result.arrived_at_s
    result.kv_token_time = sum(
        kv_token_time(row.prompt_tokens, row.output_tokens) for row in played.inferences
    )
    result.outcome = Outcome.FINISHED.value


def _end_times(played: _ReplayedApplication) -> list[Seconds]:
    return [row.finished_at_s for row in played.inferences if row.finished_at_s is not None]


def _run_result(
    played: Sequence[_ReplayedApplication], before: KvTotals, after: KvTotals
) -> RunResult:
    """Return the result of the replay; KV figures are differences of the service's totals."""
    ends = [end for one in played for end in _end_times(one)]
    first_s = min((one.result.arrived_at_s for one in played), default=0.0)
    # A restarted scheduler counts from zero again.
    there = after.capacity_token_s - before.capacity_token_s
    used = after.used_token_s - before.used_token_s
    preemptions = (after.preemptions or 0) - (before.preemptions or 0)
    return RunResult(
        applications=[one.result for one in played],
        inferences=[row for one in played for row in one.inferences],
        lateness={
            one.result.application_id: one.lateness for one in played if one.lateness is not None
        },
        makespan_s=max(ends) - first_s if ends else 0.0,
        kv_utilization=used / there if there > 0 and used >= 0 else None,
        preemptions=max(0, preemptions),
    )


def _error_reason(body: bytes) -> str | None:
    try:
        return str(json.loads(body)["reason"])
    except (ValueError, KeyError, TypeError):
        return None
