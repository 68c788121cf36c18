"""The application as it is, with a Replica and an Ingress that let a test look inside.

Named by `import_path` in place of `justitia_ray.serve.app:build`.
"""

import asyncio
from typing import Any

from ray.serve import Application

from justitia_ray.serve import app
from justitia_ray.serve.engines.fake_engine import FakeEngine
from justitia_ray.units import LeaseId, Seconds
from tests.harness.breakable import BreakableIngress, BreakableReplica


class ProbedReplica(BreakableReplica):
    """A Replica with some calls more; `probe` reaches one."""

    def admitted(self) -> list[LeaseId]:
        """Return the leases that its engine has started, in order."""
        return list(self._fake_engine().admitted)

    def running(self) -> int:
        """Return how many sequences its engine runs."""
        return len(self._fake_engine()._scheduler.running)

    def kill_engine(self) -> None:
        """Crash the engine, not the process around it."""
        self._fake_engine().die()

    def stall_engine(self) -> None:
        """Let the engine make no steps."""
        self._fake_engine().stall()

    def let_engine_go_on(self) -> None:
        """Let the engine make steps again."""
        self._fake_engine().go_on()

    def set_pace(self, iteration_s: Seconds) -> None:
        """Let the engine's next iterations take so long."""
        self._fake_engine()._iteration_s = iteration_s

    def _fake_engine(self) -> FakeEngine:
        assert isinstance(self._engine, FakeEngine)
        return self._engine


class ProbedIngress(BreakableIngress):
    """An Ingress with one call more."""

    async def left(self) -> dict[str, int]:
        """Return how many inferences, applications and tasks it has."""
        pending = [queue.client.pending for queue in self._queues]
        return {
            "inferences": sum(len(p.inferences) for p in pending),
            "applications": sum(len(p.applications) for p in pending),
            "tasks": len(asyncio.all_tasks()),
        }


def build(args: dict[str, Any]) -> Application:
    """Return the application of `justitia_ray.serve.app:build` around the two.

    Serve calls this in a process of its own, so nothing else sees the exchange.
    """
    app.EngineReplica = ProbedReplica  # type: ignore[attr-defined]
    app.Ingress = ProbedIngress  # type: ignore[attr-defined]
    return app.build(args)
