"""CPU time that the console costs a scheduler, in alternating windows with and without viewers.

The scheduler is the service's own, in this process and without Ray. Replicas report all their
leases four times a second, as real ones do; applications run a call, hold their context while a
tool works, and call again.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, Grant
from justitia_ray.core.entities import Outcome, ReplicaCapacity
from justitia_ray.serve.scheduler.actor import SchedulerActor
from justitia_ray.serve.scheduler.service import SchedulerService
from justitia_ray.units import ApplicationId, ClientId, LeaseId, Seconds, Tokens

TENANTS = 20
REPORT_S: Seconds = 0.25
TOKENS_A_REPORT = 12
_CAPACITY = ReplicaCapacity(kv_tokens=200_000, block_size=16, caches_prefixes=True)
_PROMPTS, _OUTPUTS = (1_000, 8_000), (100, 600)
_TOOL_S = (0.5, 6.0)


@dataclass(frozen=True, slots=True)
class Reading:
    """CPU time of the scheduler in one measuring window, as a fraction of one core."""

    applications: int
    running: int
    waiting: int
    events_per_s: float
    unwatched: float
    """CPU time of the whole scheduler while the console has no viewers, as a fraction of a core."""
    watched: float
    console: float
    """CPU time of recording changes and making console frames while viewers watch."""
    frames_per_s: float
    frame_bytes: int
    """Mean size of the frame that an operator's console receives each second, in bytes."""
    whole_bytes: int


@dataclass(slots=True)
class _RunningCall:
    application_id: ApplicationId
    prompt_tokens: Tokens
    output_tokens: Tokens
    made: Tokens = 0


@dataclass
class _Load:
    """Simulated replicas and callers that put load on the scheduler's core."""

    service: SchedulerService
    applications: int
    replicas: int
    random: random.Random
    running: list[dict[LeaseId, _RunningCall]] = field(default_factory=list)
    tools: deque[tuple[Seconds, ApplicationId]] = field(default_factory=deque)
    calls: int = 0
    events: int = 0

    def build(self) -> None:
        """Open all applications, each with a waiting call, and let the replicas ask for work."""
        self.running = [{} for _ in range(self.replicas)]
        for number in range(self.applications):
            tenant = f"team-{number % TENANTS}"
            name = f"{tenant}|app-{number}"
            self.apply(ev.ApplicationArrived(name, "agent", tenant, 1.0, 5e6, "i0"))
            self.submit(name)
        for index in range(self.replicas):
            self.report(index)

    def apply(self, event: ev.Event) -> None:
        """Pass an event to the core, and start the inferences that it grants."""
        driver = self.service.term.driver
        handle, granted = driver.core.handle, list[Action]()

        def handle_and_count(event: ev.Event, now: Seconds) -> list[Action]:
            actions = handle(event, now)
            granted.extend(actions)
            return actions

        driver.core.handle = handle_and_count  # type: ignore[method-assign]
        try:
            driver.apply(event)
        finally:
            driver.core.handle = handle  # type: ignore[method-assign]
        self.events += 1
        for action in granted:
            if isinstance(action, Grant):
                inference = driver.core.state.inferences[action.request_id]
                index = int(action.replica_id.removeprefix("replica-"))
                self.running[index][action.lease_id] = _RunningCall(
                    inference.application_id,
                    inference.prompt_tokens,
                    self.random.randint(*_OUTPUTS),
                )

    def submit(self, application_id: ApplicationId) -> None:
        self.calls += 1
        name = f"call-{self.calls}"
        prompt = self.random.randint(*_PROMPTS)
        self.apply(ev.InferenceSubmitted(name, application_id, name, "i0", prompt, 300, 2_000))

    def report(self, index: int) -> None:
        """Let a replica report its leases and ask for more work."""
        progress, finished = [], []
        running, now = self.running[index], self.service.term.driver.now()
        for lease_id, one in list(running.items()):
            one.made = min(one.output_tokens, one.made + TOKENS_A_REPORT)
            report = (lease_id, one.prompt_tokens, one.made)
            if one.made == one.output_tokens:
                cached = one.prompt_tokens // 2
                end = ev.LeaseFinished(*report, Outcome.FINISHED, cached_tokens=cached)
                finished.append(end)
                del running[lease_id]
                self.tools.append((now + self.random.uniform(*_TOOL_S), one.application_id))
            else:
                progress.append(ev.LeaseProgress(*report, running=True))
        used = sum(one.prompt_tokens + one.made for one in running.values())
        free = max(0, _CAPACITY.kv_tokens - used)
        self.apply(
            ev.ReplicaPulled(f"replica-{index}", _CAPACITY, free, tuple(progress), tuple(finished))
        )

    def end_tools(self) -> None:
        """Submit the next calls of applications whose tools have ended."""
        now = self.service.term.driver.now()
        for _ in range(len(self.tools)):
            at, name = self.tools.popleft()
            if at <= now:
                self.submit(name)
            else:
                self.tools.append((at, name))

    async def run(self, seconds: Seconds) -> None:
        """Let the replicas report one after another for a time."""
        loop = asyncio.get_running_loop()
        until, due_at, index = loop.time() + seconds, loop.time(), 0
        while loop.time() < until:
            self.report(index)
            index = (index + 1) % self.replicas
            if not index:
                self.end_tools()
            due_at += REPORT_S / self.replicas
            await asyncio.sleep(max(0.0, due_at - loop.time()))


@dataclass(slots=True)
class _ViewerCosts:
    """Console frames that viewers received, and the CPU time spent on making them."""

    frames: int = 0
    sizes: list[int] = field(default_factory=list)
    cpu_s: Seconds = 0.0

    def time_observer(self, service: SchedulerService) -> None:
        """From now on, measure the CPU time of recording the core's changes for the console."""
        driver = service.term.driver
        observer = driver.observer
        assert observer is not None

        def timed_observe(event: ev.Event, actions: Sequence[Action], now: Seconds) -> None:
            began_at = time.thread_time()
            observer(event, actions, now)
            self.cpu_s += time.thread_time() - began_at

        driver.observer = timed_observe


async def measure(
    applications: int, replicas: int, tenants: int, window_s: Seconds, repeats: int
) -> list[Reading]:
    """Return one reading for each pair of windows, without and with console viewers.

    Args:
        applications: Number of live applications.
        replicas: Number of replicas.
        tenants: Number of tenants that watch, besides an operator.
        window_s: Length of a window in seconds.
        repeats: Number of pairs.
    """
    config = {"model": {"name": "m", "path": "none"}, "store": {"durability": "none"}}
    actor = SchedulerActor(config)
    service = await actor.started()
    await service.configure({"policy": "justitia-guarded"})
    load = _Load(service, applications, replicas, random.Random(1))
    load.build()
    await load.run(window_s)
    viewers: list[ClientId | None] = [None, *(f"team-{n}" for n in range(tenants))]
    readings = []
    for _ in range(repeats):
        cpu = [await _run_window(load, window_s, [], _ViewerCosts())]
        told = _ViewerCosts()
        whole = service.console.frame(None, None, None)
        assert whole is not None
        told.time_observer(service)
        before = load.events
        cpu.append(await _run_window(load, window_s, viewers, told))
        whole = service.console.frame(None, None, None)
        assert whole is not None
        service.console.stop()
        state = service.term.driver.core.state
        readings.append(
            Reading(
                applications=len(state.applications),
                running=len(state.leases),
                waiting=state.waiting,
                events_per_s=(load.events - before) / window_s,
                unwatched=cpu[0],
                watched=cpu[1],
                console=told.cpu_s / window_s,
                frames_per_s=told.frames / window_s,
                frame_bytes=sum(told.sizes) // max(1, len(told.sizes)),
                whole_bytes=len(whole[2]),
            )
        )
    await service.term.end()
    return readings


async def _run_window(
    load: _Load, seconds: Seconds, viewers: Sequence[ClientId | None], told: _ViewerCosts
) -> float:
    """Run the load with these console viewers; return the CPU time as a fraction of a core."""
    watching = [asyncio.create_task(_request_frames(load.service, one, told)) for one in viewers]
    began_at, cpu_s = time.perf_counter(), time.process_time()
    await load.run(seconds)
    took_s, cpu_s = time.perf_counter() - began_at, time.process_time() - cpu_s
    for task in watching:
        task.cancel()
    await asyncio.gather(*watching, return_exceptions=True)
    return cpu_s / took_s


async def _request_frames(
    service: SchedulerService, tenant: ClientId | None, told: _ViewerCosts
) -> None:
    """Ask for frames once a second, as an ingress does for its viewers of one tenant."""
    has: tuple[int, int] | tuple[None, None] = (None, None)
    while True:
        began_at = time.thread_time()
        answer = service.console.frame(tenant, *has)
        told.cpu_s += time.thread_time() - began_at
        if answer is not None:
            is_change, has = has[0] is not None, answer[:2]
            if tenant is None:
                told.frames += 1
                if is_change:
                    told.sizes.append(len(answer[2]))
        await asyncio.sleep(1.0)
