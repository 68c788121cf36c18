"""Bounded set of tenants that have rows of their own in a table; others share rows."""

from collections.abc import Iterable

from justitia_ray.core.tenants import SEPARATOR
from justitia_ray.units import ClientId


class TenantRows:
    """Tenants with a row in a table of limited size; a tenant with many sub-tenants uses one row.

    At most half of the rows are given to tenants below one top node; further tenants are counted
    under that node. When the table is full, a tenant without a row is counted under its top node if
    that has a row, otherwise under `other`.
    """

    def __init__(self, most: int, other: ClientId, known: Iterable[ClientId] = ()) -> None:
        """Create the set, with the tenants that a restored table already contains.

        Args:
            most: Maximum number of tenants, of which half may be below one top node.
            other: Name under which all other tenants are counted.
            known: Tenants that already have a row.
        """
        self._most = most
        self._most_below = most // 2
        self._other = other
        self._known: dict[ClientId, None] = {}
        self._below: dict[ClientId, int] = {}
        for tenant in known:
            self._add_name(tenant)

    def name_of(self, tenant: ClientId) -> ClientId:
        """Return the name of the table row under which a tenant is counted."""
        if tenant in self._known or tenant == self._other:
            return tenant
        top = tenant.partition(SEPARATOR)[0]
        is_full = len(self._known) >= self._most
        if tenant != top and (is_full or self._below.get(top, 0) >= self._most_below):
            tenant = top
        if tenant in self._known:
            return tenant
        if is_full:
            return self._other
        self._add_name(tenant)
        return tenant

    def _add_name(self, tenant: ClientId) -> None:
        self._known[tenant] = None
        top = tenant.partition(SEPARATOR)[0]
        if tenant != top:
            self._below[top] = self._below.get(top, 0) + 1
