"""Competitor in `scripts/bench_serve`: a plain FastAPI application on Ray Serve.

Its FastAPI ingress passes each completion to a deployment of engines by a Serve handle. It has no
queue, no order and no continuation; calls that the engine cannot run yet wait inside it.
"""

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response, StreamingResponse
from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle

from justitia_ray.config import AppConfig
from justitia_ray.protocol.engine import EngineCall
from justitia_ray.protocol.generation_bodies import COMPLETIONS
from scripts.bench.floor_app import UNBOUNDED, start_engine

app = FastAPI()


class EngineDeployment:
    """Deployment of one engine, called through a deployment handle."""

    async def __init__(self, config: dict[str, Any]) -> None:  # type: ignore[misc]  # Serve awaits it
        self._engine = await start_engine(config)

    async def unary(self, body: bytes) -> bytes:
        return b"".join([chunk async for chunk in self.stream(body)])

    async def stream(self, body: bytes) -> AsyncGenerator[bytes]:
        call = EngineCall(uuid.uuid4().hex, 0, COMPLETIONS, {}, body)
        try:
            async with aclosing(self._engine.call(call)) as items:
                async for item in items:
                    if isinstance(item, bytes):
                        yield item
        finally:
            self._engine.release(call.lease_id)

    async def __del__(self) -> None:
        await self._engine.stop()


@serve.ingress(app)
class FastApiFront:
    """FastAPI ingress that forwards completions to the engines."""

    def __init__(self, engines: DeploymentHandle) -> None:
        self._engines = engines

    @app.post(COMPLETIONS)
    async def completions(self, request: Request) -> Response:
        body = await request.body()
        if not (await request.json()).get("stream"):
            answer = await self._engines.unary.remote(body)
            return Response(answer, media_type="application/json")
        chunks = self._engines.options(stream=True).stream.remote(body)
        return StreamingResponse(chunks, media_type="text/event-stream")


def build(args: dict[str, Any]) -> Application:
    """Return the plain FastAPI application that is compared with `justitia_ray.serve.app:build`.

    Raises:
        ConfigError: If a key is unknown or a value is not allowed.
    """
    engines = serve.deployment(
        EngineDeployment, name="Replica", max_ongoing_requests=UNBOUNDED
    ).bind(AppConfig.parse(args).model_dump())
    front = serve.deployment(FastApiFront, name="Ingress", max_ongoing_requests=UNBOUNDED)
    return front.bind(engines)
