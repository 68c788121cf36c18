"""HTTP paths of the predictor: invalid bodies and its failures, as status codes."""

from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from ray.exceptions import RayActorError, RayTaskError

from justitia_ray.errors import AdmissionError, RequestError, StoreError
from justitia_ray.serve.ingress.predictor_http import MOST_SAMPLES
from tests.unit.serve.ingress.http_client import client_of, model_of

ROLLBACK = "/v1/predictor/EV/rollback"


class StandInPredictor:
    """Predictor handle whose methods all return the same answer, or fail."""

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


async def call(
    predictor: StandInPredictor, method: str, path: str, content: bytes = b""
) -> httpx.Response:
    async with client_of(model_of(predictor=predictor)) as client:
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
async def test_each_path_asks_the_predictor(
    method: str, path: str, content: bytes, asked: tuple[Any, ...]
) -> None:
    """A body without a content type is parsed as JSON here, too."""
    predictor = StandInPredictor(1 if "samples" in path else {"classes": {}})
    answer = await call(predictor, method, path, content)

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
async def test_wrong_body_is_refused_by_field(path: str, content: bytes, param: str) -> None:
    predictor = StandInPredictor({})
    answer = await call(predictor, "POST", f"/v1/predictor/{path}", content)

    assert (400, param) == (answer.status_code, answer.json()["error"]["param"])
    assert [] == predictor.asked


def raised(error: Exception) -> RayTaskError:
    return RayTaskError("roll_back", "traceback", error)


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (raised(RequestError("no such version")), 400, "no such version"),
        (raised(AdmissionError("still learning", 2.0)), 503, "still learning"),
        (raised(StoreError("Redis at h: gone")), 503, "cannot do it now: Redis at h: gone"),
        (raised(ValueError("odd")), 503, "cannot do it now: odd"),
        (RayActorError(), 503, "gives no answer: The actor"),
    ],
)
async def test_predictor_error_has_the_matching_status(
    error: Exception, status: int, message: str
) -> None:
    """The traceback is not sent to callers; a predictor whose process died is being restarted."""
    answer = await call(StandInPredictor(error), "POST", ROLLBACK)

    assert status == answer.status_code
    assert message in answer.json()["error"]["message"]
    assert "traceback" not in answer.text
