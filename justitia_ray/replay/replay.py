"""One replay: ask the service what it is, play, and put the results together."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from justitia_ray.errors import ConfigError
from justitia_ray.replay.player import Failure, OnEnd, Played, Player
from justitia_ray.replay.service import LiveService, ServiceFacts
from justitia_ray.sim.results import RunResult
from justitia_ray.sim.workload import WorkloadApplication, check_sizes
from justitia_ray.units import Seconds


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay showed."""

    policy: str
    """The policy of the service when it began."""
    run: RunResult
    failures: tuple[Failure, ...]
    """Of one application after the other, in the order of the workload."""
    service: dict[str, Any]
    """What the service said of itself: for `run.json`."""

    @property
    def failed_applications(self) -> int:
        """Applications that did not finish."""
        return sum(a.finished_at_s is None for a in self.run.applications)


async def replay(
    url: str,
    applications: Sequence[WorkloadApplication],
    *,
    model: str | None = None,
    speed: float = 1.0,
    timeout_s: Seconds | None = None,
    on_end: OnEnd | None = None,
    on_warning: Callable[[str], None] | None = None,
    clock: Callable[[], Seconds] = time.monotonic,
    sleep: Callable[[Seconds], Awaitable[None]] = asyncio.sleep,
    network: httpx.AsyncBaseTransport | None = None,
) -> Replay:
    """Play applications against the service at a URL.

    Args:
        url: Where the application is served.
        applications: The load.
        model: The model to ask for; None: the only one that is served.
        speed: The workload's instants and delays are divided by it. Results are in the seconds
            that passed.
        timeout_s: An inference that takes longer has failed; None: there is no limit.
        on_end: Told, at each end of an application, how many have ended.
        on_warning: Told what makes the results doubtful.
        clock: Tells the time in seconds.
        sleep: Waits that many seconds.
        network: Takes the place of the network, for tests.

    Raises:
        ConfigError: If the URL is none, the model is not served, or an inference is longer than the
            service takes.
        ConnectionError: If the service cannot be reached or is not ready.
        ResponseError: If it does not answer as this service does.
    """
    async with LiveService(url, sleep=sleep, network=network) as service:
        await service.check_ready()
        facts = await service.facts(model)
        _check_lengths(applications, facts)
        others = facts.status.get("applications")
        if others and on_warning is not None:
            on_warning(f"{others} applications are open on the service already; results mix")
        player = Player(
            service,
            facts.model,
            clock=clock,
            sleep=sleep,
            speed=speed,
            timeout_s=timeout_s,
            on_end=on_end,
        )
        played = await player.play(applications)
        after = await service.status()
    settings = facts.status.get("settings")
    replicas = len(facts.status["replicas"])
    return Replay(
        policy=facts.policy,
        run=_run_result(played, facts.status.get("kv", {}), after.get("kv", {})),
        failures=tuple(failure for one in played for failure in one.failures),
        service={"model": facts.model, "replicas": replicas, "settings": settings},
    )


def _check_lengths(applications: Sequence[WorkloadApplication], facts: ServiceFacts) -> None:
    check_sizes(applications, facts.kv_tokens)
    most = facts.max_model_len
    for application in applications:
        for inference in application.inferences:
            total = inference.prompt_tokens + inference.output_tokens
            if most is not None and total > most:
                raise ConfigError(
                    f"application {application.application_id!r}, inference "
                    f"{inference.inference_id!r}: prompt_tokens + output_tokens = {total} must be "
                    f"at most the context of {facts.model}, {most} tokens"
                )


def _run_result(
    played: Sequence[Played], before: Mapping[str, Any], after: Mapping[str, Any]
) -> RunResult:
    """Put the rows together; KV figures are the difference of the service's totals."""
    ends = [
        row.finished_at_s
        for one in played
        for row in one.inferences
        if row.finished_at_s is not None
    ]
    first_s = min((one.result.arrived_at_s for one in played), default=0.0)
    # A scheduler that was started again meanwhile has counted from zero.
    there = after.get("capacity_token_s", 0.0) - before.get("capacity_token_s", 0.0)
    used = after.get("used_token_s", 0.0) - before.get("used_token_s", 0.0)
    preemptions = after.get("preemptions", 0) - before.get("preemptions", 0)
    return RunResult(
        applications=[one.result for one in played],
        inferences=[row for one in played for row in one.inferences],
        lateness={
            one.result.application_id: one.lateness for one in played if one.lateness is not None
        },
        makespan_s=max(ends) - first_s if ends else 0.0,
        kv_utilization=used / there if there > 0 and used >= 0 else None,
        preemptions=max(0, preemptions),
    )
