"""HTTP client of the ingress application in front of stand-ins."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx

from justitia_ray.config import AppConfig, RecognitionSection
from justitia_ray.core.limits import LimitStanding
from justitia_ray.protocol.endpoints import parse_body
from justitia_ray.protocol.engine import Answer
from justitia_ray.serve.ingress.door import DEFAULT_TENANT, Door
from justitia_ray.serve.ingress.http_app import build_http_app
from justitia_ray.serve.ingress.models import ServedModel, ServedModels
from justitia_ray.serve.ingress.recognition import ApplicationFinder
from justitia_ray.serve.ingress.replica_calls import StreamItem
from justitia_ray.serve.ingress.request_context import RequestContext
from justitia_ray.serve.ingress.submission import ApplicationSpec, ApplicationSpecCache
from justitia_ray.serve.ingress.waiting_streams import StreamOutlooks


class StandInGateway:
    """Fake gateway that reads bodies as the real one does and returns answers set by the test."""

    max_model_len = 100

    def __init__(self) -> None:
        self.answered = 0
        self.refusal: Exception | None = None
        self.failure: Exception | None = None
        self.items: list[StreamItem] = [(200, {"content-type": "text/plain"}), b"told"]
        self.unscheduled_answer: Answer = (200, {"content-type": "text/plain"}, b"unscheduled")
        self.source: Any = None
        """Stream to answer with; None sends `items`."""
        self.submitter = self.attempts = self
        self.limits: tuple[LimitStanding, ...] = ()
        self.outlooks = StreamOutlooks(self.ask_outlooks, 0.0)
        self.known_outlooks: dict[str, Any] = {}
        self.may_count = asyncio.Event()
        self.may_count.set()
        self.failed_streams: list[int] = []
        """HTTP statuses of the streams that failed after their head was sent."""

    def note_failed_stream(self, status: int) -> None:
        self.failed_streams.append(status)

    def standings(self, context: RequestContext) -> tuple[LimitStanding, ...]:
        return self.limits

    def parse(self, path: str, raw: bytes, fields: dict[str, Any]) -> Any:
        return parse_body(path, raw, ("m",), self.max_model_len, fields)

    async def counted(self, context: RequestContext, body: Any) -> Any:
        await self.may_count.wait()
        return body

    async def check_served(self, path: str) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def answer(self, path: str, context: RequestContext, body: Any) -> Answer:
        async with aclosing(self.stream(path, context, body)) as answer:
            items: list[Any] = [item async for item in answer]
        (status, head), *chunks = items
        return status, head, b"".join(chunks)

    async def stream(
        self,
        path: str,
        context: RequestContext,
        body: Any,
        on_submitted: Callable[[str], None] = lambda application_id: None,
    ) -> AsyncGenerator[StreamItem]:
        self.answered += 1
        on_submitted("default|own")
        if self.failure is not None:
            raise self.failure
        if self.source is not None:
            async with aclosing(aiter(self.source)) as items:
                async for item in items:
                    yield item
            return
        for item in self.items:
            yield item

    async def ask_outlooks(self, application_ids: tuple[str, ...]) -> dict[str, Any]:
        return self.known_outlooks

    def check_path(self, path: str) -> None:
        pass

    def name_body(self, raw: bytes, fields: dict[str, Any]) -> bytes:
        return raw

    async def unscheduled(self, path: str, payload: bytes) -> Answer:
        return self.unscheduled_answer

    async def open_application(self, spec: ApplicationSpec) -> tuple[Any, float]:
        return SimpleNamespace(application_id="a", predicted_kv_token_time=1.0), 1.0

    def standings_of(self, tenant: str) -> tuple[()]:
        return ()


FINDER = ApplicationFinder(RecognitionSection())
"""Application finder that uses only the ids in a call, without a directory."""


def served_model(
    gateway: Any = None, scheduler: Any = None, predictor: Any = None, **config: Any
) -> ServedModel:
    parsed = AppConfig.parse({"model": {"name": "m", "path": "none"}, **config})
    nothing: Any = None
    return ServedModel(parsed, gateway, scheduler, predictor, nothing)


@asynccontextmanager
async def client_of(
    *models: ServedModel,
    specs: ApplicationSpecCache | None = None,
    door: Door | None = None,
    finder: ApplicationFinder | None = None,
    raise_app_exceptions: bool = True,
    root: str = "",
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve models in this process and yield an HTTP client of them."""
    app = build_http_app(
        ServedModels(models),
        specs or ApplicationSpecCache(600.0, 100),
        door or Door(None, DEFAULT_TENANT),
        finder or FINDER,
    )
    transport = httpx.ASGITransport(app, raise_app_exceptions, root_path=root)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        yield client
