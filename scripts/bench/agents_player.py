"""Player of agent sessions over HTTP: completions of token ids that repeat the context."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from justitia_ray.client.load import LoadClock, play_load
from justitia_ray.errors import JustitiaError
from justitia_ray.protocol.endpoints import (
    APPLICATION_HEADER,
    CLASS_HEADER,
    RAN_HEADER,
    REPLICA_HEADER,
    TENANT_HEADER,
    WAITED_HEADER,
)
from justitia_ray.units import Seconds, Tokens
from scripts.bench.agents import AgentSession
from scripts.bench.load import CallFailed, Reply, Target

_FIRST_TOKEN_ID, _LAST_TOKEN_ID = 100, 2000
"""Range of token ids that are ordinary words in every tokenizer in use."""
SESSION_HEADER = "X-Session-ID"
"""Header by which vLLM's router recognises a session."""


@dataclass(frozen=True, slots=True)
class TurnSample:
    """Measurements of one answered turn; times are seconds since the start of the run."""

    session: str
    turn: int
    sent_at_s: Seconds
    answered_at_s: Seconds
    prompt_tokens: Tokens
    cached_tokens: Tokens
    """Prompt tokens that the engine found in its prefix cache, from the answer's usage."""
    output_tokens: Tokens
    replica: str = ""
    """Name of the replica or server that answered the call."""
    queued_s: Seconds = 0.0
    """Time the call waited in this service's queue, from the answer's headers (seconds)."""
    ran_s: Seconds = 0.0
    """Time the call spent at the replica, from the answer's headers (seconds)."""

    @property
    def latency_s(self) -> Seconds:
        """Time from sending the call to its complete answer, in seconds."""
        return self.answered_at_s - self.sent_at_s


@dataclass(frozen=True, slots=True)
class Play:
    """Result of sending one set of sessions to one arm."""

    completion_s: Mapping[str, Seconds]
    """Time from a session's arrival to its last answer, by session; failed sessions are absent."""
    turns: tuple[TurnSample, ...]
    errors: tuple[str, ...]
    cpu_s: Mapping[str, Seconds] = field(default_factory=dict)
    """CPU time that the arm used, by the role of the process."""
    preemptions: int | None = None
    """Number of sequences that the arm's engines preempted; None if it was not read."""

    @property
    def elapsed_s(self) -> Seconds:
        """Time from the start of the play to the last answer, in seconds."""
        return max((turn.answered_at_s for turn in self.turns), default=0.0)

    @property
    def turns_per_minute(self) -> float:
        """Answered turns per minute, until the last answer."""
        return 60.0 * len(self.turns) / self.elapsed_s if self.turns else 0.0

    @property
    def cached_share(self) -> float:
        """Share of all prompt tokens that were cached."""
        prompts = sum(turn.prompt_tokens for turn in self.turns)
        return sum(turn.cached_tokens for turn in self.turns) / prompts if prompts else 0.0

    @property
    def count_moved_turns(self) -> int:
        """Number of turns answered by another replica than the session's previous turn."""
        last: dict[str, str] = {}
        moved = 0
        # Turns of one session never overlap, so the order of answers is the order of turns
        for turn in self.turns:
            moved += last.setdefault(turn.session, turn.replica) != turn.replica
            last[turn.session] = turn.replica
        return moved


class AgentPlayer:
    """Sends the calls of agent sessions to one arm.

    The tokens of a play follow from its name: another play's are others, so that nothing of it is
    in a cache. A prompt repeats the very tokens of the last prompt and of the answer to it; where
    answers bear no token ids, as the fake engine's, drawn ones stand for them.

    Args:
        targets: Where the arm answers. Sessions are pinned to them in turns, as they arrive.
        model: The model to ask for.
        name: Of the play.
        is_ours: Whether sessions name their application, its class and tenant, and close it.
        has_priorities: Whether calls have the place of their session in the order of arrival as
            their priority, which vLLM's own server takes.
        tenants: Tenants of the sessions, in turns as they arrive. The prefix cache has a salt for
            each if there are several: this service's own, the callers' where it is not in between.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        model: str,
        name: str,
        *,
        is_ours: bool,
        has_priorities: bool = False,
        tenants: int = 1,
    ) -> None:
        self._targets = targets
        self._model = model
        self._name = name
        self._is_ours = is_ours
        self._has_priorities = has_priorities
        self._tenants = tenants
        self._turns: list[TurnSample] = []
        self._errors: list[str] = []

    async def play(self, sessions: Sequence[AgentSession]) -> Play:
        """Run all sessions to their ends even if some of them fail."""
        order = sorted(range(len(sessions)), key=lambda i: sessions[i].arrived_at_s)
        places = {sessions[i].name: k for k, i in enumerate(order)}

        async def play_one_session(session: AgentSession, clock: LoadClock) -> Seconds | None:
            try:
                return await self._play_session(session, places[session.name], clock)
            except (JustitiaError, OSError) as error:
                self._errors.append(f"{session.name}: {error}")
                return None

        ends = await play_load(
            sessions, play_one_session, arrived_at_s=lambda session: session.arrived_at_s
        )
        return Play(
            {
                session.name: end_s - session.arrived_at_s
                for session, end_s in zip(sessions, ends, strict=True)
                if end_s is not None
            },
            tuple(self._turns),
            tuple(self._errors),
        )

    async def _play_session(self, session: AgentSession, place: int, clock: LoadClock) -> Seconds:
        """Run one session; its position by arrival (`place`) chooses its server and priority."""
        target = self._targets[place % len(self._targets)]
        own = random.Random(f"{self._name} {session.name}")
        context = _random_tokens(random.Random(self._name), session.common_tokens)
        application = f"{self._name}-{session.name}"
        tenant = tenant_name(place % self._tenants) if self._tenants > 1 else ""
        if self._is_ours:
            headers = {APPLICATION_HEADER: application, CLASS_HEADER: session.kind}
            headers |= {TENANT_HEADER: tenant} if tenant else {}
            extra: dict[str, Any] = {}
        else:
            headers = {SESSION_HEADER: application}
            extra = {"cache_salt": tenant} if tenant else {}
            extra |= {"priority": place} if self._has_priorities else {}
        answered_at_s = session.arrived_at_s
        for number, turn in enumerate(session.turns):
            kept = context[: turn.kept_tokens] if number else context
            prompt = kept + _random_tokens(own, turn.prompt_tokens - len(kept))
            await clock.wait_until(answered_at_s + turn.gap_s)
            sent_at_s = clock.now_s()
            reply = await self._post_completion(target, prompt, turn.output_tokens, headers, extra)
            answered_at_s = clock.now_s()
            answer: dict[str, Any] = json.loads(reply.body)
            usage, details = answer["usage"], answer["usage"].get("prompt_tokens_details") or {}
            if (usage["prompt_tokens"], usage["completion_tokens"]) != (
                turn.prompt_tokens,
                turn.output_tokens,
            ):
                raise CallFailed(
                    f"turn {number}: {usage['prompt_tokens']} and {usage['completion_tokens']}"
                    f" tokens came where {turn.prompt_tokens} and {turn.output_tokens} were meant"
                )
            self._turns.append(
                TurnSample(
                    session.name,
                    number,
                    sent_at_s,
                    answered_at_s,
                    turn.prompt_tokens,
                    details.get("cached_tokens") or 0,
                    turn.output_tokens,
                    reply.headers.get(REPLICA_HEADER, str(target.port)),
                    float(reply.headers.get(WAITED_HEADER, 0.0)),
                    float(reply.headers.get(RAN_HEADER, 0.0)),
                )
            )
            said = answer["choices"][0].get("token_ids") or _random_tokens(own, turn.output_tokens)
            context = prompt + said
        if self._is_ours:
            path = f"{target.route_prefix}/v1/applications/{application}/close"
            tenant_headers = {TENANT_HEADER: tenant} if tenant else {}
            await self._post_json(target, path, {}, tenant_headers)
        return answered_at_s

    async def _post_completion(
        self,
        target: Target,
        prompt: Sequence[int],
        output_tokens: Tokens,
        headers: Mapping[str, str],
        extra: Mapping[str, Any],
    ) -> Reply:
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": output_tokens,
            "ignore_eos": True,
            "return_token_ids": True,
            "temperature": 0.0,
            **extra,
        }
        return await self._post_json(target, target.completions, body, headers)

    async def _post_json(
        self, target: Target, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> Reply:
        # Servers close idle connections while a tool runs, so each call opens its own.
        async with target.open() as connection:
            reply = await connection.post(path, json.dumps(body).encode(), headers)
        if reply.status != 200:
            raise CallFailed(f"status {reply.status}: {reply.body[:500]!r}")
        return reply


def tenant_name(number: int) -> str:
    return f"tenant-{number}"


def _random_tokens(rng: random.Random, count: Tokens) -> list[int]:
    return rng.choices(range(_FIRST_TOKEN_ID, _LAST_TOKEN_ID + 1), k=count)
