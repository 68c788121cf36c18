"""Identities: the tenant, the user and the rights that a credential gives.

A tenant is a path such as `acme/search/alice`; a path belongs to each of its prefixes.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from justitia_ray.errors import Forbidden, RequestError, shown_short

LONGEST_TENANT = 128
MOST_PARTS = 8
"""Maximum number of levels in a call's tenant path, because each level costs the scheduler time at
every event. A credential's own path may be longer.
"""
MIN_WEIGHT = 1e-3
"""Smallest weight of an application or tenant. With weights such as 1e-300, virtual time would grow
so large that later virtual finish times round to one value.
"""
MAX_WEIGHT = 1e6
"""Largest weight of an application or tenant."""

_PART = r"(?!\.\.?(?:/|$))[A-Za-z0-9._:-]+"
_TENANT = re.compile(rf"{_PART}(?:/{_PART})*")


class Scope(StrEnum):
    INFER = "infer"
    """Call models, and list them."""
    OWN = "own"
    """Open, look up, close and cancel applications of the credential's own tenant."""
    OPERATE = "operate"
    """View and change the whole service and all tenants; includes the right `own`."""
    PROXY = "proxy"
    """Name any tenant in a call, as gateways do that authenticate their callers themselves."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Caller whose credential has been verified."""

    tenant: str | None
    """Tenant of the caller's calls, unless a call names a tenant below it. With None, every call
    must name a tenant.
    """
    scopes: frozenset[Scope]
    credential: str
    """Public name of the credential for logs: the id of an API key, or issuer and subject of a
    token.
    """
    user: str | None = None
    max_weight: float = MAX_WEIGHT
    """Largest weight that the caller's applications may have."""

    def check_scope(self, scope: Scope) -> None:
        """Check that the caller's credential includes a right.

        Raises:
            Forbidden: If the credential lacks the right.
        """
        included = scope is Scope.OWN and Scope.OPERATE in self.scopes
        if scope not in self.scopes and not included:
            raise Forbidden(f"this credential lacks the scope {scope.value!r}", "missing_scope")

    def choose_tenant(self, named: str | None) -> str:
        """Return the tenant for which a call is made.

        Args:
            named: Tenant that the call names; None if the call names none.

        Raises:
            Forbidden: If the credential is not valid for the named tenant.
            RequestError: If the tenant is malformed or has too many parts, or neither the call nor
                the credential names one.
        """
        if named is None:
            if self.tenant is None:
                raise RequestError(
                    "tenant is required: this credential has none of its own", "tenant"
                )
            return self.tenant
        check_tenant(named)
        if self.allows_tenant(named):
            if named.count("/") >= MOST_PARTS and named != self.tenant:
                raise RequestError(
                    f"tenant is {shown_short(named)}: at most {MOST_PARTS} parts are allowed",
                    "tenant",
                )
            return named
        raise Forbidden(
            f"tenant is {named!r}: this credential is good for {self.tenant or 'none'!r} and what"
            " is below it",
            "forbidden_tenant",
        )

    def allows_tenant(self, tenant: str) -> bool:
        if Scope.PROXY in self.scopes:
            return True
        return self.tenant is not None and is_within(tenant, self.tenant)

    def namespace_of(self, tenant: str) -> str:
        """Return the tenant under which long-lived names, such as sessions, are stored for a call.

        This is the credential's own tenant: otherwise a caller could exceed its limit of names by
        naming many tenants below its own. If a gateway names the tenant, that tenant is used,
        because the gateway has authenticated its callers. (Limits in the tree of tenants need no
        such rule, because the limits of all nodes above a tenant apply to it.)

        Args:
            tenant: Result of `choose_tenant`.
        """
        if self.tenant is None or Scope.PROXY in self.scopes:
            return tenant
        return self.tenant

    def check_weight(self, weight: float | None) -> None:
        """Check that a requested weight does not exceed the caller's maximum.

        Raises:
            Forbidden: If the weight is above the credential's maximum.
        """
        if weight is not None and weight > self.max_weight:
            raise Forbidden(
                f"weight is {weight:g}: this credential allows at most {self.max_weight:g}",
                "weight_above_cap",
            )


def is_within(tenant: str, other: str) -> bool:
    """Return whether a tenant equals `other` or is below it in the tree of tenants."""
    return tenant == other or tenant.startswith(f"{other}/")


def check_tenant(tenant: str) -> None:
    """Check the form of a tenant's name.

    Raises:
        RequestError: If the name is malformed.
    """
    if len(tenant) > LONGEST_TENANT or not _TENANT.fullmatch(tenant):
        raise RequestError(
            f"tenant is {shown_short(tenant)}: a path of A-Z a-z 0-9 . _ : - with / between its"
            f" parts is allowed, of 1 to {LONGEST_TENANT} characters, and no part . or ..",
            "tenant",
        )
