"""The watch reports engine stalls to the replica and kills an engine that stays stalled."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from justitia_ray.config import ReplicaSection
from justitia_ray.errors import EngineError
from justitia_ray.protocol.engine import EngineCall
from justitia_ray.serve.engines.fake_engine import FakeEngine
from justitia_ray.serve.replica.engine_watch import EngineWatch
from justitia_ray.serve.replica.stalls import StallWatch
from tests.harness.simulation.virtual_loop import run_virtually

_BODY = b'{"model": "m", "prompt": "a b", "max_tokens": 1000, "stream": true}'


class _Watched:
    """Fake engine with one running call, and the stalls that its watch reported."""

    def __init__(self) -> None:
        self.engine = FakeEngine("m", 2_000, iteration_s=0.1)
        self.stalls = StallWatch(ReplicaSection(stall_allowance_s=1.0, stall_replace_s=20.0))
        self.changes: list[bool] = []
        self.killed: list[str] = []
        self.watch = EngineWatch(
            self.engine,
            self.stalls,
            lambda: self.changes.append(self.stalls.is_stalled),
            lambda error: self.killed.append(str(error)),
        )

    async def call(self) -> None:
        async for _ in self.engine.call(EngineCall("1-1", 0, "/v1/completions", {}, _BODY)):
            pass


def _run_scenario(scene: Callable[[_Watched], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario with a working engine in virtual time."""

    async def run_watched() -> None:
        watched = _Watched()
        await watched.engine.start()
        tasks = [asyncio.create_task(watched.call()), asyncio.create_task(watched.watch.run())]
        await asyncio.sleep(5.0)
        await scene(watched)
        await watched.engine.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run_virtually(run_watched())


def test_working_engine_is_not_reported_as_stalled() -> None:
    async def run_without_stall(watched: _Watched) -> None:
        await asyncio.sleep(50.0)

        assert [] == watched.changes
        watched.engine.check()

    _run_scenario(run_without_stall)


def test_engine_stall_and_its_end_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "ray.serve")

    async def stall_and_recover(watched: _Watched) -> None:
        watched.engine.stall("process 7 (VLLM::EngineCore)")
        await asyncio.sleep(5.0)
        assert [True] == watched.changes
        watched.engine.go_on()
        await asyncio.sleep(1.0)
        assert [True, False] == watched.changes
        watched.engine.check()

    _run_scenario(stall_and_recover)

    stalled, goes_on = [r.getMessage() for r in caplog.records if "replica." in r.getMessage()]
    assert stalled.startswith("replica.stalled ")
    assert "process 7 (VLLM::EngineCore)" in stalled
    assert goes_on.startswith("replica.goes_on ")


def test_engine_that_stays_stalled_is_killed_with_a_reason() -> None:
    """Ray Serve replaces the replica, because the engine's health check fails."""

    async def stay_stalled(watched: _Watched) -> None:
        watched.engine.stall()
        await asyncio.sleep(15.0)
        assert [] == watched.killed
        await asyncio.sleep(15.0)
        (reason,) = watched.killed
        assert "has made no step for 2" in reason
        with pytest.raises(EngineError, match="it was killed"):
            watched.engine.check()

    _run_scenario(stay_stalled)
