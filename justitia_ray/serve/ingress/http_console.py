"""The console over HTTP: the files of its page, the stream of frames, one application."""

import asyncio
from contextlib import suppress

from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse, Response
from msgspec import Raw
from msgspec.json import encode
from starlette.requests import Request as AnyRequest

from justitia_ray import __version__
from justitia_ray.access.identity import check_tenant
from justitia_ray.application_key import split_key
from justitia_ray.console.files import CONSOLE_HEADERS, page_files
from justitia_ray.core.policies import POLICIES
from justitia_ray.errors import JustitiaError, NotServed, shown_short
from justitia_ray.protocol.console import CONTENT_TYPE, Hello
from justitia_ray.serve.asgi import Message, Receive, Send
from justitia_ray.serve.ingress.console_feed import ConsoleHub, Viewer, last_line_of_stream, line_of
from justitia_ray.serve.ingress.door import TRUSTED, context_of
from justitia_ray.serve.ingress.http_errors import error_response
from justitia_ray.serve.ingress.models import ServedModels
from justitia_ray.serve.ingress.request_context import RequestContext, unknown_application
from justitia_ray.units import ClientId, Seconds

SNAPSHOTS = "/v1/console/snapshots"
LIFE_S: Seconds = 60.0
"""Maximum seconds of a console stream, so that a revoked key soon sees nothing more."""
QUIET_S: Seconds = 2.0
"""Seconds without a line of the console's stream after which an empty line is sent."""
SLOW_S: Seconds = 30.0
"""Maximum seconds for which a console viewer may leave a line unread."""
_STREAM_HEAD = (
    (b"content-type", CONTENT_TYPE.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
)


def add_console(app: FastAPI, models: ServedModels) -> None:
    """Add the routes of the console's page and of its views of single applications.

    Args:
        app: The HTTP application, which answers errors.
        models: The served models.
    """

    @app.get("/console")
    async def console(request: Request) -> Response:
        """Redirect to the console's page, by a relative path because a proxy may add a prefix."""
        query = request.url.query
        return RedirectResponse("console/" + (f"?{query}" if query else ""))

    @app.get("/console/{name:path}")
    async def console_file(name: str, request: Request) -> Response:
        """Return a static file of the console's page, which contains no data."""
        found = page_files().get(name)
        if found is None:
            raise NotServed(f"the console has no file {shown_short(name)}")
        headers = {**CONSOLE_HEADERS, "etag": found.etag, "vary": "accept-encoding"}
        if found.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        body = found.body
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["content-encoding"], body = "gzip", found.compressed
        return Response(body, headers=headers | {"content-type": found.content_type})

    @app.get("/v1/console/applications/{application_id:path}")
    async def application(
        application_id: str, request: Request, model: str | None = None
    ) -> Response:
        """Return an application's calls over time with their costs, at each model that has it."""
        key = context_of(request.scope).key_of(application_id)
        asked = models.chosen(model)
        told = await asyncio.gather(*(m.scheduler.console_application(key) for m in asked))
        found = {m.name: Raw(one) for m, one in zip(asked, told, strict=True) if one is not None}
        if not found:
            raise unknown_application(application_id)
        tenant, plain = split_key(key)
        answer = {"application_id": plain, "tenant": tenant, "models": found}
        return Response(encode(answer), media_type="application/json")


def viewed_tenant(context: RequestContext) -> ClientId | None:
    """Return the tenant that a caller sees, with its descendants; None: an operator sees all.

    Raises:
        Forbidden: If the credential does not cover the named tenant.
        RequestError: If the call must name a tenant and does not, or names a malformed one.
    """
    if not context.operates:
        return context.tenant
    if context.named_tenant is not None:
        check_tenant(context.named_tenant)
    return context.named_tenant


class SnapshotStream:
    """ASGI endpoint of the console's stream, which sends the state of the models.

    Args:
        models: The served models.
        hub: The viewers of this process.
        limit_s: Time limit for a call (`http_deadline`); None: no limit.
    """

    def __init__(
        self, models: ServedModels, hub: ConsoleHub, limit_s: Seconds | None = None
    ) -> None:
        self._models = models
        self._hub = hub
        self._limit_s = limit_s

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            context = context_of(scope)
            chosen = self._models.chosen(AnyRequest(scope).query_params.get("model"))
            names = [model.name for model in chosen]
            viewer = self._hub.join(viewed_tenant(context), names)
        except JustitiaError as error:
            await error_response(SNAPSHOTS, error)(scope, receive, send)
            return
        hello = Hello(
            service_version=__version__,
            tenant=viewer.tenant,
            is_operator=context.operates,
            models=tuple(names),
            policies=tuple(POLICIES),
        )
        lasts_s = LIFE_S
        if self._limit_s is not None and not scope.get(TRUSTED):
            lasts_s = min(LIFE_S, self._limit_s * 0.8)
        sending = asyncio.create_task(_send_lines(viewer, send, line_of(hello), lasts_s))
        gone = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._hub.leave(viewer)
            for task in (sending, gone):
                task.cancel()
        with suppress(asyncio.CancelledError, OSError, TimeoutError):
            await sending


async def _send_lines(viewer: Viewer, send: Send, hello: bytes, lasts_s: Seconds) -> None:
    """Send lines to a viewer of the console until the stream has lasted `LIFE_S`."""
    time = asyncio.get_running_loop().time
    until = time() + lasts_s
    await send({"type": "http.response.start", "status": 200, "headers": [*_STREAM_HEAD]})
    line = hello
    while True:
        async with asyncio.timeout(SLOW_S):
            await send({"type": "http.response.body", "body": line, "more_body": True})
        left_s = until - time()
        if left_s <= 0:
            break
        try:
            async with asyncio.timeout(min(QUIET_S, left_s)):
                line = await viewer.next_line()
        except TimeoutError:
            line = b"\n"
    last = last_line_of_stream(
        "the stream has lasted as long as one may: connect again", "limit", 0.0
    )
    await send({"type": "http.response.body", "body": last, "more_body": False})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
