"""A stranger at the ports of the service: it knows no secret, and sends what it likes."""

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
class Door:
    """A port of the service, and what a stranger may have overheard."""

    address: str
    target: str
    """Name of the process there."""
    key_id: str
    """Name of the key that is in force."""


class Stranger:
    """Tries to be let in, in every way it knows."""

    def __init__(self) -> None:
        self.refused = 0
        """How often it was refused so far."""

    async def knock(self, door: Door) -> None:
        """Try a secret of its own under the right name, a key of its own, and garbage.

        Raises:
            JustitiaError: If it was let in.
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

    async def _send_garbage(self, door: Door, garbage: bytes) -> None:
        host, _, port = door.address.rpartition(":")
        with suppress(OSError):  # however it is refused
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            with closing(writer):
                writer.write(garbage)
                await reader.read(1_000)
        self.refused += 1


async def keep_knocking(stranger: Stranger, doors: Sequence[Door]) -> None:
    """Try all doors at once, again and again, until cancelled."""
    while True:
        await asyncio.gather(*(stranger.knock(door) for door in doors))
        await asyncio.sleep(_AGAIN_S)
