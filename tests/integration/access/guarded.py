"""Application with access control, its keys, and its callers."""

from dataclasses import dataclass

import httpx

from tests.harness.key_ring import KeyRing
from tests.harness.service import Service
from tests.harness.token_issuer import TokenIssuer

_CALL_TIMEOUT_S = 120.0


@dataclass
class GuardedService:
    service: Service
    keys: KeyRing
    issuer: TokenIssuer
    """Issuer of the OpenID tokens that the application accepts besides API keys."""


def http_with_credential(service: Service, secret: str | None, **headers: str) -> httpx.AsyncClient:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if secret is not None:
        named["authorization"] = f"Bearer {secret}"
    return httpx.AsyncClient(
        base_url=service.url,
        timeout=_CALL_TIMEOUT_S,
        headers=named,
        limits=httpx.Limits(max_connections=None),
    )
