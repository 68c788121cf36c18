"""Bodies and headers that are too much or make no sense: an answer in a sentence, no traceback."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from justitia_ray.config import parse_app_config
from justitia_ray.protocol.endpoints import parse_body
from justitia_ray.protocol.openai_body import COMPLETIONS
from justitia_ray.serve.gateway import Gateway
from justitia_ray.serve.http_app import build_http_app
from justitia_ray.serve.models import ServedModel, ServedModels
from justitia_ray.serve.opening import Opening
from justitia_ray.serve.scheduler_calls import SchedulerCalls

_MOST = 1_000
_APPLICATIONS = "/v1/applications"
_PATHS = (COMPLETIONS, _APPLICATIONS)


class StandInGateway:
    """Reads bodies as the real one does, and answers what is left of them."""

    max_model_len = 100

    def __init__(self) -> None:
        self.answered = 0
        self.failure: Exception | None = None

    def parse(self, path: str, raw: bytes) -> Any:
        return parse_body(path, raw, ("m",), self.max_model_len)

    async def check_served(self, path: str) -> None:
        pass

    async def answer(
        self, path: str, headers: dict[str, str], body: Any
    ) -> AsyncGenerator[tuple[int, dict[str, str]] | bytes]:
        self.answered += 1
        if self.failure is not None:
            raise self.failure
        yield 200, {"content-type": "application/json"}
        yield b"{}"

    async def open_application(self, opening: Opening) -> tuple[Any, float]:
        return SimpleNamespace(application_id="a", predicted_kv_token_time=1.0), 1.0


@pytest.fixture
def gateway() -> StandInGateway:
    """Return what the requests come to."""
    return StandInGateway()


@pytest.fixture
async def http(gateway: StandInGateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an ingress that reads a thousand bytes of a body."""
    model = ServedModel(
        parse_app_config(
            {"model": {"name": "m", "path": "none"}, "ingress": {"max_body_bytes": _MOST}}
        ),
        cast(Gateway, gateway),
        cast(SchedulerCalls, None),
    )
    app = build_http_app(ServedModels([model]))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        yield client


class Upload:
    """A body that comes in pieces without its length being told, and counts what is taken."""

    def __init__(self, pieces: int, piece: bytes = b" " * 100) -> None:
        self.taken = 0
        self._pieces = pieces
        self._piece = piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(self._pieces):
            self.taken += 1
            yield self._piece


@pytest.mark.parametrize("path", _PATHS)
async def test_body_that_declares_too_much_is_refused_unread(
    http: httpx.AsyncClient, path: str
) -> None:
    """Memory for it would be taken before anybody has looked at it."""
    body = Upload(11)
    answer = await http.post(path, content=body, headers={"content-length": "1100"})

    assert (413, "body_too_large") == (answer.status_code, answer.json()["error"]["code"])
    assert "ingress.max_body_bytes" in answer.json()["error"]["message"]
    assert 0 == body.taken


@pytest.mark.parametrize("path", _PATHS)
async def test_body_in_chunks_is_read_no_further_than_allowed(
    http: httpx.AsyncClient, path: str
) -> None:
    """Chunked, it may go on for ever: ten pieces are allowed, and the eleventh is one too many."""
    body = Upload(1_000)
    answer = await http.post(path, content=body)

    assert "content-length" not in answer.request.headers
    assert (413, "body_too_large") == (answer.status_code, answer.json()["error"]["code"])
    assert 11 == body.taken


async def test_body_as_long_as_is_allowed_is_read(http: httpx.AsyncClient) -> None:
    """The limit is the longest body, not the first that is refused."""
    body = json.dumps({"prompt": "a"}).encode()
    whole = await http.post(COMPLETIONS, content=body + b" " * (_MOST - len(body)))

    assert 200 == whole.status_code


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 900,
        b'{"x": 1e999}',
        b'{"x": NaN}',
        b'{"x": "\xff"}',
        b'{"x": "\\ud800"}',
        b'{"n": 1, "n": 2}',
        b"\x00",
        b"null",
        b"",
    ],
)
@pytest.mark.parametrize("path", _PATHS)
async def test_body_that_is_no_request_is_a_400_in_a_sentence(
    http: httpx.AsyncClient, gateway: StandInGateway, path: str, body: bytes
) -> None:
    """Whatever is sent, the answer is the caller's mistake in OpenAI's form, and short."""
    answer = await http.post(path, content=body)
    error = answer.json()["error"]

    assert (400, "BadRequestError") == (answer.status_code, error["type"])
    assert 0 < len(error["message"]) < 500
    assert "Traceback" not in answer.text
    assert 0 == gateway.answered


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"application_class": "c" * 65}, "application_class"),
        ({"application_class": "a b"}, "application_class"),
        ({"application_class": ""}, "application_class"),
        ({"application_class": "a\nb"}, "application_class"),
        ({"application_class": "c", "application_id": "a" * 129}, "application_id"),
        ({"application_class": "c", "application_id": "ä"}, "application_id"),
        ({"application_class": "c", "tenant": "t" * 500}, "tenant"),
        ({"application_class": "c", "weight": 10**300}, "weight"),
        ({"application_class": "c", "input": ["x" * 800]}, "input"),
    ],
)
async def test_application_of_absurd_names_is_refused_and_not_quoted_in_full(
    http: httpx.AsyncClient, body: dict[str, Any], param: str
) -> None:
    """Each of them is kept as long as the application is open, in memory and in Redis."""
    answer = await http.post(_APPLICATIONS, json=body)

    assert (400, param) == (answer.status_code, answer.json()["error"]["param"])
    assert len(answer.json()["error"]["message"]) < 300


async def test_key_of_any_length_takes_the_same_memory(
    http: httpx.AsyncClient, gateway: StandInGateway
) -> None:
    """Keys are kept as long as their answers; two long ones that differ are two requests."""
    body = {"prompt": "a"}
    for key in ("k" * 50_000 + "1", "k" * 50_000 + "2", "k" * 50_000 + "1"):
        await http.post(COMPLETIONS, json=body, headers={"idempotency-key": key})

    assert 2 == gateway.answered


async def test_failure_that_nobody_foresaw_is_an_error_without_its_story(
    http: httpx.AsyncClient, gateway: StandInGateway
) -> None:
    """Clients read OpenAI's form; what went wrong inside is for the log."""
    gateway.failure = ZeroDivisionError("secret")
    answer = await http.post(COMPLETIONS, json={"prompt": "a"})

    assert 500 == answer.status_code
    assert "InternalServerError" == answer.json()["error"]["type"]
    assert "secret" not in answer.text
