"""Playing applications: each at its instant, each inference when its predecessors have finished."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from justitia_ray.client import Application
from justitia_ray.core.entities import Outcome
from justitia_ray.cost import kv_token_time
from justitia_ray.errors import JustitiaError, ResponseError
from justitia_ray.replay.prompts import prompt_token_ids
from justitia_ray.replay.service import LiveService
from justitia_ray.sim.results import ApplicationResult, InferenceResult, Lateness
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.units import ApplicationId, InferenceId, Seconds

OnEnd: TypeAlias = Callable[[int], None]
"""Told, at each end of an application, how many have ended."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What failed, and of what."""

    application_id: ApplicationId
    inference_id: InferenceId | None
    """None: the application was not opened."""
    error: str


@dataclass(slots=True)
class Played:
    """What became of one application."""

    result: ApplicationResult
    inferences: list[InferenceResult] = field(default_factory=list)
    """Those that were sent, in the order of the workload."""
    failures: list[Failure] = field(default_factory=list)
    lateness: Lateness | None = None


class Player:
    """Plays a workload once. The load is open: nothing waits for the service but what follows.

    Args:
        service: Where to.
        model: The model to ask for.
        clock: Tells the time in seconds.
        sleep: Waits that many seconds.
        speed: By this the workload's instants and delays are divided. Results are in the seconds
            that passed.
        timeout_s: An inference that takes longer has failed; None: there is no limit.
        on_end: Told of each end.
    """

    def __init__(
        self,
        service: LiveService,
        model: str,
        *,
        clock: Callable[[], Seconds],
        sleep: Callable[[Seconds], Awaitable[None]],
        speed: float = 1.0,
        timeout_s: Seconds | None = None,
        on_end: OnEnd | None = None,
    ) -> None:
        self._service = service
        self._model = model
        self._clock = clock
        self._sleep = sleep
        self._speed = speed
        self._timeout_s = timeout_s
        self._on_end = on_end
        self._started_at = clock()
        self._ended = 0

    async def play(self, applications: Sequence[WorkloadApplication]) -> list[Played]:
        """Play all of them and return what became of each, in their order.

        An application that fails stops no other.
        """
        self._started_at, self._ended = self._clock(), 0
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._application(planned)) for planned in applications]
        return [task.result() for task in tasks]

    async def _application(self, planned: WorkloadApplication) -> Played:
        arrived_at_s = planned.arrived_at_s / self._speed
        played = Played(_not_opened(planned, arrived_at_s))
        await self._until(arrived_at_s)
        try:
            async with self._service.application(planned) as opened:
                if opened.predicted_kv_token_time is not None:
                    played.result.predicted_kv_token_time = opened.predicted_kv_token_time
                played.result.virtual_finish_time = opened.virtual_finish_time
                await self._inferences(planned, arrived_at_s, played)
                await _ask_lateness(opened, played)
        except (JustitiaError, ConnectionError) as error:
            played.failures.append(Failure(planned.application_id, None, str(error)))
        if not played.failures:
            _finish(played)
        self._ended += 1
        if self._on_end is not None:
            self._on_end(self._ended)
        return played

    async def _inferences(
        self, planned: WorkloadApplication, arrived_at_s: Seconds, played: Played
    ) -> None:
        """Run the inferences; one whose predecessor failed or was not sent is not sent."""
        runs: dict[InferenceId, asyncio.Task[InferenceResult | None]] = {}

        async def run(inference: WorkloadInference) -> InferenceResult | None:
            ends = [await _end(runs[name]) for name in inference.after]
            last_end_s = max((end for end in ends if end is not None), default=arrived_at_s)
            if None in ends:
                return None
            await self._until(last_end_s + inference.delay_s / self._speed)
            return await self._inference(planned, inference, played.failures)

        async with asyncio.TaskGroup() as group:
            # No task begins before all of them are known.
            for inference in planned.inferences:
                runs[inference.inference_id] = group.create_task(run(inference))
        rows = [run.result() for run in runs.values()]
        played.inferences = [row for row in rows if row is not None]

    async def _inference(
        self, planned: WorkloadApplication, inference: WorkloadInference, failures: list[Failure]
    ) -> InferenceResult:
        prompt = prompt_token_ids(
            planned.application_id, inference.inference_id, inference.prompt_tokens
        )
        row = InferenceResult(
            application_id=planned.application_id,
            inference_id=inference.inference_id,
            replica=None,
            submitted_at_s=self._now_s(),
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
                aclosing(
                    self._service.generate(planned, self._model, prompt, inference.output_tokens)
                ) as events,
            ):
                async for event in events:
                    if event.get("choices") and row.first_token_at_s is None:
                        row.first_token_at_s = self._now_s()
                    usage = event.get("usage") or usage
            _count(row, usage)
            row.finished_at_s = self._now_s()
        except (JustitiaError, ConnectionError) as error:
            failures.append(Failure(planned.application_id, inference.inference_id, str(error)))
        except TimeoutError:
            said = f"not finished within {self._timeout_s:g} s (--timeout-s)"
            failures.append(Failure(planned.application_id, inference.inference_id, said))
        return row

    async def _until(self, instant_s: Seconds) -> None:
        await self._sleep(max(0.0, instant_s - self._now_s()))

    def _now_s(self) -> Seconds:
        return self._clock() - self._started_at


async def _end(run: asyncio.Task[InferenceResult | None]) -> Seconds | None:
    row = await run
    return None if row is None else row.finished_at_s


def _count(row: InferenceResult, usage: Any) -> None:
    """Take the tokens that the engine counted."""
    try:
        row.prompt_tokens = int(usage["prompt_tokens"])
        row.output_tokens = int(usage["completion_tokens"])
    except (KeyError, TypeError, ValueError) as error:
        raise ResponseError(200, "the stream ended without usage") from error


async def _ask_lateness(opened: Application, played: Played) -> None:
    """Ask for the final tag and the lag, where the service knows them."""
    try:
        told = await opened.status()
    except (ResponseError, ConnectionError):
        return  # the service lost it meanwhile; its answers are here all the same
    lag, tag = told.get("gps_lag"), told.get("virtual_finish_time")
    if tag is not None:
        played.result.virtual_finish_time = float(tag)
    if lag is not None:
        played.lateness = Lateness(lag["seconds"], lag["bound_s"])


def _not_opened(planned: WorkloadApplication, arrived_at_s: Seconds) -> ApplicationResult:
    return ApplicationResult(
        application_id=planned.application_id,
        application_class=planned.application_class,
        tenant=planned.tenant,
        arrived_at_s=arrived_at_s,
        finished_at_s=None,
        jct_s=None,
        kv_token_time=0.0,
        predicted_kv_token_time=0.0,
        virtual_finish_time=None,
        gps_finished_at_s=None,
        outcome=Outcome.FAILED.value,
    )


def _finish(played: Played) -> None:
    """Write the end of an application all of whose inferences finished."""
    result = played.result
    result.finished_at_s = max(_ends(played.inferences))
    result.jct_s = result.finished_at_s - result.arrived_at_s
    result.kv_token_time = sum(
        kv_token_time(row.prompt_tokens, row.output_tokens) for row in played.inferences
    )
    result.outcome = Outcome.FINISHED.value


def _ends(rows: Iterable[InferenceResult]) -> list[Seconds]:
    return [row.finished_at_s for row in rows if row.finished_at_s is not None]
