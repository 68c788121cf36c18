"""Identities: the tenant, the user and the rights that a credential gives.

A tenant is a path, `acme/search/alice`: the parts of a path below another belong to it.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from justitia_ray.errors import Forbidden, RequestError, shown_short

LONGEST_TENANT = 128
MOST_PARTS = 8
"""Parts of a path that a call may name, if it is not its credential's own: every level of the tree
costs the scheduler something at each event."""
MAX_WEIGHT = 1e6
"""Largest weight that anybody may ask for."""

_PART = r"(?!\.\.?(?:/|$))[A-Za-z0-9._:-]+"
_TENANT = re.compile(rf"{_PART}(?:/{_PART})*")


class Scope(StrEnum):
    """Rights of a credential."""

    INFER = "infer"
    """Ask models, and see which there are."""
    OWN = "own"
    """Open, look up, close and cancel applications of its tenant."""
    OPERATE = "operate"
    """See and change what belongs to the service or to others; includes `own`."""
    PROXY = "proxy"
    """Name any tenant: for a gateway that has checked its callers itself."""


@dataclass(frozen=True, slots=True)
class Identity:
    """An identified caller."""

    tenant: str | None
    """Tenant that its calls are for, unless it names one below; None: it has to name one."""
    scopes: frozenset[Scope]
    credential: str
    """Public name of the credential, for logs: a key's id, a token's issuer and subject."""
    user: str | None = None
    max_weight: float = MAX_WEIGHT
    """Largest weight that its applications may have."""

    def check_scope(self, scope: Scope) -> None:
        """Accept a call that takes a right.

        Raises:
            Forbidden: If the credential does not give it.
        """
        included = scope is Scope.OWN and Scope.OPERATE in self.scopes
        if scope not in self.scopes and not included:
            raise Forbidden(f"this credential lacks the scope {scope.value!r}", "missing_scope")

    def choose_tenant(self, named: str | None) -> str:
        """Return the tenant that a call is for.

        Args:
            named: Tenant that the call names, None if it names none.

        Raises:
            Forbidden: If the credential is not good for the named tenant.
            RequestError: If the tenant has another form or more parts than is allowed, or none is
                named and the credential has none.
        """
        if named is None:
            if self.tenant is None:
                raise RequestError(
                    "tenant is required: this credential has none of its own", "tenant"
                )
            return self.tenant
        check_tenant(named)
        if self.is_good_for(named):
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

    def is_good_for(self, tenant: str) -> bool:
        """Return whether calls for a tenant are allowed."""
        if Scope.PROXY in self.scopes:
            return True
        return self.tenant is not None and is_within(tenant, self.tenant)

    def namespace_of(self, tenant: str) -> str:
        """Return the tenant whose room calls for a tenant use where names are kept for long.

        It is the credential's own: by naming tenants below its own a caller would have the room of
        as many as it can name. What a gateway names stands, for that has checked its callers. (The
        tree of tenants needs no such rule: there all nodes above bind.)

        Args:
            tenant: As `choose_tenant` returned it.
        """
        if self.tenant is None or Scope.PROXY in self.scopes:
            return tenant
        return self.tenant

    def check_weight(self, weight: float | None) -> None:
        """Accept the weight that a call asks for, if it asks for any.

        Raises:
            Forbidden: If it is above the credential's cap.
        """
        if weight is not None and weight > self.max_weight:
            raise Forbidden(
                f"weight is {weight:g}: this credential allows at most {self.max_weight:g}",
                "weight_above_cap",
            )


def is_within(tenant: str, other: str) -> bool:
    """Return whether a tenant is another one, or below it."""
    return tenant == other or tenant.startswith(f"{other}/")


def check_tenant(tenant: str) -> None:
    """Accept a tenant's name.

    Raises:
        RequestError: If it has another form than is allowed.
    """
    if len(tenant) > LONGEST_TENANT or not _TENANT.fullmatch(tenant):
        raise RequestError(
            f"tenant is {shown_short(tenant)}: a path of A-Z a-z 0-9 . _ : - with / between its"
            f" parts is allowed, of 1 to {LONGEST_TENANT} characters, and no part . or ..",
            "tenant",
        )
