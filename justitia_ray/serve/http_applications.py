"""`/v1/applications`: opening, looking at, closing and cancelling an application.

With several models an application is one in each queue that it came to. It comes to a queue when it
is opened for that model, or with its first inference there; what is done to it is done in all of
them, unless the query names a `model`.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from justitia_ray.config import describe
from justitia_ray.errors import RequestError, UnknownApplication, shown_short
from justitia_ray.serve.models import ServedModel, ServedModels
from justitia_ray.serve.opening import DEFAULT_TENANT, Opening
from justitia_ray.serve.openings import Openings
from justitia_ray.units import ApplicationId

ReadBody = Callable[[Request], Awaitable[bytes]]
Json = dict[str, Any]

_SUMMED = ("predicted_kv_token_time", "kv_token_time", "waiting", "running", "ended")


class ApplicationBody(BaseModel):
    """Body of `POST /v1/applications`."""

    model_config = ConfigDict(extra="forbid")

    application_class: str
    input: str = ""
    tenant: str = DEFAULT_TENANT
    weight: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = None
    application_id: str | None = None
    model: str | None = None
    """Where it is opened at once. Without it, with several models: wherever it comes to, then."""

    def opening(self) -> Opening:
        """Return what is opened.

        Raises:
            RequestError: If an id, a class or a tenant has another form than is allowed.
        """
        return Opening(**self.model_dump(exclude={"model"}))


def add_applications(
    app: FastAPI, models: ServedModels, openings: Openings | None, read_body: ReadBody
) -> None:
    """Add the paths of applications.

    Args:
        app: Whose errors are answered already.
        models: One or several.
        openings: What several models know each other's applications by; None with one.
        read_body: Reads a request's body, which may lack a content type, and bounds it.
    """

    @app.post("/v1/applications")
    async def open_application(request: Request) -> Json:
        raw = await read_body(request)
        try:
            body = ApplicationBody.model_validate_json(raw)
        except ValidationError as error:
            param = str(error.errors()[0]["loc"][0]) if error.errors()[0]["loc"] else None
            raise RequestError(describe(error), param) from None
        if openings is None:
            return await _open(models.named(body.model), body.opening())
        opening = body.opening()
        if opening.application_id is None:
            opening = replace(opening, application_id=f"app-{uuid.uuid4().hex}")
        answer: Json = {
            "application_id": opening.application_id,
            "predicted_kv_token_time": None,
            "virtual_finish_time": None,
        }
        if body.model is not None:
            answer = await _open(models.named(body.model), opening)
        openings.remember(answer["application_id"], opening, _now())
        return answer

    @app.get("/v1/applications/{application_id:path}")
    async def application(application_id: str, model: str | None = None) -> Json:
        if models.only is not None:
            found = await models.named(model).scheduler.application(application_id)
            if found is None:
                raise _unknown(application_id)
            return found
        asked = models.chosen(model)
        views = await _of_each([m.scheduler.application(application_id) for m in asked])
        known = {m.name: view for m, view in zip(asked, views, strict=True) if view is not None}
        opening = None if openings is None else openings.get(application_id, _now())
        if known:
            return _together(application_id, known)
        if opening is None or model is not None:
            raise _unknown(application_id)
        return _not_yet(application_id, opening)

    @app.post("/v1/applications/{application_id:path}/close")
    async def close(application_id: str, model: str | None = None) -> Json:
        await end(application_id, model, lambda m: m.scheduler.close(application_id))
        return {"application_id": application_id, "closed": True}

    @app.delete("/v1/applications/{application_id:path}")
    async def cancel(application_id: str, model: str | None = None) -> Json:
        await end(application_id, model, lambda m: m.scheduler.cancel(application_id))
        return {"application_id": application_id, "cancelled": True}

    async def end(
        application_id: ApplicationId,
        model: str | None,
        verb: Callable[[ServedModel], Awaitable[bool]],
    ) -> None:
        """End it in one queue or in all; then it comes to no other by what it was opened with."""
        known = await _of_each([verb(m) for m in models.chosen(model)])
        if openings is not None and model is None:
            known.append(openings.forget(application_id))
        if not any(known):
            raise _unknown(application_id)


async def _open(model: ServedModel, opening: Opening) -> Json:
    arrival, tag = await model.gateway.open_application(opening)
    return {
        "application_id": arrival.application_id,
        "predicted_kv_token_time": arrival.predicted_kv_token_time,
        "virtual_finish_time": tag,
    }


async def _of_each(answers: Sequence[Awaitable[Any]]) -> list[Any]:
    """Return all answers; if one fails, that is raised once the others are there."""
    found = await asyncio.gather(*answers, return_exceptions=True)
    for answer in found:
        if isinstance(answer, BaseException):
            raise answer
    return list(found)


def _together(application_id: ApplicationId, views: Mapping[str, Json]) -> Json:
    """Return an application of several queues in the form of one.

    Amounts are summed. A tag, or a lag, of one queue says nothing in another: there is one only if
    it is in one queue.
    """
    parts = list(views.values())
    first = parts[0]
    is_in_one = len(parts) == 1
    return {
        "application_id": application_id,
        "application_class": first["application_class"],
        "tenant": first["tenant"],
        "weight": first["weight"],
        "state": "open" if any(part["state"] == "open" for part in parts) else first["state"],
        **{name: sum(part[name] for part in parts) for name in _SUMMED},
        "virtual_finish_time": first["virtual_finish_time"] if is_in_one else None,
        "age_s": max(part["age_s"] for part in parts),
        "gps_lag": first["gps_lag"] if is_in_one else None,
        "models": dict(views),
    }


def _not_yet(application_id: ApplicationId, opening: Opening) -> Json:
    """Return an application that has come to no queue yet."""
    return {
        "application_id": application_id,
        "application_class": opening.application_class,
        "tenant": opening.tenant,
        "weight": opening.weight,
        "state": "open",
        **dict.fromkeys(_SUMMED, 0),
        "predicted_kv_token_time": None,
        "virtual_finish_time": None,
        "age_s": None,
        "gps_lag": None,
        "models": {},
    }


def _now() -> float:
    return asyncio.get_running_loop().time()


def _unknown(application_id: ApplicationId) -> UnknownApplication:
    return UnknownApplication(f"application {shown_short(application_id)} is not open")
