"""Public keys of token issuers: fetched once for all callers, cached, and refreshed.

The key set of an issuer is fresh for 300 s; after that it is used while a new set is fetched in the
background; after 600 s calls wait for the new set, unless the last fetch failed. If the issuer is
unreachable, its set stays valid for a day. Fetches are at least 30 s apart, or 5 s while there are
no keys, however many calls come.

`jwt.PyJWKClient` (PyJWT 2.15) is not used, because it pauses only after a successful fetch. Its key
set expires even while the issuer is unreachable; then every call fetches under a lock, without a
limit on the document's length. It also leaves out keys without an id, and treats a set without keys
as an error.
"""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import jwt

from justitia_ray.access.addresses import discovery_url
from justitia_ray.errors import AdmissionError, Unauthenticated, shown_short
from justitia_ray.units import Seconds

Fetch: TypeAlias = Callable[[str, str | None], Awaitable[bytes]]
"""Function that downloads the document at a URL. Its second argument is a file of trusted CA
certificates, or None for the system's. It raises OSError or ValueError.
"""

FRESH_S: Seconds = 300.0
"""Age in seconds from which an issuer's key set is refreshed in the background."""
STALE_S: Seconds = 600.0
"""Age in seconds from which calls wait until an issuer's key set is refreshed, because keys may
have been withdrawn.
"""
KEPT_S: Seconds = 86_400.0
"""Maximum age in seconds of a key set that is used while its issuer is unreachable."""
PAUSE_S: Seconds = 30.0
"""Minimum seconds between two downloads of an issuer's key set, even if tokens name unknown keys.
"""
PAUSE_WITHOUT_KEYS_S: Seconds = 5.0
"""Minimum seconds between two downloads while an issuer has no usable key and every call is
refused.
"""
_MOST_KEYS = 100

KEY_TYPES: dict[str, tuple[str, tuple[str | None, ...]]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", (None,))),
    "ES256": ("EC", ("P-256",)),
    "ES384": ("EC", ("P-384",)),
    "ES512": ("EC", ("P-521",)),
    "EdDSA": ("OKP", ("Ed25519", "Ed448")),
}
"""Key type and allowed curves of each signature algorithm for tokens. Algorithms with a shared
secret are not allowed.
"""

_Keys: TypeAlias = dict[str, list[jwt.PyJWK]]
"""Public keys for verifying tokens, by signature algorithm."""


class KeySet:
    """Public keys of one token issuer, downloaded when needed.

    Args:
        issuer: Name of the issuer.
        jwks_url: Address of its keys; None: it is taken from the discovery document.
        ca_file: Trusted CA certificates; None for those of the system.
        algorithms: Accepted algorithms among `KEY_TYPES`; keys of other algorithms are dropped.
        fetch: Returns a document.
        clock: A monotonic clock.
        on_trouble: Called with the issuer and the reason whenever fetching the keys fails.
    """

    def __init__(
        self,
        issuer: str,
        jwks_url: str | None,
        ca_file: str | None,
        algorithms: Sequence[str],
        *,
        fetch: Fetch,
        clock: Callable[[], Seconds],
        on_trouble: Callable[[str, str], None],
    ) -> None:
        self._issuer = issuer
        self._jwks_url = jwks_url
        self._ca_file = ca_file
        self._algorithms = algorithms
        self._fetch = fetch
        self._clock = clock
        self._on_trouble = on_trouble
        self._keys: _Keys = {}
        self._fetched_at = -math.inf
        self._not_before = -math.inf
        self._has_failed = False
        self._flaw = ""
        """Error message for callers if the issuer's downloaded keys are unusable; otherwise empty.
        """
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, key_id: str | None, algorithm: str) -> jwt.PyJWK:
        """Return the issuer's public key with a token's key id and algorithm.

        An issuer with one key need not give it an id (OpenID Connect Core 1.0, Sec. 10.1), so a
        token without a key id is verified with the only key that fits.

        Args:
            key_id: Key id in the token's header; None if it has none.
            algorithm: Algorithm in the token's header.

        Raises:
            Unauthenticated: If the issuer has no such key.
            AdmissionError: If the key is not known, and new keys cannot be fetched now.
        """
        age = self._clock() - self._fetched_at
        if age >= KEPT_S:
            self._keys = {}
        key = self._find_cached(key_id, algorithm)
        if key is None or age >= FRESH_S:
            fetching = self._start_fetch()
            was_idle = age >= STALE_S and not self._has_failed
            if fetching is not None and (key is None or was_idle):
                await asyncio.shield(fetching)
                key = self._find_cached(key_id, algorithm)
        if key is None and self._has_failed:
            raise AdmissionError(
                f"the keys of the token's issuer cannot be had now{self._flaw}",
                PAUSE_WITHOUT_KEYS_S,
            )
        if key is None:
            raise Unauthenticated(self._no_key_message(key_id, algorithm))
        return key

    async def find_newer(self, algorithm: str) -> jwt.PyJWK | None:
        """Download the issuer's keys again and return its only key for an algorithm.

        It is called after a wrong signature, because a key without an id may have been replaced.

        Returns:
            None if the last fetch is too recent, or not exactly one key fits.
        """
        fetching = self._start_fetch()
        if fetching is None:
            return None
        await asyncio.shield(fetching)
        return self._find_cached(None, algorithm)

    def _find_cached(self, key_id: str | None, algorithm: str) -> jwt.PyJWK | None:
        fitting = self._keys.get(algorithm, [])
        if key_id is None:
            return fitting[0] if len(fitting) == 1 else None
        return next((key for key in fitting if key.key_id == key_id), None)

    def _no_key_message(self, key_id: str | None, algorithm: str) -> str:
        fitting = self._keys.get(algorithm, [])
        if key_id is None:
            shown = f"{len(fitting)} keys" if fitting else "no key"
            return (
                "the token's header has no kid, the id of its key, and its issuer shows"
                f" {shown} for {algorithm}"
            )
        told = "the token is signed with a key that its issuer does not show"
        if fitting and all(key.key_id is None for key in fitting):
            return f"{told}: the token's header has a kid, and the issuer's keys have none"
        return told

    def _start_fetch(self) -> asyncio.Task[None] | None:
        """Return the running download of keys, or start one; None if the last is too recent."""
        if self._fetching is None:
            if self._clock() < self._not_before:
                return None
            self._fetching = asyncio.create_task(self._refresh_keys())
        return self._fetching

    async def _refresh_keys(self) -> None:
        try:
            self._keys = await self._download_keys()
            self._fetched_at = self._clock()
            reason = "" if self._keys else f"no key fits {', '.join(self._algorithms)}"
            self._flaw = reason and f": {reason}"
        except (OSError, ValueError, RecursionError) as error:
            reason, self._flaw = str(error) or type(error).__name__, ""
        finally:
            pause = PAUSE_S if self._keys else PAUSE_WITHOUT_KEYS_S
            self._not_before = self._clock() + pause
            self._fetching = None
        self._has_failed = bool(reason)
        if reason:
            self._on_trouble(self._issuer, reason)

    async def _download_keys(self) -> _Keys:
        url = self._jwks_url or await self._discover_jwks_url()
        found = _parse_json_object(url, await self._fetch(url, self._ca_file)).get("keys")
        if not isinstance(found, list) or len(found) > _MOST_KEYS:
            raise ValueError(f"{url}: has no list of at most {_MOST_KEYS} keys")
        keys: _Keys = {}
        for jwk in found:
            for algorithm in self._algorithms:
                if isinstance(jwk, dict) and (key := _parse_key(jwk, algorithm)) is not None:
                    keys.setdefault(algorithm, []).append(key)
        return keys

    async def _discover_jwks_url(self) -> str:
        url = discovery_url(self._issuer)
        said = _parse_json_object(url, await self._fetch(url, self._ca_file))
        if said.get("issuer") != self._issuer:
            raise ValueError(f"{url}: is of another issuer, {shown_short(said.get('issuer'))}")
        jwks_url = said.get("jwks_uri")
        if not isinstance(jwks_url, str):
            raise ValueError(f"{url}: has no jwks_uri")
        return jwks_url


def _parse_json_object(url: str, document: bytes) -> dict[str, Any]:
    try:
        value = json.loads(document)
    except ValueError as error:
        raise ValueError(f"{url}: is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{url}: is not a JSON object")
    return value


def _parse_key(jwk: dict[str, Any], algorithm: str) -> jwt.PyJWK | None:
    """Return the public key in a JSON Web Key; None if it does not fit the signature algorithm."""
    kind, curves = KEY_TYPES[algorithm]
    is_for_it = (
        isinstance(jwk.get("kid"), str | None)
        and jwk.get("kty") == kind
        and jwk.get("crv") in curves
        and jwk.get("alg", algorithm) == algorithm
        and jwk.get("use", "sig") == "sig"
        and "d" not in jwk  # A private key that has been published must not be trusted.
    )
    if not is_for_it:
        return None
    try:
        key = jwt.PyJWK(jwk, algorithm)
        is_long_enough = key.Algorithm.check_key_length(key.key) is None
    except Exception:  # The errors of the cryptography package have no common base class.
        return None
    return key if is_long_enough else None
