"""The application as it is, on engines whose streams may go on elsewhere in the middle of a script.

A logits processor may follow what was generated before, so that a replica holds such streams for
lost with it. The script's goes by the prompt alone.

Named by `import_path` in place of `justitia_ray.serve.app:build`.
"""

from typing import Any

from ray.serve import Application

from justitia_ray.serve import app
from justitia_ray.serve.engines.vllm_engine import VllmEngine
from justitia_ray.serve.replica.deployment import EngineReplica
from justitia_ray.units import LeaseId


def _obstacle(self: VllmEngine, lease_id: LeaseId) -> str:
    meter = self._meters.get(lease_id)
    return "" if meter is None else meter.tape.obstacle


class ScriptedReplica(EngineReplica):
    """A Replica with a scripted engine; its process imports this module."""


VllmEngine.obstacle = _obstacle  # type: ignore[method-assign]


def build(args: dict[str, Any]) -> Application:
    """Return the application of `justitia_ray.serve.app:build` around that Replica.

    Serve calls this in a process of its own, so nothing else sees the exchange.
    """
    app.EngineReplica = ScriptedReplica  # type: ignore[attr-defined]
    return app.build(args)
