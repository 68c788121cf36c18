"""A service in memory as scripts/bench_live sees one: policies, counts, a predictor."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from justitia_ray.bench.live_arms import Arm
from justitia_ray.client import Response, StreamedResponse
from justitia_ray.observability.decision_meter import DecisionMeter


class LiveService:
    """Takes 10 ms an inference, and 2 ms a token of its answer."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {"policy": "justitia", "policy_options": {}}
        self.opened: list[tuple[str, str, str]] = []
        """Policy, class and input of every application, in order."""
        self.samples: list[dict[str, Any]] = []
        self.leftover = 0
        """Applications that the next statuses still show, one fewer each time."""
        self.ignores_policies = False
        self.fails = ""
        """Inferences of this class fail."""
        self.used_token_s = 10.0
        self._decisions = DecisionMeter()
        self._classes: dict[str, str] = {}

    async def configure(self, arm: Arm) -> None:
        """Put a policy in force."""
        if not self.ignores_policies:
            self.settings = {"policy": arm.policy, "policy_options": dict(arm.options)}

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Response:
        """Answer as the ingress would."""
        fields = json.loads(body) if body else {}
        if path == "/v1/status":
            self.leftover = max(0, self.leftover - 1)
            return _answer(self._status())
        if path == "/v1/models":
            return _answer({"data": [{"id": "tiny"}]})
        if path == "/v1/predictor/samples":
            self.samples += fields["samples"]
            return _answer({"taken": len(fields["samples"])})
        if path == "/v1/applications":
            name = f"app-{len(self.opened)}"
            self.opened.append(
                (self.settings["policy"], fields["application_class"], fields["input"])
            )
            self._classes[name] = fields["application_class"]
            self._decisions.note(1e-4)
            tag = {"predicted_kv_token_time": 5.0, "virtual_finish_time": None}
            return _answer({"application_id": name, **tag})
        if path == "/v1/chat/completions":
            if self.fails and headers["x-justitia-class"].startswith(self.fails):
                return Response(500, {}, json.dumps({"error": {"message": "broken"}}).encode())
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
        return _answer({"gps_lag": None})

    def stream(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> AbstractAsyncContextManager[StreamedResponse]:
        """Refuse: agents do not stream."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Do nothing."""

    def _status(self) -> dict[str, Any]:
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


def _answer(value: object) -> Response:
    return Response(200, {}, json.dumps(value).encode())
