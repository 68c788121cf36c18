"""The application of the chaos runs: its engine calls go into a journal; tests can inspect it.

`import_path` names it in place of `justitia_ray.serve.app:build`.
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
    """Return the path of the journal in which replicas record the runs of inferences."""
    return Path(config.store.data_dir) / f"{config.name}-journal.jsonl"


def loads_file(config: AppConfig) -> Path:
    """Return the path of the journal in which replicas record when they load."""
    return Path(config.store.data_dir) / f"{config.name}-loads.jsonl"


class ChaosReplica(BreakableReplica):
    """Replica that records each run of an inference in a journal."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: dict[str, Any], build_engine: Callable[[AppConfig], Awaitable[Engine]]
    ) -> None:
        """Start the replica with an engine that writes a journal.

        Args:
            config: `AppConfig` as a dict.
            build_engine: Makes the configured engine.
        """
        await super().__init__(config, build_engine)
        self._journal = JournalWriter(journal_file(self._config))
        self._engine_call = self._engine.call
        self._engine.call = self._call_and_record  # type: ignore[method-assign]

    def kill_engine(self) -> None:
        if isinstance(self._engine, FakeEngine):
            self._engine.die(by_itself=False)
        elif isinstance(self._engine, VllmEngine):
            for process in self._engine._core_processes:
                if process.pid is not None:
                    os.kill(process.pid, signal.SIGKILL)

    def stop_engine(self) -> None:
        """Stop the engine's steps with SIGSTOP."""
        self._signal_engine(signal.SIGSTOP)

    def let_engine_go_on(self) -> None:
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

    async def _call_and_record(self, call: EngineCall) -> AsyncGenerator[ResponseHead | bytes]:
        user = str(json.loads(call.body).get("user", ""))
        self._journal.write_run_begin(time.monotonic(), user, call.lease_id, call.priority)
        complete = False
        try:
            async with aclosing(self._engine_call(call)) as items:
                async for item in items:
                    yield item
            complete = True
        finally:
            self._journal.write_run_end(time.monotonic(), call.lease_id, complete=complete)


LOADS_S: Seconds = 1.5
"""Seconds that a `LoadingReplica` takes to load its engine."""


class LoadingReplica(ChaosReplica):
    """ChaosReplica that takes time to load, as with a large model, and records when."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: dict[str, Any], build_engine: Callable[[AppConfig], Awaitable[Engine]]
    ) -> None:
        """Wait for the load time, then start like a ChaosReplica.

        Args:
            config: `AppConfig` as a dict.
            build_engine: Makes the configured engine.
        """
        loads = JournalWriter(loads_file(AppConfig.parse(config)))
        loads.write_loading(time.monotonic())
        await asyncio.sleep(LOADS_S)
        await super().__init__(config, build_engine)
        loads.write_loaded(time.monotonic())


class ChaosIngress(BreakableIngress):
    def tickets(self) -> tuple[int, int]:
        """Return the process id and the number of unfinished inferences."""
        return os.getpid(), sum(len(queue.client.pending.inferences) for queue in self._queues)


def build(args: dict[str, Any]) -> Application:
    """Return the product's Serve application with replicas and ingresses that inject faults.

    Serve calls this in a separate process, so the replacement affects no other code.
    """
    return _build_with_replica(args, ChaosReplica)


def build_loading(args: dict[str, Any]) -> Application:
    """Return the Serve application with slowly loading replicas, for tests of autoscaling."""
    return _build_with_replica(args, LoadingReplica)


def _build_with_replica(args: dict[str, Any], replica: type[ChaosReplica]) -> Application:
    app.EngineReplica = replica  # type: ignore[attr-defined]
    app.Ingress = ChaosIngress  # type: ignore[attr-defined]
    return app.build(args)
