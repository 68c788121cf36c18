"""Caps on one application: the tightest over all nodes of its tenant, and which are reached."""

from collections.abc import Iterator

from justitia_ray.core.entities import Application
from justitia_ray.core.limits import LimitStanding
from justitia_ray.core.tenants import ApplicationCaps, TenantTree
from justitia_ray.units import ClientId, Seconds

SCOPE = "application"
"""Value of `LimitStanding.scope` for a limit on one application."""


def has_caps(tree: TenantTree) -> bool:
    """Return whether any tenant limits the usage of single applications."""
    return any(node.caps != ApplicationCaps() for node in tree.described.values())


def caps_of(tree: TenantTree, tenant: ClientId) -> ApplicationCaps:
    """Return the tightest limits on one application of a tenant, from all nodes of its path."""
    caps = [node.caps for _, node in tree.nodes(tenant)]
    return ApplicationCaps(
        min((c.inferences for c in caps if c.inferences is not None), default=None),
        min((c.kv_token_time for c in caps if c.kv_token_time is not None), default=None),
        min((c.seconds for c in caps if c.seconds is not None), default=None),
    )


def reached_cap(
    application: Application, caps: ApplicationCaps, now: Seconds, more_inferences: int = 1
) -> LimitStanding | None:
    """Return the exhausted limit that forbids further inferences of an application, or None.

    Args:
        application: The application.
        caps: Its caps.
        now: The time.
        more_inferences: Inferences to be submitted now.
    """
    used = (
        (
            "inferences",
            caps.inferences,
            application.inferences + application.unfinished + more_inferences - 1,
        ),
        (
            "kv_token_time",
            caps.kv_token_time,
            application.kv_token_time + application.prefill_token_time,
        ),
        ("seconds", caps.seconds, now - application.arrived_at),
    )
    return next(_exhausted_limits(used), None)


def _exhausted_limits(
    used: tuple[tuple[str, float | None, float], ...],
) -> Iterator[LimitStanding]:
    for unit, limit, amount in used:
        if limit is not None and amount >= limit:
            yield LimitStanding(SCOPE, unit, limit, 0, 0.0)
