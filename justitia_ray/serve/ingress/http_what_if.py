"""`POST /v1/console/what-if`: estimates under other settings, one at a time, in a process."""

import asyncio
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from msgspec import Raw
from msgspec.json import decode, encode
from pydantic import BaseModel, ConfigDict, Field

from justitia_ray.access.identity import check_tenant
from justitia_ray.config import Weight
from justitia_ray.core.policies import POLICIES
from justitia_ray.errors import (
    AdmissionError,
    ConsoleIsBusy,
    DeadlineMissed,
    RequestError,
    shown_short,
)
from justitia_ray.observability.log_events import log_event
from justitia_ray.serve.ingress.http_body import BodyReader
from justitia_ray.serve.ingress.models import ServedModels
from justitia_ray.units import Seconds

logger = logging.getLogger("ray.serve")

LASTS_S: Seconds = 60.0
"""Maximum seconds of a what-if estimate."""
MOST_REPLICAS = 256
MOST_WEIGHTS = 100
_COMMAND = (sys.executable, "-m", "justitia_ray.console.what_if")
_NICE = 10
_REASON_CHARACTERS = 500


class WhatIfBody(BaseModel):
    """JSON body of `POST /v1/console/what-if`; missing settings stay as they are."""

    model_config = ConfigDict(extra="forbid")

    model: str | None = None
    """Model whose queue is replayed; may be missing if one model is served."""
    minutes: Annotated[float, Field(ge=0.5, le=15, allow_inf_nan=False)] = 5
    """Length of the replayed history, in minutes."""
    policy: str | None = None
    """Name of a scheduling policy that this package contains."""
    weights: Annotated[dict[str, Weight], Field(max_length=MOST_WEIGHTS)] = {}
    """Weights by tenant for the replay of the queue."""
    replicas: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] | None = None
    """Number of replicas for the replay of the queue."""

    def check(self) -> None:
        """Raise RequestError for an unknown policy or a malformed tenant.

        Raises:
            RequestError: If the policy is unknown, or a tenant is malformed.
        """
        if self.policy is not None and self.policy not in POLICIES:
            raise RequestError(
                f"policy is {shown_short(self.policy)}: one of {', '.join(POLICIES)} is allowed",
                "policy",
            )
        for tenant in self.weights:
            try:
                check_tenant(tenant)
            except RequestError as error:
                raise RequestError(f"weights: {error}", "weights") from None


def _import_path() -> list[str]:
    """Return Python's import path with this package, which Ray may have added only here."""
    own = str(Path(__file__).parents[3])
    return [own, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


class Estimator:
    """Runs one what-if estimate at a time, in a separate process.

    Args:
        command: Command line of the process, which reads a question from standard input and prints
            an answer.
        lasts_s: Longest time of an estimate.
    """

    def __init__(self, command: tuple[str, ...] = _COMMAND, lasts_s: Seconds = LASTS_S) -> None:
        self._command = command
        self._lasts_s = lasts_s
        self._is_busy = False

    async def estimate(self, history: bytes, asked: dict[str, Any]) -> bytes:
        """Return the result of a what-if estimate as JSON.

        Args:
            history: The recorded history of the queue as JSON.
            asked: The settings that differ in the replay.

        Raises:
            ConsoleIsBusy: If another estimate is running.
            DeadlineMissed: If the estimate takes longer than allowed.
            RequestError: If the question cannot be answered.
            AdmissionError: If the process ends without an answer, for instance for lack of memory.
        """
        if self._is_busy:
            raise ConsoleIsBusy("another estimate is being computed", self._lasts_s / 4)
        self._is_busy = True
        try:
            return await self._run_process(encode({"history": Raw(history), "asked": asked}))
        finally:
            self._is_busy = False

    async def _run_process(self, question: bytes) -> bytes:
        process = await asyncio.create_subprocess_exec(
            "nice",
            "-n",
            str(_NICE),
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_import_path())},
        )
        try:
            async with asyncio.timeout(self._lasts_s):
                told, trouble = await process.communicate(question)
        except TimeoutError:
            raise DeadlineMissed(
                f"the estimate has taken as long as one may: {self._lasts_s:g} s; replay fewer"
                " minutes",
                None,
            ) from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode:
            reason = trouble.decode(errors="replace").strip()[-_REASON_CHARACTERS:]
            log_event(
                logger,
                logging.WARNING,
                "console.estimate_failed",
                exit_status=process.returncode,
                reason=reason,
            )
            raise AdmissionError(
                f"the estimate ended without an answer (exit status {process.returncode}); it may"
                " have reached its limit of memory or CPU time: replay fewer minutes",
                self._lasts_s / 4,
            )
        answer = decode(told, type=dict[str, Raw])
        if "error" in answer:
            raise RequestError(decode(answer["error"], type=str))
        return bytes(answer["answer"])


def add_what_if_route(
    app: FastAPI, models: ServedModels, bodies: BodyReader, estimator: Estimator | None = None
) -> None:
    """Add the route `/v1/console/what-if` to the HTTP application.

    Args:
        app: The HTTP application, which answers errors.
        models: The served models.
        bodies: Reads request bodies.
        estimator: Runs the estimates.
    """
    runner = estimator or Estimator()

    @app.post("/v1/console/what-if")
    async def what_if(request: Request) -> Response:
        """Estimate by simulation how the last minutes would have been with other settings."""
        body = await bodies.read_model(request, WhatIfBody, b"{}")
        body.check()
        model = models.named(body.model)
        history = await model.scheduler.console_history(60.0 * body.minutes)
        asked = body.model_dump(include={"policy", "weights", "replicas"})
        answer = await runner.estimate(history, asked)
        return Response(answer, media_type="application/json")
