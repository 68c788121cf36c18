"""Faults of autoscaled replicas (loading, draining, all of them) and of Serve's controller."""

import asyncio
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import psutil  # type: ignore[import-untyped]
import ray
from ray.exceptions import RayError
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

from justitia_ray.units import Seconds
from tests.harness.chaos.app import loads_file
from tests.harness.chaos.faults import InjectFault, injected_fault
from tests.harness.chaos.plan import FaultKind, FaultRound
from tests.harness.chaos.records import (
    FleetSample,
    InjectedFault,
    RunRecords,
    read_journal,
    read_loadings,
)
from tests.harness.chaos.target import ChaosTarget, ServeProcess, run_in_thread, wait_until

_EVERY_S: Seconds = 0.2
_UP_WITHIN_S: Seconds = 30.0
_DRAINS_WITHIN_S: Seconds = 180.0
"""Longest time in seconds that a fault waits for a draining replica; on two cores the calls of a
round take minutes.
"""
_RUNS_SOMETHING_WITHIN_S: Seconds = 20.0
_CHOOSE_AGAIN_S: Seconds = 0.05
_WAIT_THEMSELVES = {
    FaultKind.LOADING_KILLED,
    FaultKind.DRAINING_KILLED,
    FaultKind.CONTROLLER_KILLED_IN_DRAIN,
}


async def keep_sampling_fleet(target: ChaosTarget, records: RunRecords) -> None:
    """Sample the replicas' states from Serve's controller until cancelled."""
    while True:
        asked_at = time.monotonic()
        wanted, members = await asyncio.to_thread(target.wanted_and_listed, "Replica")
        if wanted is not None:
            states = {member.replica_id: member.state for member in members}
            records.fleet.append(FleetSample(time.monotonic(), asked_at, wanted, states))
            records.pids |= {one.replica_id: one.pid for one in members if one.pid}
        await asyncio.sleep(_EVERY_S)


class FleetFaults:
    """Faults of autoscaled replicas, such as the death of a loading or a draining one."""

    def __init__(self, target: ChaosTarget) -> None:
        self._target = target

    @property
    def ways(self) -> Mapping[FaultKind, InjectFault]:
        """The function that injects a fault, by kind of fault."""
        return {
            FaultKind.LOADING_KILLED: self._kill_loading_replica,
            FaultKind.DRAINING_KILLED: self._kill_draining_replica,
            FaultKind.ALL_REPLICAS_KILLED: self._kill_all_replicas,
            FaultKind.CONTROLLER_KILLED: self._kill_controller,
            FaultKind.CONTROLLER_KILLED_IN_DRAIN: self._kill_controller_while_draining,
        }

    async def wait_for_several_replicas(self, fault_round: FaultRound) -> None:
        """Wait until the load has started several replicas, at most for a given time.

        Faults of a loading or draining replica wait for one themselves.
        """
        if _WAIT_THEMSELVES & {*fault_round.kinds}:
            return
        deadline = time.monotonic() + _UP_WITHIN_S
        while time.monotonic() < deadline:
            if len(await asyncio.to_thread(self._target.running, "Replica")) > 1:
                return
            await asyncio.sleep(_EVERY_S)

    async def wait_for_minimum(self) -> None:
        """Wait until the number of replicas is minimal; raise JustitiaError after minutes."""
        await wait_until(
            run_in_thread(self._target.is_whole), "there are as few replicas as may be"
        )

    async def _kill_loading_replica(self, fault_round: FaultRound) -> InjectedFault:
        victims: list[ServeProcess] = []

        async def find_loading() -> bool:
            loads = read_loadings(loads_file(self._target.config))
            loading = {load.pid for load in loads if load.ended_at is None}
            members = await asyncio.to_thread(self._target.list_processes, "Replica")
            victims[:] = [m for m in members if m.pid in loading and psutil.pid_exists(m.pid)]
            return bool(victims)

        await wait_until(find_loading, "a replica loads", _DRAINS_WITHIN_S)
        return _kill_and_record(FaultKind.LOADING_KILLED, fault_round, victims[0])

    async def _kill_draining_replica(self, fault_round: FaultRound) -> InjectedFault:
        victim = await self._draining_replica()
        return _kill_and_record(FaultKind.DRAINING_KILLED, fault_round, victim)

    async def _draining_replica(self) -> ServeProcess:
        """Return a draining replica that runs an inference; after a timeout, any draining one."""
        draining: list[ServeProcess] = []

        async def find_draining() -> bool:
            members = await asyncio.to_thread(self._target.list_processes, "Replica")
            draining[:] = [
                one
                for one in members
                if one.state == "STOPPING" and one.pid and psutil.pid_exists(one.pid)
            ]
            return bool(draining)

        deadline = time.monotonic() + _RUNS_SOMETHING_WITHIN_S
        while True:
            await wait_until(find_draining, "a replica drains", _DRAINS_WITHIN_S)
            runs = await asyncio.to_thread(read_journal, self._target.journal)
            busy = {run.pid for run in runs if run.ended_at is None}
            if found := [one for one in draining if one.pid in busy]:
                return found[0]
            if time.monotonic() > deadline:
                return draining[0]
            await asyncio.sleep(_CHOOSE_AGAIN_S)

    async def _kill_all_replicas(self, fault_round: FaultRound) -> InjectedFault:
        members = await asyncio.to_thread(self._target.list_processes, "Replica")
        pids = [member.pid for member in members if member.pid]
        injected_at = time.monotonic()
        for pid in pids:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGKILL)
        return injected_fault(
            FaultKind.ALL_REPLICAS_KILLED,
            fault_round,
            injected_at,
            injected_at,
            " ".join(str(pid) for pid in pids),
        )

    async def _kill_controller(self, fault_round: FaultRound) -> InjectedFault:
        return await self._replace_controller(FaultKind.CONTROLLER_KILLED, fault_round)

    async def _kill_controller_while_draining(self, fault_round: FaultRound) -> InjectedFault:
        draining = await self._draining_replica()
        fault = await self._replace_controller(FaultKind.CONTROLLER_KILLED_IN_DRAIN, fault_round)
        return replace(fault, target=draining.replica_id)

    async def _replace_controller(self, kind: FaultKind, fault_round: FaultRound) -> InjectedFault:
        before = await asyncio.to_thread(_controller_pid)
        assert before is not None
        injected_at = time.monotonic()
        os.kill(before, signal.SIGKILL)
        await wait_until(
            run_in_thread(self._controller_recovered, before), "another controller has recovered"
        )
        fault = injected_fault(kind, fault_round, injected_at, injected_at, pid=before)
        return replace(fault, done_at=time.monotonic())

    def _controller_recovered(self, before: int) -> bool:
        wanted, _ = self._target.wanted_and_listed("Replica")
        return wanted is not None and _controller_pid() not in (None, before)


def _controller_pid() -> int | None:
    """Return the process id of Serve's controller; None while there is none."""
    with suppress(RayError, ValueError):
        actor = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=SERVE_NAMESPACE)
        pid: int = ray.get(actor.get_pid.remote(), timeout=_UP_WITHIN_S)
        return pid
    return None


def _kill_and_record(
    kind: FaultKind, fault_round: FaultRound, victim: ServeProcess
) -> InjectedFault:
    injected_at = time.monotonic()
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(victim.pid, signal.SIGKILL)
    return injected_fault(
        kind, fault_round, injected_at, injected_at, victim.replica_id, victim.pid
    )
