"""All processes of a simulation, their replacements, and which of them can reach each other."""

import asyncio
import itertools
import random
from functools import partial
from typing import Any

from justitia_ray.config import AppConfig
from justitia_ray.units import ReplicaId, Seconds
from tests.harness.simulation.accounts import SimulatedAccounts
from tests.harness.simulation.callers import Callers
from tests.harness.simulation.connections import Connections
from tests.harness.simulation.network import Cut, DetachedHandle, Network, UnreachableHandle
from tests.harness.simulation.parts import IngressHost, Parts, ReplicaHost, SchedulerHost
from tests.harness.simulation.plan import Plan
from tests.harness.simulation.recorder import Recorder
from tests.harness.simulation.store import RedisMemory
from tests.harness.simulation.unusable_leases import CutOffs
from tests.harness.simulation.virtual_loop import Process, VirtualLoop

MODEL, OTHER_MODEL = "m", "n"
APPLICATION_IDLE_S: Seconds = 60.0
_WALL_S: Seconds = 1_000_000.0
_MIDNIGHT_S: Seconds = 20 * 86_400.0
"""Midnight (UTC) of a day, in seconds since 1970."""
_ENGINE_LAST_WORDS_S: Seconds = 2.0
_REPLACED_S: Seconds = 3.0
_CRASHING_S: Seconds = 0.05
"""Seconds from a process's own crash to its end."""
_ENDED_S: Seconds = 2.0
"""Longest time in seconds until Serve ends a leaving replica."""


class World:
    """Processes of one model in a simulation, and the quota service that all models share."""

    def __init__(
        self,
        plan: Plan,
        parts: Parts,
        recorder: Recorder,
        loop: VirtualLoop,
        model: str = MODEL,
        accounts: SimulatedAccounts | None = None,
    ) -> None:
        """Create the processes; `begin` starts them.

        Args:
            plan: The model's plan.
            parts: What everybody is made of.
            recorder: Sees everything of this model.
            loop: Runs it.
            model: Name of the model.
            accounts: The accounts of another model, to be shared; None: its own, if the tenants
                have quotas.
        """
        self.plan = plan
        self.recorder = recorder
        self.model = model
        self.redis = RedisMemory()
        self.settings: dict[str, Any] = {
            "policy": plan.policy,
            "policy_options": plan.options,
            "admission": plan.admission,
            **({"tenants": plan.tenants} if plan.tenants else {}),
        }
        self._wall_s = _WALL_S
        if plan.midnight_s is not None:
            self._wall_s = _MIDNIGHT_S - VirtualLoop.STARTS_AT - plan.midnight_s
        self._parts = parts
        self._loop = loop
        self.rng = random.Random(f"world {plan.seed}")
        self.network = Network(self.rng, self._report_bug)
        self.connections = Connections(self.network)
        self.config = _app_config(plan, model)
        self.accounts = accounts
        if plan.tenants and accounts is None:
            self.accounts = SimulatedAccounts(self.network, self._wall_s, parts.accounts)
        if self.accounts is not None:
            self.accounts.recorders[model] = recorder.use
        self.schedulers: list[SchedulerHost] = []
        """All schedulers so far; the last is the newest."""
        self.replicas: dict[ReplicaId, ReplicaHost] = {}
        self.seats: list[ReplicaHost] = []
        """Current replica process by replica number; a dead process is replaced."""
        self.ingresses: list[IngressHost] = []
        """Current ingress process by ingress number; a dead process is replaced."""
        self.left: list[Process] = []
        """Ended processes, for the checks at the end."""
        self._reached: dict[str, SchedulerHost] = {}
        self.scheduler_handle = DetachedHandle(self.network, self._find_scheduler)
        self._ingress_names = itertools.count()
        self.callers_process = Process("callers")
        self.callers = Callers(
            model,
            self.rng,
            self.network,
            recorder,
            self._open_ingresses,
            CutOffs(self.connections, lambda replica_id: self.replicas[replica_id].process),
        )
        self.storms = 0
        self.over = False
        """Whether the simulation is ending, so that dead processes are not replaced."""

    def begin(self) -> None:
        """Start all processes."""
        self.start_scheduler()
        for slot in range(self.plan.replicas):
            self.seats.append(self._make_replica(slot))
        for slot in range(self.plan.ingresses):
            self.ingresses.append(self._make_ingress(slot))

    # --- schedulers

    @property
    def scheduler(self) -> SchedulerHost:
        return self.schedulers[-1]

    def start_scheduler(self, wall_ahead_s: Seconds | None = None) -> None:
        accounts = self.accounts
        host = SchedulerHost(
            len(self.schedulers),
            self.config,
            self._parts,
            self.redis,
            self.rng,
            self.recorder,
            self.connections,
            self._step_scheduler_down,
            self._wall_s if wall_ahead_s is None else wall_ahead_s,
            None if accounts is None else DetachedHandle(self.network, accounts.find),
        )
        self.schedulers.append(host)
        self.recorder.add_event("scheduler", f"process {len(self.schedulers)} starts")

    def crash_scheduler(self, host: SchedulerHost, down_s: Seconds, jump_s: Seconds) -> None:
        """End a scheduler's process; Ray starts another after `down_s`."""
        if not host.process.alive:
            return
        self._end_process(host.process)
        if host is self.scheduler:
            self.network.later(down_s, partial(self._restart_scheduler, self._wall_s + jump_s))

    def _restart_scheduler(self, wall_ahead_s: Seconds) -> None:
        if not self.over:
            self.start_scheduler(wall_ahead_s)

    def pin_scheduler_of(self, name: str, host: SchedulerHost | None) -> None:
        """Connect a process to this scheduler from now on; with None, to the newest."""
        if host is None:
            self._reached.pop(name, None)
        else:
            self._reached[name] = host

    def _find_scheduler(self, source: Process) -> SchedulerHost | None:
        host = self._reached.get(source.name, self.scheduler)
        if not host.process.alive:
            self._reached.pop(source.name, None)
            host = self.scheduler
        return host if host.process.alive else None

    def _step_scheduler_down(self, host: SchedulerHost, reason: str) -> None:
        if host.is_leaving:
            return
        host.is_leaving = True
        self.recorder.add_event("scheduler", f"steps down: {reason}")

        async def leave() -> None:
            if not host.answers.term.has_successor:
                await host.actor.retire()
            self.network.later(0.0, lambda: self.crash_scheduler(host, 0.1, 0.0))

        host.process.start(leave())

    # --- replicas

    def crash_replica(self, host: ReplicaHost, down_s: Seconds = _REPLACED_S) -> None:
        """End a replica's process; Serve starts another one."""
        if not host.process.alive:
            return
        self._end_process(host.process)
        self._replace_replica(host, down_s)

    def drain_replica(self, host: ReplicaHost) -> None:
        """Let Serve remove a replica, which completes its inferences first."""
        if host.draining or not host.process.alive:
            return
        host.draining = True
        self.recorder.add_event(host.process.name, "drains")
        host.process.start(self._leave_and_crash(host))

    async def _leave_and_crash(self, host: ReplicaHost) -> None:
        await asyncio.sleep(self.rng.uniform(0.0, _ENDED_S))
        await host.answers.leave()
        self.network.later(0.0, lambda: self.crash_replica(host))

    def engine_died(self, host: ReplicaHost) -> None:
        """Let a replica's process end soon after its engine died."""
        self.recorder.add_event(host.process.name, "engine is dead")
        self.network.later(_ENGINE_LAST_WORDS_S, lambda: self.crash_replica(host))

    def process_crashed(self, host: ReplicaHost) -> None:
        """Crash a replica's process by its own fault; another process informs the scheduler."""
        self.recorder.add_event(host.process.name, "crashes")
        host.process.paused = True  # only the signal handler runs
        told_s = random.Random(f"crash {host.replica_id}").uniform(0.0, 2 * _CRASHING_S)

        def tell_scheduler() -> None:
            scheduler = self.scheduler
            if scheduler.in_charge:
                scheduler.process.start(scheduler.answers.replica_crashed(host.replica_id))

        self.network.later(told_s, tell_scheduler)
        self.network.later(_CRASHING_S, lambda: self.crash_replica(host))

    def _replace_replica(self, host: ReplicaHost, down_s: Seconds) -> None:
        def start_replica() -> None:
            if not self.over and self.seats[host.slot] is host:
                self.seats[host.slot] = self._make_replica(host.slot)

        self.network.later(down_s, start_replica)

    def _make_replica(self, slot: int) -> ReplicaHost:
        replica_id = f"r{slot}.{len(self.replicas)}"
        host = ReplicaHost(slot, replica_id, self.config, self.recorder)
        host.engine.holds_contexts = self.plan.holds_contexts
        self.replicas[replica_id] = host
        host.begin(
            self._parts,
            self.connections,
            self.scheduler_handle,
            self.engine_died,
            self.process_crashed,
        )
        self.recorder.add_event(host.process.name, f"starts as {replica_id}")
        return host

    # --- ingresses

    def crash_ingress(self, host: IngressHost, down_s: Seconds) -> None:
        """End an ingress's process; Serve starts another one."""
        if not host.process.alive:
            return
        self._end_process(host.process)

        def start_replica() -> None:
            if not self.over:
                self.ingresses[host.slot] = self._make_ingress(host.slot)

        self.network.later(down_s, start_replica)

    def configure(self, settings: dict[str, Any]) -> None:
        """Send other settings to every ingress, as Serve does; the tenants stay as they are."""
        self.settings = settings | {"tenants": self.plan.tenants}
        for host in self.ingresses:
            if host.process.alive:
                host.process.start(host.configure(self.settings))

    def _make_ingress(self, slot: int) -> IngressHost:
        host = IngressHost(
            slot,
            f"ingress-{slot}.{next(self._ingress_names)}",
            self.config,
            self._parts,
            self.connections,
            self.scheduler_handle,
            UnreachableHandle(self.network),
            self.recorder,
        )
        host.process.start(host.configure(self.settings))
        self.recorder.add_event(host.process.name, "starts")
        return host

    def _open_ingresses(self) -> list[IngressHost]:
        return [host for host in self.ingresses if host.process.alive and host.is_ready]

    # --- processes

    def all_processes(self) -> list[Process]:
        """Return all processes so far, without those of the quota service."""
        processes = [self.callers_process, *self.left]
        processes += [host.process for host in self.ingresses]
        processes += [host.process for host in self.seats]
        return processes + [host.process for host in self.schedulers]

    def cut(self, one: str, other: str, cut: Cut) -> None:
        """Cut the link between two processes, with all connections over it."""
        self.network.cut(one, other, cut)
        self.connections.cut(one, other, cut.kind)

    def pause(self, process: Process, for_s: Seconds) -> None:
        if not process.alive or process.paused:
            return
        self.recorder.add_event(process.name, f"stands still for {for_s} s")
        process.paused = True
        self.network.later(for_s, lambda: self._resume_process(process))

    def _resume_process(self, process: Process) -> None:
        if process.paused:
            self.recorder.add_event(process.name, "goes on")
            process.paused = False
            self._loop.unpark(process)

    def _end_process(self, process: Process) -> None:
        self.recorder.add_event(process.name, "dies")
        self._loop.unpark(process)
        process.die()
        self.connections.process_ended(process)
        self.left.append(process)

    def _report_bug(self, what: str, error: BaseException) -> None:
        self.recorder.add_failure("calls_do_not_break", f"{what} raised {error!r}")


def _app_config(plan: Plan, model: str) -> AppConfig:
    return AppConfig.parse(
        {
            "model": {"name": model, "path": "none"},
            "engine": {
                "kind": "fake",
                "fake": {
                    "kv_tokens": plan.kv_tokens,
                    "max_num_seqs": plan.max_num_seqs,
                    "max_model_len": plan.kv_tokens,
                    "iteration_s": plan.iteration_s,
                },
            },
            "replica": {
                "heartbeat_s": plan.heartbeat_s,
                "report_interval_s": plan.report_s,
                "stall_allowance_s": 2.0,
                "stall_replace_s": 10.0,
            },
            "scheduler": {"application_idle_s": APPLICATION_IDLE_S},
            "transport": {"standstill_s": 8.0},
        }
    )
