"""Remaining rate limits of tenants, as last sent by the scheduler, for response headers."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace

from justitia_ray.core.limits import LimitStanding
from justitia_ray.units import ClientId, Seconds

_MAXIMUM_TENANTS = 1_024
"""Maximum number of tenants whose limits are kept; the least recently updated are dropped first."""


class TenantStandings:
    """Rate limits of each tenant and their remaining amounts; empty if no tenant has a limit."""

    def __init__(self) -> None:
        self._told: OrderedDict[ClientId, tuple[Seconds, tuple[LimitStanding, ...]]] = OrderedDict()

    def note(self, standings: Mapping[ClientId, tuple[LimitStanding, ...]], now: Seconds) -> None:
        """Replace the rate limits of tenants; a tenant without limits is removed."""
        for tenant, told in standings.items():
            self._told.pop(tenant, None)
            if told:
                self._told[tenant] = (now, told)
        while len(self._told) > _MAXIMUM_TENANTS:
            self._told.popitem(last=False)

    def __bool__(self) -> bool:
        return bool(self._told)

    def of(self, tenant: ClientId, now: Seconds) -> tuple[LimitStanding, ...]:
        """Return a tenant's rate limits as of now, without limits whose reset has passed."""
        told = self._told.get(tenant)
        if told is None:
            return ()
        age_s = now - told[0]
        return tuple(
            replace(standing, reset_s=standing.reset_s - age_s)
            for standing in told[1]
            if standing.reset_s > age_s
        )
