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


def new_key(seed: int, expires_at: float | None = None) -> NewKey:
    return create_key(
        tenant="acme",
        now=NOW - 10,
        expires_at=expires_at,
        random_bytes=lambda count: bytes([seed]) * count,
    )


KEY, OTHER, OLD = new_key(1), new_key(2), new_key(3, NOW - 5)


class Tokens:
    """Token verifier that accepts only `a.b.c`."""

    async def identify(self, token: str) -> Identity:
        if token == "no.tenant.here":
            raise Forbidden("the token names no tenant", "no_tenant")
        if token != "a.b.c":
            raise Unauthenticated("the token is not a JSON Web Token")
        return Identity("of-token", frozenset({Scope.INFER}), "jwt:idp:alice")


class Slept:
    """Sleep function that returns at once and records the delays."""

    def __init__(self) -> None:
        self.times: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.times.append(seconds)


def gate_of(
    *tables: Callable[[], KeyTable], anonymous: Identity | None = None, **settings: Any
) -> Gate:
    known = tables or (lambda: KeyTable([KEY.record, OLD.record]),)
    given_: dict[str, Any] = {"clock": lambda: 0.0, "sleep": Slept()} | settings
    return Gate(known, Tokens(), anonymous, calendar=lambda: NOW, **given_)


def bearer(credential: str) -> Headers:
    return [(b"authorization", f"Bearer {credential}".encode())]


@pytest.mark.parametrize(
    ("headers", "credential"),
    [
        (bearer(KEY.secret), f"key:{KEY.record.key_id}"),
        ([(b"authorization", b"bEaReR " + KEY.secret.encode())], f"key:{KEY.record.key_id}"),
        ([(b"x-api-key", KEY.secret.encode())], f"key:{KEY.record.key_id}"),
        ([*bearer(KEY.secret), (b"x-api-key", KEY.secret.encode())], f"key:{KEY.record.key_id}"),
        (bearer("a.b.c"), "jwt:idp:alice"),
        ([(b"x-other", b"1")], "anonymous"),
    ],
)
async def test_credential_identifies_its_caller(headers: Headers, credential: str) -> None:
    """A caller sends an API key in either header, a token, or no credential where allowed."""
    found = await gate_of(anonymous=ANYBODY).identify(headers)

    assert credential == found.credential


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ([], "a credential is required"),
        (bearer(OTHER.secret), "the API key is not known"),
        (bearer(OLD.secret), f"the API key {OLD.record.key_id} has expired"),
        (bearer("x.y.z"), "no JSON Web Token|not a JSON Web Token"),
        (bearer(""), "empty"),
        ([(b"authorization", b"Basic YTpi")], "only the scheme Bearer"),
        ([(b"x-api-key", "schlüssel".encode())], "other characters than ASCII"),
        ([*bearer(KEY.secret), (b"x-api-key", b"jk-other")], "two credentials"),
    ],
)
async def test_wrong_credential_is_refused_without_being_shown(headers: Headers, said: str) -> None:
    with pytest.raises(Unauthenticated, match=said) as refused:
        await gate_of().identify(headers)

    for _, value in headers:
        secret = value.decode().partition(" ")[2] or value.decode()
        assert len(secret) < 12 or secret not in str(refused.value)


async def test_key_is_looked_up_in_every_source() -> None:
    """A key that expired in one source may be valid in the next.

    Unreadable sources are reported.
    """

    def unreadable() -> KeyTable:
        raise AdmissionError("the API keys cannot be read from Redis now")

    def first() -> KeyTable:
        return KeyTable([OLD.record])

    both = gate_of(first, lambda: KeyTable([KEY.record]))
    away = gate_of(first, unreadable)

    assert "acme" == (await both.identify(bearer(KEY.secret))).tenant
    with pytest.raises(Unauthenticated, match="has expired"):
        await both.identify(bearer(OLD.secret))
    with pytest.raises(AdmissionError, match="cannot be read"):
        await away.identify(bearer(KEY.secret))


async def test_failures_are_delayed_and_valid_keys_are_not() -> None:
    """The first few failures of a key are not delayed: a deployment may still have an old key."""
    slept, shown = Slept(), list[str]()
    gate = gate_of(sleep=slept, on_failure=shown.append)
    for _ in range(8):
        with pytest.raises(Unauthenticated):
            await gate.identify(bearer(OTHER.secret))
    await gate.identify(bearer(KEY.secret))

    assert [0.1, 0.2, 0.4] == slept.times
    assert [OTHER.record.key_id] * 8 == shown


async def test_number_of_delayed_failures_is_bounded() -> None:
    release = asyncio.Event()

    async def until_released(seconds: float) -> None:
        await release.wait()

    gate = gate_of(sleep=until_released)
    calls = [asyncio.create_task(gate.identify(bearer("x.y.z"))) for _ in range(1_020)]
    await asyncio.sleep(0)
    release.set()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)

    assert 15 == sum(isinstance(outcome, TooManyFailures) for outcome in outcomes)
    assert {Unauthenticated, TooManyFailures} == {type(outcome) for outcome in outcomes}


async def test_valid_token_without_a_tenant_does_not_count_as_a_failure() -> None:
    """A valid token proves the caller's identity even without a tenant."""
    slept = Slept()
    gate = gate_of(sleep=slept)
    for _ in range(20):
        with pytest.raises(Forbidden):
            await gate.identify(bearer("no.tenant.here"))

    assert [] == slept.times


def test_failures_of_different_keys_are_delayed_together() -> None:
    """An attacker who guesses uses another key each time."""
    delays = FailureDelays()
    at_once = [delays.note_failure(str(number), 0.0) for number in range(1_000)]

    assert {0.0} == set(at_once[:100])
    assert 3.0 == at_once[-1]
    assert at_once == sorted(at_once)
    assert 0.0 == delays.note_failure("later", 20.0)


def test_failure_is_forgotten_after_a_minute() -> None:
    """A key that was fixed and broken again gets undelayed failures again."""
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
def test_headers_of_any_form_give_a_credential_or_a_refusal(headers: Headers) -> None:
    """Two copies of an identifying header are always refused."""
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
