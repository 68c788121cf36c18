"""Measurement of callers that wait behind Serve's proxy: memory, drain of an ingress, disconnects.

One call with as many choices as the engines have seats occupies all of them, so that all other
callers wait.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil  # type: ignore[import-untyped]

from justitia_ray.errors import JustitiaError
from justitia_ray.units import Seconds, Tokens
from scripts.bench.load import Target

_OPENED_TOGETHER = 200
"""Number of connections opened at once; some kernels limit a listener's backlog to about 60."""
_WITHIN_S: Seconds = 600.0
_POLL_S: Seconds = 0.02
_DISCONNECT_WITHIN_S: Seconds = 1.0


@dataclass(frozen=True, slots=True)
class WaitingCallers:
    """Result of callers that waited while an ingress drained."""

    callers: int
    memory_before_mb: float
    memory_mb: float
    answers: dict[str, int]
    """Number of callers by HTTP status, or by the name of the error."""

    @property
    def lost(self) -> int:
        return self.callers - self.answers.get("200", 0)


@dataclass(frozen=True, slots=True)
class Disconnects:
    """Result of callers that disconnected at random times."""

    callers: int
    idle_after_s: Seconds
    """Seconds from the last disconnect until the scheduler holds nothing of these callers."""


class WaitingLoad:
    """Benchmark load: one call occupies all engines, and all other callers wait."""

    def __init__(self, target: Target, model: str, seats: int, longest: Tokens) -> None:
        self._target = target
        self._model = model
        self._seats = seats
        self._longest = longest

    async def drain_with_waiting_callers(
        self, callers: int, pids: Callable[[], Iterable[int]], drain: Callable[[], None]
    ) -> WaitingCallers:
        """Let callers wait, drain an ingress, serve the callers, and return the outcome.

        Args:
            callers: How many.
            pids: Returns the processes whose memory counts.
            drain: Takes one of several ingresses away; blocks until it is gone.

        Raises:
            JustitiaError: If they do not come to wait, or some have no answer after ten minutes.
        """
        blocker = await self._occupy_all_seats()
        before = memory_mb(pids())
        waiting: list[asyncio.Task[str]] = []
        while len(waiting) < callers:
            more = min(_OPENED_TOGETHER, callers - len(waiting))
            waiting += [asyncio.create_task(self._call_to_end()) for _ in range(more)]
            await self._wait_for_count("waiting", len(waiting), waiting)
        held = memory_mb(pids())
        draining = asyncio.create_task(asyncio.to_thread(drain))
        await asyncio.sleep(_DISCONNECT_WITHIN_S)  # give Serve's proxy time to learn of the change
        blocker.cancel()
        answers = Counter(await asyncio.wait_for(asyncio.gather(*waiting), _WITHIN_S))
        await asyncio.gather(blocker, return_exceptions=True)
        await draining
        await self._wait_for_count("in_flight", 0)
        return WaitingCallers(callers, before, held, dict(answers))

    async def disconnect_at_random(self, callers: int, seed: int) -> Disconnects:
        """Make callers disconnect at random times: running or waiting, unary or streaming.

        Raises:
            JustitiaError: If something of them is left after ten minutes.
        """
        rng = random.Random(seed)
        await asyncio.gather(
            *(
                self._call_and_disconnect(
                    rng.random() < 0.5, rng.uniform(0.0, _DISCONNECT_WITHIN_S)
                )
                for _ in range(callers)
            )
        )
        left_at = time.monotonic()
        await self._wait_for_count("waiting", 0)
        await self._wait_for_count("in_flight", 0)
        return Disconnects(callers, time.monotonic() - left_at)

    async def _occupy_all_seats(self) -> "asyncio.Task[None]":
        async def fill_all_seats() -> None:
            async with self._target.open() as connection:
                body = self._completion_body(max_tokens=self._longest, n=self._seats)
                await connection.post(self._target.completions, body)

        blocker = asyncio.create_task(fill_all_seats())
        await self._wait_for_count("in_flight", 1)
        return blocker

    async def _call_to_end(self) -> str:
        try:
            async with self._target.open() as connection:
                reply = await connection.post(
                    self._target.completions, self._completion_body(max_tokens=1)
                )
                return str(reply.status)
        except (OSError, JustitiaError) as error:
            return type(error).__name__

    async def _call_and_disconnect(self, stream: bool, after_s: Seconds) -> None:
        try:
            async with asyncio.timeout(after_s), self._target.open() as connection:
                body = self._completion_body(max_tokens=self._longest, stream=stream)
                await connection.post(self._target.completions, body)
        except TimeoutError:
            return

    async def _wait_for_count(
        self, name: str, count: int, callers: Sequence["asyncio.Task[str]"] = ()
    ) -> None:
        """Wait until a counter of the scheduler reaches `count`, or falls to 0 if `count` is 0."""
        deadline = time.monotonic() + _WITHIN_S
        found: int | None = None
        while time.monotonic() < deadline:
            with suppress(
                ConnectionError
            ):  # HAProxy processes replace each other while an application starts
                async with self._target.open() as connection:
                    reply = await connection.get(f"{self._target.route_prefix}/v1/status")
                found = json.loads(reply.body).get(name)
            if found is not None and (found >= count if count else found == 0):
                return
            if ended := [caller.result() for caller in callers if caller.done()]:
                raise JustitiaError(f"a caller that should wait has ended: {ended[0]}")
            await asyncio.sleep(_POLL_S)
        raise JustitiaError(f"{name} is {found} and not {count}: too late")

    def _completion_body(self, **fields: object) -> bytes:
        values = {"model": self._model, "prompt": [100, 101, 102], "ignore_eos": True, **fields}
        return json.dumps(values).encode()


def memory_mb(pids: Iterable[int]) -> float:
    """Return the memory of processes in MB; pages they share count once (PSS)."""
    total = 0
    for pid in pids:
        try:
            total += psutil.Process(pid).memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total / 1e6
