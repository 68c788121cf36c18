"""Connection attempts at the service's ports by a peer without the secret."""

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from justitia_ray.errors import ConnectionLost, JustitiaError
from justitia_ray.serve.transport.dialer import Dialer
from justitia_ray.serve.transport.handshake import Key, Keyring, Peer
from justitia_ray.serve.transport.methods import SCHEDULER_METHODS

_AGAIN_S = 0.05


@dataclass(frozen=True, slots=True)
class OpenPort:
    """Port of the service, with everything that an eavesdropper may know about it."""

    address: str
    target: str
    """Name of the process that listens on the port."""
    key_id: str
    """Id of the current key."""


class Attacker:
    """Attacker without the secret key, who tries to connect in every way."""

    def __init__(self) -> None:
        self.refused = 0
        """Number of refused attempts."""

    async def try_to_connect(self, door: OpenPort) -> None:
        """Try a wrong secret under a known key id, then an unknown key, then garbage.

        Raises JustitiaError if it was accepted.
        """
        for key in (Key(door.key_id, secrets.token_bytes(32)), Key.new()):
            keyring = Keyring()
            keyring.add(key)
            dialer = Dialer(Peer("replica", "stranger"), keyring, SCHEDULER_METHODS)
            try:
                link = await dialer.dial(door.address, door.target)
            except ConnectionLost:
                self.refused += 1
            else:
                await link.close()
                raise JustitiaError(f"a stranger was let in at {door.address}")
        await self._send_garbage(door, secrets.token_bytes(300))
        await self._send_garbage(door, b"GET /connect HTTP/1.1\r\nHost: x\r\n\r\n")

    async def _send_garbage(self, door: OpenPort, garbage: bytes) -> None:
        host, _, port = door.address.rpartition(":")
        with suppress(OSError):  # any kind of refusal
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            with closing(writer):
                writer.write(garbage)
                await reader.read(1_000)
        self.refused += 1


async def keep_connecting(stranger: Attacker, doors: Sequence[OpenPort]) -> None:
    """Try all ports at once, repeatedly, until cancelled."""
    while True:
        await asyncio.gather(*(stranger.try_to_connect(door) for door in doors))
        await asyncio.sleep(_AGAIN_S)
