"""Runs a workload as plain chat calls over HTTP, without application headers.

A call that can repeat the whole conversation of an earlier call sends those messages and the answer
again, as agents do. Answers name the application to which the service assigned the call.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from justitia_ray.client.calls import json_object
from justitia_ray.client.load import LoadClock, play_load
from justitia_ray.client.transport import Response, Transport
from justitia_ray.errors import JustitiaError
from justitia_ray.protocol.endpoints import APPLICATION_HEADER, CLASS_HEADER
from justitia_ray.protocol.generation_bodies import CHAT
from justitia_ray.sim.recognition import continued_call
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.units import ApplicationId, InferenceId, Seconds, Tokens

_TOKENS_PER_MESSAGE: Tokens = 4
"""Tokens that the fake engine counts for each message in addition to its words."""

Message = dict[str, str]


@dataclass(slots=True)
class Placed:
    """Numbers of calls that the service assigned to the right and to the wrong application."""

    calls: int = 0
    following: int = 0
    repeating: int = 0
    """Number of calls that repeat the conversation of an earlier call."""
    right: int = 0
    """Number of repeating calls assigned to the same application as the call that they repeat."""
    wrong: int = 0
    """Number of calls assigned to an application that they do not belong to."""

    def add(self, other: "Placed") -> None:
        self.calls += other.calls
        self.following += other.following
        self.repeating += other.repeating
        self.right += other.right
        self.wrong += other.wrong


@dataclass(frozen=True, slots=True)
class PlayedChats:
    """Result of a run: completion times of applications, and assignment of their calls."""

    completed: tuple[tuple[str, Seconds], ...]
    """(class, completion time) of each application that ended."""
    failures: tuple[str, ...]
    placed: Placed


@dataclass(slots=True)
class _Message:
    """Answered call: the messages sent and the answer."""

    messages: list[Message]
    answer: str
    ended_at_s: Seconds


class ChatPlayer:
    """Runs applications as chats.

    Args:
        transport: The way to the service.
        model: The model to ask for.
        speed: The workload's instants and delays are divided by it.
        has_headers: Whether every call names its application and the class of that.
        name: Makes the ids of one play differ from another's.
    """

    def __init__(
        self, transport: Transport, model: str, speed: float, *, has_headers: bool, name: str
    ) -> None:
        self._transport = transport
        self._model = model
        self._speed = speed
        self._has_headers = has_headers
        self._name = name
        self._placed = Placed()
        self._owners: dict[ApplicationId, ApplicationId] = {}
        """True application of the first call in each application that the service formed."""
        self._failures: list[str] = []

    async def play(self, applications: Sequence[WorkloadApplication]) -> PlayedChats:
        """Run all applications at their arrival times, even if some of them fail."""
        ends = await play_load(
            applications,
            self._run_application,
            arrived_at_s=lambda planned: planned.arrived_at_s / self._speed,
        )
        return PlayedChats(
            tuple(
                (planned.application_class, end_s - planned.arrived_at_s / self._speed)
                for planned, end_s in zip(applications, ends, strict=True)
                if end_s is not None
            ),
            tuple(self._failures),
            self._placed,
        )

    async def _run_application(
        self, planned: WorkloadApplication, clock: LoadClock
    ) -> Seconds | None:
        """Return when the last inference was answered; None if one failed."""
        agent = _RunningChat(planned, self._name)
        runs: dict[InferenceId, asyncio.Task[None]] = {}

        async def run_inference(inference: WorkloadInference) -> None:
            for name in inference.after:
                await runs[name]
            earlier = [agent.said[name].ended_at_s for name in inference.after]
            since_s = max(earlier, default=planned.arrived_at_s / self._speed)
            await clock.wait_until(since_s + inference.delay_s / self._speed)
            await self._send_call(agent, inference, clock)

        try:
            async with asyncio.TaskGroup() as group:
                # Register all tasks before any starts, so that each finds its predecessors.
                for inference in planned.inferences:
                    runs[inference.inference_id] = group.create_task(run_inference(inference))
            if self._has_headers:
                path = f"/v1/applications/{self._application_of(planned)}/close"
                json_object(await self._post_chat(path, {}, {}))
        except* (JustitiaError, ConnectionError) as errors:
            self._failures.append(f"{planned.application_id}: {errors.exceptions[0]}")
        if len(agent.said) < len(planned.inferences):
            return None
        return max(said.ended_at_s for said in agent.said.values())

    async def _send_call(
        self, agent: "_RunningChat", inference: WorkloadInference, clock: LoadClock
    ) -> None:
        body = {
            "model": self._model,
            "messages": agent.messages(inference),
            # The fake engine always generates this number of tokens.
            "max_tokens": inference.output_tokens,
        }
        planned = agent.planned
        headers = {}
        if self._has_headers:
            headers = {
                APPLICATION_HEADER: self._application_of(planned),
                CLASS_HEADER: planned.application_class,
            }
        response = await self._post_chat(CHAT, body, headers)
        text = json_object(response)["choices"][0]["message"]["content"]
        agent.said[inference.inference_id] = _Message(
            agent.messages(inference), text, clock.now_s()
        )
        self._record_assignment(agent, inference, response.headers[APPLICATION_HEADER])

    def _record_assignment(
        self, agent: "_RunningChat", inference: WorkloadInference, found: ApplicationId
    ) -> None:
        own, placed = agent.planned.application_id, self._placed
        is_known = found in self._owners
        owner = self._owners.setdefault(found, own)
        follows = bool(inference.after)
        placed.calls += 1
        placed.following += follows
        placed.repeating += agent.repeated_call(inference) is not None
        placed.right += is_known and follows and owner == own
        placed.wrong += owner != own

    async def _post_chat(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> Response:
        typed = {"content-type": "application/json", **headers}
        return await self._transport.request("POST", path, typed, json.dumps(body).encode())

    def _application_of(self, planned: WorkloadApplication) -> ApplicationId:
        return f"{self._name}-{planned.application_id}"


@dataclass(slots=True)
class _RunningChat:
    """Application that is running, and its conversation so far."""

    planned: WorkloadApplication
    play: str
    said: dict[InferenceId, _Message] = field(default_factory=dict)
    by_id: dict[InferenceId, WorkloadInference] = field(init=False)

    def __post_init__(self) -> None:
        self.by_id = {one.inference_id: one for one in self.planned.inferences}

    def repeated_call(self, inference: WorkloadInference) -> WorkloadInference | None:
        """Return the call whose conversation this call repeats; None for a new conversation."""
        return continued_call(inference, self.by_id)

    def messages(self, inference: WorkloadInference) -> list[Message]:
        """Return a call's messages, with as many words as its prompt has tokens where possible.

        The first message is shared by all applications of the class; no two questions are equal.
        """
        earlier = self.repeated_call(inference)
        if earlier is None:
            so_far = [{"role": "system", "content": self.planned.application_class}]
        else:
            said = self.said[earlier.inference_id]
            so_far = [*said.messages, {"role": "assistant", "content": said.answer}]
        used = sum(len(message["content"].split()) + _TOKENS_PER_MESSAGE for message in so_far)
        words = max(1, inference.prompt_tokens - used - _TOKENS_PER_MESSAGE)
        question = f"{self.play}/{self.planned.application_id}/{inference.inference_id}"
        content = " ".join([question, *["word"] * (words - 1)])
        return [*so_far, {"role": "user", "content": content}]
