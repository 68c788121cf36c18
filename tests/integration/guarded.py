"""Callers of an application with access control."""

import httpx

from tests.integration.service import Service

_CALL_TIMEOUT_S = 120.0


def http_as(service: Service, secret: str | None, **headers: str) -> httpx.AsyncClient:
    """Return an HTTP client with a credential, to be entered."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if secret is not None:
        named["authorization"] = f"Bearer {secret}"
    return httpx.AsyncClient(
        base_url=service.url,
        timeout=_CALL_TIMEOUT_S,
        headers=named,
        limits=httpx.Limits(max_connections=None),
    )
