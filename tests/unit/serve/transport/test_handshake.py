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
from tests.unit.serve.transport.ends import CALLER, KEY, NAME, frame_of, keyring_of

OTHER = Key(KEY.key_id, b"o" * 32)
"""Another secret with an equal key id."""


class RecordedWire:
    """Recorded messages between both sides of a handshake."""

    def __init__(self) -> None:
        self.to_listener: asyncio.Queue[bytes] = asyncio.Queue()
        self.to_caller: asyncio.Queue[bytes] = asyncio.Queue()
        self.said: list[bytes] = []

    def sender_to(self, queue: asyncio.Queue[bytes]) -> Callable[[bytes], Awaitable[None]]:
        """Return a function that sends to one side of the handshake."""

        async def send_recorded(data: bytes) -> None:
            self.said.append(data)
            queue.put_nowait(data)

        return send_recorded

    async def greet_listener(self, key: Key, target: str = NAME) -> None:
        await greet(self.sender_to(self.to_listener), self.to_caller.get, CALLER, target, key)

    async def admit_caller(self, ring: Keyring) -> Peer:
        return await admit(self.sender_to(self.to_caller), self.to_listener.get, NAME, ring)


async def shake_hands(key: Key, ring: Keyring, target: str = NAME) -> tuple[Any, Any]:
    """Run a handshake, and return the results of caller and listener; cancel a hanging side."""
    wire = RecordedWire()
    sides = [
        asyncio.create_task(wire.greet_listener(key, target)),
        asyncio.create_task(wire.admit_caller(ring)),
    ]
    await asyncio.wait(sides, return_when=asyncio.FIRST_EXCEPTION)
    for side in sides:
        side.cancel()
    caller, listener = await asyncio.gather(*sides, return_exceptions=True)
    return caller, listener


async def test_handshake_with_a_common_secret_exchanges_process_names() -> None:
    assert (None, CALLER) == await shake_hands(KEY, keyring_of(KEY))


async def test_handshake_accepts_the_previous_key_and_no_older_key() -> None:
    """A restarted scheduler has a new key, which must not close existing connections."""
    old, current = Key.new(), Key.new()

    assert (None, CALLER) == await shake_hands(old, keyring_of(KEY, old, current))
    caller, listener = await shake_hands(KEY, keyring_of(KEY, old, current))
    assert type(caller) is UnknownKey
    assert f"replica-1 does not know key '{KEY.key_id}'" == str(caller) == str(listener)


def test_keyring_keeps_two_keys_and_ignores_repeated_offers() -> None:
    """After each lost connection, the scheduler offers its key again."""
    old, current = Key.new(), Key.new()
    ring = keyring_of(KEY, old, current, current)

    assert (current, old) == ring.keys


async def test_listener_with_another_secret_receives_no_proof() -> None:
    """A caller proves nothing to a process that has taken the port."""
    wire = RecordedWire()
    listener = asyncio.create_task(wire.admit_caller(keyring_of(OTHER)))
    with pytest.raises(ConnectionLost, match="does not know the secret"):
        await wire.greet_listener(KEY)
    listener.cancel()

    assert 2 == len(wire.said)


async def test_caller_with_another_secret_is_refused() -> None:
    wire = RecordedWire()
    listener = asyncio.create_task(wire.admit_caller(keyring_of(KEY)))
    await wire.sender_to(wire.to_listener)(hello_bytes())
    challenge = await wire.to_caller.get()
    proof = msgspec.msgpack.decode(challenge, type=Challenge).proof
    wire.to_listener.put_nowait(proof)  # The listener's own proof is sent back to it.
    with pytest.raises(ConnectionLost, match="the caller does not know the secret"):
        await listener


async def test_handshake_proof_of_a_wrong_length_is_refused() -> None:
    wire = RecordedWire()
    listener = asyncio.create_task(wire.admit_caller(keyring_of(KEY)))
    await wire.sender_to(wire.to_listener)(hello_bytes())
    await wire.to_caller.get()
    wire.to_listener.put_nowait(b"x" * 5000)
    with pytest.raises(ConnectionLost, match="longer than 4096"):
        await listener


async def test_replayed_handshake_is_refused() -> None:
    wire = RecordedWire()
    await asyncio.gather(wire.greet_listener(KEY), wire.admit_caller(keyring_of(KEY)))
    first, _, last = wire.said
    again = RecordedWire()
    for data in (first, last):
        again.to_listener.put_nowait(data)
    with pytest.raises(ConnectionLost, match="the caller does not know the secret"):
        await again.admit_caller(keyring_of(KEY))


async def test_another_process_on_a_reused_port_is_refused() -> None:
    """Ports are reused, and leases of one process are not valid at another."""
    caller, listener = await shake_hands(KEY, keyring_of(KEY), target="replica-0")

    assert "the caller wants 'replica-0': this is replica-1" == str(caller) == str(listener)
    assert type(caller) is ConnectionLost


async def test_other_wire_version_is_refused_with_both_versions_named() -> None:
    """The log of a rolling upgrade must name both versions."""
    caller, listener = RecordedWire(), RecordedWire()
    task = asyncio.create_task(listener.admit_caller(keyring_of(KEY)))
    listener.to_listener.put_nowait(hello_bytes(wire_version=WIRE_VERSION + 1))
    with pytest.raises(
        ConnectionLost, match=f"is {WIRE_VERSION + 1}: replica-1 speaks {WIRE_VERSION}$"
    ):
        await task
    caller.to_caller.put_nowait(await listener.to_caller.get())
    with pytest.raises(
        ConnectionLost, match=f"is {WIRE_VERSION + 1}: replica-1 speaks {WIRE_VERSION}$"
    ):
        await caller.greet_listener(KEY)


async def test_hello_of_a_later_version_may_have_more_fields() -> None:
    later = WIRE_VERSION + 1
    longer = msgspec.msgpack.encode([*msgspec.msgpack.decode(hello_bytes(later)), "more"])
    wire = RecordedWire()
    wire.to_listener.put_nowait(longer)
    with pytest.raises(ConnectionLost, match=f"wire version is {later}"):
        await wire.admit_caller(keyring_of(KEY))


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
    """Further bytes of an unknown sender are not decoded, and it receives no answer."""
    wire = RecordedWire()
    wire.to_listener.put_nowait(data)
    with pytest.raises(ConnectionLost, match=reason):
        await wire.admit_caller(keyring_of(KEY))

    assert [] == wire.said


@pytest.mark.parametrize("data", [b"\xc1", b"x" * 5000, msgspec.msgpack.encode(["", False, 1])])
async def test_invalid_challenge_ends_the_handshake(data: bytes) -> None:
    wire = RecordedWire()
    wire.to_caller.put_nowait(data)
    with pytest.raises(ConnectionLost, match="a message of the handshake"):
        await wire.greet_listener(KEY)


def test_repr_of_keys_and_offers_does_not_contain_the_secret() -> None:
    """Offers and keys appear in tracebacks and in Ray's logs."""
    shown = repr([KEY, Offer("a:1", NAME, KEY), keyring_of(KEY).keys, str(KEY)])

    assert KEY.key_id in shown
    assert repr(KEY.secret)[2:10] not in shown
    assert 32 == len(KEY.secret)
    assert KEY.secret != Key.new().secret


def hello_bytes(wire_version: int = WIRE_VERSION) -> bytes:
    fields = (wire_version, KEY.key_id, CALLER.role, CALLER.name, NAME, b"n" * 32)
    return msgspec.msgpack.encode(Hello(*fields))


def test_handshake_proof_covers_all_handshake_messages() -> None:
    """The proof covers version, role, name, target, nonces and side of the handshake."""
    original = msgspec.msgpack.decode(hello_bytes(), type=Hello)
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
