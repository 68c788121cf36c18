"""The door of the HTTP application: who may call what, decided before a body is read.

Calls over a Serve handle come from inside the cluster. They are trusted, and name their tenant.
"""

from collections.abc import MutableMapping
from typing import Any

from justitia_ray.access.credentials import check_single
from justitia_ray.access.gate import Gate
from justitia_ray.access.identity import Identity, Scope
from justitia_ray.protocol.endpoints import INFERENCE_PATHS, UNSCHEDULED_PATHS
from justitia_ray.serve.ingress.request_context import IDENTIFYING, RequestContext, read_context

DEFAULT_TENANT = "default"
"""Tenant of calls that name none, where no `access` is configured."""
TRUSTED = "justitia.trusted"
"""Key of an ASGI scope that says: the call came over a handle. No server sets it."""

ANYBODY = Identity(DEFAULT_TENANT, frozenset(Scope), "anonymous")
"""Identity of every caller where no `access` is configured."""

_CONTEXT = "justitia.context"
_PUBLIC = frozenset({"/healthz", "/readyz", "/openapi.json"})
_SCOPES: dict[str, Scope] = {
    # path: scope; one that ends in / stands for all paths below it
    **dict.fromkeys((*INFERENCE_PATHS, *UNSCHEDULED_PATHS), Scope.INFER),
    "/v1/models": Scope.INFER,
    "/v1/models/": Scope.INFER,
    "/v1/applications": Scope.OWN,
    "/v1/applications/": Scope.OWN,
    "/v1/usage": Scope.OWN,
    "/v1/status": Scope.OPERATE,
    "/v1/examination": Scope.OPERATE,
    "/v1/predictor": Scope.OPERATE,
    "/v1/predictor/": Scope.OPERATE,
}
"""Scope of every route but the public ones."""


def is_public(path: str) -> bool:
    """Return whether a path is open to everybody: probes and the description of the interface."""
    return path in _PUBLIC


def scope_of(path: str) -> Scope | None:
    """Return the scope that a path asks for; None if there is no such route."""
    found = _SCOPES.get(path)
    if found is None:
        found = next((s for p, s in _SCOPES.items() if p[-1] == "/" and path.startswith(p)), None)
    return found


class Door:
    """Lets callers in."""

    def __init__(self, gate: Gate | None, default_tenant: str | None) -> None:
        """Make the door.

        Args:
            gate: Identifies callers; None lets everybody in, for any tenant.
            default_tenant: Tenant of trusted calls that name none; None: they have to.
        """
        self._gate = gate
        self._trusted = Identity(default_tenant, frozenset(Scope), "handle")

    async def admit(self, scope: MutableMapping[str, Any], path: str) -> None:
        """Let a call in, and note in its ASGI scope whose it is.

        Args:
            scope: The call's.
            path: The call's path, without the application's prefix.

        Raises:
            RequestError: If a header that identifies somebody comes twice.
            Unauthenticated: If the caller does not prove who it is.
            Forbidden: If its credential lacks the path's scope, or names no tenant.
            AdmissionError: If it cannot be identified now.
        """
        headers = scope["headers"]
        if is_public(path):
            identity = ANYBODY
        else:
            check_single(headers, IDENTIFYING)
            if scope.get(TRUSTED):
                identity = self._trusted
            elif self._gate is None:
                identity = ANYBODY
            else:
                identity = await self._gate.identify(headers)
            asked = scope_of(path)
            if asked is not None:
                identity.check_scope(asked)
        scope[_CONTEXT] = read_context(identity, headers)


def context_of(scope: MutableMapping[str, Any]) -> RequestContext:
    """Return what is known of a call that was let in: whose it is, and for what."""
    context: RequestContext = scope[_CONTEXT]
    return context
