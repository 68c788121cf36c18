"""Faults of the connections between callers, ingresses, scheduler and replicas."""

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ray.exceptions import RayActorError

from justitia_ray.errors import NoReplicaAnswers
from justitia_ray.serve.transport.handshake import Offer
from justitia_ray.units import Seconds
from tests.harness.chaos.callers import Callers
from tests.harness.chaos.faults import (
    InjectFault,
    busy_replica,
    choose_victim,
    injected_fault,
    running_processes,
)
from tests.harness.chaos.plan import (
    BUSY_S,
    ENGINE_STOPPED_S,
    HALF_OPEN_S,
    FaultKind,
    FaultRound,
)
from tests.harness.chaos.records import InjectedFault, read_journal
from tests.harness.chaos.stranger import Attacker, OpenPort, keep_connecting
from tests.harness.chaos.target import ChaosTarget, ServeProcess

_CHOOSE_AGAIN_S: Seconds = 0.2
_RUNS_AGAIN_WITHIN_S: Seconds = 20.0
_PROBES = 6


class ConnectionFaults:
    def __init__(self, target: ChaosTarget, callers: Callers, away_s: Seconds) -> None:
        """Prepare the connection faults of a running application.

        Args:
            target: Running.
            callers: One of whom may stop reading.
            away_s: How long a port is blocked, a stranger knocks, or a caller does not read.
        """
        self._target = target
        self._callers = callers
        self._away_s = away_s

    @property
    def ways(self) -> Mapping[FaultKind, InjectFault]:
        """The function that injects a fault, by kind of fault."""
        return {
            FaultKind.REPLICA_CUT: self._cut_replica_connections,
            FaultKind.INGRESS_CUT: self._cut_ingress_connections,
            FaultKind.SCHEDULER_CUT: self._cut_scheduler_connections,
            FaultKind.ENGINE_STOPPED: self._stop_engine,
            FaultKind.REPLICA_BUSY: self._block_event_loop,
            FaultKind.REPLICA_HALF_OPEN: self._suspend_replica,
            FaultKind.INGRESS_HALF_OPEN: self._suspend_ingress,
            FaultKind.PORT_BLOCKED: self._block_port,
            FaultKind.WRONG_SECRETS: self._connect_as_stranger,
            FaultKind.SLOW_READER: self._pause_a_reader,
        }

    # --- cut

    async def _cut_replica_connections(self, fault_round: FaultRound) -> InjectedFault:
        return await self._cut_connections(FaultKind.REPLICA_CUT, fault_round)

    async def _cut_ingress_connections(self, fault_round: FaultRound) -> InjectedFault:
        return await self._cut_connections(FaultKind.INGRESS_CUT, fault_round)

    async def _cut_connections(self, kind: FaultKind, fault_round: FaultRound) -> InjectedFault:
        """Cut all connections of a process; if the process dies meanwhile, choose another."""
        while True:
            victim = await self._choose_victim(kind, fault_round.draw)
            with suppress(NoReplicaAnswers, RayActorError):
                count = await self._target.probe(victim, "cut_connections")
                break
            await asyncio.sleep(_CHOOSE_AGAIN_S)
        at = time.monotonic()
        told = f"{victim.replica_id}: {count} connections"
        fault = injected_fault(kind, fault_round, at, at, told, victim.pid)
        await self._wait_for_run(fault)
        return fault

    async def _cut_scheduler_connections(self, fault_round: FaultRound) -> InjectedFault:
        both = [await running_processes(self._target, name) for name in ("Ingress", "Replica")]
        cut = [
            self._target.probe(member, "cut_connections", to_scheduler_only=True)
            for members in both
            for member in members
        ]
        answers = await asyncio.gather(*cut, return_exceptions=True)  # some processes may have died
        at = time.monotonic()
        gone = (NoReplicaAnswers, RayActorError)
        mistakes = [
            one for one in answers if isinstance(one, Exception) and not isinstance(one, gone)
        ]
        if mistakes:
            raise mistakes[0]
        count = sum(answer for answer in answers if isinstance(answer, int))
        # The load's inferences may all have ended, so request new ones for the fault to hit.
        await self._callers.probe_inferences(f"probe-{fault_round.number}", _PROBES)
        return injected_fault(FaultKind.SCHEDULER_CUT, fault_round, at, at, f"{count} connections")

    # --- stand still

    async def _suspend_replica(self, fault_round: FaultRound) -> InjectedFault:
        return await self._suspend_process(FaultKind.REPLICA_HALF_OPEN, fault_round)

    async def _suspend_ingress(self, fault_round: FaultRound) -> InjectedFault:
        return await self._suspend_process(FaultKind.INGRESS_HALF_OPEN, fault_round)

    async def _suspend_process(self, kind: FaultKind, fault_round: FaultRound) -> InjectedFault:
        victim = await self._choose_victim(kind, fault_round.draw)
        injected_at = time.monotonic()
        with suppress(ProcessLookupError):  # Another fault of the round has killed the process.
            os.kill(victim.pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(HALF_OPEN_S)
            finally:
                os.kill(victim.pid, signal.SIGCONT)
        return await self._fault_after_next_run(kind, fault_round, injected_at, victim)

    async def _stop_engine(self, fault_round: FaultRound) -> InjectedFault:
        kind = FaultKind.ENGINE_STOPPED
        victim, injected_at = await self._call_busy_replica(kind, fault_round, "stop_engine")
        await asyncio.sleep(ENGINE_STOPPED_S)
        with suppress(NoReplicaAnswers, RayActorError):  # already killed
            await self._target.probe(victim, "let_engine_go_on")
        return await self._fault_after_next_run(kind, fault_round, injected_at, victim)

    async def _block_event_loop(self, fault_round: FaultRound) -> InjectedFault:
        kind = FaultKind.REPLICA_BUSY
        victim, injected_at = await self._call_busy_replica(kind, fault_round, "block_loop", BUSY_S)
        await asyncio.sleep(BUSY_S)
        return await self._fault_after_next_run(kind, fault_round, injected_at, victim)

    async def _call_busy_replica(
        self, kind: FaultKind, fault_round: FaultRound, method: str, *arguments: Any
    ) -> tuple[ServeProcess, Seconds]:
        """Call a method of a busy replica; if the replica dies meanwhile, choose another."""
        while True:
            victim = await self._choose_victim(kind, fault_round.draw)
            with suppress(NoReplicaAnswers, RayActorError):
                await self._target.probe(victim, method, *arguments)
                return victim, time.monotonic()
            await asyncio.sleep(_CHOOSE_AGAIN_S)

    async def _fault_after_next_run(
        self, kind: FaultKind, fault_round: FaultRound, injected_at: Seconds, victim: ServeProcess
    ) -> InjectedFault:
        """Return the record of a fault once the affected replica runs an inference again."""
        fault = injected_fault(
            kind, fault_round, injected_at, target=victim.replica_id, pid=victim.pid
        )
        await self._wait_for_run(fault)
        return fault

    async def _choose_victim(self, kind: FaultKind, draw: float) -> ServeProcess:
        if kind in (FaultKind.INGRESS_CUT, FaultKind.INGRESS_HALF_OPEN):
            return await choose_victim(self._target, "Ingress", draw)
        return await busy_replica(self._target, draw)

    async def _wait_for_run(self, fault: InjectedFault) -> None:
        """Request short answers until an affected replica runs an inference, or a time has passed.

        The load itself may have nothing left for it.
        """
        if fault.kind in (FaultKind.INGRESS_CUT, FaultKind.INGRESS_HALF_OPEN):
            return
        deadline = time.monotonic() + _RUNS_AGAIN_WITHIN_S
        for number in itertools.count():
            runs = await asyncio.to_thread(read_journal, self._target.journal)
            if any(run.pid == fault.pid and run.began_at >= fault.back_at for run in runs):
                return
            if time.monotonic() > deadline:
                return
            await self._callers.probe_inferences(f"probe-{fault.round_number}-{number}", _PROBES)

    # --- ports

    async def _block_port(self, fault_round: FaultRound) -> InjectedFault:
        victim = await self._choose_victim(FaultKind.PORT_BLOCKED, fault_round.draw)
        injected_at = time.monotonic()
        with suppress(NoReplicaAnswers, RayActorError):  # it has died meanwhile
            await self._target.probe(victim, "block_port", self._away_s)
        fault = injected_fault(
            FaultKind.PORT_BLOCKED,
            fault_round,
            injected_at,
            target=victim.replica_id,
            pid=victim.pid,
        )
        await self._wait_for_run(fault)
        return fault

    async def _connect_as_stranger(self, fault_round: FaultRound) -> InjectedFault:
        injected_at, stranger = time.monotonic(), Attacker()
        knocking = asyncio.create_task(keep_connecting(stranger, await self._listening_ports()))
        done, _ = await asyncio.wait([knocking], timeout=self._away_s)
        knocking.cancel()
        if done:
            knocking.result()  # Raises an error if a connection was accepted.
        return injected_fault(
            FaultKind.WRONG_SECRETS,
            fault_round,
            injected_at,
            injected_at,
            f"{stranger.refused} connections refused",
        )

    async def _listening_ports(self) -> list[OpenPort]:
        offer: Offer = await self._target.ask_scheduler("link")
        doors = [OpenPort(offer.address, offer.target, offer.key.key_id)]
        for member in await running_processes(self._target, "Replica"):
            with suppress(NoReplicaAnswers, RayActorError):
                address = await self._target.probe(member, "address")
                doors.append(OpenPort(address, member.replica_id, offer.key.key_id))
        return doors

    # --- callers

    async def _pause_a_reader(self, fault_round: FaultRound) -> InjectedFault:
        injected_at = time.monotonic()
        stalled = await self._callers.stall(fault_round.draw, self._away_s)
        return injected_fault(
            FaultKind.SLOW_READER, fault_round, injected_at, injected_at, stalled or "nobody"
        )
