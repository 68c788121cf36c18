"""Everybody who takes part in a history, who has taken whose place, and who can reach whom."""

import asyncio
import random
from functools import partial
from typing import Any

from justitia_ray.config import AppConfig, parse_app_config
from justitia_ray.serve.histories.callers import Callers
from justitia_ray.serve.histories.handles import NobodyHandle, ReplicaHandle, SchedulerHandle
from justitia_ray.serve.histories.hosts import IngressHost, ReplicaHost, SchedulerHost
from justitia_ray.serve.histories.network import Network
from justitia_ray.serve.histories.parts import Parts
from justitia_ray.serve.histories.plan import Plan
from justitia_ray.serve.histories.process import Process
from justitia_ray.serve.histories.redis_memory import RedisMemory
from justitia_ray.serve.histories.virtual_loop import VirtualLoop
from justitia_ray.serve.histories.witness import Witness
from justitia_ray.units import Epoch, ReplicaId, Seconds

MODEL = "m"
APPLICATION_IDLE_S: Seconds = 60.0
_WALL_S: Seconds = 1_000_000.0
_ENGINE_LAST_WORDS_S: Seconds = 2.0
_REPLACED_S: Seconds = 3.0
_ROUTED_S: Seconds = 0.6
"""Routers hear of a replica, or of its end, after so long at most."""


class World:
    """All processes of a history."""

    def __init__(self, plan: Plan, parts: Parts, witness: Witness, loop: VirtualLoop) -> None:
        self.plan = plan
        self.witness = witness
        self.redis = RedisMemory()
        self.settings: dict[str, Any] = {
            "policy": plan.policy,
            "policy_options": plan.options,
            "admission": plan.admission,
        }
        self._parts = parts
        self._loop = loop
        self.lots = random.Random(f"world {plan.seed}")
        self.network = Network(self.lots, self._bug)
        self.config = _config(plan)
        self.schedulers: list[SchedulerHost] = []
        """All that there were; the last is the newest."""
        self.replicas: dict[ReplicaId, ReplicaHost] = {}
        self.seats: list[ReplicaHost] = []
        """The replica in each slot."""
        self.ingresses: list[IngressHost] = []
        """The ingress in each slot."""
        self.left: list[Process] = []
        """Processes that have ended, to be looked at in the end."""
        self._reached: dict[str, SchedulerHost] = {}
        self._scheduler = SchedulerHandle(self.network, self._find_scheduler, witness.names)
        self._routes = ReplicaHandle(self.network, self.replicas, loop.time)  # type: ignore[arg-type]
        self.callers_process = Process("callers")
        self.callers = Callers(MODEL, self.lots, self.network, witness, self._open_ingresses)
        self.storms = 0
        self.over = False
        """Nothing that ends is replaced any more."""

    def begin(self) -> None:
        """Start everybody."""
        self.start_scheduler()
        for slot in range(self.plan.replicas):
            self.seats.append(self._new_replica(slot))
        for slot in range(self.plan.ingresses):
            self.ingresses.append(self._new_ingress(slot))

    # --- schedulers

    @property
    def scheduler(self) -> SchedulerHost:
        """The newest."""
        return self.schedulers[-1]

    def start_scheduler(self, wall_ahead_s: Seconds = _WALL_S, above: Epoch = 0) -> None:
        """Start a scheduler on the store as it is."""
        host = SchedulerHost(
            self.config,
            self._parts,
            self.redis,
            self.lots,
            self.witness,
            self._stands_down,
            self._is_outranked,
            wall_ahead_s,
            above,
        )
        self.schedulers.append(host)
        self.witness.tell("scheduler", f"process {len(self.schedulers)} starts")

    def crash_scheduler(self, host: SchedulerHost, down_s: Seconds, jump_s: Seconds) -> None:
        """End a scheduler's process; Ray starts another one in a while."""
        if not host.process.alive:
            return
        self._end_process(host.process)
        if host is self.scheduler:
            self.network.later(down_s, partial(self._restart_scheduler, _WALL_S + jump_s))

    def _restart_scheduler(self, wall_ahead_s: Seconds) -> None:
        if not self.over:
            self.start_scheduler(wall_ahead_s)

    def keep_reaching(self, name: str, host: SchedulerHost | None) -> None:
        """Let a process reach this scheduler whoever is the newest; None: the newest again."""
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

    def _is_outranked(self, host: SchedulerHost, above: Epoch) -> None:
        """Another one takes office in its place, in its process in the service."""
        if host.is_leaving:
            return
        host.is_leaving = True
        self.witness.tell("scheduler", f"begins again above epoch {above}")

        async def leave() -> None:
            await host.answers.stop()
            self.network.later(0.0, lambda: self._succeed(host, above))

        host.process.start(leave())

    def _succeed(self, host: SchedulerHost, above: Epoch) -> None:
        if host.process.alive:
            self._end_process(host.process)
            if host is self.scheduler and not self.over:
                self.start_scheduler(host.wall_ahead_s, above)

    def _stands_down(self, host: SchedulerHost, reason: str) -> None:
        if host.is_leaving:
            return
        host.is_leaving = True
        self.witness.tell("scheduler", f"stands down: {reason}")

        async def leave() -> None:
            await host.answers.stop()
            self.network.later(0.0, lambda: self.crash_scheduler(host, 0.1, 0.0))

        host.process.start(leave())

    # --- replicas

    def crash_replica(self, host: ReplicaHost, down_s: Seconds = _REPLACED_S) -> None:
        """End a replica's process; Serve starts another one."""
        if not host.process.alive:
            return
        self._end_process(host.process)
        self._unroute(host)
        self._replace_replica(host, down_s)

    def drain_replica(self, host: ReplicaHost) -> None:
        """Let a replica leave as Serve does: no new calls, then the end when nothing runs."""
        if host.draining or not host.process.alive:
            return
        host.draining = True
        self.witness.tell(host.process.name, "drains")
        self._unroute(host)
        host.process.start(self._leave_when_idle(host))

    async def _leave_when_idle(self, host: ReplicaHost) -> None:
        await asyncio.sleep(1.0)
        while host.answers.desk.running:  # noqa: ASYNC110 # Serve looks now and then, too
            await asyncio.sleep(0.5)
        await host.answers.leave()
        self.network.later(0.0, lambda: self.crash_replica(host))

    def engine_died(self, host: ReplicaHost) -> None:
        """The replica has noticed that its engine is dead: its process leaves soon."""
        self.witness.tell(host.process.name, "engine is dead")
        self.network.later(_ENGINE_LAST_WORDS_S, lambda: self.crash_replica(host))

    def _replace_replica(self, host: ReplicaHost, down_s: Seconds) -> None:
        def start() -> None:
            if not self.over and self.seats[host.slot] is host:
                self.seats[host.slot] = self._new_replica(host.slot)

        self.network.later(down_s, start)

    def _new_replica(self, slot: int) -> ReplicaHost:
        replica_id = f"r{slot}.{len(self.replicas)}"
        routed_at = self._loop.time() + self.lots.uniform(0.0, _ROUTED_S)
        host = ReplicaHost(slot, replica_id, self.config, self.witness, routed_at)
        self.replicas[replica_id] = host
        host.begin(self._parts, self._scheduler, self.engine_died)
        self.witness.tell(host.process.name, f"starts as {replica_id}")
        return host

    def _unroute(self, host: ReplicaHost) -> None:
        if host.unrouted_at is None:
            host.unrouted_at = self._loop.time() + self.lots.uniform(0.0, _ROUTED_S)

    # --- ingresses

    def crash_ingress(self, host: IngressHost, down_s: Seconds) -> None:
        """End an ingress's process; Serve starts another one."""
        if not host.process.alive:
            return
        self._end_process(host.process)

        def start() -> None:
            if not self.over:
                self.ingresses[host.slot] = self._new_ingress(host.slot)

        self.network.later(down_s, start)

    def configure(self, settings: dict[str, Any]) -> None:
        """Let every ingress know other settings, as Serve does."""
        self.settings = settings
        for host in self.ingresses:
            if host.process.alive:
                host.process.start(host.configure(settings))

    def _new_ingress(self, slot: int) -> IngressHost:
        nobody = NobodyHandle(self.network)
        host = IngressHost(slot, self.config, self._parts, self._scheduler, self._routes, nobody)
        host.process.start(host.configure(self.settings))
        self.witness.tell(host.process.name, "starts")
        return host

    def _open_ingresses(self) -> list[IngressHost]:
        return [host for host in self.ingresses if host.process.alive and host.is_ready]

    # --- processes

    def pause(self, process: Process, for_s: Seconds) -> None:
        """Let a process stand still."""
        if not process.alive or process.paused:
            return
        self.witness.tell(process.name, f"stands still for {for_s} s")
        process.paused = True
        self.network.later(for_s, lambda: self._resume(process))

    def _resume(self, process: Process) -> None:
        if process.paused:
            self.witness.tell(process.name, "goes on")
            process.paused = False
            self._loop.unpark(process)

    def _end_process(self, process: Process) -> None:
        self.witness.tell(process.name, "dies")
        self._loop.unpark(process)
        process.die()
        self.left.append(process)

    def _bug(self, what: str, error: BaseException) -> None:
        self.witness.fail("calls_do_not_break", f"{what} raised {error!r}")


def _config(plan: Plan) -> AppConfig:
    return parse_app_config(
        {
            "model": {"name": MODEL, "path": "none"},
            "engine": {
                "kind": "fake",
                "fake": {
                    "kv_tokens": plan.kv_tokens,
                    "max_num_seqs": plan.max_num_seqs,
                    "max_model_len": plan.kv_tokens,
                    "iteration_s": plan.iteration_s,
                },
            },
            "replica": {"heartbeat_s": plan.heartbeat_s, "report_interval_s": plan.report_s},
            "scheduler": {"application_idle_s": APPLICATION_IDLE_S},
        }
    )
