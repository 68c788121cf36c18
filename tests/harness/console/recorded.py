"""A simulated run as the console shows it: its workload ran through the service's own core.

The frames are made as in the scheduler, once each second of virtual time. The engines' own
counters are recorded beside them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from justitia_ray.access.identity import is_within
from justitia_ray.application_key import application_key
from justitia_ray.console.history import History, history_of
from justitia_ray.console.timeline import timeline_of
from justitia_ray.console.watch import Watch
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action
from justitia_ray.protocol.console import Frame, ShareRow, Strip
from justitia_ray.protocol.console_answers import ConsoleApplication, Timeline
from justitia_ray.sim.engine_profile import EngineProfile, IterationCost
from justitia_ray.sim.results import RunResult
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import Simulation
from justitia_ray.sim.suites import build_suite
from justitia_ray.sim.suites.options import SuiteOptions
from justitia_ray.sim.workload import WorkloadApplication
from justitia_ray.units import ApplicationId, ClientId, ReplicaId, Seconds, Tokens
from tests.harness.console.made_up import MadeUp

STRIP = Strip(state="ready", policy="justitia")


@dataclass(frozen=True)
class EngineCounters:
    """KV use, running sequences and output tokens by the engines' own count, at one instant."""

    used_kv_tokens: dict[ReplicaId, Tokens]
    running: dict[ReplicaId, int]
    made_tokens: dict[ApplicationId, Tokens]
    """Output tokens made so far, by running application."""


@dataclass
class RecordedRun:
    """Console data of a simulated run for each second, for an operator and for some tenants.

    Attributes:
        frames: Frame of each second, the first whole, by tenant; None: an operator's.
        whole: Whole frame of each second, by tenant.
        counters: The engines' counters at each of these seconds.
        timelines: Timeline of each application when it had ended.
        result: Outcome of the run.
        engine_kv_token_s: KV that each engine held over the run, by its own integral.
        history: The run as "what if" replays it.
    """

    name: str = "llama"
    frames: dict[ClientId | None, list[Frame]] = field(default_factory=dict)
    whole: dict[ClientId | None, list[Frame]] = field(default_factory=dict)
    counters: list[EngineCounters] = field(default_factory=list)
    timelines: dict[ApplicationId, Timeline] = field(default_factory=dict)
    result: RunResult = field(default_factory=RunResult)
    engine_kv_token_s: dict[ReplicaId, float] = field(default_factory=dict)
    history: History | None = None


class RecordedSource:
    """Source of a recorded run's console data for the stand-in server.

    Args:
        run: The run; after its end its last frame stays.
    """

    def __init__(self, run: RecordedRun) -> None:
        self.name = run.name
        self.replicas = len(run.engine_kv_token_s)
        self._run = run
        self._others = MadeUp(run.name, self.replicas, epoch=1)
        self.predictor = self._others.predictor
        self.trouble = self._others.trouble
        self.what_if = self._others.what_if

    def frame(self, second: int, tenant: ClientId | None = None, *, is_whole: bool = True) -> Frame:
        """Return the console data of a second; after the run's end, those of the last second.

        Raises:
            KeyError: If the run was not recorded for that tenant.
        """
        frames = (self._run.whole if is_whole else self._run.frames)[tenant]
        return frames[min(second, len(frames) - 1)]

    def application(
        self, application: ApplicationId, second: int, tenant: ClientId | None = None
    ) -> ConsoleApplication | None:
        """Return an application's whole timeline; `second` is ignored."""
        found = self._run.timelines.get(application)
        if found is None or (tenant is not None and not is_within(found.tenant, tenant)):
            return None
        return ConsoleApplication(
            application_id=found.application_id, tenant=found.tenant, models={self.name: found}
        )


def record_run(
    applications: Sequence[WorkloadApplication],
    settings: RunSettings,
    tenants: Sequence[ClientId] = (),
    every_s: Seconds = 1.0,
) -> RecordedRun:
    """Simulate a workload, and record what the console would show.

    Args:
        applications: The workload.
        settings: Settings of the run.
        tenants: Tenants whose frames are recorded, besides the operator's.
        every_s: Time between two frames.
    """
    run = RecordedRun()
    for viewer in (None, *tenants):
        run.frames[viewer], run.whole[viewer] = [], []
    simulation = Simulation(applications, settings)
    core, servers = simulation._core, simulation._servers
    watch = Watch(core, run.name, 1, 0.0)
    handle, step, next_at = core.handle, simulation._step, 0.0

    def record_frames(now: Seconds) -> None:
        shares = tuple(
            ShareRow(
                node=node,
                weight=None,
                fair_share=None,
                guaranteed=0.0,
                used=core.kv_shares.held(node) / max(1, core.state.kv_tokens()),
                borrowed=0.0,
                waiting=0,
                running=0,
            )
            for node in sorted({one.tenant for one in core.state.applications.values()})
        )
        before = None if watch.sight is None else watch.sight.number
        sight = watch.look(now, STRIP, shares, lambda replica_id: None)
        for viewer, frames in run.frames.items():
            frames.append(watch.frame(sight, viewer, before))
            run.whole[viewer].append(watch.frame(sight, viewer))
        made: dict[ApplicationId, Tokens] = {}
        for server in servers:
            for sequence in server.running.values():
                name = sequence.application_id
                made[name] = made.get(name, 0) + sequence.output_tokens_after(server.iteration)
        run.counters.append(
            EngineCounters(
                {server.name: server.leased_tokens for server in servers},
                {server.name: len(server.running) for server in servers},
                made,
            )
        )

    def handle_and_observe(event: ev.Event, now: Seconds) -> list[Action]:
        actions = handle(event, now)
        watch.observe(event, actions, now)
        return actions

    def step_and_record(now: Seconds) -> None:
        """Record console data before a step of the simulation, while engines and core agree."""
        nonlocal next_at
        while next_at <= now:
            record_frames(next_at)
            next_at += every_s
        step(now)

    core.handle = handle_and_observe  # type: ignore[method-assign]
    simulation._step = step_and_record  # type: ignore[method-assign]
    run.result = simulation.run(lambda ended: None)
    record_frames(next_at)
    for one in applications:
        timeline = timeline_of(core, watch, one.application_id, next_at)
        if timeline is not None:
            run.timelines[one.application_id] = timeline
    settings_in_force = {"policy": settings.policy, "policy_options": {**settings.policy_options}}
    run.history = history_of(core, watch, run.name, settings_in_force, next_at, 900.0)
    run.engine_kv_token_s = {server.name: server.kv_token_seconds for server in servers}
    return run


def nine_class_applications(
    count: int = 40, data_dir: Path | None = None
) -> list[WorkloadApplication]:
    """Return applications of the nine recorded classes, spread over four tenants."""
    options = SuiteOptions(
        count=count, window_s=60.0, seed=1, tenants=4, arrivals="poisson", data_dir=data_dir
    )
    return [
        replace(one, application_id=application_key(one.tenant, one.application_id))
        for one in build_suite("nine-class", options)
    ]


def constant_engine(kv_tokens: Tokens = 40_000) -> EngineProfile:
    """Return an engine with a prefix cache whose iterations take 20 ms."""
    return EngineProfile(kv_tokens, iteration=IterationCost(base_s=0.02), prefix_caching=True)
