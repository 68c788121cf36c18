"""HTTP routes of the predictor: its classes, rollback to an earlier model, import of samples."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field, field_validator
from ray.exceptions import RayError, RayTaskError

from justitia_ray.errors import AdmissionError, JustitiaError, RequestError, StoreError
from justitia_ray.protocol.inference_body import check_values
from justitia_ray.serve.ingress.audit import audit_act
from justitia_ray.serve.ingress.door import context_of
from justitia_ray.serve.ingress.http_body import BodyReader
from justitia_ray.serve.ingress.models import ServedModel, ServedModels
from justitia_ray.serve.ingress.replica_calls import call_remote

MOST_SAMPLES = 1_000
"""Maximum number of samples in one request to the predictor."""


class RollbackBody(BaseModel):
    """JSON body of `POST /v1/predictor/{class}/rollback`; empty: back by one version."""

    model_config = ConfigDict(extra="forbid")

    version: Annotated[int, Field(ge=0)] | None = None
    """Version of the class's model that is to serve; 0 means the class's mean cost."""
    release: bool = False
    """Whether to end an earlier rollback, so that training replaces the serving version again."""


class HistoryBody(BaseModel):
    """JSON body of `POST /v1/predictor/samples`: a list of `Observation`s as dicts."""

    model_config = ConfigDict(extra="forbid")

    samples: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MOST_SAMPLES)]

    @field_validator("samples", mode="after")
    @classmethod
    def _refuse_what_cannot_be_sent(cls, samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Raise ValueError for infinite numbers and deep nesting, which large bodies may have."""
        for number, sample in enumerate(samples):
            for name, value in sample.items():
                try:
                    check_values(value)
                except ValueError as error:
                    raise ValueError(f"{name} of sample {number}: {error}") from None
        return samples


def add_predictor(app: FastAPI, models: ServedModels, bodies: BodyReader) -> None:
    """Add the routes of the predictors; each model has its own predictor.

    Args:
        app: The HTTP application, which answers errors.
        models: The served models.
        bodies: Reads request bodies.
    """

    @app.get("/v1/predictor")
    async def predictor(model: str | None = None) -> dict[str, Any]:
        """Return each class's statistics, the versions of its model, and the serving version."""
        if (single := models.single(model)) is not None:
            return await predictor_overview(single)
        return {"models": await models.ask_each(_overview_or_error)}

    @app.post("/v1/predictor/samples")
    async def samples(request: Request, model: str | None = None) -> dict[str, Any]:
        """Add past applications to the predictor's samples: their features and costs, no texts."""
        asked = models.named(model)
        body = await bodies.read_model(request, HistoryBody)
        taken = int(await _call_predictor(asked, "take_history", body.samples))
        identity = context_of(request.scope).identity
        audit_act(identity, "predictor.samples", after={"taken": taken}, model=asked.name)
        return {"taken": taken}

    @app.post("/v1/predictor/{application_class}/rollback")
    async def rollback(
        application_class: str, request: Request, model: str | None = None
    ) -> dict[str, Any]:
        """Make an earlier version of a class's model serve, until the rollback is released."""
        asked = models.named(model)
        body = await bodies.read_model(request, RollbackBody, b"{}")
        if body.release and body.version is not None:
            raise RequestError("version and release cannot be given together", param="version")
        before = (await predictor_overview(asked))["classes"].get(application_class)
        arguments = (application_class, body.version, body.release)
        state: dict[str, Any] = await _call_predictor(asked, "roll_back", *arguments)
        audit_act(
            context_of(request.scope).identity,
            "predictor.rollback",
            _serving_state(before),
            _serving_state(state),
            model=asked.name,
            application_class=application_class,
        )
        return state


def _serving_state(overview: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the fields of a class's overview that a rollback changes."""
    if overview is None:
        return None
    return {name: overview[name] for name in ("serving", "active", "pinned") if name in overview}


async def _overview_or_error(model: ServedModel) -> dict[str, Any]:
    """Return a predictor's overview, or an error that does not hide the other predictors."""
    try:
        return await predictor_overview(model)
    except JustitiaError as error:
        return {"error": str(error)}


async def predictor_overview(model: ServedModel) -> dict[str, Any]:
    """Return the overview of a model's predictor, with the statistics of its classes.

    Raises:
        AdmissionError: If the predictor does not answer.
    """
    found: dict[str, Any] = await _call_predictor(model, "overview")
    return found


async def _call_predictor(model: ServedModel, method: str, *arguments: Any) -> Any:
    """Call a model's predictor; raise AdmissionError unless the caller is at fault."""
    try:
        return await call_remote(model.predictor, method, *arguments)
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, JustitiaError) and not isinstance(cause, StoreError):
            raise cause from None
        raise AdmissionError(f"the predictor cannot do it now: {cause}") from None
    except RayError as error:
        raise AdmissionError(f"the predictor gives no answer: {error}") from None
