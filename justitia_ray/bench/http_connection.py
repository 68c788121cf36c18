"""A keep-alive HTTP connection that costs next to nothing and stamps the first byte of a body.

Not a general client: httpx takes milliseconds of CPU for a request at hundreds of connections,
which on two cores would be measured as the service's.
"""

import asyncio
import time
from dataclasses import dataclass
from types import TracebackType

from justitia_ray.units import Seconds

_LONGEST_HEAD_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, and when its parts came."""

    status: int
    body: bytes
    chunks: int
    """Pieces in which the body was sent; 1 if it was not chunked."""
    sent_at: Seconds
    first_byte_at: Seconds
    """Of the body."""
    ended_at: Seconds


class HttpConnection:
    """One connection to one host, for one request at a time."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> "HttpConnection":
        self._reader, self._writer = await asyncio.open_connection(
            self._host, self._port, limit=_LONGEST_HEAD_BYTES
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            self._writer.close()
            await self._writer.wait_closed()

    async def get(self, path: str) -> Reply:
        """Send a GET and return its answer."""
        return await self._ask(b"GET", path, b"")

    async def post(self, path: str, body: bytes) -> Reply:
        """Send a JSON body and return its answer.

        Raises:
            ConnectionError: If the service closes the connection before the answer is complete.
        """
        return await self._ask(b"POST", path, body)

    async def _ask(self, method: bytes, path: str, body: bytes) -> Reply:
        reader, writer = self._reader, self._writer
        if reader is None or writer is None:
            raise ConnectionError("the connection is not open: use `async with`")
        head = (
            f" {path} HTTP/1.1\r\nhost: {self._host}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        sent_at = time.perf_counter()
        writer.write(method + head.encode() + body)
        try:
            status, headers = _parse_head(await reader.readuntil(b"\r\n\r\n"))
            if headers.get("transfer-encoding") == "chunked":
                pieces, first_byte_at = await _read_chunks(reader)
            else:
                pieces = [await reader.readexactly(int(headers.get("content-length", "0")))]
                first_byte_at = time.perf_counter()
        except asyncio.IncompleteReadError as error:
            raise ConnectionError(f"{path}: the connection was closed in an answer") from error
        ended_at = time.perf_counter()
        return Reply(status, b"".join(pieces), len(pieces), sent_at, first_byte_at, ended_at)


async def _read_chunks(reader: asyncio.StreamReader) -> tuple[list[bytes], Seconds]:
    pieces: list[bytes] = []
    first_byte_at = 0.0
    while size := int(await reader.readuntil(b"\r\n"), 16):
        piece = (await reader.readexactly(size + 2))[:-2]
        if not pieces:
            first_byte_at = time.perf_counter()
        pieces.append(piece)
    await reader.readexactly(2)
    return pieces, first_byte_at or time.perf_counter()


def _parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.decode("latin-1").rstrip().split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return int(first.split()[1]), headers
