"""A served model whose parts all answer: a real gateway in front of stateless stand-ins."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from justitia_ray.application_key import split_key
from justitia_ray.config import AppConfig
from justitia_ray.core.actions import Grant
from justitia_ray.core.events import ApplicationArrived
from justitia_ray.errors import QueueFull
from justitia_ray.protocol.endpoints import INFERENCE_PATHS, UNSCHEDULED_PATHS
from justitia_ray.protocol.engine import Answer
from justitia_ray.protocol.generation_bodies import MESSAGES, RESPONSES
from justitia_ray.protocol.inspection import IngressReport, Inspection
from justitia_ray.protocol.stream_parts import Part
from justitia_ray.serve.ingress.gateway import Gateway
from justitia_ray.serve.ingress.models import ServedModel
from justitia_ray.serve.ingress.pending_inferences import PendingInference, PendingInferences
from justitia_ray.serve.ingress.queue_client import OpenedApplication
from justitia_ray.serve.ingress.replica_calls import Head
from justitia_ray.serve.ingress.submission import ApplicationSpecCache
from tests.unit.serve.ingress.test_gateway import (
    FakeCounter,
    FakeEstimates,
    FakeQueueClient,
    unknown_outlooks,
)

_JSON = {"content-type": "application/json"}
_LAST_EVENT = {
    MESSAGES: b'event: message_stop\ndata: {"type": "message_stop"}\n\n',
    RESPONSES: b'event: response.completed\ndata: {"type": "response.completed"}\n\n',
}


class GrantingQueue(FakeQueueClient):
    """Fake queue client that grants every inference at once and records nothing."""

    async def next_grant(self, inference: PendingInference) -> Any:
        return Grant("q", "i", "l", "r", 0, 1, 0.0)

    def cancel_inference(self, inference: PendingInference) -> None:
        self.pending = PendingInferences()
        self.items.clear()

    async def open_application(self, arrival: ApplicationArrived) -> OpenedApplication:
        return OpenedApplication(arrival, 1.0)


class AnsweringReplicas:
    """Fake replicas that answer with an empty object, or with a stream of one event."""

    async def paths(self) -> frozenset[str]:
        return frozenset({*INFERENCE_PATHS, *UNSCHEDULED_PATHS})

    async def unary(self, grant: Grant, path: str, payload: bytes, headers: Any) -> Answer:
        return 200, _JSON, b"{}"

    async def unscheduled(self, path: str, payload: bytes) -> Answer:
        return 200, _JSON, b"{}"

    async def stream(
        self, grant: Grant, path: str, payload: bytes, resume: Any, headers: Any
    ) -> AsyncIterator[Head | Part]:
        yield 200, {"content-type": "text/event-stream"}
        yield Part(_LAST_EVENT.get(path, b"data: [DONE]\n\n"), 1, ())


class AnsweringScheduler:
    """Fake scheduler that knows every application whose id has an odd number of characters."""

    async def find_application(self, key: str) -> dict[str, Any] | None:
        return {"application_id": key} if self._knows_application(key) else None

    async def applications(self, most: int, tenant: str | None) -> dict[str, Any]:
        none = {"applications": 0, "waiting": 0, "running": 0}
        return {"applications": [], "own": none, "others": none}

    async def close_application(self, key: str) -> bool:
        return self._knows_application(key)

    async def cancel_application(self, key: str) -> bool:
        return self._knows_application(key)

    async def console_application(self, key: str) -> bytes | None:
        return b"{}" if self._knows_application(key) else None

    async def console_frame(self, tenant: str | None, epoch: Any, number: int | None) -> None:
        return None

    async def console_history(self, lasts_s: float) -> bytes:
        raise QueueFull("simulations run already", retry_after_s=1.0)

    async def usage(self, days: list[int]) -> dict[str, Any]:
        return {"days": {}, "open_from": days[-1]}

    async def status(self, applications: int) -> dict[str, Any]:
        return {"ready": True, "degraded": None, "replicas": {"r": {}}}

    def _knows_application(self, key: str) -> bool:
        return len(split_key(key)[1]) % 2 == 1


class AnsweringPredictor:
    """Fake predictor that knows no classes and accepts every sample."""

    def __init__(self) -> None:
        self.overview = SimpleNamespace(remote=self._overview)
        self.take_history = SimpleNamespace(remote=self._take_history)
        self.roll_back = SimpleNamespace(remote=self._roll_back)

    async def _overview(self) -> dict[str, Any]:
        return {"classes": {}}

    async def _take_history(self, samples: list[Any]) -> int:
        return len(samples)

    async def _roll_back(self, name: str, version: int | None, release: bool) -> dict[str, Any]:
        return {"serving": version, "pinned": not release}


class AnsweringInspection:
    """Fake inspection that finds one ingress and no other process."""

    async def inspect(self) -> Inspection:
        ingress = IngressReport(ingress_id="i", epoch=1, open_applications=0)
        return Inspection(name="default", model="m", scheduler=None, ingress=ingress)


def answering_model(specs: ApplicationSpecCache, **ingress: Any) -> ServedModel:
    """Return a served model `m` that answers every call; `ingress` sets options."""
    model, engine = {"name": "m", "path": "none"}, {"kind": "fake"}
    config = AppConfig.parse({"model": model, "engine": engine, "ingress": ingress})
    calls: Any = (GrantingQueue(), AnsweringReplicas(), FakeEstimates(), FakeCounter())
    parts: Any = (*calls, specs, unknown_outlooks())
    others: Any = (AnsweringScheduler(), AnsweringPredictor(), AnsweringInspection())
    return ServedModel(config, Gateway(config, *parts), *others)
