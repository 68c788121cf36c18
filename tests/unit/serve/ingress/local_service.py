"""The HTTP application on a local port, for clients that need a server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import uvicorn

from justitia_ray.serve.asgi import Message, Receive, Send
from justitia_ray.serve.ingress.door import DEFAULT_TENANT, Door
from justitia_ray.serve.ingress.http_app import build_http_app
from justitia_ray.serve.ingress.models import ServedModels
from justitia_ray.serve.ingress.submission import ApplicationSpecCache
from tests.unit.serve.ingress.http_client import FINDER, StandInGateway, served_model


class LocalService:
    """HTTP server around an ASGI application that collects the errors its calls raise."""

    def __init__(self, gateway: StandInGateway, **ingress: Any) -> None:
        model = served_model(gateway, ingress=ingress)
        models, specs = ServedModels([model]), ApplicationSpecCache(600.0, 100)
        self._app = build_http_app(models, specs, Door(None, DEFAULT_TENANT), FINDER)
        self.url = ""
        self.raised: list[type[Exception]] = []

    async def app(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a call as Ray Serve does: record an error instead of propagating it."""
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            self.raised.append(type(error))

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["LocalService"]:
        config = uvicorn.Config(
            self.app,
            host="127.0.0.1",
            port=0,
            interface="asgi3",
            lifespan="off",
            log_level="critical",
        )
        server = uvicorn.Server(config)
        started = asyncio.Event()
        startup = server.startup

        async def started_up(*arguments: Any, **options: Any) -> None:
            await startup(*arguments, **options)
            started.set()

        server.startup = started_up  # type: ignore[method-assign]
        with suppress(KeyboardInterrupt):
            serving = asyncio.create_task(server._serve())
            try:
                await asyncio.wait_for(started.wait(), 10)
                port = server.servers[0].sockets[0].getsockname()[1]
                self.url = f"http://127.0.0.1:{port}"
                yield self
            finally:
                server.should_exit = server.force_exit = True
                await serving
