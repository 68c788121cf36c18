"""Application keys `tenant|application_id`, which are unique over all tenants.

Callers choose ids, so two tenants may choose the same. Callers and answers use the plain id; the
core, the internal protocol, Redis, logs and operators' views use the key.
"""

import re

from justitia_ray.units import ApplicationId

PLAIN_ID = re.compile(r"[A-Za-z0-9._:/-]{1,128}")
"""Pattern of ids that callers may choose for their applications."""

SEPARATOR = "|"
"""Separator between tenant and id in an application's key; neither may contain it."""


def application_key(tenant: str, application_id: str) -> ApplicationId:
    """Return the internal key of an application: its tenant and its id, separated."""
    return f"{tenant}{SEPARATOR}{application_id}"


def split_key(key: ApplicationId) -> tuple[str, str]:
    """Return the tenant and the id in an application's key."""
    tenant, _, application_id = key.rpartition(SEPARATOR)
    return tenant, application_id
