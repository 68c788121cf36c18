"""The gate: credentials to identities, with a delay for failures and none for valid keys."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.access.credentials import check_single, find_credential
from justitia_ray.access.failure_delays import FailureDelays
from justitia_ray.access.gate import Gate
from justitia_ray.access.identity import Identity, Scope
from justitia_ray.access.keys import KeyTable, NewKey, create_key
from justitia_ray.errors import (
    AdmissionError,
    Forbidden,
    RequestError,
    TooManyFailures,
    Unauthenticated,
)

NOW = 1_800_000_000.0
ANYBODY = Identity("guests", frozenset({Scope.INFER}), "anonymous")
Headers = list[tuple[bytes, bytes]]


def create_test_key(seed: int, expires_at: float | None = None) -> NewKey:
    return create_key(
        tenant="acme",
        now=NOW - 10,
        expires_at=expires_at,
        random_bytes=lambda count: bytes([seed]) * count,
    )


KEY, OTHER, OLD = create_test_key(1), create_test_key(2), create_test_key(3, NOW - 5)


class TokenVerifierStub:
    async def identify(self, token: str) -> Identity:
        if token == "no.tenant.here":
            raise Forbidden("the token names no tenant", "no_tenant")
        if token != "a.b.c":
            raise Unauthenticated("the token is not a JSON Web Token")
        return Identity("of-token", frozenset({Scope.INFER}), "jwt:idp:alice")


class RecordingSleep:
    """Sleep function that returns at once and records the delays."""

    def __init__(self) -> None:
        self.times: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.times.append(seconds)


def create_gate(
    *tables: Callable[[], KeyTable], anonymous: Identity | None = None, **settings: Any
) -> Gate:
    known = tables or (lambda: KeyTable([KEY.record, OLD.record]),)
    given_: dict[str, Any] = {"clock": lambda: 0.0, "sleep": RecordingSleep()} | settings
    return Gate(known, TokenVerifierStub(), anonymous, calendar=lambda: NOW, **given_)


def bearer_headers(credential: str) -> Headers:
    return [(b"authorization", f"Bearer {credential}".encode())]


@pytest.mark.parametrize(
    ("headers", "credential"),
    [
        (bearer_headers(KEY.secret), f"key:{KEY.record.key_id}"),
        ([(b"authorization", b"bEaReR " + KEY.secret.encode())], f"key:{KEY.record.key_id}"),
        ([(b"x-api-key", KEY.secret.encode())], f"key:{KEY.record.key_id}"),
        (
            [*bearer_headers(KEY.secret), (b"x-api-key", KEY.secret.encode())],
            f"key:{KEY.record.key_id}",
        ),
        (bearer_headers("a.b.c"), "jwt:idp:alice"),
        ([(b"x-other", b"1")], "anonymous"),
    ],
)
async def test_credential_identifies_the_caller(headers: Headers, credential: str) -> None:
    """A credential is an API key in either header, or a token; anonymous calls may have none."""
    found = await create_gate(anonymous=ANYBODY).identify(headers)

    assert credential == found.credential


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ([], "a credential is required"),
        (bearer_headers(OTHER.secret), "the API key is not known"),
        (bearer_headers(OLD.secret), f"the API key {OLD.record.key_id} has expired"),
        (bearer_headers("x.y.z"), "no JSON Web Token|not a JSON Web Token"),
        (bearer_headers(""), "empty"),
        ([(b"authorization", b"Basic YTpi")], "only the scheme Bearer"),
        ([(b"x-api-key", "schlüssel".encode())], "other characters than ASCII"),
        ([*bearer_headers(KEY.secret), (b"x-api-key", b"jk-other")], "two credentials"),
    ],
)
async def test_wrong_credential_is_refused_without_being_shown(headers: Headers, said: str) -> None:
    with pytest.raises(Unauthenticated, match=said) as refused:
        await create_gate().identify(headers)

    for _, value in headers:
        secret = value.decode().partition(" ")[2] or value.decode()
        assert len(secret) < 12 or secret not in str(refused.value)


async def test_api_key_is_looked_up_in_every_source_of_keys() -> None:
    """A key that expired in one source of keys may be valid in the next.

    Unreadable sources are reported.
    """

    def raise_unreadable() -> KeyTable:
        raise AdmissionError("the API keys cannot be read from Redis now")

    def load_expired_key() -> KeyTable:
        return KeyTable([OLD.record])

    both = create_gate(load_expired_key, lambda: KeyTable([KEY.record]))
    away = create_gate(load_expired_key, raise_unreadable)

    assert "acme" == (await both.identify(bearer_headers(KEY.secret))).tenant
    with pytest.raises(Unauthenticated, match="has expired"):
        await both.identify(bearer_headers(OLD.secret))
    with pytest.raises(AdmissionError, match="cannot be read"):
        await away.identify(bearer_headers(KEY.secret))


async def test_only_failed_authentications_are_delayed() -> None:
    """The first failures of a key are not delayed: a deployment may still use its old key."""
    slept, shown = RecordingSleep(), list[str]()
    gate = create_gate(sleep=slept, on_failure=shown.append)
    for _ in range(8):
        with pytest.raises(Unauthenticated):
            await gate.identify(bearer_headers(OTHER.secret))
    await gate.identify(bearer_headers(KEY.secret))

    assert [0.1, 0.2, 0.4] == slept.times
    assert [OTHER.record.key_id] * 8 == shown


async def test_number_of_delayed_failures_is_limited() -> None:
    release = asyncio.Event()

    async def wait_for_release(seconds: float) -> None:
        await release.wait()

    gate = create_gate(sleep=wait_for_release)
    calls = [asyncio.create_task(gate.identify(bearer_headers("x.y.z"))) for _ in range(1_020)]
    await asyncio.sleep(0)
    release.set()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)

    assert 15 == sum(isinstance(outcome, TooManyFailures) for outcome in outcomes)
    assert {Unauthenticated, TooManyFailures} == {type(outcome) for outcome in outcomes}


async def test_valid_token_without_a_tenant_is_not_delayed_as_a_failed_login() -> None:
    slept = RecordingSleep()
    gate = create_gate(sleep=slept)
    for _ in range(20):
        with pytest.raises(Forbidden):
            await gate.identify(bearer_headers("no.tenant.here"))

    assert [] == slept.times


def test_failed_authentications_with_different_keys_share_one_delay() -> None:
    """An attacker who guesses keys uses another key each time."""
    delays = FailureDelays()
    at_once = [delays.note_failure(str(number), 0.0) for number in range(1_000)]

    assert {0.0} == set(at_once[:100])
    assert 3.0 == at_once[-1]
    assert at_once == sorted(at_once)
    assert 0.0 == delays.note_failure("later", 20.0)


def test_failed_authentication_is_forgotten_after_a_minute() -> None:
    delays = FailureDelays()
    for _ in range(9):
        last = delays.note_failure("a", 0.0)

    assert last > 0
    assert 0.0 == delays.note_failure("a", 61.0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"authorization", b"x-api-key", b"x-justitia-tenant", b"a"]),
            st.binary(max_size=40),
        ),
        max_size=5,
    )
)
def test_arbitrary_headers_give_a_credential_or_a_refusal(headers: Headers) -> None:
    """Even two equal copies of a credential header are refused."""
    try:
        check_single(headers, [b"x-justitia-tenant"])
    except RequestError:
        assert len({name for name, _ in headers}) < len(headers)
    else:
        named = [name for name, _ in headers if name != b"a"]
        assert len(named) == len(set(named))
    try:
        found = find_credential(headers)
    except Unauthenticated:
        return
    assert found is None or found
