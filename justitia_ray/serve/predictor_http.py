"""The predictor over HTTP: what it knows, going back to an earlier model, a user's own history."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ray.exceptions import RayError, RayTaskError
from ray.serve.handle import DeploymentHandle

from justitia_ray.config import describe
from justitia_ray.errors import AdmissionError, JustitiaError, RequestError, StoreError
from justitia_ray.serve.replica_calls import in_fresh_context

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


class PredictorCalls:
    """What the HTTP surface asks of the Predictor deployment."""

    def __init__(self, predictor: DeploymentHandle) -> None:
        self._predictor = predictor

    async def overview(self) -> dict[str, Any]:
        """Return what is known of each class."""
        found: dict[str, Any] = await self._ask("overview")
        return found

    async def roll_back(
        self, application_class: str, version: int | None, release: bool
    ) -> dict[str, Any]:
        """Let an earlier version serve, or release it."""
        found: dict[str, Any] = await self._ask("roll_back", application_class, version, release)
        return found

    async def take_history(self, samples: list[dict[str, Any]]) -> int:
        """Learn from a part of a user's own history."""
        return int(await self._ask("take_history", samples))

    async def _ask(self, method: str, *arguments: Any) -> Any:
        async def call() -> Any:
            return await getattr(self._predictor, method).remote(*arguments)

        try:
            return await in_fresh_context(call())
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, JustitiaError) and not isinstance(cause, StoreError):
                raise cause from None
            raise AdmissionError(f"the predictor cannot do it now: {cause}") from None
        except RayError as error:
            raise AdmissionError(f"the predictor gives no answer: {error}") from None


def add_predictor(app: FastAPI, calls: PredictorCalls, read_body: ReadBody) -> None:
    """Add the predictor's paths.

    Args:
        app: Whose errors are answered already.
        calls: To the predictor.
        read_body: Reads a request's body, which may lack a content type, and bounds it.
    """

    @app.get("/v1/predictor")
    async def predictor() -> dict[str, Any]:
        return await calls.overview()

    @app.post("/v1/predictor/samples")
    async def samples(request: Request) -> dict[str, Any]:
        body = _parsed(HistoryBody, await read_body(request))
        return {"taken": await calls.take_history(body.samples)}

    @app.post("/v1/predictor/{application_class}/rollback")
    async def rollback(application_class: str, request: Request) -> dict[str, Any]:
        body = _parsed(RollbackBody, await read_body(request) or b"{}")
        if body.release and body.version is not None:
            raise RequestError("version and release cannot be given together", param="version")
        return await calls.roll_back(application_class, body.version, body.release)


def _parsed(kind: type[_Body], raw: bytes) -> _Body:
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]["loc"]
        raise RequestError(describe(error), str(first[0]) if first else None) from None
