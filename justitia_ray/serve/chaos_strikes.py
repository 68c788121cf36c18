"""Kills and stops the processes of an application under load: one coroutine a kind of fault."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ray.exceptions import RayError

from justitia_ray.chaos.callers import Callers
from justitia_ray.chaos.journal import read_journal
from justitia_ray.chaos.kinds import Kind
from justitia_ray.chaos.load import PlannedApplication
from justitia_ray.chaos.notes import Hit, Notes, Tag
from justitia_ray.chaos.plan import Strike
from justitia_ray.chaos.recovery import KNOCKS
from justitia_ray.errors import ReplicaGone
from justitia_ray.serve.chaos_patience import in_thread, until
from justitia_ray.serve.chaos_target import ChaosTarget, Member
from justitia_ray.units import Seconds

Way = Callable[[Strike], Awaitable[Hit]]
"""How a kind of fault is carried out."""

_LEAVING = 0.5
"""Share of the callers that disconnect at once."""
_CHOOSE_AGAIN_S: Seconds = 0.2
_SOMETHING_RUNS_WITHIN_S: Seconds = 5.0
_KNOWN_FOR_S: Seconds = 1.0
"""What a scheduler has known for so long is saved: the default saves every half second."""


class Striker:
    """Breaks one application."""

    def __init__(
        self,
        target: ChaosTarget,
        callers: Callers,
        notes: Notes,
        load: Sequence[PlannedApplication],
        *,
        stopped_s: Seconds,
        more_ways: Mapping[Kind, Way],
    ) -> None:
        """Prepare; nothing is broken before `strike`.

        Args:
            target: Running.
            callers: Who may be told to leave.
            notes: Where tags are noted that a scheduler's death must not change.
            load: Whose tags.
            stopped_s: How long the scheduler is stopped.
            more_ways: For kinds that strike what the application runs on.
        """
        self._target = target
        self._callers = callers
        self._notes = notes
        self._load = load
        self._stopped_s = stopped_s
        self._ways: dict[Kind, Way] = {
            Kind.SCHEDULER_KILLED: self._kill_scheduler,
            Kind.SCHEDULER_STOPPED: self._stop_scheduler,
            Kind.REPLICA_KILLED: self._kill_replica,
            Kind.ENGINE_KILLED: self._kill_engine,
            Kind.INGRESS_KILLED: self._kill_ingress,
            Kind.PREDICTOR_KILLED: self._kill_predictor,
            Kind.CALLERS_LEFT: self._let_callers_leave,
            **more_ways,
        }

    async def ready(self, strike: Strike) -> None:
        """Wait until there is somebody to strike, and enough of everything to go on without him.

        Raises:
            JustitiaError: If what was killed is not started again.
        """
        needed = {"Replica": 2}
        if Kind.INGRESS_KILLED in strike.kinds:
            needed["Ingress"] = 2
        if Kind.PREDICTOR_KILLED in strike.kinds:
            needed["Predictor"] = 1
        for deployment, count in needed.items():
            enough = in_thread(self._has_enough, deployment, count)
            await until(enough, f"{count} of {deployment} run")
        await until(self._has_pulls, "two replicas pull")

    async def strike(self, strike: Strike) -> list[Hit]:
        """Carry out the faults of a strike at once, and return what was done."""
        return list(await asyncio.gather(*(self._ways[kind](strike) for kind in strike.kinds)))

    # --- scheduler

    async def _kill_scheduler(self, strike: Strike) -> Hit:
        status = await self._target.status()
        tags = await self._waiting_tags()
        hit = _killed(Kind.SCHEDULER_KILLED, strike, status["pid"], epoch=status["epoch"])
        in_office = partial(self._new_epoch, status["epoch"])
        await until(in_office, "another scheduler is in office")
        after = await self._views(tags)
        self._notes.tags += [
            Tag(name, tags[name], view["virtual_finish_time"])
            for name, view in after.items()
            if view["kv_token_time"] == 0 and view["virtual_finish_time"] is not None
        ]
        return hit

    async def _stop_scheduler(self, strike: Strike) -> Hit:
        status = await self._target.status()
        struck_at = time.monotonic()
        os.kill(status["pid"], signal.SIGSTOP)
        try:
            await asyncio.sleep(self._stopped_s)
        finally:
            os.kill(status["pid"], signal.SIGCONT)
        return hit_of(Kind.SCHEDULER_STOPPED, strike, struck_at, epoch=status["epoch"])

    async def _new_epoch(self, epoch: int) -> bool:
        status = await self._target.status()
        return bool(status["epoch"] > epoch)

    async def _waiting_tags(self) -> dict[str, float]:
        """Return the tags of the applications that wait, have not begun, and are saved."""
        views = await self._views(planned.application_id for planned in self._load)
        return {
            name: view["virtual_finish_time"]
            for name, view in views.items()
            if view["kv_token_time"] == 0
            and view["running"] == 0
            and view["waiting"]
            and view["age_s"] > _KNOWN_FOR_S
        }

    async def _views(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        wanted = list(names)
        ask = self._target.ask_scheduler
        views = await asyncio.gather(*(ask("application", name) for name in wanted))
        return {name: view for name, view in zip(wanted, views, strict=True) if view is not None}

    # --- what Serve starts again

    async def _kill_replica(self, strike: Strike) -> Hit:
        victim = await self._busy_replica(strike.draw)
        return _killed(Kind.REPLICA_KILLED, strike, victim.pid, victim.replica_id)

    async def _kill_engine(self, strike: Strike) -> Hit:
        while True:
            victim = await self._busy_replica(strike.draw)
            struck_at = time.monotonic()
            try:
                await self._target.replica_handle(victim.replica_id).kill_engine.remote()
                break
            except (ReplicaGone, RayError):  # dead already, or so new that no router knows it yet
                await asyncio.sleep(_CHOOSE_AGAIN_S)
        return hit_of(
            Kind.ENGINE_KILLED, strike, struck_at, struck_at, victim.replica_id, victim.pid
        )

    async def _kill_ingress(self, strike: Strike) -> Hit:
        victim = await self._victim("Ingress", strike.draw)
        return _killed(Kind.INGRESS_KILLED, strike, victim.pid, victim.replica_id)

    async def _kill_predictor(self, strike: Strike) -> Hit:
        victim = await self._victim("Predictor", strike.draw)
        hit = _killed(Kind.PREDICTOR_KILLED, strike, victim.pid, victim.replica_id)
        await self._callers.knock(f"knock-{strike.number}", KNOCKS)
        return hit

    async def _busy_replica(self, draw: float) -> Member:
        """Return one of the replicas that run something; any, if none does for a time.

        A lease is not enough: what a dead ingress had outstanding holds some, and never runs.
        """
        deadline = time.monotonic() + _SOMETHING_RUNS_WITHIN_S
        while True:
            running = await self._running("Replica")
            runs = await asyncio.to_thread(read_journal, self._target.journal)
            under_way = {run.pid for run in runs if run.ended_at is None}
            busy = [member for member in running if member.pid in under_way]
            if busy or time.monotonic() > deadline:
                return _chosen(busy or running, draw)
            await asyncio.sleep(_CHOOSE_AGAIN_S)

    async def _victim(self, deployment: str, draw: float) -> Member:
        return _chosen(await self._running(deployment), draw)

    async def _running(self, deployment: str) -> list[Member]:
        """Return its processes, at least one: what strikes beside this may hide them for a time."""
        await until(in_thread(self._has_enough, deployment, 1), f"one of {deployment} runs")
        return await asyncio.to_thread(self._target.running, deployment)

    def _has_enough(self, deployment: str, count: int) -> bool:
        return len(self._target.running(deployment)) >= count

    async def _has_pulls(self) -> bool:
        """Return whether enough replicas are known to the scheduler: Serve's word is not enough."""
        status = await self._target.status()
        pulling = [r for r in status["replicas"].values() if not r["draining"]]
        return len(pulling) >= 2

    # --- callers

    async def _let_callers_leave(self, strike: Strike) -> Hit:
        struck_at = time.monotonic()
        left = self._callers.disconnect(_LEAVING, strike.draw)
        return hit_of(Kind.CALLERS_LEFT, strike, struck_at, struck_at, target=f"{left} open calls")


def hit_of(
    kind: Kind,
    strike: Strike,
    struck_at: Seconds,
    back_at: Seconds | None = None,
    target: str = "",
    pid: int | None = None,
    epoch: int = 0,
) -> Hit:
    """Return what was done; without `back_at`, what was stopped goes on from now."""
    back = time.monotonic() if back_at is None else back_at
    return Hit(kind, strike.number, struck_at, back, target, pid, epoch)


def _killed(kind: Kind, strike: Strike, pid: int, target: str = "", *, epoch: int = 0) -> Hit:
    struck_at = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return hit_of(kind, strike, struck_at, struck_at, target, pid, epoch)


def _chosen(members: Sequence[Member], draw: float) -> Member:
    return members[int(draw * len(members))]
