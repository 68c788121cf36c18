"""The application as it is, with a journal of its runs, and an engine and an ingress to look into.

Named by `import_path` in place of `justitia_ray.serve.app:build`.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from ray.serve import Application

from justitia_ray.config import AppConfig
from justitia_ray.protocol.engine import Engine, EngineCall, ResponseHead
from justitia_ray.serve import app
from justitia_ray.serve.engines.fake_engine import FakeEngine
from justitia_ray.serve.engines.vllm_engine import VllmEngine
from justitia_ray.units import Seconds
from tests.harness.breakable import BreakableIngress, BreakableReplica
from tests.harness.chaos.records import JournalWriter


def journal_file(config: AppConfig) -> Path:
    """Return where the runs of an application are written down."""
    return Path(config.store.data_dir) / f"{config.name}-journal.jsonl"


def loads_file(config: AppConfig) -> Path:
    """Return where it is written down which replica of an application began and ended loading."""
    return Path(config.store.data_dir) / f"{config.name}-loads.jsonl"


class ChaosReplica(BreakableReplica):
    """A Replica that writes down what it runs."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: dict[str, Any], build_engine: Callable[[AppConfig], Awaitable[Engine]]
    ) -> None:
        """Start as a Replica does, and put the journal before the engine.

        Args:
            config: `AppConfig` as a dict.
            build_engine: Makes the configured engine.
        """
        await super().__init__(config, build_engine)
        self._journal = JournalWriter(journal_file(self._config))
        self._engine_call = self._engine.call
        self._engine.call = self._journalled  # type: ignore[method-assign]

    def kill_engine(self) -> None:
        """Let the engine die, not the process around it."""
        if isinstance(self._engine, FakeEngine):
            self._engine.die(by_itself=False)
        elif isinstance(self._engine, VllmEngine):
            for process in self._engine._core_processes:
                if process.pid is not None:
                    os.kill(process.pid, signal.SIGKILL)

    def stop_engine(self) -> None:
        """Let the engine make no steps, and live."""
        self._signal_engine(signal.SIGSTOP)

    def let_engine_go_on(self) -> None:
        """Let the engine make steps again."""
        self._signal_engine(signal.SIGCONT)

    def _signal_engine(self, number: signal.Signals) -> None:
        if isinstance(self._engine, FakeEngine):
            if number is signal.SIGSTOP:
                self._engine.stall("its process")
            else:
                self._engine.go_on()
        elif isinstance(self._engine, VllmEngine):
            for process in self._engine._core_processes:
                if process.pid is not None:
                    os.kill(process.pid, number)

    async def _journalled(self, call: EngineCall) -> AsyncGenerator[ResponseHead | bytes]:
        user = str(json.loads(call.body).get("user", ""))
        self._journal.began(time.monotonic(), user, call.lease_id, call.priority)
        complete = False
        try:
            async with aclosing(self._engine_call(call)) as items:
                async for item in items:
                    yield item
            complete = True
        finally:
            self._journal.ended(time.monotonic(), call.lease_id, complete=complete)


LOADS_S: Seconds = 1.5
"""Time that the engine of a `LoadingReplica` takes to load, after its process has started."""


class LoadingReplica(ChaosReplica):
    """A ChaosReplica that loads as an engine with a model does, and writes down when."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: dict[str, Any], build_engine: Callable[[AppConfig], Awaitable[Engine]]
    ) -> None:
        """Load for a time, then start as a ChaosReplica does.

        Args:
            config: `AppConfig` as a dict.
            build_engine: Makes the configured engine.
        """
        loads = JournalWriter(loads_file(AppConfig.parse(config)))
        loads.loading(time.monotonic())
        await asyncio.sleep(LOADS_S)
        await super().__init__(config, build_engine)
        loads.loaded(time.monotonic())


class ChaosIngress(BreakableIngress):
    """An Ingress that tells what it holds."""

    def tickets(self) -> tuple[int, int]:
        """Return its process, and how many inferences it holds for outstanding."""
        return os.getpid(), sum(len(queue.client.pending.inferences) for queue in self._queues)


def build(args: dict[str, Any]) -> Application:
    """Return the application of `justitia_ray.serve.app:build` around these.

    Serve calls this in a process of its own, so nothing else sees the exchange.
    """
    return _build(args, ChaosReplica)


def build_loading(args: dict[str, Any]) -> Application:
    """Return the same around replicas that take their time to load, for autoscaling."""
    return _build(args, LoadingReplica)


def _build(args: dict[str, Any], replica: type[ChaosReplica]) -> Application:
    app.EngineReplica = replica  # type: ignore[attr-defined]
    app.Ingress = ChaosIngress  # type: ignore[attr-defined]
    return app.build(args)
