"""The application with a replica and an ingress that tests can inspect.

`import_path` names it in place of `justitia_ray.serve.app:build`.
"""

import asyncio
from typing import Any

from ray.serve import Application

from justitia_ray.serve import app
from justitia_ray.serve.engines.fake_engine import FakeEngine
from justitia_ray.units import LeaseId, Seconds
from tests.harness.breakable import BreakableIngress, BreakableReplica


class ProbedReplica(BreakableReplica):
    """Replica with methods for tests, which `probe` calls."""

    def admitted(self) -> list[LeaseId]:
        return list(self._engine_as_fake().admitted)

    def running(self) -> int:
        return len(self._engine_as_fake()._scheduler.running)

    def kill_engine(self) -> None:
        self._engine_as_fake().die()

    def stall_engine(self) -> None:
        """Stop the engine's steps without killing the engine."""
        self._engine_as_fake().stall()

    def let_engine_go_on(self) -> None:
        self._engine_as_fake().go_on()

    def set_pace(self, iteration_s: Seconds) -> None:
        """Set the length of the engine's next iterations in seconds."""
        self._engine_as_fake()._iteration_s = iteration_s

    def _engine_as_fake(self) -> FakeEngine:
        assert isinstance(self._engine, FakeEngine)
        return self._engine


class ProbedIngress(BreakableIngress):
    async def left(self) -> dict[str, int]:
        """Return the ingress's numbers of pending inferences, applications and tasks."""
        pending = [queue.client.pending for queue in self._queues]
        return {
            "inferences": sum(len(p.inferences) for p in pending),
            "applications": sum(len(p.applications) for p in pending),
            "tasks": len(asyncio.all_tasks()),
        }


def build(args: dict[str, Any]) -> Application:
    """Return the product's Serve application with replicas and ingresses for tests.

    Serve calls this in a separate process, so the replacement affects no other code.
    """
    app.EngineReplica = ProbedReplica  # type: ignore[attr-defined]
    app.Ingress = ProbedIngress  # type: ignore[attr-defined]
    return app.build(args)
