"""A client's transport that writes down what its applications did: instants, sizes, predictions.

It stands where the agent stands, so that nothing of the service has to be instrumented; where and
how long a call waited is in the head of its answer.
"""

import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from justitia_ray.client.answers import is_success
from justitia_ray.client.transport import Response, StreamedResponse, Transport
from justitia_ray.protocol.headers import (
    APPLICATION_HEADER,
    CLASS_HEADER,
    LEASED_HEADER,
    RAN_HEADER,
    REPLICA_HEADER,
    WAITED_HEADER,
)
from justitia_ray.sim.results import Lateness
from justitia_ray.units import ApplicationId, KvTokenTime, ReplicaId, Seconds, Tokens

_APPLICATIONS = "/v1/applications"
_INFERENCES = ("/v1/chat/completions", "/v1/completions")


@dataclass(frozen=True, slots=True)
class RecordedInference:
    """One inference that was answered. Instants are seconds from the start of the recording."""

    submitted_at_s: Seconds
    finished_at_s: Seconds
    prompt_tokens: Tokens
    output_tokens: Tokens
    replica: ReplicaId | None
    waited_s: Seconds
    """In the scheduler's queue, from its submission there to its lease."""
    ran_s: Seconds
    """At its replica, from its payload's arrival to the whole answer."""
    leased_s: Seconds
    """There, from its lease's arrival to the whole answer; if that came first, it is `ran_s`."""


@dataclass(slots=True)
class RecordedApplication:
    """One application as the service took it."""

    application_id: ApplicationId
    predicted_kv_token_time: KvTokenTime
    inferences: list[RecordedInference] = field(default_factory=list)
    """In the order of their ends."""
    lateness: Lateness | None = None
    """Behind fair sharing, as the scheduler said when all of it had run."""


class Recorder:
    """Takes the place of a transport, and passes everything on.

    Args:
        transport: The way to the service.
        class_suffix: Put after each application's class, so that the service knows of these
            classes what it was taught of them, whatever it has learned from other runs.
        clock: Tells the time in seconds.
    """

    def __init__(
        self,
        transport: Transport,
        class_suffix: str = "",
        clock: Callable[[], Seconds] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._suffix = class_suffix
        self._clock = clock
        self._started_at = clock()
        self.applications: dict[ApplicationId, RecordedApplication] = {}
        self.left_open: set[ApplicationId] = set()
        """Applications whose end the service has not confirmed."""

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Response:
        """Send a request and write down what it says of an application; see `Transport`."""
        if path == _APPLICATIONS:
            return await self._open(method, headers, body)
        if path in _INFERENCES:
            return await self._infer(method, path, headers, body)
        if path.endswith("/close"):
            await self._ask_lateness(path.removesuffix("/close"))
        answer = await self._transport.request(method, path, headers, body)
        if is_success(answer.status) and (method == "DELETE" or path.endswith("/close")):
            self.left_open.discard(_application_of(path))
        return answer

    def stream(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> AbstractAsyncContextManager[StreamedResponse]:
        """Pass a streamed call on, unrecorded: the agents here make none."""
        return self._transport.stream(method, path, headers, body)

    async def aclose(self) -> None:
        """Close the transport."""
        await self._transport.aclose()

    async def _open(self, method: str, headers: Mapping[str, str], body: bytes) -> Response:
        asked = json.loads(body)
        asked["application_class"] += self._suffix
        answer = await self._transport.request(
            method, _APPLICATIONS, headers, json.dumps(asked).encode()
        )
        if is_success(answer.status):
            told = json.loads(answer.body)
            opened = RecordedApplication(
                str(told["application_id"]), float(told["predicted_kv_token_time"])
            )
            self.applications[opened.application_id] = opened
            self.left_open.add(opened.application_id)
        return answer

    async def _infer(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Response:
        suffixed = dict(headers)
        if CLASS_HEADER in suffixed:
            suffixed[CLASS_HEADER] += self._suffix
        submitted_at_s = self._now_s()
        answer = await self._transport.request(method, path, suffixed, body)
        finished_at_s = self._now_s()
        opened = self.applications.get(headers.get(APPLICATION_HEADER, ""))
        if opened is not None and is_success(answer.status):
            usage: dict[str, Any] = json.loads(answer.body)["usage"]
            opened.inferences.append(
                RecordedInference(
                    submitted_at_s,
                    finished_at_s,
                    int(usage["prompt_tokens"]),
                    int(usage.get("completion_tokens") or 0),
                    answer.headers.get(REPLICA_HEADER),
                    float(answer.headers.get(WAITED_HEADER, "0")),
                    float(answer.headers.get(RAN_HEADER, "0")),
                    float(answer.headers.get(LEASED_HEADER, "0")),
                )
            )
        return answer

    async def _ask_lateness(self, application: str) -> None:
        opened = self.applications.get(_application_of(application))
        if opened is None:
            return
        answer = await self._transport.request("GET", application, {})
        if is_success(answer.status) and (lag := json.loads(answer.body).get("gps_lag")):
            opened.lateness = Lateness(lag["seconds"], lag["bound_s"])

    def _now_s(self) -> Seconds:
        return self._clock() - self._started_at


def _application_of(path: str) -> ApplicationId:
    """Return the application that `/v1/applications/ID`, or `…/close` of it, is about."""
    return unquote(path.removesuffix("/close").rpartition("/")[2])
