"""An HTTP application of two models, whose queues note what comes and run nothing."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx

from justitia_ray.app_args import parse_app_args
from justitia_ray.core.events import ApplicationArrived
from justitia_ray.errors import AdmissionError
from justitia_ray.serve.examination_calls import ExaminationCalls
from justitia_ray.serve.gateway import Gateway
from justitia_ray.serve.http_app import build_http_app
from justitia_ray.serve.models import ServedModel, ServedModels
from justitia_ray.serve.openings import Openings
from justitia_ray.serve.predictor_calls import PredictorCalls
from justitia_ray.serve.scheduler_calls import SchedulerCalls

from .test_gateway import FakeCounter, FakeDispatcher, FakeEstimates

CHAT, EMBED = "chat", "org/embed"
ADAPTER = "chat-sql"


class Queue:
    """One model: a real gateway, and what stands in for its scheduler and its predictor."""

    def __init__(self, place: Any, opened_elsewhere: Any) -> None:
        self.config = place.config
        self.dispatcher = FakeDispatcher()
        self.ended: list[tuple[str, str]] = []
        """What was closed or cancelled, in order."""
        self.status: dict[str, Any] | AdmissionError = {
            "ready": True,
            "degraded": None,
            "replicas": {"r": {}},
            "policy": "justitia",
        }
        self.taught: list[Any] = []
        parts: Any = (self.dispatcher, None, FakeEstimates(), FakeCounter(), opened_elsewhere)
        self.gateway = Gateway(place.config, *parts)

    @property
    def open(self) -> dict[str, ApplicationArrived]:
        """What is open in it."""
        return self.dispatcher.outstanding.open

    def served(self) -> ServedModel:
        """Return it as the HTTP application takes it."""
        calls = SchedulerCalls(self._view, self._close, self._cancel, self._status)
        predictor = cast(PredictorCalls, self)
        return ServedModel(
            self.config, self.gateway, calls, predictor, cast(ExaminationCalls, self)
        )

    async def _view(self, application_id: str) -> dict[str, Any] | None:
        arrival = self.open.get(application_id)
        return None if arrival is None else view(arrival)

    async def _close(self, application_id: str) -> bool:
        self.ended.append(("close", application_id))
        return self.open.pop(application_id, None) is not None

    async def _cancel(self, application_id: str) -> bool:
        self.ended.append(("cancel", application_id))
        return self.open.pop(application_id, None) is not None

    async def _status(self, applications: int) -> dict[str, Any]:
        if isinstance(self.status, AdmissionError):
            raise self.status
        return self.status

    # --- as its predictor and its examination

    async def overview(self) -> dict[str, Any]:
        """Return what the predictor knows."""
        return {"learns": True, "classes": {self.config.model.name: {}}}

    async def take_history(self, samples: list[Any]) -> int:
        """Learn."""
        self.taught += samples
        return len(samples)

    async def examine(self) -> Any:
        """Return what an examination says: here, itself."""
        return self

    def model_dump(self, mode: str) -> dict[str, Any]:
        """Return it as JSON."""
        return {"model": self.config.model.name}


class TwoModels:
    """Both queues, and a client of the application."""

    def __init__(self, http: httpx.AsyncClient, chat: Queue, embed: Queue) -> None:
        self.http, self.chat, self.embed = http, chat, embed


def view(arrival: ApplicationArrived) -> dict[str, Any]:
    """Return what a scheduler says of an application with two inferences, one of them done."""
    return {
        "application_id": arrival.application_id,
        "application_class": arrival.application_class,
        "tenant": arrival.tenant,
        "weight": arrival.weight,
        "state": "open",
        "predicted_kv_token_time": 100.0,
        "kv_token_time": 10.0,
        "virtual_finish_time": 7.0,
        "age_s": 1.0,
        "waiting": 1,
        "running": 0,
        "ended": 1,
        "gps_lag": None,
    }


@asynccontextmanager
async def two_models() -> AsyncIterator[TwoModels]:
    """Serve two models, one of them with an adapter, from this process."""
    args = parse_app_args(
        {
            "models": [
                {"name": CHAT, "path": "none", "adapters": {ADAPTER: "/sql"}},
                {"name": EMBED, "path": "none"},
            ],
            "engine": {"kind": "fake"},
        }
    )
    now = [0.0]
    openings = Openings(600.0, 100)
    queues = [Queue(place, lambda name: openings.get(name, now[0])) for place in args.each_model()]
    app = build_http_app(ServedModels([queue.served() for queue in queues]), openings)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
        yield TwoModels(http, *queues)
