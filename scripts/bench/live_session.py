"""Sessions of `scripts/bench_live`: one load on a live service under one policy after another."""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from justitia_ray.client import JustitiaClient
from justitia_ray.client.calls import JsonCalls
from justitia_ray.client.transport import HttpTransport, Transport
from justitia_ray.errors import JustitiaError, ResponseError
from justitia_ray.lab.workloads.play import play
from justitia_ray.predictor.observation import Observation
from justitia_ray.protocol.endpoints import TENANT_HEADER
from justitia_ray.sim.suites.load_plan import PlannedApplication
from justitia_ray.units import ApplicationId, Seconds
from scripts.bench.live_records import PlayedApplication, Recorder
from scripts.bench.machine import Speedometer


@dataclass(frozen=True, slots=True)
class Arm:
    """Scheduling policy with its options, as one variant of a benchmark."""

    name: str
    policy: str
    options: tuple[tuple[str, object], ...] = ()


NOMINAL = Arm("justitia-nominal", "justitia", (("clock", "nominal"),))
"""Arm whose virtual clock always advances at the rate of full engines, as in the paper."""
JUSTITIA = Arm("justitia", "justitia", (("clock", "served"),))
GUARD = Arm(
    "justitia-guard",
    "justitia-guarded",
    (("backfill", 8), ("clock", "served"), ("guard_iterations", 300), ("order", "sgps")),
)
"""Arm `justitia-guarded`: shortest first while no application ends much later than under VTC."""
FCFS, VTC, SRJF = Arm("fcfs", "fcfs"), Arm("vtc", "vtc"), Arm("srjf", "srjf")
CONTROL = Arm("vtc-again", VTC.policy, VTC.options)
"""Control arm that repeats the policy of `VTC`; its distance from `VTC` is the measurement noise.
"""
ARMS = (FCFS, Arm("app-fcfs", "app-fcfs"), VTC, CONTROL, SRJF, NOMINAL, JUSTITIA, GUARD)


def shuffled(arms: Sequence[Arm], seed: int) -> list[Arm]:
    """Return the arms in an order drawn from the seed, so that no arm is always first."""
    return random.Random(f"order {seed}").sample(arms, len(arms))


@dataclass(frozen=True, slots=True)
class Decisions:
    """Number of events that the scheduling core handled, by duration."""

    count: int
    p50_s: Seconds | None
    """Upper bound of the median duration in seconds."""
    p99_s: Seconds | None
    total_s: Seconds


def decisions_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> Decisions:
    """Return the decisions made between two readings of `decisions` in `/v1/status`."""
    earlier = {float(at_most): int(count) for at_most, count in before["at_most_s"]}
    counts = [
        (float(at_most), int(count) - earlier.get(float(at_most), 0))
        for at_most, count in after["at_most_s"]
    ]
    total = sum(count for _, count in counts)
    return Decisions(
        total,
        _percentile(counts, total, 0.50),
        _percentile(counts, total, 0.99),
        after["total_s"] - before["total_s"],
    )


def _percentile(counts: list[tuple[Seconds, int]], total: int, share: float) -> Seconds | None:
    seen = 0
    for at_most, count in counts:
        seen += count
        if count and seen >= share * total:
            return at_most
    return None


Configure = Callable[[Arm], Awaitable[None]]
"""Function that switches the running service to the policy of an arm."""

_POLL_S: Seconds = 0.25
_IDLE_WITHIN_S: Seconds = 60.0
_SAMPLES_A_CALL = 200
TABLE_COPIED_S: Seconds = 11.0
"""Seconds to wait for the ingress, which copies the predictor's tables every 10 s."""


@dataclass(frozen=True, slots=True)
class LiveRun:
    """Run of one load under one arm."""

    arm: Arm
    played: tuple[PlayedApplication, ...]
    kv_utilization: float | None
    """KV memory used over KV memory available, from the first arrival to the last end."""
    preemptions: int
    decisions: Decisions
    cpu_s: Mapping[str, Seconds]
    """CPU time in seconds, by the role of the process."""
    wall_s: Seconds
    speed: tuple[tuple[Seconds, Seconds], ...] = ()
    """Readings of the machine's speed: (seconds since the start, CPU seconds of a fixed task)."""

    @property
    def failed(self) -> int:
        """Number of failed applications."""
        return sum(one.record.outcome == "failed" for one in self.played)


class Session:
    def __init__(
        self,
        url: str,
        configure: Configure,
        cpu_s: Callable[[int | None], Mapping[str, Seconds]],
        transport: Callable[[str], Transport] = HttpTransport,
        clock: Callable[[], Seconds] = time.monotonic,
    ) -> None:
        self._url = url
        self._configure = configure
        self._cpu_s = cpu_s
        self._make = transport
        self._clock = clock
        self._transport = transport(url)
        self._calls = JsonCalls(self._transport)

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def play(
        self,
        arm: Arm,
        load: Sequence[PlannedApplication],
        class_suffix: str = "",
        own_classes: Mapping[tuple[str, str], str] | None = None,
    ) -> LiveRun:
        """Switch to an arm's policy, run a load, and wait until the service is idle.

        Args:
            arm: The policy.
            load: What is played.
            class_suffix: See `Recorder`.
            own_classes: See `Recorder`.

        Raises:
            JustitiaError: If the policy does not come into force, or the queue does not become
                empty.
            ConnectionError: If the service does not answer.
        """
        await self.until_idle()
        await self._configure(arm)
        before = await self.status()
        _check_in_force(before, arm)
        cpu_before = self._cpu_s(before.get("pid"))
        started = self._clock()
        recorder = Recorder(self._make(self._url), class_suffix, self._clock, own_classes)
        async with JustitiaClient(recorder) as client:
            with Speedometer() as speedometer:
                began_at = time.monotonic()
                records = await play(load, client)
        wall_s = self._clock() - started
        after = await self.status()
        cpu_after = self._cpu_s(after.get("pid"))
        await self._cancel_open_applications(recorder.left_open)
        await self.until_idle()
        played = tuple(
            PlayedApplication(
                planned, record, recorder.applications.get(record.application_id or "")
            )
            for planned, record in zip(load, records, strict=True)
        )
        held, there, preemptions = (
            after["kv"][key] - before["kv"][key]
            for key in ("used_token_s", "capacity_token_s", "preemptions")
        )
        return LiveRun(
            arm,
            played,
            held / there if there > 0 else None,
            preemptions,
            decisions_between(before["decisions"], after["decisions"]),
            {role: cpu_after[role] - cpu_before.get(role, 0.0) for role in cpu_after},
            wall_s,
            tuple((at - began_at, cpu_s) for at, cpu_s in speedometer.readings),
        )

    async def train_and_wait(
        self, history: Sequence[Observation], class_suffixes: Sequence[str]
    ) -> None:
        """Train the predictor on a history under several class names, and wait for it.

        Raises:
            ResponseError: If it is not taken.
        """
        samples = [
            {**one.to_dict(), "application_class": one.application_class + suffix}
            for suffix in class_suffixes
            for one in history
        ]
        for start in range(0, len(samples), _SAMPLES_A_CALL):
            part = samples[start : start + _SAMPLES_A_CALL]
            await self._calls.call("POST", "/v1/predictor/samples", {"samples": part})
        await asyncio.sleep(TABLE_COPIED_S)

    async def _cancel_open_applications(
        self, left_open: Mapping[ApplicationId, str | None]
    ) -> None:
        """Cancel applications whose close was not confirmed, before their timeout."""
        for name, tenant in sorted(left_open.items()):
            headers = {} if tenant is None else {TENANT_HEADER: tenant}
            path = f"/v1/applications/{quote(name, safe='')}"
            # The application may have ended even though the answer to its close was lost.
            with suppress(ResponseError):
                await self._calls.call("DELETE", path, headers=headers)

    async def until_idle(self) -> None:
        """Wait until no inference waits or runs and no application is open.

        Raises:
            JustitiaError: If that does not happen.
        """
        deadline = self._clock() + _IDLE_WITHIN_S
        while self._clock() < deadline:
            now = await self.status()
            if not (now["waiting"] or now["in_flight"] or now["applications"]):
                return
            await asyncio.sleep(_POLL_S)
        raise JustitiaError(
            f"{now['waiting']} inferences wait and {now['in_flight']} run"
            f" {_IDLE_WITHIN_S:g} s after the load has ended"
        )

    async def status(self) -> dict[str, Any]:
        answer = await self._transport.request("GET", "/v1/status", {})
        found: dict[str, Any] = json.loads(answer.body)
        return found


def _check_in_force(status: Mapping[str, Any], arm: Arm) -> None:
    settings = status["settings"]
    found = (settings["policy"], dict(settings["policy_options"]))
    if found != (arm.policy, dict(arm.options)):
        raise JustitiaError(f"the service is under {found}, not under {arm.name}")
