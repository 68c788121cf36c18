"""Routes below `/v1/applications`: open, look up, close and cancel an application.

An application has a part in the queue of each model that it uses, since it was opened for that
model or since its first inference there. With one served model it is opened for that model. Calls
act on all parts unless the query names a `model`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from justitia_ray.application_key import split_key
from justitia_ray.config import Weight
from justitia_ray.core.tenants import DEFAULT_TIER
from justitia_ray.serve.ingress.audit import audit_act
from justitia_ray.serve.ingress.door import context_of
from justitia_ray.serve.ingress.http_body import BodyReader
from justitia_ray.serve.ingress.http_errors import headers_of_limits
from justitia_ray.serve.ingress.http_query import how_many
from justitia_ray.serve.ingress.models import ServedModel, ServedModels
from justitia_ray.serve.ingress.request_context import (
    MAX_DEADLINE_S,
    RequestContext,
    unknown_application,
)
from justitia_ray.serve.ingress.submission import ApplicationSpec, ApplicationSpecCache
from justitia_ray.units import ApplicationId

Json = dict[str, Any]

_SUMMED = (
    *("predicted_kv_token_time", "kv_token_time", "prefill_token_time"),
    *("waiting", "running", "ended"),
)


class ApplicationBody(BaseModel):
    """JSON body of `POST /v1/applications`."""

    model_config = ConfigDict(extra="forbid")

    application_class: str
    input: str = ""
    tenant: str | None = None
    weight: Weight | None = None
    application_id: str | None = None
    deadline_s: Annotated[float, Field(gt=0, le=MAX_DEADLINE_S, allow_inf_nan=False)] | None = None
    """Longest wait in seconds of each inference of the application before it starts. None: the
    default of the tenant. The header `X-Justitia-Deadline-S` of an inference overrides it.
    """
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    """Service tier of the application's inferences; `auto` means `default`."""
    model: str | None = None
    """Model at which the application is opened. None with several models: it is opened at each with
    its first inference there.
    """


def add_applications(
    app: FastAPI, models: ServedModels, specs: ApplicationSpecCache, bodies: BodyReader
) -> None:
    """Add the routes that open, list, close and cancel applications.

    Args:
        app: The HTTP application, which answers errors.
        models: The served models.
        specs: Cache of specs, for opening an application in other models' queues later.
        bodies: Reads request bodies.
    """

    @app.post("/v1/applications")
    async def open_application(request: Request, response: Response) -> Json:
        """Open an application if it is not open; return its predicted cost and its tag.

        Response headers contain the limits of its tenant.
        """
        body = await bodies.read_model(request, ApplicationBody)
        spec = _spec_of(context_of(request.scope), body)
        answer: Json = {
            "application_id": spec.application_id,
            "predicted_kv_token_time": None,
            "virtual_finish_time": None,
        }
        model = models.first
        if models.only is not None or body.model is not None:
            model = models.named(body.model)
            answer = await _open_at_model(model, spec)
        if models.only is None:
            specs.add_spec(spec, _loop_time())
        standings = model.gateway.standings_of(spec.tenant)
        response.headers.update(headers_of_limits(request.url.path, standings))
        return answer

    @app.get("/v1/applications")
    async def applications(request: Request, most: str = "20", model: str | None = None) -> Json:
        """Return the caller's first live applications in order; an operator's call covers all.

        Applications beyond the requested number, or of other tenants, are only counted.
        """
        context = context_of(request.scope)
        is_all = context.operates and context.named_tenant is None
        tenant = None if is_all else context.tenant
        wanted = how_many(most, "most")
        asked = models.chosen(model)
        told = await _gather_all([m.scheduler.applications(wanted, tenant) for m in asked])
        return {"models": {m.name: one for m, one in zip(asked, told, strict=True)}}

    @app.get("/v1/applications/{application_id:path}")
    async def application(application_id: str, request: Request, model: str | None = None) -> Json:
        """Return an application's state, predicted and received service, tag, counts and lag.

        `recognized_by` names the rule that recognized the application, if known. `outlook` contains
        why the application waits, which applications are ahead, and when it is expected to start
        and to end. An application that quotas hold back, or have just refused, has the state `held`
        or `refused`.
        """
        key = context_of(request.scope).key_of(application_id)
        asked = models.chosen(model)
        views = await _gather_all([m.scheduler.find_application(key) for m in asked])
        known: dict[str, Json] = {
            m.name: _with_tenant_names(view)
            for m, view in zip(asked, views, strict=True)
            if view is not None
        }
        if models.only is not None and known:
            return known[models.only.name]
        spec = specs.find_spec(key, _loop_time())
        if known:
            return _combined_view(next(iter(known.values())), known)
        if spec is None or model is not None:
            raise unknown_application(application_id)
        return _combined_view(asdict(spec), {})

    @app.post("/v1/applications/{application_id:path}/close")
    async def close(application_id: str, request: Request, model: str | None = None) -> Json:
        """Close an application to new inferences; it ends once its last inference has ended."""
        key = context_of(request.scope).key_of(application_id)
        await end(key, model, lambda m: m.scheduler.close_application(key))
        _audit_if_foreign(request, "application.close", key)
        return {"application_id": split_key(key)[1], "closed": True}

    @app.delete("/v1/applications/{application_id:path}")
    async def cancel(application_id: str, request: Request, model: str | None = None) -> Json:
        """Cancel an application with all its queued and running inferences."""
        key = context_of(request.scope).key_of(application_id)
        await end(key, model, lambda m: m.scheduler.cancel_application(key))
        _audit_if_foreign(request, "application.cancel", key)
        return {"application_id": split_key(key)[1], "cancelled": True}

    async def end(
        key: ApplicationId,
        model: str | None,
        verb: Callable[[ServedModel], Awaitable[bool]],
    ) -> None:
        """Close or cancel an application at one model, or at all models."""
        known = await _gather_all([verb(m) for m in models.chosen(model)])
        if model is None:
            known.append(specs.drop_spec(key))
        if not any(known):
            raise unknown_application(split_key(key)[1])


def _spec_of(context: RequestContext, body: ApplicationBody) -> ApplicationSpec:
    """Return the application that a caller wants to open, from the request.

    Raises:
        Forbidden: If the caller may not use that tenant or weight.
        RequestError: If a name is malformed.
    """
    identity, tenant = context.identity, context.tenant_or(body.tenant)
    identity.check_weight(body.weight)
    spec = ApplicationSpec(
        body.application_class,
        body.input,
        tenant,
        body.weight,
        deadline_s=body.deadline_s,
        tier=DEFAULT_TIER if body.service_tier in (None, "auto") else str(body.service_tier),
        is_retry=context.is_retry,
    )
    if body.application_id is None:
        return spec
    return replace(spec, application_id=body.application_id)


def _with_tenant_names(view: Json) -> Json:
    """Return the state of an application, with its key split into tenant and id."""
    tenant, application_id = split_key(view["application_id"])
    return view | {"tenant": tenant, "application_id": application_id}


def _audit_if_foreign(request: Request, act: str, key: ApplicationId) -> None:
    """Log an operator's action on an application of another tenant."""
    context, tenant = context_of(request.scope), split_key(key)[0]
    if not context.identity.allows_tenant(tenant):
        audit_act(context.identity, act, application_id=key)


async def _open_at_model(model: ServedModel, spec: ApplicationSpec) -> Json:
    arrival, tag = await model.gateway.submitter.open_application(spec)
    return {
        "application_id": spec.application_id,
        "predicted_kv_token_time": arrival.predicted_kv_token_time,
        "virtual_finish_time": tag,
    }


async def _gather_all(answers: Sequence[Awaitable[Any]]) -> list[Any]:
    """Await all answers and return them; raise the first failure after all have ended."""
    found = await asyncio.gather(*answers, return_exceptions=True)
    for answer in found:
        if isinstance(answer, BaseException):
            raise answer
    return list(found)


def _combined_view(opened: Json, views: Mapping[str, Json]) -> Json:
    """Return the state of an application combined over several models.

    Amounts are summed. Tags and lags of different queues cannot be compared, so the view has them
    only if the application is in one queue.

    Args:
        opened: The application's spec, or the view of one of its parts.
        views: The scheduler's view of each part, by model.
    """
    parts = list(views.values())
    only = parts[0] if len(parts) == 1 else {}
    is_open = not parts or any(part["state"] == "open" for part in parts)
    rules = (told.get("recognized_by") for told in (opened, *parts))
    summed: Json = {name: sum(part[name] for part in parts) for name in _SUMMED}
    return {
        "application_id": opened["application_id"],
        "application_class": opened["application_class"],
        "recognized_by": next(filter(None, rules), ""),
        "tenant": opened["tenant"],
        "weight": opened["weight"],
        "state": "open" if is_open else parts[0]["state"],
        **(summed if parts else summed | {"predicted_kv_token_time": None}),
        "virtual_finish_time": only.get("virtual_finish_time"),
        "age_s": max((age for part in parts if (age := part["age_s"]) is not None), default=None),
        "gps_lag": only.get("gps_lag"),
        "outlook": only.get("outlook"),
        "models": dict(views),
    }


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
