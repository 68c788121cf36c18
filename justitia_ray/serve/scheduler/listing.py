"""Applications as shown to callers: their own with outlooks, all others only as counts."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from msgspec import to_builtins

from justitia_ray.access.identity import is_within
from justitia_ray.application_key import split_key
from justitia_ray.core import SchedulerCore
from justitia_ray.core.entities import Application
from justitia_ray.core.outlook import (
    WALK_KEPT_S,
    WHAT_WOULD_HELP,
    Outlook,
    Reason,
    reason_text,
)
from justitia_ray.protocol.status import ApplicationView, Counts
from justitia_ray.serve.scheduler.claims import Unopened
from justitia_ray.serve.scheduler.status import application_view, in_order
from justitia_ray.units import ApplicationId, Seconds

MOST_ASKED = 256
"""Maximum number of applications whose predicted starts an ingress may request at once."""


def application_with_outlook(
    core: SchedulerCore,
    application: Application,
    now: Seconds,
    quota_comes_back_s: Seconds | None = None,
) -> dict[str, Any]:
    """Return the state of a live application, with why it waits and its expected times.

    Args:
        core: The core.
        application: The application.
        now: The core's current time.
        quota_comes_back_s: Time until the quota that holds the application back is expected to have
            enough; None without such a quota.
    """
    name = application.application_id
    outlook = core.outlooks.ask([name], now=now)[name]
    return _as_json(
        application_view(core, application, now), outlook, quota_comes_back_s=quota_comes_back_s
    )


def unopened_view(unopened: Unopened, timeout_s: Seconds) -> dict[str, Any]:
    """Return the state of an application that the quotas have kept from being opened.

    Args:
        unopened: The application.
        timeout_s: Longest wait for the accounts.
    """
    arrival = unopened.arrival
    if unopened.is_refused:
        state, remedy = "refused", WHAT_WOULD_HELP[Reason.QUOTA]
    else:
        state, remedy = "held", f"the accounts of its quotas, which have {timeout_s:g} s to answer"
    view = ApplicationView(
        application_id=arrival.application_id,
        application_class=arrival.application_class,
        recognized_by=arrival.recognized_by,
        tenant=arrival.tenant,
        weight=arrival.weight,
        state=state,
        predicted_kv_token_time=arrival.predicted_kv_token_time,
        waiting=unopened.waiting,
    )
    outlook = Outlook(reason_text(Reason.QUOTA, unopened.node), remedy)
    return _as_json(view, outlook, quota_comes_back_s=unopened.comes_back_s)


def json_outlooks(
    core: SchedulerCore, names: Iterable[ApplicationId], now: Seconds
) -> dict[str, dict[str, Any]]:
    """Return the predicted starts of live applications, with their tags, for an ingress.

    Args:
        core: The core.
        names: Ids; at most `MOST_ASKED` are used.
        now: The core's current time.
    """
    asked = core.outlooks.ask(islice(names, MOST_ASKED), WALK_KEPT_S, now)
    return {
        name: {**to_builtins(outlook), "virtual_finish_time": float(core.tag(name))}
        for name, outlook in asked.items()
    }


def listing(
    core: SchedulerCore, now: Seconds, most: int, tenant: str | None = None
) -> dict[str, Any]:
    """Return the first live applications in order with predicted starts, and count the rest.

    Args:
        core: The core.
        now: The core's current time.
        most: Maximum number of described applications.
        tenant: Tenant whose applications are described, with all tenants below it; None: all.
    """
    live = core.state.applications.values()
    own = [one for one in live if tenant is None or is_within(_tenant_of(one), tenant)]
    mine = {one.application_id for one in own}
    ordered = (one for one in in_order(core) if one.application_id in mine)
    told = list(islice(ordered, most)) if own else []
    names = [one.application_id for one in told]
    asked = core.outlooks.ask(names, WALK_KEPT_S, now)
    return {
        "applications": [
            _as_json(application_view(core, one, now), asked[one.application_id]) for one in told
        ],
        "own": to_builtins(_sum_counts(own)),
        "others": to_builtins(_sum_counts([one for one in live if one.application_id not in mine])),
    }


def _as_json(view: ApplicationView, outlook: Outlook, **more: Seconds | None) -> dict[str, Any]:
    """Return an application with its predicted start as JSON, and with the fields of `more`."""
    return {**to_builtins(view), "outlook": {**to_builtins(outlook), **more}}


def _tenant_of(application: Application) -> str:
    return split_key(application.application_id)[0]


def _sum_counts(applications: Sequence[Application]) -> Counts:
    waiting = sum(one.waiting_count for one in applications)
    running = sum(len(one.in_flight) for one in applications)
    return Counts(len(applications), waiting, running)
