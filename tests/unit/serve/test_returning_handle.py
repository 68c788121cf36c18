"""A call that found no scheduler fails when there is one again, not when Ray says so."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError, RaySystemError

from justitia_ray.serve.histories.virtual_loop import run_virtually
from justitia_ray.serve.returning_handle import ReturningHandle

_NOTICED_AFTER_S = 1.2
"""How late Ray says that a call has failed."""


class Actor:
    """Is away until an instant, and fails calls as late as Ray does."""

    def __init__(
        self, back_at: float, *, in_office_at: float = 0.0, for_good: bool = False
    ) -> None:
        self.back_at = back_at
        self.in_office_at = in_office_at
        self.for_good = for_good
        self.asked = 0

    @property
    def version(self) -> "Method":
        """What is asked."""
        self.asked += 1
        return Method(self._answer)

    @property
    def pull(self) -> "Method":
        """What is called."""
        return Method(self._answer)

    @property
    def refuse(self) -> "Method":
        """What fails though it is there."""
        return Method(self._refuse)

    async def _refuse(self) -> str:
        raise RaySystemError("no")

    async def _answer(self, word: str = "") -> str:
        if self.for_good:
            raise ActorDiedError
        if _now() < self.back_at:
            await asyncio.sleep(_NOTICED_AFTER_S)
            raise ActorUnavailableError("away", b"0" * 16)
        await asyncio.sleep(self.in_office_at - _now())
        return word


class Method:
    """Of an actor."""

    def __init__(self, call: Callable[..., Coroutine[Any, Any, str]]) -> None:
        self._call = call

    def remote(self, *arguments: Any) -> Coroutine[Any, Any, str]:
        """Call it."""
        return self._call(*arguments)


def _now() -> float:
    return asyncio.get_running_loop().time()


def test_callers_hear_of_a_new_scheduler_within_a_tenth_of_a_second() -> None:
    """One call after the other would hear of it up to 1.2 s later, on each restart."""

    async def late_by() -> list[float]:
        began = _now()
        actor = Actor(began + 3.05)
        handle = ReturningHandle(actor)
        calls = [handle.pull.remote("a") for _ in range(2)]
        failures = await asyncio.gather(*calls, return_exceptions=True)
        assert [ActorUnavailableError] * 2 == [type(failure) for failure in failures]
        assert "b" == await handle.pull.remote("b")
        assert actor.asked < 25  # both waited for the same answer
        return [_now() - actor.back_at]

    (late,) = run_virtually(late_by())
    assert 0.0 <= late <= 0.1 + 1e-9


def test_a_call_begun_just_before_the_return_does_not_wait_for_ray_either() -> None:
    """An ingress sends one batch at a time: the next would wait for the failure of this one."""

    async def late_by() -> float:
        actor = Actor(_now() + 3.0)
        handle = ReturningHandle(actor)
        first = asyncio.create_task(handle.pull.remote())
        await asyncio.sleep(2.9)
        with pytest.raises(ActorUnavailableError):
            await handle.pull.remote()
        late = _now() - actor.back_at
        with pytest.raises(ActorUnavailableError):
            await first
        return late

    assert 0.0 <= run_virtually(late_by()) <= 0.1 + 1e-9


def test_answers_and_errors_of_a_scheduler_that_is_there_pass_through() -> None:
    """Nothing is asked while all is well, and a refusal reaches who is to read it."""

    async def answers() -> tuple[str, int]:
        actor = Actor(0.0)
        handle = ReturningHandle(actor)
        with pytest.raises(RaySystemError):
            await handle.refuse.remote()
        return await handle.pull.remote("word"), actor.asked

    assert ("word", 0) == run_virtually(answers())


def test_a_scheduler_that_waits_for_redis_is_not_asked_more_and_more() -> None:
    """It is there, and answers once it is in office: the questions put to it wait meanwhile."""

    async def asked() -> int:
        began = _now()
        actor = Actor(began + 1.0, in_office_at=began + 600.0)
        with pytest.raises(ActorUnavailableError):
            await ReturningHandle(actor).pull.remote()
        assert 600.0 <= _now() - began < 600.1 + 1e-9
        return actor.asked

    assert 10 < run_virtually(asked()) < 60


def test_calls_of_a_scheduler_that_is_dead_for_good_fail_at_once() -> None:
    """It was replaced or shut down: nothing is to be waited for."""

    async def failed_after() -> float:
        began = _now()
        with pytest.raises(RayActorError):
            await ReturningHandle(Actor(0.0, for_good=True)).pull.remote()
        return _now() - began

    assert 0.0 == run_virtually(failed_after())


def test_the_next_absence_is_noticed_too() -> None:
    """A scheduler may die any number of times under the same handle."""

    async def late_by() -> list[float]:
        late = []
        actor = Actor(0.0)
        handle = ReturningHandle(actor)
        for away_s in (2.0, 5.0):
            actor.back_at = _now() + away_s
            with pytest.raises(ActorUnavailableError):
                await handle.pull.remote()
            late.append(_now() - actor.back_at)
        return late

    assert all(0.0 <= late <= 0.1 + 1e-9 for late in run_virtually(late_by()))
