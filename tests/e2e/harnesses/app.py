"""The application with scripted engines whose streams may continue on another engine.

A logits processor may depend on earlier output, so a replica treats the streams of one as lost with
it. The script's processor depends only on the prompt.

`import_path` names this module in place of `justitia_ray.serve.app:build`.
"""

from typing import Any

from ray.serve import Application

from justitia_ray.serve import app
from justitia_ray.serve.engines.vllm_engine import VllmEngine
from justitia_ray.serve.replica.deployment import EngineReplica
from justitia_ray.units import LeaseId


def _continuation_obstacle(self: VllmEngine, lease_id: LeaseId) -> str:
    meter = self._meters.get(lease_id)
    return "" if meter is None else meter.tape.obstacle


class ScriptedReplica(EngineReplica):
    """Replica with a scripted engine; its Ray worker imports this module."""


VllmEngine.obstacle = _continuation_obstacle  # type: ignore[method-assign]


def build(args: dict[str, Any]) -> Application:
    """Return the Serve application of `justitia_ray.serve.app:build` with scripted replicas.

    Serve calls this in a separate process, so the replacement affects no other code.
    """
    app.EngineReplica = ScriptedReplica  # type: ignore[attr-defined]
    return app.build(args)
