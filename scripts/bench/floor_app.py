"""Lower bound for `scripts/bench_serve`: the fake engine in the HTTP server's own process.

No service between callers and engines can be cheaper. On Serve it is an application behind the same
proxy as the others; run as a program it is a server that LiteLLM's proxy stands in front of. Not
for serving: it neither checks sizes nor queues calls.
"""

import argparse
import asyncio
import json
import uuid
from contextlib import aclosing
from typing import Any

import uvicorn
from ray import serve
from ray.serve import Application

from justitia_ray.config import AppConfig
from justitia_ray.protocol.engine import Engine, EngineCall, ResponseHead
from justitia_ray.serve.asgi import AsgiApp, Message, Receive, Send
from justitia_ray.serve.engines.factory import build_engine

UNBOUNDED = 100_000


async def start_engine(config: dict[str, Any]) -> Engine:
    engine = await build_engine(AppConfig.parse(config))
    await engine.start()
    return engine


def engine_app(engine: Engine) -> AsgiApp:
    """Return an ASGI application that passes every POST to the engine unchanged."""

    async def answer_post(scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        body += message.get("body", b"")
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if scope["method"] != "POST":  # a health check of the server
            await send(_response_start_message(200, {"content-length": "0"}))
            await send({"type": "http.response.body"})
            return
        call = EngineCall(uuid.uuid4().hex, 0, path, {}, body)
        try:
            await _send_answer(engine, call, send)
        finally:
            engine.release(call.lease_id)

    return answer_post


async def _send_answer(engine: Engine, call: EngineCall, send: Send) -> None:
    """Send a stream chunk by chunk, and any other answer with its length."""
    async with aclosing(engine.call(call)) as items:
        head = await anext(items)
        assert isinstance(head, ResponseHead)
        is_stream = head.headers["content-type"].startswith("text/event-stream")
        if is_stream:
            await send(_response_start_message(head.status, head.headers))
        async for item in items:
            assert isinstance(item, bytes)
            if not is_stream:
                length = {"content-length": str(len(item))}
                await send(_response_start_message(head.status, {**head.headers, **length}))
            await send({"type": "http.response.body", "body": item, "more_body": is_stream})
    if is_stream:
        await send({"type": "http.response.body"})


def _response_start_message(status: int, headers: Any) -> Message:
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": pairs}


class EngineFront:
    """Serve deployment that answers HTTP with the engine in its own process."""

    async def __init__(self, config: dict[str, Any]) -> None:  # type: ignore[misc]  # Serve awaits it
        self._engine = await start_engine(config)

    def __serve_build_asgi_app__(self) -> AsgiApp:
        """Return the HTTP application; Serve calls this after the constructor."""
        return engine_app(self._engine)

    def check_health(self) -> None:
        self._engine.check()

    async def __del__(self) -> None:
        await self._engine.stop()


def build(args: dict[str, Any]) -> Application:
    """Return the lower-bound application for the arguments of `justitia_ray.serve.app:build`.

    Raises:
        ConfigError: If a key is unknown or a value is not allowed.
    """
    values = AppConfig.parse(args).model_dump()
    front = serve.deployment(
        serve.ingress()(EngineFront), name="Replica", max_ongoing_requests=UNBOUNDED
    )
    return front.bind(values)


async def serve_engine(port: int, config: dict[str, Any]) -> None:
    """Serve the engine on a loopback port until the process ends."""
    app = engine_app(await start_engine(config))
    options = uvicorn.Config(app, "127.0.0.1", port, log_level="warning", lifespan="off")
    await uvicorn.Server(options).serve()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="scripts.bench.floor_app", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--config", required=True, help="`AppConfig` as JSON")
    options = parser.parse_args()
    asyncio.run(serve_engine(options.port, json.loads(options.config)))
