"""Oversized or invalid bodies and headers get an error of one sentence without a traceback."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from justitia_ray.protocol.generation_bodies import COMPLETIONS
from tests.unit.serve.ingress.http_client import StandInGateway, client_of, served_model

_MOST = 1_000
_APPLICATIONS = "/v1/applications"
_PATHS = (COMPLETIONS, _APPLICATIONS)


@pytest.fixture
def gateway() -> StandInGateway:
    return StandInGateway()


@pytest.fixture
async def limited_http(gateway: StandInGateway) -> AsyncIterator[httpx.AsyncClient]:
    """HTTP client of an ingress that reads at most 1,000 bytes of a body."""
    model = served_model(gateway, ingress={"max_body_bytes": _MOST})
    async with client_of(model, raise_app_exceptions=False) as client:
        yield client


class Upload:
    """Body without a declared length that counts the pieces that were read."""

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
async def test_reading_of_a_request_body_stops_at_the_size_limit(
    limited_http: httpx.AsyncClient, path: str, pieces: int, headers: dict[str, str], taken: int
) -> None:
    """A body whose declared length is too large is refused unread."""
    body = Upload(pieces)
    answer = await limited_http.post(path, content=body, headers=headers)
    error = answer.json()["error"]

    assert headers.keys() == answer.request.headers.keys() & {"content-length"}
    assert (413, "body_too_large") == (answer.status_code, error["code"])
    assert "ingress.max_body_bytes" in error["message"]
    assert taken == body.taken


async def test_request_body_of_exactly_the_allowed_length_is_read(
    limited_http: httpx.AsyncClient,
) -> None:
    body = json.dumps({"prompt": "a"}).encode()
    whole = await limited_http.post(COMPLETIONS, content=body + b" " * (_MOST - len(body)))

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
async def test_invalid_request_body_is_answered_with_400_and_one_sentence(
    limited_http: httpx.AsyncClient, gateway: StandInGateway, path: str, body: bytes
) -> None:
    answer = await limited_http.post(path, content=body)
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
        *(("weight", weight) for weight in (10**300, 0.0009, 1e-300, 5e-324)),
        ("input", ["x" * 800]),
    ],
)
async def test_error_for_an_overlong_name_quotes_only_its_beginning(
    limited_http: httpx.AsyncClient, param: str, value: Any
) -> None:
    """Names are kept in memory and Redis as long as the application is open."""
    answer = await limited_http.post(_APPLICATIONS, json={"application_class": "c", param: value})

    assert (400, param) == (answer.status_code, answer.json()["error"]["param"])
    assert len(answer.json()["error"]["message"]) < 300


async def test_idempotency_key_of_any_length_takes_the_same_memory(
    limited_http: httpx.AsyncClient, gateway: StandInGateway
) -> None:
    """A key is stored as long as its answer, and different keys must stay different."""
    body = {"prompt": "a"}
    for key in ("k" * 50_000 + "1", "k" * 50_000 + "2", "k" * 50_000 + "1"):
        await limited_http.post(COMPLETIONS, json=body, headers={"idempotency-key": key})

    assert 2 == gateway.answered


async def test_unexpected_failure_is_answered_without_details(
    limited_http: httpx.AsyncClient, gateway: StandInGateway
) -> None:
    """Details of an internal failure belong only in the log."""
    gateway.failure = ZeroDivisionError("secret")
    answer = await limited_http.post(COMPLETIONS, json={"prompt": "a"})

    assert 500 == answer.status_code
    assert "InternalServerError" == answer.json()["error"]["type"]
    assert "secret" not in answer.text
