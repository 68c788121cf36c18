"""Open connections from this process to listeners."""

import asyncio
import ssl
from collections.abc import Mapping

import aiohttp

from justitia_ray.errors import ConnectionLost
from justitia_ray.serve.transport.connection import CLOSE_S, MAX_FRAME_BYTES
from justitia_ray.serve.transport.handshake import Key, Keyring, Peer, UnknownKey, greet
from justitia_ray.serve.transport.link import SocketLink
from justitia_ray.serve.transport.listener import HANDSHAKE_S, PATH, receive
from justitia_ray.serve.transport.methods import Method
from justitia_ray.units import Seconds

_CONNECT_S: Seconds = 2.0


class Dialer:
    """Opens connections to other processes, with the keys that this process has received so far.

    Args:
        me: This process.
        keyring: Keys to try, the current one first.
        methods: Methods of the called processes.
        tls: TLS context; None: connections are not encrypted.
        standstill_s: Longest silence of a called process while its machine answers.
    """

    def __init__(
        self,
        me: Peer,
        keyring: Keyring,
        methods: Mapping[str, Method],
        tls: ssl.SSLContext | None = None,
        standstill_s: Seconds = 0.0,
    ) -> None:
        self._me = me
        self._keyring = keyring
        self._methods = methods
        self._tls: ssl.SSLContext | bool = True if tls is None else tls
        self._standstill_s = standstill_s
        self._scheme = "http" if tls is None else "https"

    async def dial(self, address: str, target: str) -> SocketLink:
        """Open a connection to a named process at an address.

        Args:
            address: Host and port, in the form of URLs.
            target: Name of the process that listens there.

        Raises:
            ConnectionLost: If the connection cannot be opened, or the other side refuses.
        """
        reason: Exception = ConnectionLost("no key is known yet")
        for key in self._keyring.keys:
            try:
                async with asyncio.timeout(HANDSHAKE_S):
                    return await self._open_link(address, target, key)
            except UnknownKey as error:
                reason = error  # The other process may still have the previous key.
            except (aiohttp.ClientError, OSError, TimeoutError, ConnectionLost) as error:
                reason = error
                break
        raise ConnectionLost(
            f"no connection to {target} at {address}: {str(reason) or 'no answer'}"
        )

    async def _open_link(self, address: str, target: str, key: Key) -> SocketLink:
        socket = await self._open_socket(address)
        try:
            await greet(socket.send_bytes, lambda: receive(socket), self._me, target, key)
        except BaseException:
            await socket.close()
            raise
        return SocketLink(socket, target, self._methods, self._standstill_s)

    async def _open_socket(self, address: str) -> aiohttp.ClientWebSocketResponse:
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._tls),
            timeout=aiohttp.ClientTimeout(connect=_CONNECT_S),
        )
        try:
            return await session.ws_connect(
                f"{self._scheme}://{address}{PATH}",
                max_msg_size=MAX_FRAME_BYTES,
                compress=0,
                timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S),
            )
        finally:
            session.detach()  # Closing the session would do no more, as only its socket is open.
