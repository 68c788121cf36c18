"""Applications as shown to callers: their own with outlooks, others as counts."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

from justitia_ray.access.identity import is_within
from justitia_ray.application_key import split_key
from justitia_ray.core import SchedulerCore
from justitia_ray.core.entities import Application
from justitia_ray.core.outlook import WALK_KEPT_S, WHAT_WOULD_HELP, Outlook, Reason
from justitia_ray.serve.scheduler.claims import Unopened
from justitia_ray.serve.scheduler.inspection import application_view, in_order
from justitia_ray.units import ApplicationId, Seconds

MOST_ASKED = 256
"""Maximum number of applications in one request of an ingress."""


def application_with_outlook(
    core: SchedulerCore,
    application: Application,
    now: Seconds,
    quota_comes_back_s: Seconds | None = None,
) -> dict[str, Any]:
    """Return the view of a live application, with why it waits and its expected times.

    Args:
        core: The core.
        application: The application.
        now: The core's current time.
        quota_comes_back_s: Time until the quota that holds it back is expected to have enough; None
            if there is none.
    """
    name = application.application_id
    outlook = core.outlooks.ask([name], now=now)[name].as_json()
    outlook["quota_comes_back_s"] = quota_comes_back_s
    return application_view(core, application, now) | {"outlook": outlook}


def unopened_view(unopened: Unopened, timeout_s: Seconds) -> dict[str, Any]:
    """Return the view of an application that the quotas have kept from being opened.

    Args:
        unopened: The application.
        timeout_s: Longest wait for the accounts.
    """
    arrival = unopened.arrival
    if unopened.is_refused:
        state, remedy = "refused", WHAT_WOULD_HELP[Reason.QUOTA]
    else:
        state, remedy = "held", f"the accounts of its quotas, which have {timeout_s:g} s to answer"
    outlook = Outlook(arrival.application_id, Reason.QUOTA, unopened.node).as_json()
    return {
        "application_id": arrival.application_id,
        "application_class": arrival.application_class,
        "recognized_by": arrival.recognized_by,
        "tenant": arrival.tenant,
        "weight": arrival.weight,
        "state": state,
        "predicted_kv_token_time": arrival.predicted_kv_token_time,
        "kv_token_time": 0,
        "virtual_finish_time": None,
        "age_s": None,
        "waiting": unopened.waiting,
        "running": 0,
        "ended": 0,
        "prompt_tokens": 0,
        "cached_prompt_tokens": 0,
        "gps_lag": None,
        "outlook": outlook
        | {"what_would_help": remedy, "quota_comes_back_s": unopened.comes_back_s},
    }


def outlooks(
    core: SchedulerCore, names: Iterable[ApplicationId], now: Seconds
) -> dict[str, dict[str, Any]]:
    """Return the outlooks of live applications, with their tags, for calls of an ingress.

    Args:
        core: The core.
        names: Ids; at most `MOST_ASKED` are used.
        now: The core's current time.
    """
    asked = core.outlooks.ask(islice(names, MOST_ASKED), WALK_KEPT_S, now)
    return {
        name: outlook.as_json() | {"virtual_finish_time": float(core.tag(name))}
        for name, outlook in asked.items()
    }


def listing(
    core: SchedulerCore, now: Seconds, most: int, tenant: str | None = None
) -> dict[str, Any]:
    """Return the first live applications in order with their outlooks, and counts of the others.

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
            application_view(core, one, now) | {"outlook": asked[one.application_id].as_json()}
            for one in told
        ],
        "own": _counts(own),
        "others": _counts([one for one in live if one.application_id not in mine]),
    }


def _tenant_of(application: Application) -> str:
    return split_key(application.application_id)[0]


def _counts(applications: Iterable[Application]) -> dict[str, int]:
    counts = {"applications": 0, "waiting": 0, "running": 0}
    for one in applications:
        counts["applications"] += 1
        counts["waiting"] += one.waiting_count
        counts["running"] += len(one.in_flight)
    return counts
