"""`POST /v1/console/what-if`: bodies, limits, and the process that answers."""

import asyncio
import sys

import httpx
import pytest

from justitia_ray.errors import AdmissionError, ConsoleIsBusy, DeadlineMissed, RequestError
from justitia_ray.serve.ingress import http_what_if
from justitia_ray.serve.ingress.http_what_if import Estimator
from tests.unit.serve.ingress.http_client import StandInGateway, client_of, served_model

PATH = "/v1/console/what-if"


class RecordedScheduler:
    """Fake scheduler that returns a recorded history."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def console_history(self, lasts_s: float) -> bytes:
        self.asked.append(lasts_s)
        return b'{"model":"m"}'


def estimator_of(program: str, lasts_s: float = 10.0) -> Estimator:
    return Estimator((sys.executable, "-c", program), lasts_s)


ECHO = estimator_of("import sys, json; print(json.dumps({'answer': json.load(sys.stdin)}))")
"""Estimator process that answers with its input."""


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> RecordedScheduler:
    monkeypatch.setattr(http_what_if, "Estimator", lambda: ECHO)
    return RecordedScheduler()


async def post_what_if(scheduler: RecordedScheduler, **body: object) -> httpx.Response:
    async with client_of(served_model(StandInGateway(), scheduler)) as http:
        return await http.post(PATH, json=body)


@pytest.mark.slow
async def test_what_if_estimator_gets_the_recorded_history_and_the_changes(
    scheduler: RecordedScheduler,
) -> None:
    answer = await post_what_if(
        scheduler, minutes=2, policy="vtc", weights={"acme": 2.0}, replicas=3
    )

    assert scheduler.asked == [120.0]
    assert answer.json() == {
        "history": {"model": "m"},
        "asked": {"policy": "vtc", "weights": {"acme": 2.0}, "replicas": 3},
    }


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"policy": "package:Class"}, "policy"),
        ({"weights": {"acme": 0}}, "weights"),
        ({"weights": {"acme": 1e-300}}, "weights"),
        ({"weights": {"a b": 1}}, "weights"),
        ({"replicas": 0}, "replicas"),
        ({"minutes": 60}, "minutes"),
        ({"other": 1}, "other"),
    ],
)
async def test_error_names_the_wrong_field_of_a_what_if_request(
    scheduler: RecordedScheduler, body: dict[str, object], param: str
) -> None:
    """A policy by import path would run any code that the ingress can import."""
    answer = await post_what_if(scheduler, **body)

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert not scheduler.asked


@pytest.mark.slow
async def test_one_what_if_estimate_runs_at_a_time() -> None:
    estimator = estimator_of("import sys; sys.stdin.read(); import time; time.sleep(60)")
    first = asyncio.create_task(estimator.estimate(b"{}", {}))
    await asyncio.sleep(0)
    with pytest.raises(ConsoleIsBusy) as refused:
        await estimator.estimate(b"{}", {})
    assert refused.value.retry_after_s is not None

    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not estimator._is_busy


@pytest.mark.slow
async def test_what_if_estimate_that_takes_too_long_is_killed() -> None:
    estimator = estimator_of("import time; time.sleep(60)", lasts_s=0.2)
    with pytest.raises(DeadlineMissed, match=r"as long as one may: 0\.2 s"):
        await estimator.estimate(b"{}", {})


@pytest.mark.slow
async def test_what_if_request_with_a_wrong_value_is_a_client_error() -> None:
    estimator = estimator_of('print(\'{"error": "no such policy"}\')')
    with pytest.raises(RequestError, match="no such policy"):
        await estimator.estimate(b"{}", {})


@pytest.mark.slow
async def test_death_of_the_what_if_process_is_reported() -> None:
    estimator = estimator_of("raise MemoryError")
    with pytest.raises(AdmissionError, match="limit of memory or CPU time"):
        await estimator.estimate(b"{}", {})
