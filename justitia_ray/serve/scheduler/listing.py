"""Applications as callers are told of them: own ones with outlooks, those of others as counts."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from justitia_ray.application_key import split_key
from justitia_ray.core import SchedulerCore
from justitia_ray.core.entities import Application
from justitia_ray.core.outlook import WALK_KEPT_S, Held, HeldBy, Reason
from justitia_ray.serve.scheduler.inspection import application_view, in_order
from justitia_ray.units import ApplicationId, ClientId, Seconds

MOST_ASKED = 256
"""Applications of one question of an ingress, at most."""


def held_by(
    unstored: Iterable[ApplicationId],
    node_in_the_way: Callable[[ApplicationId], ClientId | None],
) -> HeldBy:
    """Return what tells of applications that are held back outside the core.

    Args:
        unstored: Applications that wait to be stored.
        node_in_the_way: Returns the node whose quota keeps an application from more, if one does.
    """
    names, store = frozenset(unstored), Held(Reason.STORE)

    def held(application: Application) -> Held | None:
        if application.application_id in names:
            return store
        node = node_in_the_way(application.application_id)
        return None if node is None else Held(Reason.QUOTA, node)

    return held


def application_with_outlook(
    core: SchedulerCore, application: Application, now: Seconds
) -> dict[str, Any]:
    """Return the view of a live application, with why it waits and when it starts and ends."""
    name = application.application_id
    outlook = core.outlooks.ask([name])[name]
    return application_view(core, application, now) | {"outlook": outlook.as_json()}


def outlooks(core: SchedulerCore, names: Iterable[ApplicationId]) -> dict[str, dict[str, Any]]:
    """Return the outlooks of live applications, for the waiting streams of an ingress.

    Args:
        core: The core.
        names: At most `MOST_ASKED` are looked at.
    """
    asked = core.outlooks.ask(islice(names, MOST_ASKED), WALK_KEPT_S)
    return {name: outlook.as_json() for name, outlook in asked.items()}


def listing(
    core: SchedulerCore, now: Seconds, most: int, tenant: str | None = None
) -> dict[str, Any]:
    """Return the first live applications in order with their outlooks, and counts of the rest.

    Args:
        core: The core.
        now: The core's instant.
        most: How many to describe.
        tenant: Tenant whose applications are described; None: everybody's.
    """
    live = core.state.applications.values()
    own = [one for one in live if tenant is None or _tenant_of(one) == tenant]
    mine = {one.application_id for one in own}
    ordered = (one for one in in_order(core) if one.application_id in mine)
    told = list(islice(ordered, most)) if own else []
    names = [one.application_id for one in told]
    asked = core.outlooks.ask(names, WALK_KEPT_S)
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
