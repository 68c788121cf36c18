"""What is asked of a service before it is used: whether it lives, is ready, and what it serves."""

import asyncio
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.responses import JSONResponse

from justitia_ray.errors import AdmissionError, RequestError, shown_short
from justitia_ray.serve.models import ServedModel, ServedModels
from justitia_ray.serve.order_views import MOST_APPLICATIONS
from justitia_ray.units import Seconds

_ANSWER_S: Seconds = 5.0


def add_health(app: FastAPI, models: ServedModels) -> None:
    """Add `/healthz`, `/readyz`, `/v1/status` and `/v1/models`."""

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz")
    async def readyz(model: str | None = None) -> JSONResponse:
        asked = models.chosen(model)
        reasons = await asyncio.gather(*(_not_ready(m) for m in asked))
        told = [
            reason if models.only is not None else f"model {m.name}: {reason}"
            for m, reason in zip(asked, reasons, strict=True)
            if reason is not None
        ]
        state: Literal["ready", "degraded"] = "degraded" if told else "ready"
        content = {"status": state, "reason": "; ".join(told) or None}
        return JSONResponse(content, 503 if told else 200)

    @app.get("/v1/status")
    async def status(applications: str = "0", model: str | None = None) -> dict[str, Any]:
        most = _how_many(applications)
        if models.only is not None or model is not None:
            return await _status(models.named(model), most)
        answers = await asyncio.gather(*(_status_or_why(m, most) for m in models))
        return {
            "ready": all(answer["ready"] for answer in answers),
            "models": {m.name: answer for m, answer in zip(models, answers, strict=True)},
        }

    @app.get("/v1/models")
    async def model_list() -> dict[str, Any]:
        data = [_card(m, name) for m in models for name in m.config.model.names]
        return {"object": "list", "data": data}

    @app.get("/v1/models/{name:path}")
    async def model_card(name: str) -> dict[str, Any]:
        return _card(models.named(name), name)


def _card(model: ServedModel, name: str) -> dict[str, Any]:
    card = {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "justitia_ray",
        "max_model_len": model.gateway.max_model_len,
    }
    return card if name == model.name else card | {"parent": model.name}


async def _not_ready(model: ServedModel) -> str | None:
    try:
        status = await asyncio.wait_for(model.scheduler.status(0), _ANSWER_S)
    except TimeoutError:
        return f"scheduler: no answer within {_ANSWER_S:g} s"
    except AdmissionError as error:
        return str(error)
    if not status["ready"] or status["degraded"] is not None:
        return f"scheduler: {status['degraded'] or 'not in office'}"
    return None if status["replicas"] else "no replica pulls"


def _how_many(applications: str) -> int:
    """Read how many applications a status is to tell of.

    Raises:
        RequestError: If it is no such number.
    """
    if applications.isdecimal() and len(applications) <= 9:
        most = int(applications)
        if most <= MOST_APPLICATIONS:
            return most
    raise RequestError(
        f"applications is {shown_short(applications)}: an integer from 0 to"
        f" {MOST_APPLICATIONS:,} is allowed",
        "applications",
    )


async def _status(model: ServedModel, applications: int) -> dict[str, Any]:
    return {"model": model.name} | await model.scheduler.status(applications)


async def _status_or_why(model: ServedModel, applications: int) -> dict[str, Any]:
    """Return a model's status; one whose scheduler is away must not hide the others'."""
    try:
        return await asyncio.wait_for(_status(model, applications), _ANSWER_S)
    except TimeoutError:
        reason = f"no answer within {_ANSWER_S:g} s"
    except AdmissionError as error:
        reason = str(error)
    return {"model": model.name, "ready": False, "degraded": reason}
