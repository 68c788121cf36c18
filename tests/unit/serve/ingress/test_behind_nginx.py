"""A stream behind nginx with default settings, which buffers answers unless a header forbids it."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from justitia_ray.serve.ingress.replica_calls import StreamItem
from tests.debian_programs import debian_program
from tests.eventually import eventually
from tests.unit.serve.ingress.asgi_caller import FedStream
from tests.unit.serve.ingress.engine_streams import BODIES, HEAD, PATHS, STREAMS
from tests.unit.serve.ingress.http_client import StandInGateway
from tests.unit.serve.ingress.local_service import LocalService

_CONFIG = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass {url}; }}
  }}
}}
"""


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def _is_listening(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


@asynccontextmanager
async def nginx_before(url: str, folder: Path) -> AsyncIterator[str]:
    program, port = debian_program("nginx", "nginx-light"), _free_port()
    config = folder / "nginx.conf"
    config.write_text(_CONFIG.format(folder=folder, port=port, url=url))
    process = await asyncio.create_subprocess_exec(
        program, "-c", str(config), "-p", str(folder), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await eventually(lambda: _is_listening(port), "nginx listens")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.parametrize("path", PATHS)
async def test_nginx_forwards_each_chunk_of_a_stream_at_once(path: str, tmp_path: Path) -> None:
    gateway, source = StandInGateway(), FedStream()
    gateway.source = source
    async with (
        LocalService(gateway, keepalive_s=0.1).listening() as service,
        nginx_before(service.url, tmp_path) as url,
        httpx.AsyncClient(base_url=url, timeout=10) as client,
        client.stream("POST", path, json=BODIES[path]) as answer,
    ):
        received = b""
        unfed: list[StreamItem] = [HEAD, *STREAMS[path]]
        async for piece in answer.aiter_raw():
            received += piece
            source.feed(unfed.pop(0) if unfed else None)

    assert ("no-cache", 200) == (answer.headers["cache-control"], answer.status_code)
    assert not unfed
    assert received.count(b"\n\n") > len(STREAMS[path])
