"""Verify JSON Web Tokens with the keys of their issuer, and map them to identities.

The result is cached for at most 60 s and never beyond the token's expiry, so that most calls cost a
hash and a look-up. So a key that its issuer withdraws stays valid for the lifetime of its key set
(see `key_sets`) plus 60 s.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jwt

from justitia_ray.access.addresses import check_url, discovery_url
from justitia_ray.access.documents import fetch
from justitia_ray.access.identity import Identity, Scope, check_tenant
from justitia_ray.access.key_sets import KEY_TYPES, Fetch, KeySet
from justitia_ray.errors import ConfigError, Forbidden, RequestError, Unauthenticated
from justitia_ray.units import Seconds

LONGEST_TOKEN = 16_384
"""Maximum length of a JSON Web Token in characters; gateways allow headers of 8 to 16 KiB."""
REMEMBERED_S: Seconds = 60.0
"""Seconds for which the result of verifying a token is cached."""
MOST_REMEMBERED = 10_000
"""Maximum number of tokens in the cache, which drops the least recently used token."""

_LONGEST_CREDENTIAL = 100
_LONGEST_USER = 255
"""Maximum length of a user name, the same as OpenID Connect allows for subjects."""
_LAST_INSTANT = 253_402_300_799
"""Last second of the year 9999. A later time in a token is probably in milliseconds."""

_Claims: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Issuer:
    """Trusted issuer of JSON Web Tokens: its name, keys, and the claims to read.

    Raises:
        ConfigError: If the address of the issuer's keys is not allowed, or an algorithm is not an
            allowed asymmetric one.
    """

    issuer: str
    """Required value of the `iss` claim of a token."""
    audience: str
    """Value that the `aud` claim of a token must contain."""
    jwks_url: str | None = None
    """URL of the issuer's public keys; None: it is taken from the discovery document."""
    jwks_ca_file: str | None = None
    """File of CA certificates trusted for `jwks_url`; None for the system's certificates."""
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    """Signature algorithms that are accepted in the issuer's tokens."""
    tenant_claim: str = "tenant"
    """Claim of a token that names the tenant. A dot selects a nested field, as in `org.team`,
    unless a claim has exactly this name.
    """
    tenant_below: str | None = None
    """Tenant below which all tenants of the issuer lie; None: the issuer may name any tenant."""
    user_claim: str = "sub"
    """Claim of a token that names the user."""
    scope_claim: str = "scope"
    """Claim of a token that lists the scopes, separated by spaces or as a list."""
    scope_prefix: str = "justitia."
    """Prefix of this service's scopes in a token, which is removed from them."""
    max_weight: float = 1.0
    """Largest weight that applications of the token's caller may request."""
    leeway_s: Seconds = 30.0
    """Seconds by which the clocks of issuer and service may differ."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.algorithms if name not in KEY_TYPES]
        if unknown or not self.algorithms:
            raise ConfigError(
                f"jwt: {self.issuer}: algorithms is {', '.join(unknown) or 'empty'}: allowed are"
                f" {', '.join(KEY_TYPES)}"
            )
        try:
            check_url(self.jwks_url or discovery_url(self.issuer))
        except ValueError as error:
            raise ConfigError(f"jwt: {self.issuer}: jwks_url: {error}") from None


@dataclass(frozen=True, slots=True)
class _VerifiedToken:
    """Cached result of verifying a token."""

    identity: Identity
    ends_at: Seconds
    """Expiry of a token plus the allowed clock skew, in seconds since 1970."""
    forget_at: Seconds


class TokenVerifier:
    """Identifies callers by tokens of trusted issuers; use it from one event loop.

    An issuer's keys are fetched with its first token.

    Args:
        issuers: The trusted issuers.
        on_trouble: Called with the issuer and the reason whenever fetching keys fails.
        fetch: Returns the document at an address.
        clock: A monotonic clock.
        calendar: Returns seconds since 1970, the unit of times in tokens.
    """

    def __init__(
        self,
        issuers: Sequence[Issuer],
        on_trouble: Callable[[str, str], None],
        *,
        fetch: Fetch = fetch,
        clock: Callable[[], Seconds] = time.monotonic,
        calendar: Callable[[], Seconds] = time.time,
    ) -> None:
        self._issuers = {one.issuer: one for one in issuers}
        self._key_sets = {
            one.issuer: KeySet(
                one.issuer,
                one.jwks_url,
                one.jwks_ca_file,
                one.algorithms,
                fetch=fetch,
                clock=clock,
                on_trouble=on_trouble,
            )
            for one in issuers
        }
        self._clock = clock
        self._calendar = calendar
        self._verified: OrderedDict[bytes, _VerifiedToken] = OrderedDict()

    async def identify(self, token: str) -> Identity:
        """Verify a token and return the identity of its caller.

        Raises:
            Unauthenticated: If the token is invalid.
            Forbidden: If the token is valid, but names no tenant.
            AdmissionError: If the issuer's keys are not available now, so that no token can be
                checked.
        """
        if len(token) > LONGEST_TOKEN:
            raise Unauthenticated(f"the token is longer than {LONGEST_TOKEN} characters")
        if not token.isascii():
            raise Unauthenticated("the token is not a JSON Web Token")
        digest = hashlib.sha256(token.encode()).digest()
        verified = self._verified.get(digest)
        if verified is not None:
            if self._calendar() < verified.ends_at and self._clock() < verified.forget_at:
                self._verified.move_to_end(digest)
                return verified.identity
            del self._verified[digest]
        issuer, claims = await self._verify(token)
        ends_at = _check_times(claims, self._calendar(), issuer.leeway_s)
        identity = _identity_of(issuer, claims)
        self._verified[digest] = _VerifiedToken(identity, ends_at, self._clock() + REMEMBERED_S)
        if len(self._verified) > MOST_REMEMBERED:
            self._verified.popitem(last=False)
        return identity

    async def _verify(self, token: str) -> tuple[Issuer, _Claims]:
        """Verify a token's signature; return its issuer and claims. Their times are not checked."""
        issuer, algorithm, key_id = self._read_unverified(token)
        keys = self._key_sets[issuer.issuer]
        claims = _verified_claims(token, await keys.find(key_id, algorithm), issuer)
        if claims is None and key_id is None:
            newer = await keys.find_newer(algorithm)
            claims = None if newer is None else _verified_claims(token, newer, issuer)
        if claims is None:
            raise Unauthenticated("the token's signature is wrong")
        return issuer, claims

    def _read_unverified(self, token: str) -> tuple[Issuer, str, str | None]:
        """Read a token's issuer, algorithm and key id, if it has one, without verification."""
        try:
            read = jwt.decode_complete(token, options={"verify_signature": False})
        except jwt.DecodeError:
            raise Unauthenticated("the token is not a JSON Web Token") from None
        except jwt.PyJWTError:
            raise Unauthenticated(
                "the token's header has a kid that is not text, or a crit that is not known here"
            ) from None
        header, named = read["header"], read["payload"].get("iss")
        issuer = self._issuers.get(named) if isinstance(named, str) else None
        if issuer is None:
            raise Unauthenticated("the token's issuer is not trusted here")
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in issuer.algorithms:
            raise Unauthenticated(
                f"the token's algorithm is not accepted: {', '.join(issuer.algorithms)} may sign"
            )
        return issuer, algorithm, key_id


def _verified_claims(token: str, key: jwt.PyJWK, issuer: Issuer) -> _Claims | None:
    """Return a token's claims; None if its signature does not fit the key.

    Raises:
        Unauthenticated: If the token is not for this service, or malformed.
    """
    try:
        claims: _Claims = jwt.decode(
            token,
            key,
            algorithms=issuer.algorithms,
            audience=issuer.audience,
            issuer=issuer.issuer,
            options={
                "require": ["exp"],
                # Expiry is checked in `_check_times`, which uses the injected clock.
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
            },
        )
    except jwt.InvalidSignatureError:
        return None
    except jwt.InvalidAudienceError:
        raise Unauthenticated(_wrong_audience_message(issuer)) from None
    except jwt.MissingRequiredClaimError as error:
        if error.claim == "aud":
            raise Unauthenticated(_wrong_audience_message(issuer)) from None
        raise Unauthenticated(f"the token has no {error.claim}") from None
    except (jwt.PyJWTError, ValueError):
        raise Unauthenticated(
            "the token cannot be verified: sub and jti, if it has them, have to be text"
        ) from None
    return claims


def _wrong_audience_message(issuer: Issuer) -> str:
    return f"the token is not for this service: its aud has to name {issuer.audience!r}"


def _check_times(claims: _Claims, now: Seconds, leeway_s: Seconds) -> Seconds:
    """Check the times in a token; return its expiry plus clock skew, in seconds since 1970.

    Raises:
        Unauthenticated: If the token has expired, or is not valid yet.
    """
    for name in ("exp", "nbf", "iat"):
        value = claims.get(name, 0)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= _LAST_INSTANT:
            raise Unauthenticated(f"the token's {name} is not a time in seconds")
    ends_at = float(claims["exp"]) + leeway_s
    if now >= ends_at:
        raise Unauthenticated("the token has expired")
    if max(claims.get("nbf", 0), claims.get("iat", 0)) > now + leeway_s:
        raise Unauthenticated("the token does not hold yet (nbf, iat)")
    return ends_at


def _identity_of(issuer: Issuer, claims: _Claims) -> Identity:
    user = _find_claim(claims, issuer.user_claim)
    is_user = isinstance(user, str) and user.isprintable() and 0 < len(user) <= _LONGEST_USER
    subject = claims.get("sub")
    credential = f"jwt:{issuer.issuer}" + (f":{subject}" if subject else "")
    return Identity(
        tenant=_tenant_of(issuer, claims),
        scopes=_scopes_of(issuer, claims),
        credential="".join(
            letter if letter.isprintable() else "?" for letter in credential[:_LONGEST_CREDENTIAL]
        ),
        user=user if is_user else None,
        max_weight=issuer.max_weight,
    )


def _tenant_of(issuer: Issuer, claims: _Claims) -> str:
    found = _find_claim(claims, issuer.tenant_claim)
    if isinstance(found, list) and len(found) == 1:
        (found,) = found
    if not isinstance(found, str):
        raise Forbidden(
            f"the token's claim {issuer.tenant_claim!r} has to name exactly one tenant", "no_tenant"
        )
    tenant = found if issuer.tenant_below is None else f"{issuer.tenant_below}/{found}"
    try:
        check_tenant(tenant)
    except RequestError as error:
        raise Forbidden(
            f"the token's claim {issuer.tenant_claim!r}: {error}", "no_tenant"
        ) from None
    return tenant


def _scopes_of(issuer: Issuer, claims: _Claims) -> frozenset[Scope]:
    """Return the scopes in a token except `proxy`, which only API keys can have."""
    found = _find_claim(claims, issuer.scope_claim)
    named = found.split() if isinstance(found, str) else found
    if not isinstance(named, list):
        return frozenset()
    known = {f"{issuer.scope_prefix}{scope}": scope for scope in Scope if scope != Scope.PROXY}
    return frozenset(known[name] for name in named if isinstance(name, str) and name in known)


def _find_claim(claims: _Claims, path: str) -> Any:
    """Return the claim with a name, or at a path with dots; None if the token has no such claim."""
    if path in claims:
        return claims[path]
    found: Any = claims
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found
