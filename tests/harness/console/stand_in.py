"""HTTP server with the console's endpoints and made-up data, run in a thread of the test.

    with StandIn(page=Path("justitia_ray/console/page")) as service:
        browser.goto(f"{service.url}/console/")
        service.trouble.add("llama")  # its scheduler dies
        service.trouble.clear()  # and is there again

`python -m tests.harness.console.stand_in PORT [APPLICATIONS REPLICAS]` serves it until Ctrl-C, and
`… PORT recorded` a recorded run: a minute of the nine classes on three simulated engines.
"""

import asyncio
import mimetypes
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from justitia_ray.console.files import CONSOLE_HEADERS
from justitia_ray.protocol.console import CONTENT_TYPE, Bye, Frame, Line, Predictor, Trouble
from justitia_ray.protocol.console_answers import ConsoleApplication, WhatIfAnswer
from justitia_ray.sim.settings import RunSettings
from justitia_ray.units import ApplicationId, ClientId, Seconds
from tests.harness.console.made_up import MadeUp, hello_line
from tests.harness.console.recorded import (
    RecordedSource,
    constant_engine,
    nine_class_applications,
    record_run,
)


class Source(Protocol):
    """Provider of one model's console data for each second: `MadeUp` or `RecordedSource`."""

    @property
    def name(self) -> str: ...

    @property
    def replicas(self) -> int: ...

    def frame(
        self, second: int, tenant: ClientId | None = None, *, is_whole: bool = True
    ) -> Frame: ...

    def predictor(self) -> Predictor: ...

    def trouble(self, since_s: Seconds) -> Trouble: ...

    def application(
        self, application: ApplicationId, second: int, tenant: ClientId | None = None
    ) -> ConsoleApplication | None: ...

    def what_if(
        self, policy: str, weights: dict[ClientId, float], replicas: int
    ) -> WhatIfAnswer: ...


OPERATOR_KEY = "operator-key"
PAGE = Path("justitia_ray/console/page")
_STARTS_AT = 30


class StandIn:
    """HTTP server in place of the service; a test may change its attributes while it runs.

    Attributes:
        url: URL of the server.
        models: The models by name.
        keys: Tenant of each API key; None: an operator's key. Others are refused.
        second: The present second of all models.
        interval_s: Time between two frames; None: a frame is sent by `tick` only.
        trouble: Names of the models whose schedulers do not answer.
        refused: Status and message with which every stream is refused; None: they are served.
        what_if_error: Status and message with which estimates are refused.
        cancelled: Keys of the applications that were cancelled, in order.
        authorizations: Values of the header Authorization in the order of the calls.
        queries: Query strings in the order of the calls.
    """

    def __init__(
        self,
        page: Path = PAGE,
        models: tuple[Source, ...] = (MadeUp(),),
        interval_s: float | None = 1.0,
        port: int = 0,
    ) -> None:
        self.url = ""
        self.models = {model.name: model for model in models}
        self.keys: dict[str, str | None] = {OPERATOR_KEY: None, "acme-key": "acme"}
        self.second = _STARTS_AT
        self.interval_s = interval_s
        self.trouble: set[str] = set()
        self.refused: tuple[int, str] | None = None
        self.what_if_error: tuple[int, str] | None = None
        self.cancelled: list[str] = []
        self.authorizations: list[str | None] = []
        self.queries: list[str] = []
        self._page = page
        self._port = port
        self._trouble_s = 0
        self._streams: set[asyncio.Queue[bytes | None]] = set()
        """Queue of the lines to send on each open stream; None ends the stream."""
        self._sees: dict[asyncio.Queue[bytes | None], str | None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: uvicorn.Server | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._started = threading.Event()

    # --- control, called from the test's thread

    def __enter__(self) -> "StandIn":
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self.end_streams("leaving", 1.0)
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(10)

    @property
    def viewers(self) -> int:
        """Number of open streams."""
        return len(self._streams)

    def tick(self, seconds: int = 1) -> None:
        """Send the console data of the next seconds to all open streams."""
        for _ in range(seconds):
            self._run_in_loop(self._send_next_frames)

    def end_streams(self, code: str, retry_after_s: float | None) -> None:
        line = Bye(reason=f"the stream has ended: {code}", code=code, retry_after_s=retry_after_s)
        self._run_in_loop(lambda: self._end_all_streams(msgspec.json.encode(line) + b"\n"))

    def cut_streams(self) -> None:
        """End all open streams without a `bye`, as a lost connection does."""
        self._run_in_loop(lambda: self._end_all_streams(None))

    # --- server

    def _run_in_loop(self, what: Any) -> None:
        loop, done = self._loop, threading.Event()
        assert loop is not None

        def run_and_notify() -> None:
            what()
            done.set()

        loop.call_soon_threadsafe(run_and_notify)
        assert done.wait(10)

    def _send_next_frames(self) -> None:
        self.second += 1
        self._trouble_s = self._trouble_s + 1 if self.trouble else 0
        for lines in self._streams:
            for name in self.models:
                self._send_json_line(
                    lines, self._current_line(name, self._sees[lines], is_whole=False)
                )

    def _current_line(self, name: str, tenant: str | None, *, is_whole: bool) -> Line:
        if name in self.trouble:
            return self.models[name].trouble(float(self._trouble_s))
        return self.models[name].frame(self.second, tenant, is_whole=is_whole)

    def _end_all_streams(self, line: bytes | None) -> None:
        for lines in self._streams:
            if line is not None:
                lines.put_nowait(line)
            lines.put_nowait(None)

    def _send_json_line(self, lines: "asyncio.Queue[bytes | None]", line: Line) -> None:
        lines.put_nowait(msgspec.json.encode(line) + b"\n")

    def _serve(self) -> None:
        routes = [
            Route("/console", lambda _: RedirectResponse("console/")),
            Route("/console/{name:path}", self._serve_file),
            Route("/v1/console/snapshots", self._stream_snapshots),
            Route("/v1/console/applications/{key:path}", self._show_application),
            Route("/v1/console/what-if", self._answer_what_if, methods=["POST"]),
            Route("/v1/applications/{key:path}", self._cancel_application, methods=["DELETE"]),
        ]
        config = uvicorn.Config(
            Starlette(routes=routes),
            host="127.0.0.1",
            port=self._port,
            lifespan="off",
            log_level="critical",
        )
        asyncio.run(self._run_server(uvicorn.Server(config)))

    async def _run_server(self, server: uvicorn.Server) -> None:
        self._loop, self._server = asyncio.get_running_loop(), server
        startup, is_up = server.startup, asyncio.Event()

        async def started_up(*arguments: Any, **options: Any) -> None:
            await startup(*arguments, **options)
            is_up.set()

        server.startup = started_up  # type: ignore[method-assign]
        serving = asyncio.create_task(server._serve())
        await is_up.wait()
        port = server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._started.set()
        ticking = asyncio.create_task(self._keep_ticking())
        await serving
        ticking.cancel()

    async def _keep_ticking(self) -> None:
        while True:
            await asyncio.sleep(self.interval_s or 0.05)
            if self.interval_s is not None:
                self._send_next_frames()

    # --- endpoints

    async def _serve_file(self, request: Request) -> Response:
        name = request.path_params["name"] or "index.html"
        path = (self._page / name).resolve()
        if not path.is_relative_to(self._page.resolve()) or not path.is_file():
            return _error_response(404, f"there is no file {name!r}", "not_found")
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        return Response(path.read_bytes(), media_type=kind, headers=dict(CONSOLE_HEADERS))

    async def _stream_snapshots(self, request: Request) -> Response:
        tenant, refusal = self._authenticate(request)
        if refusal is not None:
            return refusal
        if self.refused is not None:
            status, message = self.refused
            return _error_response(status, message, None, {"retry-after": "5"})
        return StreamingResponse(
            self._snapshot_lines(tenant),
            media_type=CONTENT_TYPE,
            headers={"cache-control": "no-store"},
        )

    async def _snapshot_lines(self, tenant: str | None) -> AsyncIterator[bytes]:
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._send_json_line(lines, hello_line(tenant, tuple(self.models)))
        for name, model in self.models.items():
            self._send_json_line(lines, self._current_line(name, tenant, is_whole=True))
            if tenant is None:
                self._send_json_line(lines, model.predictor())
        self._streams.add(lines)
        self._sees[lines] = tenant
        try:
            while (line := await lines.get()) is not None:
                yield line
        finally:
            self._streams.discard(lines)
            del self._sees[lines]

    async def _show_application(self, request: Request) -> Response:
        tenant, refusal = self._authenticate(request)
        if refusal is not None:
            return refusal
        key = request.path_params["key"]
        if "|" not in key:
            key = f"{request.headers.get('x-justitia-tenant') or tenant}|{key}"
        for model in self.models.values():
            found = model.application(key, self.second, tenant)
            if found is not None and key not in self.cancelled:
                return Response(msgspec.json.encode(found), media_type="application/json")
        return _error_response(404, f"application {key!r} is not open", "application_not_found")

    async def _answer_what_if(self, request: Request) -> Response:
        tenant, refusal = self._authenticate(request)
        if refusal is not None:
            return refusal
        if tenant is not None:
            return _error_response(
                403, "this credential lacks the scope 'operate'", "missing_scope"
            )
        if self.what_if_error is not None:
            return _error_response(*self.what_if_error, None, {"retry-after": "5"})
        asked = await request.json()
        model = self.models[asked.get("model") or next(iter(self.models))]
        answer = model.what_if(
            asked.get("policy") or "justitia-guarded",
            asked.get("weights") or {},
            asked.get("replicas") or model.replicas,
        )
        return Response(msgspec.json.encode(answer), media_type="application/json")

    async def _cancel_application(self, request: Request) -> Response:
        _, refusal = self._authenticate(request)
        if refusal is not None:
            return refusal
        key = request.path_params["key"]
        self.cancelled.append(key)
        return JSONResponse({"application_id": key.rpartition("|")[2], "cancelled": True})

    def _authenticate(self, request: Request) -> tuple[str | None, Response | None]:
        """Return a call's tenant, and a refusal if its API key is wrong."""
        said = request.headers.get("authorization")
        self.authorizations.append(said)
        self.queries.append(request.url.query)
        key = (said or "").removeprefix("Bearer ")
        if key not in self.keys:
            return None, _error_response(401, "the API key is not valid", "invalid_api_key")
        tenant = self.keys[key]
        return (request.headers.get("x-justitia-tenant") or tenant), None


def _error_response(
    status: int, message: str, code: str | None, headers: dict[str, str] | None = None
) -> JSONResponse:
    told = {"message": message, "type": "error", "param": None, "code": code}
    return JSONResponse({"error": told}, status, headers)


def main() -> None:
    """Serve made-up or recorded console data until Ctrl-C."""
    port, *rest = sys.argv[1:]
    model: Source = MadeUp()
    if rest == ["recorded"]:
        run = record_run(
            nine_class_applications(60), RunSettings(constant_engine(), replicas=3), ("t1",)
        )
        model = RecordedSource(run)
    elif rest:
        applications, replicas = map(int, rest)
        model = MadeUp(applications=applications, replicas=replicas)
    with StandIn(models=(model,), port=int(port)) as service, suppress(KeyboardInterrupt):
        service.keys["t1-key"] = "t1"
        keys = ", ".join(service.keys)
        sys.stdout.write(f"{service.url}/console/ with one of the keys {keys}\n")
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    main()
