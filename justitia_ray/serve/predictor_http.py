"""The predictor over HTTP: what it knows, going back to an earlier model, a user's own history."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from justitia_ray.config import describe
from justitia_ray.errors import JustitiaError, RequestError
from justitia_ray.serve.models import ServedModel, ServedModels
from justitia_ray.serve.predictor_calls import PredictorCalls

MOST_SAMPLES = 1_000
"""In one request."""

_Body = TypeVar("_Body", bound=BaseModel)
ReadBody = Callable[[Request], Awaitable[bytes]]


class RollbackBody(BaseModel):
    """Body of `POST /v1/predictor/{class}/rollback`; an empty one goes back by one version."""

    model_config = ConfigDict(extra="forbid")

    version: Annotated[int, Field(ge=0)] | None = None
    """Which one; 0 is the class mean."""
    release: bool = False
    """Instead, let trainings replace the active version again."""


class HistoryBody(BaseModel):
    """Body of `POST /v1/predictor/samples`: `Observation`s as dicts."""

    model_config = ConfigDict(extra="forbid")

    samples: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MOST_SAMPLES)]


def add_predictor(app: FastAPI, models: ServedModels, read_body: ReadBody) -> None:
    """Add the predictors' paths; each model has a predictor and a history of its own.

    Args:
        app: Whose errors are answered already.
        models: What is served.
        read_body: Reads a request's body, which may lack a content type, and bounds it.
    """
    if models.first.predictor is None:
        return

    @app.get("/v1/predictor")
    async def predictor(model: str | None = None) -> dict[str, Any]:
        if models.only is not None or model is not None:
            return await _of(models.named(model)).overview()
        found = await asyncio.gather(*(_overview_or_why(m) for m in models))
        return {"models": {m.name: answer for m, answer in zip(models, found, strict=True)}}

    @app.post("/v1/predictor/samples")
    async def samples(request: Request, model: str | None = None) -> dict[str, Any]:
        calls = _of(models.named(model))
        body = _parsed(HistoryBody, await read_body(request))
        return {"taken": await calls.take_history(body.samples)}

    @app.post("/v1/predictor/{application_class}/rollback")
    async def rollback(
        application_class: str, request: Request, model: str | None = None
    ) -> dict[str, Any]:
        calls = _of(models.named(model))
        body = _parsed(RollbackBody, await read_body(request) or b"{}")
        if body.release and body.version is not None:
            raise RequestError("version and release cannot be given together", param="version")
        return await calls.roll_back(application_class, body.version, body.release)


def _of(model: ServedModel) -> PredictorCalls:
    if model.predictor is None:
        raise TypeError(f"model {model.name} has no predictor")
    return model.predictor


async def _overview_or_why(model: ServedModel) -> dict[str, Any]:
    """Return an overview; a predictor that is away must not hide the others'."""
    try:
        return await _of(model).overview()
    except JustitiaError as error:
        return {"error": str(error)}


def _parsed(kind: type[_Body], raw: bytes) -> _Body:
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]["loc"]
        raise RequestError(describe(error), str(first[0]) if first else None) from None
