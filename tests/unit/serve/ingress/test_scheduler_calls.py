"""Scheduler calls of the HTTP surface: ended applications are repeated to the next scheduler."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from justitia_ray.core.ended_by_owner import EndedByOwner
from justitia_ray.errors import AdmissionError
from justitia_ray.serve.ingress.models import SchedulerCalls
from justitia_ray.serve.ingress.pending_inferences import PendingInferences
from tests.harness.simulation.virtual_loop import run_virtually


class Actor:
    """Fake actor handle of a scheduler."""

    def __init__(self, known: bool = True, error: Exception | None = None) -> None:
        self.told: list[Any] = []
        self._known = known
        self._error = error
        self.cancel_application = self.close_application = SimpleNamespace(remote=self._end)
        self.restore_ended = SimpleNamespace(remote=self._restore)

    async def _end(self, application_id: str) -> bool:
        return self._known

    async def _restore(self, ended: list[Any]) -> None:
        if self._error is not None:
            raise self._error
        self.told.append(ended)


def calls_to(actor: Any) -> SchedulerCalls:
    return SchedulerCalls(actor, PendingInferences(), EndedByOwner(600.0))


async def test_next_scheduler_receives_applications_that_owners_ended() -> None:
    actor = Actor()
    calls = calls_to(actor)
    await calls.tell_ended()
    await calls.cancel_application("a")
    await calls.close_application("b")
    await calls.tell_ended()

    [told] = actor.told
    reasons = [(name, reason) for name, reason, _ in told]
    assert [("a", "application_cancelled"), ("b", "application_closed")] == reasons
    assert all(0 <= ago_s < 60 for *_, ago_s in told)


async def test_unknown_or_reopened_applications_are_not_reported_as_ended() -> None:
    unknown, open_again = Actor(known=False), Actor()
    calls = [calls_to(unknown), calls_to(open_again)]
    for one in calls:
        await one.cancel_application("a")
    calls[1].pending.applications["a"] = Any  # type: ignore[assignment]
    for one in calls:
        await one.tell_ended()

    assert [] == unknown.told == open_again.told


async def test_lost_scheduler_does_not_fail_the_report_of_ended_applications() -> None:
    calls = calls_to(Actor(error=RayActorError()))
    await calls.cancel_application("a")

    await calls.tell_ended()


async def test_error_names_a_call_that_an_earlier_scheduler_lacks() -> None:
    """During a rolling upgrade, an ingress may be newer than its scheduler."""
    with pytest.raises(AdmissionError, match="an earlier version, without 'console_frame'"):
        await calls_to(Actor()).console_frame(None, None, None)


def test_call_to_a_scheduler_that_waits_for_redis_times_out() -> None:
    """A scheduler that waits for Redis accepts calls and answers none of them."""

    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    actor = SimpleNamespace(close_application=SimpleNamespace(remote=never))

    async def close() -> None:
        with pytest.raises(AdmissionError, match="has not answered within 30 s"):
            await calls_to(actor).close_application("a")

    run_virtually(close())
