"""An ingress without room for calls, and the limits reported when an application is opened."""

import asyncio

import pytest

from justitia_ray.core.limits import LimitStanding
from justitia_ray.errors import QueueFull
from justitia_ray.serve.ingress.queue_client import QueueClient
from tests.unit.serve.ingress.fake_scheduler import FakeScheduler
from tests.unit.serve.scheduler.services import arrival_of, submission_of

_MOST = 5


def bounded_client(scheduler: FakeScheduler) -> QueueClient:
    async def do_nothing() -> None:
        return None

    return QueueClient(scheduler, lambda ended: None, do_nothing, _MOST, 0.0)


async def test_refused_calls_get_staggered_retry_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With ten calls ending per second, each refused call gets another retry time."""
    client = bounded_client(FakeScheduler())
    loop = asyncio.get_running_loop()
    now = 1_000.0
    monkeypatch.setattr(loop, "time", lambda: now)
    calls = [client.submit_inference(submission_of(f"q{i}"), arrival_of()) for i in range(_MOST)]
    for number in range(100):
        now += 0.1
        if number % 2:
            client.pending.note_answered(calls.pop(0))
        else:
            client.cancel_inference(calls.pop(0))
        calls.append(client.submit_inference(submission_of(f"r{number}")))
    waits = []
    for number in range(20):
        with pytest.raises(QueueFull) as refused:
            client.submit_inference(submission_of(f"s{number}"))
        assert refused.value.retry_after_s is not None
        waits.append(refused.value.retry_after_s)
    monkeypatch.undo()

    assert sorted(set(waits)) == waits
    assert 0.1 < waits[0] < 0.2
    assert 2.0 < waits[-1] < 2.5


async def test_opening_an_application_returns_the_tenants_limits() -> None:
    """A caller that only opens applications must be able to pace itself, too."""
    scheduler = FakeScheduler()
    client = bounded_client(scheduler)
    limit = LimitStanding("t", "applications", 9, 4, 60.0, 86_400.0)
    scheduler.standings = (limit,)
    await client.open_application(arrival_of())

    (told,) = client.standings.of("t", asyncio.get_running_loop().time())
    assert ("t", 4) == (told.scope, told.remaining)
