"""Check which caller may use which path of the HTTP API, before the body is read.

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
"""Tenant of calls that name none, if the setting `access` is absent."""
TRUSTED = "justitia.trusted"
"""Key in the ASGI scope of a call over a Ray Serve handle, which needs no credential; no HTTP
server sets it.
"""

ANYBODY = Identity(DEFAULT_TENANT, frozenset(Scope), "anonymous")
"""Identity of every caller if the setting `access` is absent."""

_CONTEXT = "justitia.context"
_PUBLIC = frozenset({"/healthz", "/readyz", "/openapi.json", "/console"})
_PAGE = "/console/"
"""Prefix of the paths of the console's static files, which contain no data."""
_SCOPES: dict[str, Scope] = {
    # Required scope by path; an entry that ends in / covers all paths below it.
    **dict.fromkeys((*INFERENCE_PATHS, *UNSCHEDULED_PATHS), Scope.INFER),
    "/v1/models": Scope.INFER,
    "/v1/models/": Scope.INFER,
    "/v1/applications": Scope.OWN,
    "/v1/applications/": Scope.OWN,
    "/v1/usage": Scope.OWN,
    "/v1/console/snapshots": Scope.OWN,
    "/v1/console/applications/": Scope.OWN,
    "/v1/status": Scope.OPERATE,
    "/v1/examination": Scope.OPERATE,
    "/v1/console/what-if": Scope.OPERATE,
    "/v1/predictor": Scope.OPERATE,
    "/v1/predictor/": Scope.OPERATE,
}
"""Required scope by path, for every route that is not public."""


def is_public(path: str) -> bool:
    """Return whether a path needs no key: probes, the OpenAPI description, the console's files."""
    return path in _PUBLIC or path.startswith(_PAGE)


def scope_of(path: str) -> Scope | None:
    """Return the scope that a credential needs for a path; None if no route has this path."""
    found = _SCOPES.get(path)
    if found is None:
        found = next((s for p, s in _SCOPES.items() if p[-1] == "/" and path.startswith(p)), None)
    return found


class Door:
    """Authenticates the callers of the HTTP API, and checks the scopes of their keys.

    Args:
        gate: Identifies callers; None admits every caller, for any tenant.
        default_tenant: Tenant of trusted calls that name none; None: they must name a tenant.
    """

    def __init__(self, gate: Gate | None, default_tenant: str | None) -> None:
        self._gate = gate
        self._trusted = Identity(default_tenant, frozenset(Scope), "handle")

    async def admit(self, scope: MutableMapping[str, Any], path: str) -> None:
        """Authenticate and authorize a call, and store its context in its ASGI scope.

        Args:
            scope: ASGI scope of the call.
            path: Path of the call, without the application's prefix.

        Raises:
            RequestError: If an identifying header appears twice.
            Unauthenticated: If the caller does not prove its identity.
            Forbidden: If the caller's credential lacks the path's scope, or names no tenant.
            AdmissionError: If the caller cannot be identified now.
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
    """Return the request context that `Door.admit` stored in a call's ASGI scope."""
    context: RequestContext = scope[_CONTEXT]
    return context
