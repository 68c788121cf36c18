"""`/v1/usage`: each tenant's usage of each model by day, as rows or as CloudEvents.

The totals are those of each model's scheduler, which saves them in one step with its applications.
So nothing is counted twice, and a scheduler that dies loses at most its last save interval. Today's
totals still grow, so events are made only of past days, whose totals are final: one for each
tenant, model and day, with an id that identifies them, so that a receiver can drop duplicates.
"""

import asyncio
from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse

from justitia_ray.access.identity import check_tenant, is_within
from justitia_ray.core.usage import DAY_S
from justitia_ray.errors import Forbidden, RequestError, shown_short
from justitia_ray.serve.ingress.door import context_of
from justitia_ray.serve.ingress.models import ServedModels
from justitia_ray.serve.ingress.request_context import RequestContext

Json = dict[str, Any]

BATCH = "application/cloudevents-batch+json"
EVENT_TYPE = "justitia.usage.day"
_MOST_DAYS = 400
_FORMATS = ("rows", "cloudevents")


def add_usage(app: FastAPI, models: ServedModels) -> None:
    """Add the route `/v1/usage` to the HTTP application.

    Args:
        app: The HTTP application, which answers errors.
        models: The served models.
    """

    @app.get("/v1/usage")
    async def usage(
        request: Request,
        tenant: str | None = None,
        since: Annotated[str | None, Query(alias="from")] = None,
        until: Annotated[str | None, Query(alias="to")] = None,
        model: str | None = None,
        form: Annotated[str | None, Query(alias="format")] = None,
    ) -> JSONResponse:
        """Return the usage of a tenant and of all tenants below it, by tenant, model and UTC day.

        The default is today. `format=cloudevents`, or `Accept: application/cloudevents-batch+json`,
        returns a batch of CloudEvents 1.0 of the past days among those requested.
        """
        wanted = _visible_tenant(context_of(request.scope), tenant)
        days = days_between(since, until, datetime.now(UTC).date())
        if form not in (None, *_FORMATS):
            raise RequestError(
                f"format is {shown_short(form)}: {' or '.join(_FORMATS)} is allowed", "format"
            )
        asked = models.chosen(model)
        answers = await asyncio.gather(*(m.scheduler.usage(days) for m in asked))
        as_events = form == "cloudevents" or (
            form is None and BATCH in request.headers.get("accept", "")
        )
        rows = [
            row
            for m, told in zip(asked, answers, strict=True)
            for row in usage_rows(m.name, told, wanted)
        ]
        rows.sort(key=lambda row: (row["day"], row["tenant"], row["model"]))
        if as_events:
            name = models.first.config.name
            return JSONResponse(list(cloud_events(name, rows)), media_type=BATCH)
        return JSONResponse({"object": "list", "data": rows})


def days_between(since: str | None, until: str | None, today: date) -> list[int]:
    """Return the days from `since` to `until`, as days since 1970.

    Raises:
        RequestError: If a parameter is not a date, or the dates are out of order or too far apart;
            the error names the parameter.
    """
    last = _parse_day(until, "to", today)
    first = _parse_day(since, "from", last)
    if not 0 <= (last - first).days < _MOST_DAYS:
        raise RequestError(
            f"from is {first.isoformat()}: a day up to `to`, {last.isoformat()}, and at most"
            f" {_MOST_DAYS - 1} days before it is allowed",
            "from",
        )
    start = (first - date(1970, 1, 1)).days
    return [start + k for k in range((last - first).days + 1)]


def usage_rows(model: str, told: Json, tenant: str | None) -> Iterator[Json]:
    """Yield the rows of usage of one model, by day and tenant.

    Args:
        model: Name of the model.
        told: Totals by day and tenant, as the scheduler returns them.
        tenant: The tenant whose subtree is wanted; None: all tenants.
    """
    for day, of_day in told["days"].items():
        for name, totals in of_day.items():
            if tenant is None or is_within(name, tenant):
                # Totals that earlier releases stored lack these fields.
                cached = totals.get("cached_prompt_tokens", 0)
                prefill = totals.get("prefill_token_time", 0)
                yield {
                    "day": _day_text(int(day)),
                    "tenant": name,
                    "model": model,
                    **totals,
                    "cached_prompt_tokens": cached,
                    "prefill_token_time": prefill,
                    "computed_prompt_tokens": totals.get("prompt_tokens", 0) - cached,
                    "is_final": int(day) < told["open_from"],
                }


def cloud_events(application: str, rows: Iterable[Json]) -> Iterator[Json]:
    """Yield a CloudEvent 1.0 for each row of usage of a past day."""
    for row in rows:
        if row["is_final"]:
            following = date.fromisoformat(row["day"]) + timedelta(days=1)
            yield {
                "specversion": "1.0",
                "id": f"{row['day']}/{row['model']}/{row['tenant']}",
                "source": f"/justitia/{application}",
                "type": EVENT_TYPE,
                "subject": row["tenant"],
                "time": f"{following.isoformat()}T00:00:00Z",
                "datacontenttype": "application/json",
                "data": {name: value for name, value in row.items() if name != "is_final"},
            }


def _visible_tenant(context: RequestContext, named: str | None) -> str | None:
    """Return the tenant whose usage a caller may see; None: all tenants, for an operator.

    Raises:
        Forbidden: If the named tenant is not the caller's.
        RequestError: If its name is malformed.
    """
    if named is not None:
        check_tenant(named)
    if context.operates:
        return named
    own = context.tenant_or(None)
    if named is None or is_within(named, own):
        return named or own
    raise Forbidden(
        f"tenant is {named!r}: this credential is good for {own!r} and what is below it",
        "forbidden_tenant",
    )


def _parse_day(text: str | None, name: str, otherwise: date) -> date:
    if text is None:
        return otherwise
    try:
        day = date.fromisoformat(text)
    except ValueError:
        day = date.min
    if text != day.isoformat() or day < date(1970, 1, 1):  # not 2026-W48-6
        raise RequestError(f"{name} is {shown_short(text)}: a day as 2026-01-31 is allowed", name)
    return day


def _day_text(day: int) -> str:
    return datetime.fromtimestamp(day * DAY_S, UTC).date().isoformat()
