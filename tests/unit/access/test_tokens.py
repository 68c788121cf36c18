"""JSON Web Tokens: refusals, key rotation, claims, and fetches over real HTTPS."""

import asyncio
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from justitia_ray.access import documents, key_sets, tokens
from justitia_ray.access.documents import LONGEST_DOCUMENT_BYTES, fetch
from justitia_ray.access.identity import Identity, Scope
from justitia_ray.access.key_sets import (
    FRESH_S,
    KEPT_S,
    PAUSE_S,
    PAUSE_WITHOUT_KEYS_S,
    STALE_S,
)
from justitia_ray.access.tokens import LONGEST_TOKEN, REMEMBERED_S, Issuer, TokenVerifier
from justitia_ray.errors import AdmissionError, ConfigError, Forbidden, Unauthenticated
from tests.certificates import make_certificate

ISSUER = "https://login.acme.com"
JWKS_URL = "https://login.acme.com/keys"
DISCOVERY_URL = f"{ISSUER}/.well-known/openid-configuration"
NOW = 1_800_000_000
"""Time at the start of each test, in seconds since 1970: a day in 2027."""

PrivateKey: TypeAlias = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey

RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
EC_384 = ec.generate_private_key(ec.SECP384R1())
ED = ed25519.Ed25519PrivateKey.generate()
OTHER_EC = ec.generate_private_key(ec.SECP256R1())


def to_jwk(key: PrivateKey, key_id: str, **fields: Any) -> dict[str, Any]:
    """Return the public part of a key as a JSON Web Key."""
    shown: dict[str, Any]
    match key:
        case rsa.RSAPrivateKey():
            shown = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
        case ec.EllipticCurvePrivateKey():
            shown = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
        case _:
            shown = jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**shown, "kid": key_id, **fields}


def sign_token(header: dict[str, Any], claims: dict[str, Any], key: Any, algorithm: str) -> str:
    """Return a signed token; its header may name another algorithm than the signature's."""
    parts = (jwt.utils.base64url_encode(json.dumps(part).encode()) for part in (header, claims))
    message = b".".join(parts)
    signature = jwt.algorithms.get_default_algorithms()[algorithm].sign(message, key)
    return b".".join((message, jwt.utils.base64url_encode(signature))).decode()


class IssuerWorld:
    """Token verifier with a fake issuer and a clock that the test sets."""

    def __init__(self, **fields: Any) -> None:
        """Start with an issuer that publishes an RSA and an EC key.

        `fields` are those of `Issuer`.
        """
        self.at = 0.0
        self.calendar_at: float = NOW
        self.documents: dict[str, Any] = {}
        self.asked: list[str] = []
        self.troubles: list[tuple[str, str]] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.publish_keys(to_jwk(RSA, "rsa"), to_jwk(EC, "ec"))
        self.issuer = Issuer(
            **{
                "issuer": ISSUER,
                "audience": "justitia",
                "jwks_url": JWKS_URL,
                **fields,
            }
        )
        self.verifier = TokenVerifier(
            [self.issuer],
            lambda *trouble: self.troubles.append(trouble),
            fetch=self._fetch_document,
            clock=lambda: self.at,
            calendar=lambda: self.calendar_at,
        )

    def publish_keys(self, *keys: Any) -> None:
        self.documents[JWKS_URL] = {"keys": keys}

    def pass_time(self, seconds: float) -> None:
        self.at += seconds
        self.calendar_at += seconds

    def create_token(
        self,
        key: Any = EC,
        algorithm: str = "ES256",
        header: dict[str, Any] | None = None,
        **claims: Any,
    ) -> str:
        """Return a token valid for an hour; headers and claims set to None are left out."""
        key_id = {RSA: "rsa", EC_384: "ec-384", ED: "ed"}.get(key, "ec")
        headers = {"alg": algorithm, "kid": key_id, **(header or {})}
        said = {
            "iss": ISSUER,
            "aud": "justitia",
            "exp": self.calendar_at + 3600,
            "sub": "alice",
            "tenant": "acme/search",
            "scope": "openid justitia.infer justitia.own",
            **claims,
        }
        return sign_token(
            {name: value for name, value in headers.items() if value is not None},
            {name: value for name, value in said.items() if value is not None},
            key,
            algorithm,
        )

    async def identify_caller(self, *arguments: Any, **claims: Any) -> Identity:
        return await self.verifier.identify(self.create_token(*arguments, **claims))

    async def run_pending_tasks(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def _fetch_document(self, url: str, ca_file: str | None) -> bytes:
        self.asked.append(url)
        await self.answers.wait()
        match self.documents.get(url, OSError("no route to host")):
            case Exception() as error:
                raise error
            case bytes() as document:
                return document
            case document:
                return json.dumps(document).encode()


@pytest.fixture
def issuer_world() -> IssuerWorld:
    return IssuerWorld()


# --- good tokens


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        *((RSA, name) for name in ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")),
        (EC, "ES256"),
        (EC_384, "ES384"),
        (ED, "EdDSA"),
    ],
)
async def test_token_of_each_algorithm_identifies_its_caller(
    key: PrivateKey, algorithm: str
) -> None:
    """An RSA key verifies tokens of all RSA algorithms, unless the key names an algorithm."""
    world = IssuerWorld(algorithms=tuple(key_sets.KEY_TYPES), max_weight=3.0)
    world.publish_keys(
        to_jwk(RSA, "rsa"), to_jwk(EC, "ec"), to_jwk(EC_384, "ec-384"), to_jwk(ED, "ed")
    )
    expected = Identity(
        tenant="acme/search",
        scopes=frozenset({Scope.INFER, Scope.OWN}),
        credential="jwt:https://login.acme.com:alice",
        user="alice",
        max_weight=3.0,
    )

    assert expected == await world.identify_caller(key, algorithm)
    assert [] == world.troubles


@pytest.mark.parametrize(
    ("claims", "fields"),
    [
        ({"aud": ["other", "justitia"]}, {}),
        ({"exp": NOW - 29}, {}),
        ({"exp": NOW + 1}, {"leeway_s": 0.0}),
        ({"nbf": NOW + 30, "iat": NOW + 30}, {}),
        ({"exp": NOW + 0.5}, {}),
    ],
)
async def test_token_with_an_allowed_audience_and_clock_leeway_is_accepted(
    claims: dict[str, Any], fields: dict[str, Any]
) -> None:
    """Audiences may be a list, and the issuer's clock may differ by the configured leeway."""
    assert "acme/search" == (await IssuerWorld(**fields).identify_caller(**claims)).tenant


# --- refusals


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"iss": "https://evil.com"}, "the token's issuer is not trusted here"),
        ({"iss": f"{ISSUER}/"}, "the token's issuer is not trusted here"),
        ({"iss": None}, "the token's issuer is not trusted here"),
        ({"iss": [ISSUER]}, "the token's issuer is not trusted here"),
        ({"aud": "other"}, r"its aud has to name 'justitia'"),
        ({"aud": None}, r"its aud has to name 'justitia'"),
        ({"aud": {"justitia": 1}}, r"its aud has to name 'justitia'"),
        ({"exp": None}, "the token has no exp"),
        ({"exp": NOW - 30}, "the token has expired"),
        *(
            ({"exp": value}, "the token's exp is not a time in seconds")
            for value in ("soon", "1900000000", True, float("nan"), float("inf"), -1, 10**400)
        ),
        ({"exp": NOW * 1000}, "the token's exp is not a time in seconds"),
        ({"nbf": "later"}, "the token's nbf is not a time in seconds"),
        ({"iat": []}, "the token's iat is not a time in seconds"),
        ({"nbf": NOW + 31}, "the token does not hold yet"),
        ({"iat": NOW + 31}, "the token does not hold yet"),
        ({"sub": 7}, "sub and jti, if it has them, have to be text"),
        ({"jti": 7}, "sub and jti, if it has them, have to be text"),
        ({"header": {"kid": 7}}, "a kid that is not text"),
        ({"header": {"kid": "gone"}}, "a key that its issuer does not show"),
        ({"header": {"kid": "rsa"}}, "a key that its issuer does not show"),
        ({"header": {"crit": ["exp"], "exp": 1}}, "a crit that is not known here"),
        ({"key": OTHER_EC}, "the token's signature is wrong"),
        *(
            ({"key": key, "algorithm": name}, "not accepted: RS256, ES256 may sign")
            for key, name in [
                (b"secret", "HS256"),
                (None, "none"),
                (ED, "EdDSA"),
                (EC_384, "ES384"),
                (RSA, "PS256"),
            ]
        ),
    ],
)
async def test_invalid_token_is_refused_with_the_reason(
    issuer_world: IssuerWorld, claims: dict[str, Any], message: str
) -> None:
    """The error must show nothing of the token."""
    token = issuer_world.create_token(**claims)
    with pytest.raises(Unauthenticated, match=message) as caught:
        await issuer_world.verifier.identify(token)

    assert not any(part in str(caught.value) for part in token.split(".") if part)


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("", "not a JSON Web Token"),
        ("sk-justitia-123", "not a JSON Web Token"),
        ("a.b.c", "not a JSON Web Token"),
        ("e30.e30.", "issuer is not trusted"),
        ("e30.W10.", "not a JSON Web Token"),
        ("tökén.e30.", "not a JSON Web Token"),
        ("\udc80.e30.", "not a JSON Web Token"),
        ("x" * LONGEST_TOKEN, "not a JSON Web Token"),
        ("x" * (LONGEST_TOKEN + 1), "longer than 16384 characters"),
    ],
)
async def test_malformed_token_is_refused_without_a_fetch(
    issuer_world: IssuerWorld, token: str, message: str
) -> None:
    """An unauthenticated caller cannot make the verifier send a request."""
    with pytest.raises(Unauthenticated, match=message):
        await issuer_world.verifier.identify(token)

    assert [] == issuer_world.asked


async def test_token_of_an_unknown_issuer_or_algorithm_is_refused_without_a_fetch(
    issuer_world: IssuerWorld,
) -> None:
    for claims in ({"iss": "https://evil.com"}, {"header": {"alg": "HS256"}}):
        with pytest.raises(Unauthenticated):
            await issuer_world.identify_caller(**claims)

    assert [] == issuer_world.asked


async def test_public_key_is_not_accepted_as_a_shared_secret() -> None:
    """An attacker could sign a token by HS256 with the issuer's public key as the secret.

    A header that claims RS256 above this signature is refused by the signature.
    """
    world = IssuerWorld()
    encoding = (
        serialization.Encoding.PEM,
        serialization.PublicFormat.SubjectPublicKeyInfo,
    )
    public = RSA.public_key().public_bytes(*encoding)
    for said, message in [("HS256", "is not accepted"), ("RS256", "signature is wrong")]:
        with pytest.raises(Unauthenticated, match=message):
            await world.identify_caller(public, "HS256", {"alg": said, "kid": "rsa"})


@pytest.mark.parametrize(
    "key",
    [
        to_jwk(EC, "ec", use="enc"),
        to_jwk(EC, "ec", alg="ES384"),
        to_jwk(EC_384, "ec"),
        to_jwk(EC, "ec", crv=["P-256"]),
        to_jwk(EC, "ec", x="AA"),
        to_jwk(EC, "ec", y=None),
        {**jwt.algorithms.ECAlgorithm.to_jwk(EC, as_dict=True), "kid": "ec"},
        to_jwk(RSA, "ec"),
        to_jwk(RSA, "ec", n="AQAB"),
        to_jwk(EC, "ec", kid=None),
        {"kty": "oct", "kid": "ec", "k": "c2VjcmV0"},
        {"kid": "ec"},
        "ec",
    ],
)
async def test_unsuitable_public_key_is_ignored(issuer_world: IssuerWorld, key: Any) -> None:
    """Unsuitable keys are for encryption, of another curve, broken, shared or private."""
    issuer_world.publish_keys(key, to_jwk(RSA, "rsa"))
    with pytest.raises(Unauthenticated, match="a key that its issuer does not show"):
        await issuer_world.identify_caller()

    assert "alice" == (await issuer_world.identify_caller(RSA, "RS256")).user
    assert [] == issuer_world.troubles


async def test_short_rsa_key_is_ignored(
    issuer_world: IssuerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RSA keys below 2,048 bits can be broken."""
    token = issuer_world.create_token(RSA, "RS256")
    monkeypatch.setattr(jwt.algorithms.RSAAlgorithm, "_MIN_KEY_SIZE", 4096)
    with pytest.raises(Unauthenticated, match="a key that its issuer does not show"):
        await issuer_world.verifier.identify(token)


# --- keys and tokens without an id


def to_jwk_without_id(key: PrivateKey) -> dict[str, Any]:
    shown = to_jwk(key, "")
    del shown["kid"]
    return shown


_NO_ID: dict[str, Any] = {"header": {"kid": None}}


@pytest.mark.parametrize(
    "keys",
    [
        [to_jwk_without_id(EC)],
        [to_jwk(EC, "", kid=None)],
        [to_jwk_without_id(RSA), to_jwk_without_id(EC), to_jwk_without_id(EC_384)],
        [
            to_jwk_without_id(EC),
            to_jwk(OTHER_EC, "other", use="enc"),
            to_jwk(OTHER_EC, "other", alg="ES384"),
        ],
        [to_jwk(EC, "ec"), to_jwk(RSA, "rsa")],
    ],
    ids=["one", "null", "of each type", "others are not for it", "with an id"],
)
async def test_token_without_a_key_id_is_verified_by_the_only_suitable_key(
    issuer_world: IssuerWorld, keys: list[Any]
) -> None:
    issuer_world.publish_keys(*keys)

    assert "alice" == (await issuer_world.identify_caller(**_NO_ID)).user
    assert [] == issuer_world.troubles


@pytest.mark.parametrize(
    ("keys", "header", "message"),
    [
        (
            [to_jwk_without_id(EC), to_jwk_without_id(OTHER_EC)],
            {"kid": None},
            "has no kid, the id of its key, and its issuer shows 2 keys for ES256",
        ),
        (
            [to_jwk_without_id(EC), to_jwk(OTHER_EC, "other")],
            {"kid": None},
            "has no kid, the id of its key, and its issuer shows 2 keys for ES256",
        ),
        (
            [to_jwk(RSA, "rsa")],
            {"kid": None},
            "has no kid, the id of its key, and its issuer shows no key for ES256",
        ),
        (
            [to_jwk_without_id(EC)],
            {},
            "that its issuer does not show: the token's header has a kid, and the issuer's keys"
            " have none",
        ),
        ([to_jwk_without_id(OTHER_EC)], {"kid": None}, "the token's signature is wrong"),
    ],
    ids=["two", "one with an id", "none", "a token with an id", "another key"],
)
async def test_token_without_a_matching_key_is_refused_with_the_reason(
    issuer_world: IssuerWorld, keys: list[Any], header: dict[str, Any], message: str
) -> None:
    """The error is not retryable, because the issuer's keys were available."""
    issuer_world.publish_keys(*keys)
    with pytest.raises(Unauthenticated, match=message):
        await issuer_world.identify_caller(header=header)


async def test_replaced_key_without_an_id_is_fetched_again(issuer_world: IssuerWorld) -> None:
    """Tokens of a new key without an id look like tokens of the old key.

    A flood of them causes a limited number of fetches.
    """
    issuer_world.publish_keys(to_jwk_without_id(EC))
    await issuer_world.identify_caller(**_NO_ID)
    issuer_world.pass_time(PAUSE_S)
    issuer_world.publish_keys(to_jwk_without_id(OTHER_EC))

    assert "alice" == (await issuer_world.identify_caller(OTHER_EC, **_NO_ID)).user
    for _ in range(10):
        with pytest.raises(Unauthenticated, match="signature is wrong"):
            await issuer_world.identify_caller(**_NO_ID)
    assert [JWKS_URL] * 2 == issuer_world.asked


# --- claims


@pytest.mark.parametrize(
    ("fields", "claims", "tenant"),
    [
        ({}, {"tenant": "acme"}, "acme"),
        ({}, {"tenant": ["acme"]}, "acme"),
        ({"tenant_below": "acme"}, {"tenant": "search/eu"}, "acme/search/eu"),
        ({"tenant_claim": "org.team"}, {"org": {"team": "acme"}}, "acme"),
        ({"tenant_claim": "https://acme.com/t"}, {"https://acme.com/t": "acme"}, "acme"),
    ],
)
async def test_tenant_is_read_from_the_configured_claim(
    fields: dict[str, Any], claims: dict[str, Any], tenant: str
) -> None:
    """The tenant's claim may be nested, have dots in its name, or be a list with one entry."""
    assert tenant == (await IssuerWorld(**fields).identify_caller(**claims)).tenant


@pytest.mark.parametrize(
    ("fields", "value", "message"),
    [
        ({}, None, "exactly one tenant"),
        ({}, 7, "exactly one tenant"),
        ({}, [], "exactly one tenant"),
        ({}, [7], "exactly one tenant"),
        ({}, ["a", "b"], "exactly one tenant"),
        ({}, {"a": "b"}, "exactly one tenant"),
        ({}, "", "a path of A-Z"),
        ({}, "acme//x", "a path of A-Z"),
        ({}, "x" * 129, "a path of A-Z"),
        ({"tenant_below": "acme"}, "", "a path of A-Z"),
        ({"tenant_below": "acme"}, "/x", "a path of A-Z"),
        ({"tenant_claim": "tenant.team"}, "acme", "'tenant.team' has to name"),
    ],
)
async def test_token_without_exactly_one_tenant_is_forbidden(
    fields: dict[str, Any], value: Any, message: str
) -> None:
    """The status is 403, not 401: the caller is known, and a retry cannot succeed."""
    with pytest.raises(Forbidden, match=message) as caught:
        await IssuerWorld(**fields).identify_caller(tenant=value)

    assert "no_tenant" == caught.value.code


@pytest.mark.parametrize(
    ("fields", "claims", "scopes"),
    [
        ({}, {"scope": "justitia.infer"}, {Scope.INFER}),
        ({}, {"scope": ["justitia.operate", 7, "other"]}, {Scope.OPERATE}),
        ({}, {"scope": "infer justitia.justitia.own justitia.fly"}, set()),
        ({}, {"scope": None}, set()),
        ({}, {"scope": {"justitia.infer": True}}, set()),
        ({}, {"scope": "justitia.proxy justitia.own"}, {Scope.OWN}),
        ({"scope_prefix": ""}, {"scope": "proxy own"}, {Scope.OWN}),
        ({"scope_claim": "access.roles"}, {"access": {"roles": ["justitia.own"]}}, {Scope.OWN}),
    ],
)
async def test_token_grants_scopes_with_the_configured_prefix_except_proxy(
    fields: dict[str, Any], claims: dict[str, Any], scopes: set[Scope]
) -> None:
    """Scopes of other services are ignored, and no issuer may grant the scope `proxy`."""
    assert scopes == (await IssuerWorld(**fields).identify_caller(**claims)).scopes


@pytest.mark.parametrize(
    ("fields", "claims", "user", "credential"),
    [
        ({"user_claim": "email"}, {"email": "a@b.c"}, "a@b.c", f"jwt:{ISSUER}:alice"),
        ({}, {"sub": None}, None, f"jwt:{ISSUER}"),
        ({"user_claim": "id"}, {"id": 7}, None, f"jwt:{ISSUER}:alice"),
        ({}, {"sub": "a\nb"}, None, f"jwt:{ISSUER}:a?b"),
        ({}, {"sub": "x" * 256}, None, f"jwt:{ISSUER}:{'x' * 73}"),
    ],
)
async def test_subject_of_a_token_is_made_safe_for_the_log(
    fields: dict[str, Any], claims: dict[str, Any], user: str | None, credential: str
) -> None:
    """The issuer chooses the subject, which may have line breaks and any length."""
    caller = await IssuerWorld(**fields).identify_caller(**claims)

    assert (user, credential) == (caller.user, caller.credential)
    assert len(caller.credential) <= 100


# --- the cache of verified tokens


async def test_verified_token_is_cached_until_its_expiry(issuer_world: IssuerWorld) -> None:
    token = issuer_world.create_token(exp=NOW + 40)
    first = await issuer_world.verifier.identify(token)
    issuer_world.pass_time(59)

    assert first is await issuer_world.verifier.identify(token)

    issuer_world.calendar_at = NOW + 40 + issuer_world.issuer.leeway_s
    with pytest.raises(Unauthenticated, match="the token has expired"):
        await issuer_world.verifier.identify(token)


async def test_cached_token_is_verified_again_after_the_cache_lifetime(
    issuer_world: IssuerWorld,
) -> None:
    """A withdrawn key is accepted for at most the lifetime of the token cache."""
    token = issuer_world.create_token()
    first = await issuer_world.verifier.identify(token)
    issuer_world.pass_time(REMEMBERED_S)

    again = await issuer_world.verifier.identify(token)
    assert (True, False) == (first == again, first is again)


async def test_refused_token_is_not_cached(issuer_world: IssuerWorld) -> None:
    token = issuer_world.create_token(nbf=NOW + 40)
    with pytest.raises(Unauthenticated, match="does not hold yet"):
        await issuer_world.verifier.identify(token)
    issuer_world.pass_time(10)

    assert "alice" == (await issuer_world.verifier.identify(token)).user


async def test_token_cache_evicts_the_least_recently_used_token(
    issuer_world: IssuerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "MOST_REMEMBERED", 2)
    signed = [issuer_world.create_token(sub=name) for name in "abc"]
    first, second = [await issuer_world.verifier.identify(token) for token in signed[:2]]
    await issuer_world.verifier.identify(signed[0])
    await issuer_world.verifier.identify(signed[2])

    assert first is await issuer_world.verifier.identify(signed[0])
    assert second is not await issuer_world.verifier.identify(signed[1])
    assert 2 == len(issuer_world.verifier._verified)


# --- fetching, keeping and rotating the issuer's keys


async def test_concurrent_calls_share_one_fetch_of_the_keys(issuer_world: IssuerWorld) -> None:
    """A cancelled caller does not end the fetch for other callers."""
    issuer_world.answers.clear()
    calls = [asyncio.create_task(issuer_world.identify_caller(sub=str(n))) for n in range(20)]
    await issuer_world.run_pending_tasks()
    calls.pop().cancel()
    issuer_world.answers.set()

    assert {str(n) for n in range(19)} == {one.user for one in await asyncio.gather(*calls)}
    assert [JWKS_URL] == issuer_world.asked


async def test_rotated_key_is_accepted_after_one_fetch(issuer_world: IssuerWorld) -> None:
    """After a rotation, new tokens are accepted at once and old tokens are refused."""
    await issuer_world.identify_caller()
    issuer_world.pass_time(PAUSE_S)
    issuer_world.publish_keys(to_jwk(ED, "ed"), to_jwk(OTHER_EC, "new"))

    assert "alice" == (await issuer_world.identify_caller(OTHER_EC, header={"kid": "new"})).user
    assert [JWKS_URL] * 2 == issuer_world.asked
    with pytest.raises(Unauthenticated, match="a key that its issuer does not show"):
        await issuer_world.identify_caller()


async def test_tokens_with_unknown_key_ids_cause_few_fetches(issuer_world: IssuerWorld) -> None:
    """1,000 unknown key ids in 100 s cause four fetches, and none of the ids is stored."""
    for number in range(1000):
        with pytest.raises(Unauthenticated, match="a key that its issuer does not show"):
            await issuer_world.identify_caller(header={"kid": f"random-{number}"})
        issuer_world.pass_time(0.1)

    assert 4 == len(issuer_world.asked)
    assert 2 == len(issuer_world.verifier._key_sets[ISSUER]._keys)


async def test_old_keys_stay_valid_while_new_keys_are_fetched(issuer_world: IssuerWorld) -> None:
    """No call waits for the issuer; a withdrawn key becomes invalid with the new key set."""
    await issuer_world.identify_caller()
    issuer_world.pass_time(FRESH_S)
    issuer_world.publish_keys(to_jwk(RSA, "rsa"))
    issuer_world.answers.clear()

    assert "alice" == (await issuer_world.identify_caller()).user

    issuer_world.answers.set()
    await issuer_world.run_pending_tasks()
    assert [JWKS_URL] * 2 == issuer_world.asked
    with pytest.raises(Unauthenticated, match="a key that its issuer does not show"):
        await issuer_world.identify_caller(sub="bob")


async def test_first_call_after_hours_waits_for_new_keys(issuer_world: IssuerWorld) -> None:
    """After hours without calls the old key set may contain a stolen key."""
    await issuer_world.identify_caller()
    issuer_world.pass_time(STALE_S)
    issuer_world.publish_keys(to_jwk(RSA, "rsa"))

    with pytest.raises(Unauthenticated, match="a key that its issuer does not show"):
        await issuer_world.identify_caller()


async def test_known_keys_of_an_unreachable_token_issuer_stay_valid_for_a_day(
    issuer_world: IssuerWorld,
) -> None:
    """Each failed fetch is logged and delays no call."""
    await issuer_world.identify_caller()
    shown = issuer_world.documents.pop(JWKS_URL)
    while issuer_world.at + STALE_S < KEPT_S:
        issuer_world.pass_time(STALE_S)
        async with asyncio.timeout(5):
            assert "alice" == (await issuer_world.identify_caller()).user
        issuer_world.answers.set()
        await issuer_world.run_pending_tasks()
        issuer_world.answers.clear()  # The next call must not wait for the issuer.
    issuer_world.answers.set()

    away = (ISSUER, "no route to host")
    assert [away] * (len(issuer_world.asked) - 1) == issuer_world.troubles
    with pytest.raises(AdmissionError, match="cannot be had now"):
        await issuer_world.identify_caller(header={"kid": "new"})

    issuer_world.pass_time(STALE_S)
    with pytest.raises(AdmissionError, match="keys of the token's issuer cannot be had"):
        await issuer_world.identify_caller()

    issuer_world.documents[JWKS_URL] = shown
    issuer_world.pass_time(PAUSE_WITHOUT_KEYS_S)
    assert "alice" == (await issuer_world.identify_caller()).user


async def test_keys_of_an_unreachable_issuer_are_requested_every_few_seconds(
    issuer_world: IssuerWorld,
) -> None:
    """The error is retryable because the caller's token may be valid."""
    shown = issuer_world.documents.pop(JWKS_URL)
    for _ in range(3):
        with pytest.raises(AdmissionError) as caught:
            await issuer_world.identify_caller()
        assert PAUSE_WITHOUT_KEYS_S == caught.value.retry_after_s

    assert [JWKS_URL] == issuer_world.asked
    issuer_world.documents[JWKS_URL] = shown
    issuer_world.pass_time(PAUSE_WITHOUT_KEYS_S)
    assert "alice" == (await issuer_world.identify_caller()).user


async def test_unreachable_issuer_affects_no_other_issuer() -> None:
    """Each issuer has separate keys, fetches and failures."""
    world = IssuerWorld()
    world.documents["https://two.com/keys"] = {"keys": [to_jwk(EC, "ec")]}
    del world.documents[JWKS_URL]
    second = Issuer("https://two.com", "justitia", "https://two.com/keys")
    verifier = TokenVerifier(
        [world.issuer, second],
        lambda *trouble: None,
        fetch=world._fetch_document,
        clock=lambda: 0.0,
        calendar=lambda: NOW,
    )
    with pytest.raises(AdmissionError):
        await verifier.identify(world.create_token())

    caller = await verifier.identify(world.create_token(iss="https://two.com"))
    assert "jwt:https://two.com:alice" == caller.credential


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (OSError("refused"), "refused"),
        (TimeoutError(), "TimeoutError"),
        (b"<html>", "is not JSON"),
        (b"\xff\xfe\xff", "is not JSON"),
        (b"[" * 100_000, "recursion"),
        (b"[]", "is not a JSON object"),
        (b"{}", "has no list of at most 100 keys"),
        ({"keys": {}}, "has no list of at most 100 keys"),
        ({"keys": [{}] * 101}, "has no list of at most 100 keys"),
        ({"keys": []}, "no key fits RS256, ES256"),
        ({"keys": [to_jwk(ED, "ec")]}, "no key fits RS256, ES256"),
    ],
)
async def test_unavailable_keys_are_a_server_error(
    issuer_world: IssuerWorld, document: Any, reason: str
) -> None:
    """The error is retryable, and its reason is logged for the operator."""
    issuer_world.documents[JWKS_URL] = document
    with pytest.raises(AdmissionError, match="cannot be had now"):
        await issuer_world.identify_caller()

    ((issuer, said),) = issuer_world.troubles
    assert issuer == ISSUER
    assert reason in said


async def test_empty_key_set_invalidates_all_keys(issuer_world: IssuerWorld) -> None:
    """A failed fetch, in contrast, would keep the last keys valid."""
    await issuer_world.identify_caller()
    issuer_world.publish_keys()
    issuer_world.pass_time(STALE_S)

    with pytest.raises(AdmissionError):
        await issuer_world.identify_caller()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"issuer": ISSUER, "jwks_uri": JWKS_URL}, None),
        ({"issuer": "https://evil.com", "jwks_uri": JWKS_URL}, "is of another issuer"),
        ({"jwks_uri": JWKS_URL}, "is of another issuer"),
        ({"issuer": ISSUER}, "has no jwks_uri"),
        ({"issuer": ISSUER, "jwks_uri": 7}, "has no jwks_uri"),
    ],
)
async def test_key_address_is_read_from_the_discovery_document(
    said: dict[str, Any], reason: str | None
) -> None:
    """The discovery document of another issuer could name an attacker's keys."""
    world = IssuerWorld(jwks_url=None)
    world.documents[DISCOVERY_URL] = said
    if reason is None:
        assert "alice" == (await world.identify_caller()).user
        assert [DISCOVERY_URL, JWKS_URL] == world.asked
        return
    with pytest.raises(AdmissionError):
        await world.identify_caller()

    assert reason in world.troubles[0][1]
    assert [DISCOVERY_URL] == world.asked


# --- settings


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"algorithms": ("ES256", "HS256")}, "algorithms is HS256"),
        ({"algorithms": ("none",)}, "algorithms is none"),
        ({"algorithms": ()}, "algorithms is empty"),
        ({"jwks_url": "http://login.acme.com/keys"}, "only https://"),
        ({"jwks_url": "file:///etc/passwd"}, "only https://"),
        ({"jwks_url": "http://localhost.evil.com/"}, "only https://"),
        ({"jwks_url": "http://localhost@evil.com/"}, "only https://"),
        ({"jwks_url": "https:///keys"}, "only https://"),
        ({"jwks_url": None, "issuer": "acme"}, "only https://"),
    ],
)
def test_insecure_issuer_is_a_configuration_error(fields: dict[str, Any], message: str) -> None:
    """The service fails at its start, not at the first call."""
    with pytest.raises(ConfigError, match=message):
        Issuer(**{"issuer": ISSUER, "audience": "justitia", **fields})


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8080", "[::1]"])
def test_plain_http_is_allowed_on_localhost(host: str) -> None:
    """A local sidecar that serves the keys needs no certificate."""
    Issuer(ISSUER, "justitia", f"http://{host}/keys")


# --- real HTTPS


class _IssuerHandler(BaseHTTPRequestHandler):
    """HTTP handler of a fake issuer: each path has one kind of answer."""

    def do_GET(self) -> None:
        body, location = b"", ""
        match self.path:
            case "/keys":
                body = json.dumps({"keys": [to_jwk(EC, "ec")]}).encode()
            case "/long":
                body = bytes(LONGEST_DOCUMENT_BYTES + 1)
            case "/moved":
                location = "/keys"
            case "/away":
                location = "http://10.9.9.9/keys"
            case "/ftp":
                location = "ftp://localhost/keys"
            case "/file":
                location = "file:///etc/passwd"
            case "/loop":
                location = "/loop"
            case "/broken":
                self.wfile.write(b"nothing of HTTP\r\n\r\n")
                return
        self.send_response(200 if body else 302 if location else 404)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


def _serve_on_thread(server: ThreadingHTTPServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def ca_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a self-signed certificate for 127.0.0.1; its key has the suffix `.key`."""
    file = tmp_path_factory.mktemp("tls") / "ca.pem"
    certificate = make_certificate("login", EC, "login", EC, is_authority=True, address="127.0.0.1")
    file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    file.with_suffix(".key").write_bytes(
        EC.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return file


@pytest.fixture(scope="module")
def https_url(ca_file: Path) -> Iterator[str]:
    """Run an issuer with TLS and return its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _IssuerHandler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(ca_file, ca_file.with_suffix(".key"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    for port in _serve_on_thread(server):
        yield f"https://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def http_url() -> Iterator[str]:
    for port in _serve_on_thread(ThreadingHTTPServer(("127.0.0.1", 0), _IssuerHandler)):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(autouse=True)
def _disable_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


async def test_keys_are_fetched_over_https_with_the_configured_authority(
    https_url: str, ca_file: Path
) -> None:
    """A company's own certificate authority is trusted for its issuer only."""
    troubles: list[tuple[str, str]] = []
    world = IssuerWorld()
    for file in (str(ca_file), None, str(ca_file.with_name("missing.pem"))):
        issuer = Issuer(ISSUER, "justitia", f"{https_url}/keys", file)
        verifier = TokenVerifier(
            [issuer], lambda *trouble: troubles.append(trouble), calendar=lambda: NOW
        )
        if file == str(ca_file):
            assert "alice" == (await verifier.identify(world.create_token())).user
            assert [] == troubles
        else:
            with pytest.raises(AdmissionError):
                await verifier.identify(world.create_token())

    assert "CERTIFICATE_VERIFY_FAILED" in troubles[0][1]
    assert "missing.pem: the certificates cannot be read" in troubles[1][1]


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("/moved", None, ""),
        ("/missing", OSError, "answered with status 404"),
        ("/long", ValueError, "longer than 1048576 bytes"),
        ("/away", ValueError, "only https://"),
        ("/ftp", ValueError, "only https://"),
        ("/file", OSError, "answered with status 302"),
        ("/loop", OSError, "answered with status 302"),
        ("/broken", OSError, "BadStatusLine"),
    ],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_invalid_http_answer_is_refused(
    path: str,
    error: type[Exception] | None,
    message: str,
    scheme: str,
    ca_file: Path,
    request: pytest.FixtureRequest,
) -> None:
    """Only redirects to allowed addresses are followed, and the size of the answer is limited."""
    url = f"{request.getfixturevalue(scheme + '_url')}{path}"
    if error is None:
        assert b"keys" in await fetch(url, str(ca_file))
        return
    with pytest.raises(error, match=message):
        await fetch(url, str(ca_file))


async def test_forbidden_address_is_not_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    """A discovery document may name any address, which is checked before connecting."""
    monkeypatch.setattr(documents, "build_opener", None)
    for url in ("http://10.9.9.9/keys", "file:///etc/passwd", "ftp://localhost/x", "http://["):
        with pytest.raises(ValueError, match=r"only https://|Invalid IPv6"):
            await fetch(url, None)


async def test_slowly_sent_document_is_abandoned(
    http_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An issuer that keeps sending slowly could hold a thread for days."""
    monkeypatch.setattr(documents, "_LONGEST_READ_S", -1.0)
    with pytest.raises(TimeoutError, match="not read within"):
        await fetch(f"{http_url}/keys", None)


# --- any text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def identify_or_refuse() -> Iterator[Any]:
    """Return a function that identifies a token's caller, or returns the refusal."""
    world = IssuerWorld(algorithms=("ES256", "RS256", "EdDSA"))
    with asyncio.Runner() as runner:

        def identify_token(token: str) -> Identity | Exception:
            try:
                return runner.run(world.verifier.identify(token))
            except (Unauthenticated, Forbidden) as refusal:
                return refusal

        yield identify_token


@pytest.fixture(scope="module")
def valid_token() -> str:
    return IssuerWorld().create_token()


@settings(max_examples=50, deadline=None)
@given(text=st.text() | st.lists(st.text(), min_size=3, max_size=3).map(".".join))
def test_text_that_is_not_a_token_is_refused(identify_or_refuse: Any, text: str) -> None:
    assert isinstance(identify_or_refuse(text), Unauthenticated)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_altered_token_is_refused(
    identify_or_refuse: Any, valid_token: str, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(valid_token) - 1))
    put = data.draw(st.sampled_from(["", "A", "b", ".", "=", "é", valid_token[at] * 2]))
    mangled = valid_token[:at] + put + valid_token[at + 1 :]

    assert mangled == valid_token or isinstance(identify_or_refuse(mangled), Unauthenticated)


@settings(max_examples=100, deadline=None)
@given(
    claims=st.dictionaries(
        st.sampled_from(["exp", "nbf", "iat", "aud", "sub", "jti", "tenant", "scope", "iss"]), JSON
    ),
    header=st.dictionaries(st.sampled_from(["alg", "kid", "crit", "b64", "typ", "enc"]), JSON),
)
def test_token_with_arbitrary_claims_is_accepted_or_refused(
    identify_or_refuse: Any, claims: dict[str, Any], header: dict[str, Any]
) -> None:
    """An issuer may sign any content: the result is an identity with a tenant or a refusal."""
    found = identify_or_refuse(
        sign_token(
            {"alg": "ES256", "kid": "ec", **header},
            {"iss": ISSUER, "aud": "justitia", "exp": NOW + 60, "tenant": "a", **claims},
            EC,
            "ES256",
        )
    )

    assert isinstance(found, Unauthenticated | Forbidden) or found.tenant
