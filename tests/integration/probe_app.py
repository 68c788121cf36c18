"""The application with a Replica and an Ingress that tests can inspect.

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
    """Replica with additional methods, called by `probe`."""

    def admitted(self) -> list[LeaseId]:
        return list(self._fake_engine().admitted)

    def running(self) -> int:
        return len(self._fake_engine()._scheduler.running)

    def kill_engine(self) -> None:
        """Kill the engine but not the process around it."""
        self._fake_engine().die()

    def stall_engine(self) -> None:
        """Stop the engine's steps."""
        self._fake_engine().stall()

    def let_engine_go_on(self) -> None:
        self._fake_engine().go_on()

    def set_pace(self, iteration_s: Seconds) -> None:
        """Set the length of the engine's next iterations."""
        self._fake_engine()._iteration_s = iteration_s

    def _fake_engine(self) -> FakeEngine:
        assert isinstance(self._engine, FakeEngine)
        return self._engine


class ProbedIngress(BreakableIngress):
    async def left(self) -> dict[str, int]:
        """Return its numbers of outstanding inferences, applications and tasks."""
        pending = [queue.client.pending for queue in self._queues]
        return {
            "inferences": sum(len(p.inferences) for p in pending),
            "applications": sum(len(p.applications) for p in pending),
            "tasks": len(asyncio.all_tasks()),
        }


def build(args: dict[str, Any]) -> Application:
    """Return the application of `justitia_ray.serve.app:build` with these two classes.

    Serve calls this in a separate process, so the replacement affects no other code.
    """
    app.EngineReplica = ProbedReplica  # type: ignore[attr-defined]
    app.Ingress = ProbedIngress  # type: ignore[attr-defined]
    return app.build(args)
