"""The application with a replica that records its requests to vLLM.

`import_path` names it in place of `justitia_ray.serve.app:build`.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from ray.serve import Application

from justitia_ray.config import AppConfig
from justitia_ray.protocol.engine import Engine, Hold
from justitia_ray.serve import app
from justitia_ray.serve.engines.vllm_engine import VllmEngine
from justitia_ray.serve.replica.deployment import EngineReplica
from justitia_ray.units import LeaseId, Seconds
from tests.harness.probe import Probed


class WatchedReplica(Probed, EngineReplica):
    """Replica that records the priorities sent to vLLM, and how long contexts were held."""

    _longest_hold_s: Seconds = 0.0

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: dict[str, Any], build_engine: Callable[[AppConfig], Awaitable[Engine]]
    ) -> None:
        await super().__init__(config, build_engine)
        if self._holds is not None:
            take = self._holds.take

            def take_and_record(lease_id: LeaseId) -> Hold | None:
                hold = take(lease_id)
                if hold is not None:
                    self._longest_hold_s = max(self._longest_hold_s, hold.for_s)
                return hold

            self._holds.take = take_and_record  # type: ignore[method-assign]

    def longest_hold_s(self) -> Seconds:
        """Return the longest time in seconds for which vLLM was told to hold a context."""
        return self._longest_hold_s

    def watch_priorities(self) -> None:
        """Start recording priorities, and drop earlier records."""
        assert isinstance(self._engine, VllmEngine)
        core = self._engine._llm.engine_core
        send = type(core).add_request_async
        self._priorities: list[int] = []

        async def call_and_record(request: Any) -> None:
            self._priorities.append(request.priority)
            await send(core, request)

        core.add_request_async = call_and_record

    def engine_pids(self) -> list[int]:
        """Return the ids of the processes that the engine has started."""
        assert isinstance(self._engine, VllmEngine)
        return [process.pid for process in self._engine._core_processes if process.pid is not None]

    def priorities(self) -> list[int]:
        return self._priorities


def build(args: dict[str, Any]) -> Application:
    """Return the Serve application of `justitia_ray.serve.app:build` with recording replicas.

    Serve calls this in a separate process, so the replacement affects no other code.
    """
    app.EngineReplica = WatchedReplica  # type: ignore[attr-defined]
    return app.build(args)
