"""Application keys: ids of applications that are the same for nobody else, `tenant|application_id`.

Callers choose ids, so two tenants may choose the same. Callers and answers have the plain id; the
core, the wire, Redis, logs and the views of operators have the key.
"""

import re

from justitia_ray.units import ApplicationId

PLAIN_ID = re.compile(r"[A-Za-z0-9._:/-]{1,128}")
"""Form of the ids that callers choose."""

SEPARATOR = "|"
"""Character that neither tenants nor the ids that callers choose may have."""


def application_key(tenant: str, application_id: str) -> ApplicationId:
    """Return the key of a tenant's application."""
    return f"{tenant}{SEPARATOR}{application_id}"


def split_key(key: ApplicationId) -> tuple[str, str]:
    """Return the tenant and the plain id of an application, given its key."""
    tenant, _, application_id = key.rpartition(SEPARATOR)
    return tenant, application_id
