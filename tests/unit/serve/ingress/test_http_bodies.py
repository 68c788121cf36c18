"""Bodies and headers that are too much or make no sense: an answer in a sentence, no traceback."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from justitia_ray.protocol.generation_bodies import COMPLETIONS
from tests.unit.serve.ingress.http_client import StandInGateway, client_of, model_of

_MOST = 1_000
_APPLICATIONS = "/v1/applications"
_PATHS = (COMPLETIONS, _APPLICATIONS)


@pytest.fixture
def gateway() -> StandInGateway:
    """Return what the requests come to."""
    return StandInGateway()


@pytest.fixture
async def http(gateway: StandInGateway) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an ingress that reads a thousand bytes of a body."""
    model = model_of(gateway, ingress={"max_body_bytes": _MOST})
    async with client_of(model, raise_app_exceptions=False) as client:
        yield client


class Upload:
    """A body that comes in pieces without its length being told, and counts what is taken."""

    def __init__(self, pieces: int) -> None:
        self.taken = 0
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(self._pieces):
            self.taken += 1
            yield b" " * 100


@pytest.mark.parametrize(
    ("pieces", "headers", "taken"), [(11, {"content-length": "1100"}, 0), (1_000, {}, 11)]
)
@pytest.mark.parametrize("path", _PATHS)
async def test_body_that_is_too_long_is_read_no_further(
    http: httpx.AsyncClient, path: str, pieces: int, headers: dict[str, str], taken: int
) -> None:
    """Unread if it says so itself; else ten pieces are allowed, and the eleventh is too much."""
    body = Upload(pieces)
    answer = await http.post(path, content=body, headers=headers)
    error = answer.json()["error"]

    assert headers.keys() == answer.request.headers.keys() & {"content-length"}
    assert (413, "body_too_large") == (answer.status_code, error["code"])
    assert "ingress.max_body_bytes" in error["message"]
    assert taken == body.taken


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
    ("param", "value"),
    [
        *(("application_class", value) for value in ("c" * 65, "a b", "", "a\nb")),
        ("application_id", "a" * 129),
        ("application_id", "ä"),
        ("tenant", "t" * 500),
        ("weight", 10**300),
        ("input", ["x" * 800]),
    ],
)
async def test_application_of_absurd_names_is_refused_and_not_quoted_in_full(
    http: httpx.AsyncClient, param: str, value: Any
) -> None:
    """Each of them is kept as long as the application is open, in memory and in Redis."""
    answer = await http.post(_APPLICATIONS, json={"application_class": "c", param: value})

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
