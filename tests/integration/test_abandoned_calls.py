"""HAProxy with this project's options notices a disconnected caller, even between TCP segments.

HAProxy runs alone here with the options of Ray's template; `test_haproxy.py` tests the whole.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from ray.serve._private.haproxy_templates import HAPROXY_CONFIG_TEMPLATE

from justitia_ray.serve.front import WRAPPER, haproxy_missing, plan_front
from tests.eventually import eventually
from tests.harness.local_front import free_port

_MISSING = haproxy_missing(os.environ)
pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.slow,
    pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING)),
]

_NOTICED_WITHIN_S = 1.0
_BODY = b"0123456789"
_CONFIGURATION = """
defaults
  mode http
  timeout connect 2s
  timeout client 60s
  timeout server 60s
  {options}
frontend callers
  bind 127.0.0.1:{port}
  default_backend ingress
backend ingress
  http-reuse always
  server one 127.0.0.1:{server}
"""


class SilentServer:
    """Server that reads one request, never answers, and records when its connection ends."""

    def __init__(self) -> None:
        self.has_head = asyncio.Event()
        self.has_body = asyncio.Event()
        self.is_left = asyncio.Event()

    async def serve_request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.has_head.set()
        await reader.readexactly(len(_BODY))
        self.has_body.set()
        with suppress(ConnectionError):  # HAProxy resets it
            await reader.read(1)
        self.is_left.set()
        writer.close()


def rays_options() -> str:
    """Return the options by which Ray's HAProxy template detects closed connections."""
    names = re.findall(r"^ +(option (?:abortonclose|splice-\S+))$", HAPROXY_CONFIG_TEMPLATE, re.M)
    return "\n  ".join(names)


@asynccontextmanager
async def haproxy_program(directory: Path, server: int, binary: str | Path) -> AsyncIterator[int]:
    port, file = free_port(), directory / "haproxy.cfg"
    file.write_text(_CONFIGURATION.format(options=rays_options(), port=port, server=server))
    environment = os.environ | plan_front(100, 20_000).environment
    process = await asyncio.create_subprocess_exec(binary, "-db", "-f", file, env=environment)

    async def port_is_open() -> bool:
        with suppress(OSError):
            (await asyncio.open_connection("127.0.0.1", port))[1].close()
            return True
        return False

    try:
        await eventually(port_is_open, "HAProxy listens", 10.0)
        yield port
    finally:
        process.terminate()
        await process.wait()


async def disconnect_after_body(port: int, server: SilentServer, *, segments: int) -> bool:
    """Send a request and disconnect; return whether the server notices in time."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {len(_BODY)}\r\n\r\n".encode()
    if segments == 1:
        writer.write(head + _BODY)
    else:
        writer.write(head)
        await writer.drain()
        await server.has_head.wait()
        writer.write(_BODY)
    await server.has_body.wait()
    writer.close()
    try:
        await asyncio.wait_for(server.is_left.wait(), _NOTICED_WITHIN_S)
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize("segments", [1, 2])
async def test_haproxy_without_splicing_notices_a_disconnected_caller(
    tmp_path: Path, segments: int
) -> None:
    silent = SilentServer()
    async with await asyncio.start_server(silent.serve_request, "127.0.0.1", 0) as listening:
        server = listening.sockets[0].getsockname()[1]
        async with haproxy_program(tmp_path, server, WRAPPER) as port:
            assert await disconnect_after_body(port, silent, segments=segments)


async def test_haproxy_started_by_ray_does_not_notice_a_disconnected_caller(tmp_path: Path) -> None:
    """When this test fails, `serve/haproxy_without_splicing` is not needed any more."""
    silent = SilentServer()
    binary = plan_front(100, 20_000).environment["JUSTITIA_HAPROXY_BINARY"]
    async with await asyncio.start_server(silent.serve_request, "127.0.0.1", 0) as listening:
        server = listening.sockets[0].getsockname()[1]
        async with haproxy_program(tmp_path, server, binary) as port:
            assert not await disconnect_after_body(port, silent, segments=2)
