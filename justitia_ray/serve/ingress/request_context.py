"""Context of a request: its caller's identity, its tenant and its application."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from justitia_ray.access.identity import Identity, Scope
from justitia_ray.application_key import SEPARATOR, application_key, split_key
from justitia_ray.core.tenants import DEFAULT_TIER
from justitia_ray.errors import Forbidden, RequestError, UnknownApplication, shown_short
from justitia_ray.protocol.endpoints import (
    APPLICATION_HEADER,
    CLASS_HEADER,
    DEADLINE_HEADER,
    KEEPALIVE_HEADER,
    RETRY_COUNT_HEADER,
    TENANT_HEADER,
)
from justitia_ray.protocol.stream_forms import Keepalive
from justitia_ray.units import ApplicationId, Seconds

IDEMPOTENCY_HEADER = "idempotency-key"
IDENTIFYING = tuple(
    name.encode()
    for name in (
        APPLICATION_HEADER,
        CLASS_HEADER,
        TENANT_HEADER,
        IDEMPOTENCY_HEADER,
        DEADLINE_HEADER,
    )
)
"""Headers that name the tenant, application or deadline of a call; each may appear once."""
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")
_COUNT = re.compile(r"[0-9]{1,9}")
MAX_DEADLINE_S: Seconds = 604_800.0
"""Largest allowed deadline of a call in seconds: a week, longer than any wait."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Tenant, application and options of a request, at first from its headers and credential.

    Its body and the rules of recognition add tier, application and idle time.
    """

    identity: Identity
    named_tenant: str | None = None
    application_id: str | None = None
    """Application id, unique within the tenant, from a header or a rule of recognition. None: the
    call names no application.
    """
    application_class: str | None = None
    idempotency_key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Non-empty request headers, by name in lower case."""
    recognized_by: str = ""
    """Rule that recognized the application (see `recognition`); empty: no rule did."""
    begins_conversation: bool = False
    """Whether the call opens an application because it starts a conversation."""
    idle_s: Seconds | None = None
    """Seconds without a call after which the application ends; None: the configured time."""
    is_final: bool = False
    """Whether the application is closed after this call."""
    tier: str = DEFAULT_TIER
    """Service tier of the call; effective only if the call opens its application."""
    named_deadline: str | None = None
    """Unparsed value of the request's deadline header; None: the header is absent."""

    @property
    def deadline_s(self) -> Seconds | None:
        """Longest time in seconds that the call may wait before it starts; None without a header.

        Raises:
            RequestError: If the header is malformed or out of range.
        """
        named = self.named_deadline
        if named is None:
            return None
        if _SECONDS.fullmatch(named) and 0 < float(named) <= MAX_DEADLINE_S:
            return float(named)
        raise RequestError(
            f"{DEADLINE_HEADER} is {shown_short(named)}: a number of seconds above 0 and of at most"
            f" {MAX_DEADLINE_S:,.0f} is allowed",
            DEADLINE_HEADER,
        )

    @property
    def keepalive(self) -> Keepalive | None:
        """Form of keepalives that the call's headers request; None if they request no form.

        Raises:
            RequestError: If the header names an unknown form.
        """
        said = self.headers.get(KEEPALIVE_HEADER)
        if said is None:
            return None
        try:
            return Keepalive(said.strip().lower())
        except ValueError:
            allowed = ", ".join(Keepalive)
            raise RequestError(
                f"{KEEPALIVE_HEADER} is {shown_short(said)}: one of {allowed} is allowed",
                KEEPALIVE_HEADER,
            ) from None

    @property
    def is_retry(self) -> bool | None:
        """Whether the caller marked the call as a retry; None: the header is absent."""
        said = self.headers.get(RETRY_COUNT_HEADER, "")
        return int(said) > 0 if _COUNT.fullmatch(said) else None

    @property
    def tenant(self) -> str:
        """Tenant to which the call belongs.

        Raises:
            Forbidden: If the credential does not cover the named tenant.
            RequestError: If the call must name a tenant, and does not.
        """
        return self.identity.choose_tenant(self.named_tenant)

    @property
    def body_holder(self) -> str:
        """Name of a tenant or credential to which the call's body counts while it arrives.

        This is the tenant if headers or credential name one, and otherwise the credential, because
        a gateway may name the tenant in the body.

        Raises:
            Forbidden: As `tenant`.
            RequestError: As `tenant`, except for a missing name.
        """
        if self.named_tenant is None and self.identity.tenant is None:
            return f"\0{self.identity.credential}"
        return self.tenant

    @property
    def namespace(self) -> str:
        """Tenant whose limit on sessions this call counts against; see `Identity.namespace_of`.

        Raises:
            Forbidden: As `tenant`.
            RequestError: As `tenant`.
        """
        return self.identity.namespace_of(self.tenant)

    def tenant_or(self, named: str | None) -> str:
        """Return the tenant to which the call belongs, from its header or its body.

        Raises:
            Forbidden: As `tenant`.
            RequestError: As `tenant`, and if header and body name different tenants.
        """
        if named is None or self.named_tenant in (None, named):
            return self.identity.choose_tenant(named or self.named_tenant)
        raise RequestError(
            f"tenant is {shown_short(named)}, and {TENANT_HEADER} names"
            f" {shown_short(self.named_tenant)}: one tenant is allowed",
            "tenant",
        )

    def key_of(self, application_id: str) -> ApplicationId:
        """Return the key of the application that a path names by its id or by its key.

        An operator may name any tenant's application, other callers only their tenant's.

        Raises:
            UnknownApplication: If the application belongs to another tenant; the caller must not
                learn that it exists.
            Forbidden: As `tenant`.
            RequestError: As `tenant`.
        """
        named, plain = self.named_tenant, application_id
        if SEPARATOR in application_id:
            named, plain = split_key(application_id)
        try:
            if named is not None and self.operates:
                tenant = named
            else:
                tenant = self.identity.choose_tenant(named)
        except Forbidden:
            raise unknown_application(application_id) from None
        return application_key(tenant, plain)

    @property
    def operates(self) -> bool:
        """Whether the caller is an operator of the service."""
        return Scope.OPERATE in self.identity.scopes


def read_context(identity: Identity, headers: Iterable[tuple[bytes, bytes]]) -> RequestContext:
    """Return the context of a request, from its headers.

    Args:
        identity: Identity of the caller.
        headers: Request headers: names in lower case, and values.
    """
    said = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers if value}
    return RequestContext(
        identity,
        said.get(TENANT_HEADER),
        said.get(APPLICATION_HEADER),
        said.get(CLASS_HEADER),
        said.get(IDEMPOTENCY_HEADER),
        said,
        named_deadline=said.get(DEADLINE_HEADER),
    )


def unknown_application(application_id: str) -> UnknownApplication:
    """Return the error for an application that is not open, or belongs to another caller."""
    return UnknownApplication(f"application {shown_short(application_id)} is not open")
