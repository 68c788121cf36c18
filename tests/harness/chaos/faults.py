"""Injection of faults under load, into processes and the cluster: one coroutine per kind."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError

from justitia_ray.application_key import application_key
from justitia_ray.errors import NoReplicaAnswers
from justitia_ray.serve.stores import scheduler_store
from justitia_ray.units import Seconds
from tests.harness.breakable import CRASHER
from tests.harness.chaos.callers import Callers
from tests.harness.chaos.cluster import ChaosCluster, gcs_answers
from tests.harness.chaos.load import PlannedApplication
from tests.harness.chaos.plan import FaultKind, FaultRound
from tests.harness.chaos.records import InjectedFault, RunRecords, TagAcrossRestart, read_journal
from tests.harness.chaos.recovery import PROBES
from tests.harness.chaos.target import ChaosTarget, ServeProcess, run_in_thread, wait_until
from tests.harness.planned import KILLER

InjectFault = Callable[[FaultRound], Awaitable[InjectedFault]]
"""Function that injects one kind of fault."""

_LEAVING = 0.5
"""Share of the callers that one fault disconnects together."""
_CHOOSE_AGAIN_S: Seconds = 0.2
_SOMETHING_RUNS_WITHIN_S: Seconds = 5.0
_KNOWN_FOR_S: Seconds = 1.0
"""Seconds after which a scheduler's state is certainly stored: it saves every half second."""


class FaultInjector:
    """Injects faults into a running application."""

    def __init__(
        self,
        target: ChaosTarget,
        callers: Callers,
        records: RunRecords,
        load: Sequence[PlannedApplication],
        *,
        stopped_s: Seconds,
        more_ways: Mapping[FaultKind, InjectFault],
        replicas: int,
    ) -> None:
        """Prepare an injector; `inject_faults` injects the first fault.

        Args:
            target: Running.
            callers: Who may be told to leave.
            records: Where tags are noted that a scheduler's death must not change.
            load: Whose tags.
            stopped_s: How long the scheduler is stopped.
            more_ways: For kinds of what the application runs on.
            replicas: That are to be there before a round begins.
        """
        self._target = target
        self._callers = callers
        self._records = records
        self._load = load
        self._stopped_s = stopped_s
        self._replicas = replicas
        self._ways: dict[FaultKind, InjectFault] = {
            FaultKind.SCHEDULER_KILLED: self._kill_scheduler,
            FaultKind.SCHEDULER_STOPPED: self._stop_scheduler,
            FaultKind.REPLICA_KILLED: self._kill_replica,
            FaultKind.ENGINE_KILLED: self._kill_engine,
            FaultKind.INGRESS_KILLED: self._kill_ingress,
            FaultKind.PREDICTOR_KILLED: self._kill_predictor,
            FaultKind.CALLERS_LEFT: self._disconnect_callers,
            FaultKind.ACCOUNTS_KILLED: self._kill_accounts,
            FaultKind.POISON: self._send_killer_prompt,
            **more_ways,
        }

    async def wait_until_ready(self, fault_round: FaultRound) -> None:
        """Wait until there is a victim, and enough other processes to continue without it.

        Raises JustitiaError if a killed process is not restarted.
        """
        needed = {"Replica": self._replicas}
        if {FaultKind.INGRESS_KILLED, FaultKind.INGRESS_HALF_OPEN} & {*fault_round.kinds}:
            needed["Ingress"] = 2
        if FaultKind.PREDICTOR_KILLED in fault_round.kinds:
            needed["Predictor"] = 1
        for deployment, count in needed.items():
            enough = run_in_thread(has_enough_processes, self._target, deployment, count)
            await wait_until(enough, f"{count} of {deployment} run")
        await wait_until(self._has_pulls, f"{self._replicas} replicas pull")

    async def inject_faults(self, fault_round: FaultRound) -> list[InjectedFault]:
        return list(
            await asyncio.gather(*(self._ways[kind](fault_round) for kind in fault_round.kinds))
        )

    # --- scheduler

    async def _kill_scheduler(self, fault_round: FaultRound) -> InjectedFault:
        status = await self._target.status()
        tags = await self._waiting_tags()
        fault = _kill_and_record(
            FaultKind.SCHEDULER_KILLED, fault_round, status["pid"], epoch=status["epoch"]
        )
        in_office = partial(self._has_new_epoch, status["epoch"])
        await wait_until(in_office, "another scheduler is in office")
        after = await self._application_views(tags)
        self._records.tags += [
            TagAcrossRestart(name, tags[name], view["virtual_finish_time"])
            for name, view in after.items()
            if view["kv_token_time"] == 0 and view["virtual_finish_time"] is not None
        ]
        return fault

    async def _stop_scheduler(self, fault_round: FaultRound) -> InjectedFault:
        status = await self._target.status()
        injected_at = time.monotonic()
        os.kill(status["pid"], signal.SIGSTOP)
        try:
            await asyncio.sleep(self._stopped_s)
        finally:
            os.kill(status["pid"], signal.SIGCONT)
        return injected_fault(
            FaultKind.SCHEDULER_STOPPED, fault_round, injected_at, epoch=status["epoch"]
        )

    async def _has_new_epoch(self, epoch: int) -> bool:
        status = await self._target.status()
        return bool(status["epoch"] > epoch)

    async def _waiting_tags(self) -> dict[str, float]:
        """Return the stored virtual finish times of applications that have not begun to run."""
        views = await self._application_views(
            application_key(planned.tenant, planned.application_id) for planned in self._load
        )
        return {
            name: view["virtual_finish_time"]
            for name, view in views.items()
            if view["kv_token_time"] == 0
            and view["running"] == 0
            and view["waiting"]
            and view["age_s"] > _KNOWN_FOR_S
        }

    async def _application_views(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        wanted = list(names)
        ask = self._target.ask_scheduler
        views = await asyncio.gather(*(ask("application", name) for name in wanted))
        return {name: view for name, view in zip(wanted, views, strict=True) if view is not None}

    # --- accounts

    async def _kill_accounts(self, fault_round: FaultRound) -> InjectedFault:
        await wait_until(self._target.accounts_are_ready, "there are accounts")
        injected_at = time.monotonic()
        ray.kill(self._target.accounts, no_restart=False)
        fault = injected_fault(FaultKind.ACCOUNTS_KILLED, fault_round, injected_at, injected_at)
        await wait_until(self._target.accounts_are_ready, "other accounts lead")
        return _mark_recovered(fault)

    # --- processes that Serve restarts

    async def _kill_replica(self, fault_round: FaultRound) -> InjectedFault:
        victim = await busy_replica(self._target, fault_round.draw)
        return _kill_and_record(
            FaultKind.REPLICA_KILLED, fault_round, victim.pid, victim.replica_id
        )

    async def _kill_engine(self, fault_round: FaultRound) -> InjectedFault:
        while True:
            victim = await busy_replica(self._target, fault_round.draw)
            injected_at = time.monotonic()
            try:
                await self._target.probe(victim, "kill_engine")
                break
            except (NoReplicaAnswers, RayError):  # it is dead already
                await asyncio.sleep(_CHOOSE_AGAIN_S)
        return injected_fault(
            FaultKind.ENGINE_KILLED,
            fault_round,
            injected_at,
            injected_at,
            victim.replica_id,
            victim.pid,
        )

    async def _send_killer_prompt(self, fault_round: FaultRound) -> InjectedFault:
        injected_at = time.monotonic()
        word = KILLER if fault_round.number % 2 else CRASHER
        wrong = await self._callers.probe_killer(f"killer-{fault_round.number}", word)
        if wrong:
            self._records.spared.append(wrong)
        return _mark_recovered(
            injected_fault(FaultKind.POISON, fault_round, injected_at, injected_at)
        )

    async def _kill_ingress(self, fault_round: FaultRound) -> InjectedFault:
        victim = await choose_victim(self._target, "Ingress", fault_round.draw)
        return _kill_and_record(
            FaultKind.INGRESS_KILLED, fault_round, victim.pid, victim.replica_id
        )

    async def _kill_predictor(self, fault_round: FaultRound) -> InjectedFault:
        victim = await choose_victim(self._target, "Predictor", fault_round.draw)
        fault = _kill_and_record(
            FaultKind.PREDICTOR_KILLED, fault_round, victim.pid, victim.replica_id
        )
        await self._callers.probe_openings(f"probe-{fault_round.number}", PROBES)
        return fault

    async def _has_pulls(self) -> bool:
        """Return whether enough replicas pull from the scheduler."""
        status = await self._target.status()
        pulling = [r for r in status["replicas"].values() if not r["draining"]]
        return len(pulling) >= self._replicas

    # --- callers

    async def _disconnect_callers(self, fault_round: FaultRound) -> InjectedFault:
        injected_at = time.monotonic()
        left = self._callers.disconnect(_LEAVING, fault_round.draw)
        return injected_fault(
            FaultKind.CALLERS_LEFT,
            fault_round,
            injected_at,
            injected_at,
            target=f"{left} open calls",
        )


async def busy_replica(target: ChaosTarget, draw: float) -> ServeProcess:
    """Return a replica that runs an inference; after a timeout, any replica.

    A lease is not sufficient: inferences of a dead ingress may hold leases that never run.
    """
    deadline = time.monotonic() + _SOMETHING_RUNS_WITHIN_S
    while True:
        members = await running_processes(target, "Replica")
        runs = await asyncio.to_thread(read_journal, target.journal)
        under_way = {run.pid for run in runs if run.ended_at is None}
        busy = [member for member in members if member.pid in under_way]
        if busy or time.monotonic() > deadline:
            return _choose_process(busy or members, draw)
        await asyncio.sleep(_CHOOSE_AGAIN_S)


async def choose_victim(target: ChaosTarget, deployment: str, draw: float) -> ServeProcess:
    return _choose_process(await running_processes(target, deployment), draw)


async def running_processes(target: ChaosTarget, deployment: str) -> list[ServeProcess]:
    """Return a deployment's running processes; wait until there is at least one."""
    await wait_until(
        run_in_thread(has_enough_processes, target, deployment, 1), f"one of {deployment} runs"
    )
    return await asyncio.to_thread(target.running, deployment)


def has_enough_processes(target: ChaosTarget, deployment: str, count: int) -> bool:
    return len(target.running(deployment)) >= count


def injected_fault(
    kind: FaultKind,
    fault_round: FaultRound,
    injected_at: Seconds,
    back_at: Seconds | None = None,
    target: str = "",
    pid: int | None = None,
    epoch: int = 0,
) -> InjectedFault:
    """Return the record of a fault that ended at `back_at`, by default now."""
    back = time.monotonic() if back_at is None else back_at
    return InjectedFault(kind, fault_round.number, injected_at, back, target, pid, epoch)


def _kill_and_record(
    kind: FaultKind, fault_round: FaultRound, pid: int, target: str = "", *, epoch: int = 0
) -> InjectedFault:
    injected_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return injected_fault(kind, fault_round, injected_at, injected_at, target, pid, epoch)


def _choose_process(members: Sequence[ServeProcess], draw: float) -> ServeProcess:
    return members[int(draw * len(members))]


class ClusterFaults:
    """Injects faults of the cluster around the application: Redis, Ray's GCS, redeployment."""

    def __init__(
        self, cluster: ChaosCluster, away_s: Seconds, killed_s: Seconds, *, everything: bool
    ) -> None:
        """Prepare the faults of a running cluster.

        Args:
            cluster: Running.
            away_s: How long Redis is stopped.
            killed_s: How long a killed server stays away.
            everything: Whether another version is of all deployments, or of the replicas.
        """
        self._cluster = cluster
        self._away_s = away_s
        self._killed_s = killed_s
        self._everything = everything

    @property
    def ways(self) -> Mapping[FaultKind, InjectFault]:
        """The function that injects a fault, by kind of fault."""
        return {
            FaultKind.REDIS_KILLED: self._kill_redis,
            FaultKind.REDIS_STOPPED: self._stop_redis,
            FaultKind.REDIS_EMPTIED: self._empty_redis,
            FaultKind.REDIS_READ_ONLY: self._demote_redis,
            FaultKind.GCS_KILLED: self._kill_gcs,
            FaultKind.SCALED: self._scale_down_and_up,
            FaultKind.REDEPLOYED: self._redeploy,
        }

    # --- Redis

    async def _kill_redis(self, fault_round: FaultRound) -> InjectedFault:
        return await self._restart_redis(FaultKind.REDIS_KILLED, fault_round, keep=True)

    async def _empty_redis(self, fault_round: FaultRound) -> InjectedFault:
        fault = await self._restart_redis(FaultKind.REDIS_EMPTIED, fault_round, keep=False)
        await wait_until(self._state_is_saved, "the state is in Redis again")
        return _mark_recovered(fault)

    async def _restart_redis(
        self, kind: FaultKind, fault_round: FaultRound, *, keep: bool
    ) -> InjectedFault:
        store = self._cluster.store
        injected_at = time.monotonic()
        store.kill()
        if not keep:
            store.delete_data()
        await asyncio.sleep(self._killed_s)
        store.start()  # Redis ends with the thread that started it, so no worker thread starts it.
        return injected_fault(kind, fault_round, injected_at)

    async def _stop_redis(self, fault_round: FaultRound) -> InjectedFault:
        store = self._cluster.store
        injected_at = time.monotonic()
        store.suspend()
        try:
            await asyncio.sleep(self._away_s)
        finally:
            store.resume()
        return injected_fault(FaultKind.REDIS_STOPPED, fault_round, injected_at)

    async def _demote_redis(self, fault_round: FaultRound) -> InjectedFault:
        store = self._cluster.store
        injected_at = time.monotonic()
        store.demote()
        try:
            await asyncio.sleep(self._away_s)
        finally:
            store.promote()
        return injected_fault(FaultKind.REDIS_READ_ONLY, fault_round, injected_at)

    async def _state_is_saved(self) -> bool:
        store = scheduler_store(self._cluster.target.config)
        try:
            stored = await store.load()
        finally:
            await store.aclose()
        status = await self._cluster.target.status()
        return stored.clock is not None and len(stored.applications) >= status["applications"]

    # --- GCS, and changes by Serve

    async def _kill_gcs(self, fault_round: FaultRound) -> InjectedFault:
        injected_at = time.monotonic()
        await asyncio.to_thread(self._cluster.kill_gcs)
        await asyncio.sleep(self._killed_s)
        self._cluster.start_gcs()
        fault = injected_fault(FaultKind.GCS_KILLED, fault_round, injected_at)
        await wait_until(run_in_thread(gcs_answers), "the GCS and Serve's controller answer")
        return _mark_recovered(fault)

    async def _scale_down_and_up(self, fault_round: FaultRound) -> InjectedFault:
        injected_at = time.monotonic()
        whole = self._cluster.target.wanted["Replica"]
        for replicas in (whole - 1, whole):
            await asyncio.to_thread(self._cluster.scale, replicas)
            await wait_until(
                run_in_thread(self._cluster.target.is_whole), f"{replicas} replicas run"
            )
        fault = injected_fault(FaultKind.SCALED, fault_round, injected_at, injected_at)
        return _mark_recovered(fault)

    async def _redeploy(self, fault_round: FaultRound) -> InjectedFault:
        injected_at = time.monotonic()
        before = {
            member.pid
            for member in await asyncio.to_thread(self._cluster.target.running, "Replica")
        }
        change = self._cluster.change_version
        await asyncio.to_thread(change, everything=self._everything)
        await wait_until(run_in_thread(self._is_replaced, before), "the new version is whole")
        return _mark_recovered(
            injected_fault(FaultKind.REDEPLOYED, fault_round, injected_at, injected_at)
        )

    def _is_replaced(self, before: set[int]) -> bool:
        now = {member.pid for member in self._cluster.target.list_processes("Replica")}
        return not before & now and self._cluster.target.is_whole()


def _mark_recovered(fault: InjectedFault) -> InjectedFault:
    return replace(fault, done_at=time.monotonic())
