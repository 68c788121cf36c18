"""Server for an aiohttp application on this machine, for tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web


@asynccontextmanager
async def serve_locally(app: web.Application, **options: Any) -> AsyncIterator[str]:
    """Serve an aiohttp application on a free loopback port, and yield its URL.

    Args:
        app: The application.
        options: More for its `AppRunner`.
    """
    runner = web.AppRunner(app, access_log=None, **options)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        _, port, *_ = runner.addresses[0]
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()
