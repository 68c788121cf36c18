"""Reasons outside of the core why applications wait: the store, and quotas."""

from collections.abc import Callable, Iterable

from justitia_ray.core.entities import Application
from justitia_ray.core.outlook import Held, HeldBy, Reason
from justitia_ray.units import ApplicationId, ClientId


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
