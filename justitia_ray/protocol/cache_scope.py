"""Which callers share what the engines' prefix caches hold."""

from typing import Literal

Isolation = Literal["tenant", "top", "shared"]


def cache_scope(isolation: Isolation, tenant: str) -> str:
    """Return the name of the callers with which a tenant shares a cache; empty: all of them.

    Args:
        isolation: `engine.cache_isolation`: those of one tenant, of one tree, or all.
        tenant: The tenant.
    """
    if isolation == "shared":
        return ""
    return tenant.partition("/")[0] if isolation == "top" else tenant
