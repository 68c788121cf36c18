"""The console over HTTP: files of the page, who sees what, the ends of streams."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.access.gate import Gate
from justitia_ray.access.keys import KeyTable, create_key
from justitia_ray.console import files
from justitia_ray.errors import AdmissionError
from justitia_ray.protocol.console import CONTENT_TYPE
from justitia_ray.serve.asgi import call_asgi
from justitia_ray.serve.ingress import http_console
from justitia_ray.serve.ingress.door import DEFAULT_TENANT, Door
from justitia_ray.serve.ingress.http_app import HttpApp, build_http_app
from justitia_ray.serve.ingress.models import ServedModels
from justitia_ray.serve.ingress.submission import ApplicationSpecCache
from tests.unit.serve.ingress.http_client import FINDER, StandInGateway, client_of, served_model

OPERATOR = create_key(tenant="ops", scopes=["own", "operate"], now=0.0)
ACME = create_key(tenant="acme", scopes=["own"], now=0.0)
INFER = create_key(tenant="acme", scopes=["infer"], now=0.0)


class StandInConsole:
    """Fake scheduler with console data and timelines that records which tenants called."""

    def __init__(self) -> None:
        self.seen: list[str | None] = []
        self.failure: Exception | None = None

    async def console_frame(
        self, tenant: str | None, epoch: int | None, number: int | None
    ) -> tuple[int, int, bytes] | None:
        self.seen.append(tenant)
        if self.failure is not None:
            raise self.failure
        return (1, 1, b'{"kind":"frame"}') if number is None else None

    async def console_application(self, application_id: str) -> bytes | None:
        self.seen.append(application_id)
        return b'{"state":"open"}' if application_id == "acme|a" else None


class StandInPredictor:
    """Fake handle of a predictor without classes."""

    class overview:  # noqa: N801
        """Remote method of the handle."""

        @staticmethod
        async def remote() -> dict[str, Any]:
            return {"learns": True, "classes": {}}


@pytest.fixture
def scheduler() -> StandInConsole:
    return StandInConsole()


@pytest.fixture
def door() -> Door:
    records = [key.record for key in (OPERATOR, ACME, INFER)]
    return Door(Gate([lambda: KeyTable(records)], None, None), None)


def console_app(
    scheduler: StandInConsole, door: Door | None, limit_s: float | None = None
) -> HttpApp:
    models = ServedModels([served_model(StandInGateway(), scheduler, StandInPredictor())])
    specs = ApplicationSpecCache(600.0, 100)
    return build_http_app(models, specs, door or Door(None, DEFAULT_TENANT), FINDER, limit_s)


async def console_stream(
    app: HttpApp, key: str | None = None, query: str = "", **headers: str
) -> AsyncIterator[Any]:
    """Yield the status and the headers of the console's stream, then its lines."""
    raw = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    if key is not None:
        raw.append((b"authorization", f"Bearer {key}".encode()))
    path = f"/v1/console/snapshots{query}"
    async with aclosing(call_asgi(app, path, raw, b"", method="GET")) as messages:
        async for message in messages:
            if message["type"] == "http.response.start":
                yield message["status"], dict(message["headers"])
                continue
            for line in message["body"].splitlines():
                yield json.loads(line) if line else None


async def first_lines(count: int, lines: AsyncIterator[Any]) -> list[Any]:
    """Return the first items of a stream and close it."""
    found = []
    async with asyncio.timeout(5), aclosing(lines) as items:  # type: ignore[type-var]
        async for item in items:
            found.append(item)
            if len(found) == count:
                return found
    return found


async def test_console_shows_an_operator_all_tenants(scheduler: StandInConsole, door: Door) -> None:
    (status, headers), hello, frame = await first_lines(
        3, console_stream(console_app(scheduler, door), OPERATOR.secret)
    )

    assert status == 200
    assert headers[b"content-type"] == CONTENT_TYPE.encode()
    assert headers[b"cache-control"] == b"no-store"
    assert (hello["kind"], hello["tenant"], hello["is_operator"]) == ("hello", None, True)
    assert hello["models"] == ["m"]
    assert "justitia-guarded" in hello["policies"]
    assert frame["kind"] == "frame"
    assert scheduler.seen[0] is None


async def test_tenant_sees_only_its_own_applications(scheduler: StandInConsole, door: Door) -> None:
    _, hello, _ = await first_lines(3, console_stream(console_app(scheduler, door), ACME.secret))

    assert (hello["tenant"], hello["is_operator"]) == ("acme", False)
    assert set(scheduler.seen) == {"acme"}


async def test_header_limits_a_console_stream_to_a_subtenant(
    scheduler: StandInConsole, door: Door
) -> None:
    app = console_app(scheduler, door)
    _, hello, _ = await first_lines(
        3, console_stream(app, ACME.secret, x_justitia_tenant="acme/search")
    )
    assert hello["tenant"] == "acme/search"

    ((status, _), answer) = await first_lines(
        2, console_stream(app, ACME.secret, x_justitia_tenant="globex")
    )
    assert (status, answer["error"]["code"]) == (403, "forbidden_tenant")

    head, answer = await first_lines(
        2, console_stream(app, OPERATOR.secret, x_justitia_tenant="a b")
    )
    assert (head[0], answer["error"]["param"]) == (400, "tenant")

    _, hello, _ = await first_lines(
        3, console_stream(app, OPERATOR.secret, x_justitia_tenant="globex")
    )
    assert (hello["tenant"], hello["is_operator"]) == ("globex", True)


@pytest.mark.parametrize(
    ("key", "status", "code"),
    [(None, 401, "invalid_api_key"), ("wrong", 401, "invalid_api_key"), (INFER.secret, 403, None)],
    ids=("no key", "unknown key", "key without the scope"),
)
async def test_console_stream_requires_a_key_with_its_scope(
    scheduler: StandInConsole, door: Door, key: str | None, status: int, code: str | None
) -> None:
    head, answer = await first_lines(2, console_stream(console_app(scheduler, door), key))

    assert head[0] == status
    assert answer["error"]["code"] == (code or "missing_scope")
    assert not scheduler.seen


async def test_console_stream_of_an_unserved_model_is_refused(scheduler: StandInConsole) -> None:
    head, answer = await first_lines(
        2, console_stream(console_app(scheduler, None), query="?model=other")
    )

    assert (head[0], answer["error"]["code"]) == (404, "model_not_found")


async def test_console_viewer_beyond_the_limit_gets_a_retry_time(
    scheduler: StandInConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("justitia_ray.serve.ingress.console_feed.MOST_VIEWERS", 0)
    head, answer = await first_lines(2, console_stream(console_app(scheduler, None)))

    assert (head[0], answer["error"]["code"]) == (429, "too_many_viewers")
    assert int(head[1][b"retry-after"]) >= 10


async def test_console_stream_ends_with_the_time_to_reconnect(
    scheduler: StandInConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A viewer whose key was revoked cannot reconnect."""
    monkeypatch.setattr(http_console, "LIFE_S", 0.05)
    *_, last = await first_lines(100, console_stream(console_app(scheduler, None)))

    assert (last["kind"], last["code"], last["retry_after_s"]) == ("bye", "limit", 0.0)


async def test_console_stream_ends_before_serve_cuts_it(scheduler: StandInConsole) -> None:
    *_, last = await first_lines(100, console_stream(console_app(scheduler, None, limit_s=0.05)))

    assert last["code"] == "limit"


async def test_silent_console_stream_is_kept_alive_by_empty_lines(
    scheduler: StandInConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_console, "QUIET_S", 0.01)
    items = await first_lines(5, console_stream(console_app(scheduler, None)))

    assert None in [json.loads("null") if item is None else item for item in items]


async def test_disconnected_console_viewer_admits_another_viewer(
    scheduler: StandInConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("justitia_ray.serve.ingress.console_feed.MOST_VIEWERS", 1)
    app = console_app(scheduler, None)
    for _ in range(3):
        head, *_ = await first_lines(2, console_stream(app))
        assert head[0] == 200


async def test_console_stream_reports_a_scheduler_failure(
    scheduler: StandInConsole,
) -> None:
    scheduler.failure = AdmissionError("the scheduler is being started again")
    _, _, trouble = await first_lines(3, console_stream(console_app(scheduler, None)))

    assert (trouble["kind"], trouble["reason"]) == ("trouble", str(scheduler.failure))


async def test_console_shows_an_application_to_its_tenant_and_to_operators(
    scheduler: StandInConsole, door: Door
) -> None:
    async with client_of(served_model(StandInGateway(), scheduler), door=door) as http:
        own = await http.get(
            "/v1/console/applications/a", headers={"authorization": f"Bearer {ACME.secret}"}
        )
        other = await http.get(
            "/v1/console/applications/globex|a", headers={"authorization": f"Bearer {ACME.secret}"}
        )
        by_operator = await http.get(
            "/v1/console/applications/acme|a",
            headers={"authorization": f"Bearer {OPERATOR.secret}"},
        )

    assert own.json() == {
        "application_id": "a",
        "tenant": "acme",
        "models": {"m": {"state": "open"}},
    }
    assert by_operator.json() == own.json()
    assert other.status_code == 404
    assert "globex|a" not in scheduler.seen


# --- files


@pytest.fixture
def page_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a page of two files that the service sends."""
    (tmp_path / "index.html").write_text("<title>console</title>", "utf-8")
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "main.mjs").write_text("export const a = 1;\n" * 100, "utf-8")
    monkeypatch.setattr(http_console, "page_files", lambda: files.page_files(tmp_path))
    return tmp_path


async def test_console_page_is_served_without_a_key_and_with_a_strict_csp(
    page_folder: Path, door: Door
) -> None:
    async with client_of(served_model(StandInGateway()), door=door) as http:
        index = await http.get("/console/")
        script = await http.get("/console/app/main.mjs")

    assert (index.status_code, index.text) == (200, "<title>console</title>")
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    for answer in (index, script):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"


async def test_unchanged_console_file_is_answered_with_304(page_folder: Path) -> None:
    async with client_of(served_model(StandInGateway())) as http:
        first = await http.get("/console/")
        again = await http.get("/console/", headers={"if-none-match": first.headers["etag"]})

    assert first.headers["cache-control"] == "no-cache"
    assert (again.status_code, again.content) == (304, b"")


async def test_console_files_are_compressed_if_the_caller_accepts_gzip(page_folder: Path) -> None:
    async with client_of(served_model(StandInGateway())) as http:
        path = "/console/app/main.mjs"
        plain = await http.get(path, headers={"accept-encoding": "identity"})
        small = await http.get(path, headers={"accept-encoding": "gzip"})

    assert "content-encoding" not in plain.headers
    assert small.headers["content-encoding"] == "gzip"
    assert int(small.headers["content-length"]) < len(plain.content)
    assert small.text == plain.text


@pytest.mark.parametrize("path", ["/console/none.js", "/console/../pyproject.toml"])
async def test_console_path_serves_no_other_file(page_folder: Path, path: str) -> None:
    async with client_of(served_model(StandInGateway())) as http:
        answer = await http.get(path)

    assert answer.status_code == 404


async def test_console_path_without_a_slash_redirects_to_the_page(page_folder: Path) -> None:
    """The redirect is relative, because a proxy may put a prefix before all paths."""
    async with client_of(served_model(StandInGateway())) as http:
        answer = await http.get("/console?tenant=acme")

    assert answer.status_code == 307
    assert answer.headers["location"] == "console/?tenant=acme"
