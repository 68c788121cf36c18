"""Handshake of a connection: both sides prove the secret and the caller names its target."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from justitia_ray.errors import ConnectionLost
from justitia_ray.serve.transport import handshake
from justitia_ray.serve.transport.frames import Call
from justitia_ray.serve.transport.handshake import (
    WIRE_VERSION,
    Challenge,
    Hello,
    Key,
    Keyring,
    Offer,
    Peer,
    UnknownKey,
    admit,
    greet,
)
from tests.unit.serve.transport.ends import CALLER, KEY, NAME, frame_of, keyring

OTHER = Key(KEY.key_id, b"o" * 32)
"""Different secret under the same key id."""


class Wire:
    """Messages between both sides, all of which are recorded."""

    def __init__(self) -> None:
        self.to_listener: asyncio.Queue[bytes] = asyncio.Queue()
        self.to_caller: asyncio.Queue[bytes] = asyncio.Queue()
        self.said: list[bytes] = []

    def send(self, queue: asyncio.Queue[bytes]) -> Callable[[bytes], Awaitable[None]]:
        """Return a function that sends to one side."""

        async def send(data: bytes) -> None:
            self.said.append(data)
            queue.put_nowait(data)

        return send

    async def greet(self, key: Key, target: str = NAME) -> None:
        await greet(self.send(self.to_listener), self.to_caller.get, CALLER, target, key)

    async def admit(self, ring: Keyring) -> Peer:
        return await admit(self.send(self.to_caller), self.to_listener.get, NAME, ring)


async def meet(key: Key, ring: Keyring, target: str = NAME) -> tuple[Any, Any]:
    """Return the results of the caller's and the listener's part; a hanging part is cancelled."""
    wire = Wire()
    sides = [asyncio.create_task(wire.greet(key, target)), asyncio.create_task(wire.admit(ring))]
    await asyncio.wait(sides, return_when=asyncio.FIRST_EXCEPTION)
    for side in sides:
        side.cancel()
    caller, listener = await asyncio.gather(*sides, return_exceptions=True)
    return caller, listener


async def test_sides_with_the_same_secret_learn_each_others_names() -> None:
    """The handshake gives the listener the caller's name."""
    assert (None, CALLER) == await meet(KEY, keyring(KEY))


async def test_previous_key_is_accepted_and_an_older_one_is_not() -> None:
    """A restarted scheduler has a new key, which must not close existing connections."""
    old, current = Key.new(), Key.new()

    assert (None, CALLER) == await meet(old, keyring(KEY, old, current))
    caller, listener = await meet(KEY, keyring(KEY, old, current))
    assert type(caller) is UnknownKey
    assert f"replica-1 does not know key '{KEY.key_id}'" == str(caller) == str(listener)


def test_ring_keeps_two_keys_and_takes_no_offer_twice() -> None:
    """A scheduler's key offer is repeated after each lost connection."""
    old, current = Key.new(), Key.new()
    ring = keyring(KEY, old, current, current)

    assert (current, old) == ring.keys


async def test_listener_with_another_secret_receives_no_proof() -> None:
    """A caller proves nothing to a process that has taken the port."""
    wire = Wire()
    listener = asyncio.create_task(wire.admit(keyring(OTHER)))
    with pytest.raises(ConnectionLost, match="does not know the secret"):
        await wire.greet(KEY)
    listener.cancel()

    assert 2 == len(wire.said)


async def test_caller_with_another_secret_is_refused() -> None:
    wire = Wire()
    listener = asyncio.create_task(wire.admit(keyring(KEY)))
    await wire.send(wire.to_listener)(hello())
    challenge = await wire.to_caller.get()
    proof = msgspec.msgpack.decode(challenge, type=Challenge).proof
    wire.to_listener.put_nowait(proof)  # the listener's own proof, sent back to it
    with pytest.raises(ConnectionLost, match="the caller does not know the secret"):
        await listener


async def test_recorded_handshake_is_worth_nothing_the_second_time() -> None:
    wire = Wire()
    await asyncio.gather(wire.greet(KEY), wire.admit(keyring(KEY)))
    first, _, last = wire.said
    again = Wire()
    for data in (first, last):
        again.to_listener.put_nowait(data)
    with pytest.raises(ConnectionLost, match="the caller does not know the secret"):
        await again.admit(keyring(KEY))


async def test_other_process_on_a_reused_port_is_not_called() -> None:
    """Ports are reused, and leases of one process are not valid at another."""
    caller, listener = await meet(KEY, keyring(KEY), target="replica-0")

    assert "the caller wants 'replica-0': this is replica-1" == str(caller) == str(listener)
    assert type(caller) is ConnectionLost


async def test_other_wire_version_is_refused_with_both_named() -> None:
    """The log of a rolling upgrade must name both versions."""
    caller, listener = Wire(), Wire()
    task = asyncio.create_task(listener.admit(keyring(KEY)))
    listener.to_listener.put_nowait(hello(wire_version=WIRE_VERSION + 1))
    with pytest.raises(
        ConnectionLost, match=f"is {WIRE_VERSION + 1}: replica-1 speaks {WIRE_VERSION}$"
    ):
        await task
    caller.to_caller.put_nowait(await listener.to_caller.get())
    with pytest.raises(
        ConnectionLost, match=f"is {WIRE_VERSION + 1}: replica-1 speaks {WIRE_VERSION}$"
    ):
        await caller.greet(KEY)


async def test_hello_of_a_later_version_may_have_more_fields() -> None:
    later = WIRE_VERSION + 1
    longer = msgspec.msgpack.encode([*msgspec.msgpack.decode(hello(later)), "more"])
    wire = Wire()
    wire.to_listener.put_nowait(longer)
    with pytest.raises(ConnectionLost, match=f"wire version is {later}"):
        await wire.admit(keyring(KEY))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "cannot be read"),
        (b"\xc1\xff", "cannot be read"),
        (b"GET / HTTP/1.1", "cannot be read"),
        (frame_of(Call(1, "inspect", msgspec.Raw(b"\x90"))), "cannot be read"),
        (msgspec.msgpack.encode([1, "key", "role", "name", NAME, 7]), "cannot be read"),
        (msgspec.msgpack.encode([1, "k" * 5000, "role", "name", NAME, b""]), "longer than 4096"),
        (b"x" * 10**6, "longer than 4096"),
    ],
    ids=["empty", "garbage", "HTTP", "a call", "other types", "a long name", "a megabyte"],
)
async def test_invalid_hello_ends_the_handshake(data: bytes, reason: str) -> None:
    """Further bytes of a stranger are not decoded, and it receives no answer."""
    wire = Wire()
    wire.to_listener.put_nowait(data)
    with pytest.raises(ConnectionLost, match=reason):
        await wire.admit(keyring(KEY))

    assert [] == wire.said


@pytest.mark.parametrize("data", [b"\xc1", b"x" * 5000, msgspec.msgpack.encode(["", False, 1])])
async def test_invalid_challenge_ends_the_handshake(data: bytes) -> None:
    wire = Wire()
    wire.to_caller.put_nowait(data)
    with pytest.raises(ConnectionLost, match="a message of the handshake"):
        await wire.greet(KEY)


def test_secret_is_shown_nowhere() -> None:
    """Offers and keys appear in tracebacks and in Ray's logs."""
    shown = repr([KEY, Offer("a:1", NAME, KEY), keyring(KEY).keys, str(KEY)])

    assert KEY.key_id in shown
    assert repr(KEY.secret)[2:10] not in shown
    assert 32 == len(KEY.secret)
    assert KEY.secret != Key.new().secret


def hello(wire_version: int = WIRE_VERSION) -> bytes:
    fields = (wire_version, KEY.key_id, CALLER.role, CALLER.name, NAME, b"n" * 32)
    return msgspec.msgpack.encode(Hello(*fields))


def test_proof_covers_the_whole_handshake() -> None:
    """The proof covers version, role, name, target, nonces and side, so none can be changed."""
    original = msgspec.msgpack.decode(hello(), type=Hello)
    changed = [
        msgspec.structs.replace(original, **{name: value})
        for name, value in {
            "wire_version": WIRE_VERSION + 1,
            "role": "replica",
            "name": "ingress-2",
            "target": "replica-2",
            "nonce": b"m" * 32,
        }.items()
    ]
    proofs = {handshake._hello_proof(KEY, b"caller", said, b"1") for said in (original, *changed)}
    proofs |= {
        handshake._hello_proof(KEY, b"listener", original, b"1"),
        handshake._hello_proof(KEY, b"caller", original, b"2"),
        handshake._hello_proof(OTHER, b"caller", original, b"1"),
    }

    assert 9 == len(proofs)
