"""HTTP paths of the predictor: invalid bodies and its failures, as status codes."""

from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from ray.exceptions import RayActorError, RayTaskError

from justitia_ray.errors import AdmissionError, RequestError, StoreError
from justitia_ray.serve.ingress.predictor_http import MOST_SAMPLES
from tests.unit.serve.ingress.http_client import client_of, served_model

ROLLBACK = "/v1/predictor/EV/rollback"


class StandInPredictor:
    """Fake predictor whose methods all return one answer, or fail."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        async def remote(*arguments: Any) -> Any:
            self.asked.append((name, *arguments))
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        return SimpleNamespace(remote=remote)


async def call_path(
    predictor: StandInPredictor, method: str, path: str, content: bytes = b""
) -> httpx.Response:
    async with client_of(served_model(predictor=predictor)) as client:
        return await client.request(method, path, content=content)


@pytest.mark.parametrize(
    ("method", "path", "content", "asked"),
    [
        ("GET", "/v1/predictor", b"", ("overview",)),
        ("POST", ROLLBACK, b"", ("roll_back", "EV", None, False)),
        ("POST", ROLLBACK, b'{"version": 0}', ("roll_back", "EV", 0, False)),
        ("POST", ROLLBACK, b'{"release": true}', ("roll_back", "EV", None, True)),
        ("POST", "/v1/predictor/samples", b'{"samples": [{}]}', ("take_history", [{}])),
    ],
)
async def test_each_predictor_path_calls_its_predictor_method(
    method: str, path: str, content: bytes, asked: tuple[Any, ...]
) -> None:
    """A body without a content type is parsed as JSON on these paths, too."""
    predictor = StandInPredictor(1 if "samples" in path else {"classes": {}})
    answer = await call_path(predictor, method, path, content)

    assert 200 == answer.status_code
    before = [("overview",)] if path == ROLLBACK else []  # read for the audit log
    assert [*before, asked] == predictor.asked


@pytest.mark.parametrize(
    ("path", "content", "param"),
    [
        ("EV/rollback", b'{"version": -1}', "version"),
        ("EV/rollback", b'{"version": 1, "release": true}', "version"),
        ("EV/rollback", b'{"to": 1}', "to"),
        ("samples", b'{"samples": []}', "samples"),
        ("samples", b'{"samples": [%s]}' % b",".join([b"{}"] * (MOST_SAMPLES + 1)), "samples"),
        ("samples", b"{", None),
    ],
)
async def test_predictor_error_names_the_wrong_field_of_a_body(
    path: str, content: bytes, param: str
) -> None:
    predictor = StandInPredictor({})
    answer = await call_path(predictor, "POST", f"/v1/predictor/{path}", content)

    assert (400, param) == (answer.status_code, answer.json()["error"]["param"])
    assert [] == predictor.asked


def ray_error_of(error: Exception) -> RayTaskError:
    return RayTaskError("roll_back", "traceback", error)


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (ray_error_of(RequestError("no such version")), 400, "no such version"),
        (ray_error_of(AdmissionError("still learning", 2.0)), 503, "still learning"),
        (ray_error_of(StoreError("Redis at h: gone")), 503, "cannot do it now: Redis at h: gone"),
        (ray_error_of(ValueError("odd")), 503, "cannot do it now: odd"),
        (RayActorError(), 503, "gives no answer: The actor"),
    ],
)
async def test_predictor_error_has_the_matching_status(
    error: Exception, status: int, message: str
) -> None:
    """Tracebacks are not sent to callers; a dead predictor is restarting, which is a 503."""
    answer = await call_path(StandInPredictor(error), "POST", ROLLBACK)

    assert status == answer.status_code
    assert message in answer.json()["error"]["message"]
    assert "traceback" not in answer.text
