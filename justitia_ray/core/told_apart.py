"""Tenants that are told apart in tables of a bounded size, of all that callers name."""

from collections.abc import Iterable

from justitia_ray.core.tenants import SEPARATOR
from justitia_ray.units import ClientId


class ToldApart:
    """The tenants of a table: whoever names many below its own takes no place of others.

    Of the tenants below one node at the top so many are told apart, and the rest counts for that
    node; once the table is full, what is not in it counts for the node at the top that is, or for
    `other`.
    """

    def __init__(self, most: int, other: ClientId, known: Iterable[ClientId] = ()) -> None:
        """Begin with the tenants of a table.

        Args:
            most: The most tenants that are told apart, of which half may be below one node.
            other: Stands for the rest.
            known: Those that have a place.
        """
        self._most = most
        self._most_below = most // 2
        self._other = other
        self._known: dict[ClientId, None] = {}
        self._below: dict[ClientId, int] = {}
        for tenant in known:
            self._add(tenant)

    def name_of(self, tenant: ClientId) -> ClientId:
        """Return the tenant that something of a tenant is counted for."""
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
        self._add(tenant)
        return tenant

    def _add(self, tenant: ClientId) -> None:
        self._known[tenant] = None
        top = tenant.partition(SEPARATOR)[0]
        if tenant != top:
            self._below[top] = self._below.get(top, 0) + 1
