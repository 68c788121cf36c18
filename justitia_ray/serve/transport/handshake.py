"""Handshake of a connection: both sides prove that they have the scheduler's secret.

Caller and listener exchange nonces, and each sends an HMAC over both nonces, the wire version and
the names of both processes; no other message is decoded before. The secret comes from the scheduler
by an actor call. The handshake authenticates the peer at the start; later messages are protected
only by TLS or a trusted network.
"""

import hmac
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from justitia_ray.errors import ConnectionLost

WIRE_VERSION = 4
"""Version of the messages between processes; a listener refuses any other version.
`tests/README.md` says when to increase it.
"""
_NONCE_BYTES = 32
_MAX_BYTES = 4096
"""Maximum bytes of a handshake message."""

Send = Callable[[bytes], Awaitable[None]]
Receive = Callable[[], Awaitable[bytes]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Key:
    """Secret of one scheduler process with its id, for authenticating connections."""

    key_id: str
    secret: bytes = field(repr=False)

    @classmethod
    def new(cls) -> "Key":
        """Return a new key of 32 random bytes."""
        return cls(secrets.token_hex(8), secrets.token_bytes(32))


@dataclass(frozen=True, slots=True)
class Offer:
    """Address and key of a scheduler, sent by actor calls to processes that connect to it."""

    address: str
    """Host and port of the scheduler, in the form of URLs."""
    target: str
    """Name of the scheduler at the address."""
    key: Key


class Keyring:
    """Current and previous key, so that a new scheduler's key breaks no connections."""

    def __init__(self) -> None:
        self.keys: tuple[Key, ...] = ()
        """Known keys, the current key first."""

    def add(self, key: Key) -> None:
        if self.keys[:1] != (key,):
            self.keys = (key, *self.keys[:1])

    def find(self, key_id: str) -> Key | None:
        """Return the key with an id; None if it is unknown."""
        return next((key for key in self.keys if key.key_id == key_id), None)


@dataclass(frozen=True, slots=True)
class Peer:
    """Process at the other end of a connection."""

    role: str
    """Kind of the process at the other end: `ingress` or `replica`."""
    name: str
    """Ray Serve's unique id of the deployment replica that runs in the process."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """First message of a handshake, sent by the caller."""

    wire_version: int
    key_id: str
    role: str
    name: str
    target: str
    """Name of the process that the caller expects, because another process may use its port by now.
    """
    nonce: bytes


class Challenge(msgspec.Struct, frozen=True, array_like=True):
    """The listener's answer to `Hello`: a refusal, or its nonce and proof."""

    refusal: str = ""
    unknown_key: bool = False
    nonce: bytes = b""
    proof: bytes = b""


class UnknownKey(ConnectionLost):
    """The listener does not have the caller's key, because it belongs to another scheduler."""


async def greet(send: Send, receive: Receive, me: Peer, target: str, key: Key) -> None:
    """Perform the caller's side of the handshake.

    Args:
        send: Sends a message.
        receive: Returns the next message.
        me: This process.
        target: Name of the called process.
        key: Key that both sides have.

    Raises:
        ConnectionLost: If the listener refuses or does not have the key's secret.
        UnknownKey: If the listener does not have a key with this id.
    """
    hello = Hello(
        WIRE_VERSION, key.key_id, me.role, me.name, target, secrets.token_bytes(_NONCE_BYTES)
    )
    await send(msgspec.msgpack.encode(hello))
    challenge = _decode_message(await receive(), Challenge)
    if challenge.refusal:
        raise (UnknownKey if challenge.unknown_key else ConnectionLost)(challenge.refusal)
    expected = _hello_proof(key, b"listener", hello, challenge.nonce)
    if not hmac.compare_digest(challenge.proof, expected):
        raise ConnectionLost(f"{target} does not know the secret of key {key.key_id}")
    await send(_hello_proof(key, b"caller", hello, challenge.nonce))


async def admit(send: Send, receive: Receive, name: str, keyring: Keyring) -> Peer:
    """Perform the listener's side of the handshake; return the calling process.

    Args:
        send: Sends a message.
        receive: Returns the next message.
        name: Name of this process.
        keyring: Accepted keys.

    Raises:
        ConnectionLost: If the caller is refused; it was sent the reason.
    """
    hello = _decode_message(await receive(), Hello)
    key = keyring.find(hello.key_id)
    refusal = ""
    if hello.wire_version != WIRE_VERSION:
        refusal = f"the caller's wire version is {hello.wire_version}: {name} speaks {WIRE_VERSION}"
    elif hello.target != name:
        refusal = f"the caller wants {hello.target[:200]!r}: this is {name}"
    elif key is None:
        refusal = f"{name} does not know key {hello.key_id[:80]!r}"
    if refusal or key is None:
        await send(msgspec.msgpack.encode(Challenge(refusal, key is None)))
        raise ConnectionLost(refusal)
    nonce = secrets.token_bytes(_NONCE_BYTES)
    proof = _hello_proof(key, b"listener", hello, nonce)
    await send(msgspec.msgpack.encode(Challenge(nonce=nonce, proof=proof)))
    proven = _limited(await receive())
    if not hmac.compare_digest(proven, _hello_proof(key, b"caller", hello, nonce)):
        raise ConnectionLost(f"the caller does not know the secret of key {key.key_id}")
    return Peer(hello.role, hello.name)


def _hello_proof(key: Key, side: bytes, hello: Hello, nonce: bytes) -> bytes:
    return hmac.digest(key.secret, side + msgspec.msgpack.encode((hello, nonce)), "sha256")


def _limited(data: bytes) -> bytes:
    """Return a received message of the handshake, unless it is too long."""
    if len(data) > _MAX_BYTES:
        raise ConnectionLost(f"a message of the handshake is longer than {_MAX_BYTES} bytes")
    return data


def _decode_message(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(_limited(data), type=kind)
    except msgspec.MsgspecError as error:
        raise ConnectionLost(f"a message of the handshake cannot be read: {error}") from None
