"""Synthetic live runs, and an in-process service that serves live runs."""

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from justitia_ray.client import Response, StreamedResponse
from justitia_ray.lab.workloads.play import ApplicationRecord
from justitia_ray.observability.scheduler_metrics import DecisionMeter
from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import simulate
from justitia_ray.sim.suites.load_plan import Lengths, PlannedApplication
from justitia_ray.sim.suites.recorded import RecordedRun
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from scripts.bench.live_model import REPORT_INTERVAL_S
from scripts.bench.live_records import PlayedApplication, RecordedApplication, RecordedInference
from scripts.bench.live_session import FCFS, Arm, Decisions, LiveRun

NO_DECISIONS = Decisions(0, None, None, 0.0)


def recorded_inference(
    submitted_at_s: float,
    finished_at_s: float,
    tokens: tuple[int, int] = (100, 10),
    waited_s: float = 0.0,
    replica: str | None = "r1",
    ways_s: float = 0.0,
    dispatch_s: float = 0.0,
) -> RecordedInference:
    leased_s = finished_at_s - submitted_at_s - waited_s - ways_s
    ran_s = leased_s - dispatch_s
    return RecordedInference(
        submitted_at_s, finished_at_s, *tokens, replica, waited_s, ran_s, leased_s
    )


def played_application(
    number: int,
    arrived_at_s: float,
    rows: Sequence[RecordedInference],
    application_class: str = "KBQAV",
    predicted: float = 1000.0,
    error: str | None = None,
) -> PlayedApplication:
    """Return an application that ends at the end of its last inference."""
    planned = PlannedApplication(
        number,
        application_class,
        f"item-{number}",
        "text",
        "team-a",
        arrived_at_s,
        Lengths(steered=True, run=RecordedRun(None, ()), limits={}),
    )
    ended_at_s = max((row.finished_at_s for row in rows), default=arrived_at_s)
    record = ApplicationRecord(
        f"app-{number}",
        application_class,
        "team-a",
        arrived_at_s,
        ended_at_s,
        ended_at_s - arrived_at_s,
        "completed" if error is None else "failed",
        len(rows),
        sum(row.output_tokens for row in rows),
        error,
    )
    return PlayedApplication(
        planned,
        record,
        RecordedApplication(f"app-{number}", application_class, predicted, list(rows)),
    )


def live_run(arm: Arm, played: Sequence[PlayedApplication]) -> LiveRun:
    return LiveRun(arm, tuple(played), 0.5, 0, NO_DECISIONS, {"engine": 1.0}, 10.0)


def simulated_run(
    engine: EngineProfile,
    count: int,
    seed: int,
    way_s: float,
    *,
    dispatch_s: float = 0.0,
    hold_up_s: float = 0.0,
    arm: Arm = FCFS,
) -> LiveRun:
    """Simulate a live run on two engines of the given profile, and return its records.

    Args:
        engine: Cost of an iteration.
        count: Number of applications, each with two stages.
        seed: Seed of their sizes.
        way_s: Transport time added to each call after its engine has finished it.
        dispatch_s: Time from the lease of a call to its start on the engine.
        hold_up_s: Time for which a call stops both engines on arrival, and again at its end.
        arm: Policy of the run.
    """
    rng = random.Random(seed)
    load = [
        WorkloadApplication(
            f"a{number:03d}",
            "KBQAV",
            number * 0.05,
            tuple(
                WorkloadInference(
                    f"{stage}-{i}",
                    rng.randrange(50, 700),
                    rng.randrange(20, 250),
                    () if stage == 0 else ("0-0", "0-1"),
                    way_s if stage else 0.0,
                )
                for stage in range(2)
                for i in range(2)
            ),
        )
        for number in range(count)
    ]
    settings = RunSettings(
        engine=engine,
        policy=arm.policy,
        replicas=2,
        report_interval_s=REPORT_INTERVAL_S if dispatch_s or hold_up_s else 0.0,
        dispatch_s=dispatch_s,
        hold_up_s=hold_up_s,
    )
    result = simulate(load, settings)
    rows: dict[str, list[RecordedInference]] = {}
    for row in result.inferences:
        assert row.dispatched_at_s is not None
        assert row.finished_at_s is not None
        rows.setdefault(row.application_id, []).append(
            recorded_inference(
                row.submitted_at_s,
                row.finished_at_s + way_s,
                (row.prompt_tokens, row.output_tokens),
                row.dispatched_at_s - row.submitted_at_s,
                str(row.replica),
                way_s,
                dispatch_s,
            )
        )
    played = [
        played_application(n, a.arrived_at_s, rows[a.application_id]) for n, a in enumerate(load)
    ]
    return live_run(arm, played)


class LiveService:
    """Fake service that takes 10 ms per inference and 2 ms per output token."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {"policy": "justitia", "policy_options": {}}
        self.opened: list[tuple[str, str, str]] = []
        """Policy, class and input of every opened application, in order."""
        self.samples: list[dict[str, Any]] = []
        self.leftover = 0
        """Number of applications that the next status reports as unfinished."""
        self.ignores_policies = False
        self.fails = ""
        """Application class whose inferences fail."""
        self.refuses = ""
        """Input text whose applications are refused."""
        self.loses_closes = False
        """Whether requests to close applications get lost."""
        self.cancelled: list[str] = []
        """URL paths of the cancelled applications."""
        self.used_token_s = 10.0
        self._decisions = DecisionMeter()
        self._classes: dict[str, str] = {}
        self._tenants: dict[str, str | None] = {}
        """Tenant of each application; callers of other tenants get the status 404."""

    async def configure(self, arm: Arm) -> None:
        if not self.ignores_policies:
            self.settings = {"policy": arm.policy, "policy_options": dict(arm.options)}

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Response:
        fields = json.loads(body) if body else {}
        name = path.removeprefix("/v1/applications/").removesuffix("/close")
        if self._tenants.get(name) != headers.get("x-justitia-tenant") and name in self._tenants:
            return _json_response({"error": {"message": f"{name} is not open"}}, 404)
        if path.endswith("/close") and self.loses_closes:
            return _json_response({"error": {"message": "lost"}}, 500)
        if method == "DELETE":
            self.cancelled.append(path)
        if path == "/v1/status":
            self.leftover = max(0, self.leftover - 1)
            return _json_response(self._status_fields())
        if path == "/v1/models":
            return _json_response({"data": [{"id": "tiny"}]})
        if path == "/v1/predictor/samples":
            self.samples += fields["samples"]
            return _json_response({"taken": len(fields["samples"])})
        if path == "/v1/applications":
            if fields["input"] == self.refuses:
                return _json_response({"error": {"message": "refused"}}, 400)
            name = f"app-{len(self.opened)}"
            self.opened.append(
                (self.settings["policy"], fields["application_class"], fields["input"])
            )
            self._classes[name] = fields["application_class"]
            self._tenants[name] = fields.get("tenant")
            self._decisions.record_decisions(1e-4)
            tag = {"predicted_kv_token_time": 5.0, "virtual_finish_time": None}
            return _json_response({"application_id": name, **tag})
        if path == "/v1/chat/completions":
            if self.fails and headers["x-justitia-class"].startswith(self.fails):
                return _json_response({"error": {"message": "broken"}}, 500)
            ran_s = 0.01 + 0.002 * fields["max_tokens"]
            await asyncio.sleep(ran_s)
            self.used_token_s += 1.0
            usage = {"prompt_tokens": 20, "completion_tokens": fields["max_tokens"]}
            choices = [{"index": 0, "message": {"content": "Answer: 1"}}]
            head = {
                "x-justitia-replica": "r1",
                "x-justitia-waited-s": "0.0",
                "x-justitia-ran-s": f"{ran_s:.4f}",
                "x-justitia-leased-s": f"{ran_s + 0.005:.4f}",
            }
            content = json.dumps({"choices": choices, "usage": usage}).encode()
            return Response(200, head, content)
        return _json_response({"gps_lag": {"seconds": 0.5, "bound_s": 2.0}})

    def stream(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> AbstractAsyncContextManager[StreamedResponse]:
        raise NotImplementedError

    async def aclose(self) -> None:
        """Do nothing: the fake has no connection."""

    def _status_fields(self) -> dict[str, Any]:
        return {
            "pid": 7,
            "policy": self.settings["policy"],
            "settings": self.settings,
            "waiting": 0,
            "in_flight": 0,
            "applications": self.leftover,
            "replicas": {"r1": {"kv_tokens": 7360}, "r2": {"kv_tokens": 7360}},
            "kv": {
                "used_token_s": self.used_token_s,
                "capacity_token_s": 10 * self.used_token_s,
                "preemptions": 2,
            },
            "decisions": self._decisions.totals(),
        }


def _json_response(value: object, status: int = 200) -> Response:
    return Response(status, {}, json.dumps(value).encode())
