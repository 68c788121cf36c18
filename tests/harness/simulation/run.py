"""Simulation runs: run one plan to its end, search many seeds, shrink a failing plan."""

import asyncio
import gc
import logging
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace

from justitia_ray.units import Seconds
from tests.harness.simulation import checks, quota_checks
from tests.harness.simulation.faults import inject
from tests.harness.simulation.parts import Parts
from tests.harness.simulation.plan import Fault, Plan, draw_plan
from tests.harness.simulation.recorder import Failure, Recorder, Trace
from tests.harness.simulation.virtual_loop import NothingLeftToDo, VirtualLoop, run_virtually
from tests.harness.simulation.world import OTHER_MODEL, World

_ANSWERED_WITHIN_S: Seconds = 210.0
"""Seconds after the last fault in which all calls are answered, even thirty long inferences after
each other on one replica and slow readers.
"""
_SAVED_S: Seconds = 2.0
"""Seconds after the last fault in which all state is saved again."""
_GOODBYE_S: Seconds = 3.0
"""Seconds in which a leaving replica has certainly reported that it leaves."""
_ENDS_WITHIN = 30
"""Seconds in which every task ends after all parts were told to stop."""
_QUIET_WITHIN_S: Seconds = 130.0
"""Seconds after the last answer in which all resources are released: an ingress may be silent for
30 s, an application idle for 60 s.
"""


@dataclass(frozen=True, slots=True)
class SimulationRun:
    plan: Plan
    failures: tuple[Failure, ...]
    trace: str
    """Trace of the simulation's events; empty if not requested."""
    virtual_s: Seconds
    steps: int
    """Number of callbacks of the event loop."""
    grants: int
    held: int = 0
    """Number of contexts that engines have held."""
    struck: Counter[str] = field(default_factory=Counter)
    """Number of faults that had a target, by kind."""


def run_plan(plan: Plan, parts: Parts | None = None, *, traced: bool = False) -> SimulationRun:
    """Run a simulation plan to its end on an event loop with virtual time.

    Args:
        plan: What is to happen.
        parts: What it is made of; the real parts if None.
        traced: Whether to keep its trace.
    """
    trace = Trace(traced=traced)
    struck: Counter[str] = Counter()
    loop = VirtualLoop(random.Random(f"order {plan.seed}") if plan.shuffled else None)
    disabled, collects = logging.root.manager.disable, gc.isenabled()
    logging.disable(logging.CRITICAL)  # errors are intended here
    gc.disable()  # Garbage of earlier simulations would be finalised at random times.
    recorders: list[Recorder] = []

    async def main() -> None:
        recorders.extend(Recorder(trace) for _ in plan.plans_of_models)
        worlds = _make_worlds(plan, parts or Parts(), recorders, loop)
        await _run_worlds(worlds, loop, struck)

    try:
        run_virtually(main(), loop)
    except NothingLeftToDo as error:
        recorders[0].add_failure("simulations_end", str(error))
    finally:
        logging.disable(disabled)
        if collects:
            gc.enable()
    return SimulationRun(
        plan,
        tuple(sorted((f for one in recorders for f in one.failures), key=lambda f: f.at_s)),
        trace.text(),
        loop.time() - VirtualLoop.STARTS_AT,
        loop.taken,
        sum(recorder.grants for recorder in recorders),
        sum(recorder.held for recorder in recorders),
        struck,
    )


def _make_worlds(
    plan: Plan, parts: Parts, recorders: Sequence[Recorder], loop: VirtualLoop
) -> list[World]:
    """Return the simulated processes of all models, which share one quota service."""
    worlds = [World(plan, parts, recorders[0], loop)]
    if plan.other is not None:
        accounts = worlds[0].accounts
        worlds.append(World(plan.other, parts, recorders[1], loop, OTHER_MODEL, accounts))
    return worlds


async def _run_worlds(worlds: list[World], loop: VirtualLoop, struck: Counter[str]) -> None:
    recorder = worlds[0].recorder
    faults, owners = list["asyncio.Task[None]"](), list["asyncio.Task[None]"]()
    for world in worlds:
        world.begin()
        owners += [
            world.callers_process.start(world.callers.run_application(application))
            for application in world.plan.applications
        ]
        faults.append(asyncio.create_task(_inject_all(world, struck)))
    watches = [
        watch(world) for world in worlds for watch in (checks.StrayWatch, checks.OrphanWatch)
    ]
    meters = [
        world.callers_process.start(quota_checks.FinalTotals(world).keep_asking())
        for world in worlds
        if world.plan.midnight_s is not None
    ]
    plans = [world.plan for world in worlds]
    whole_at = max((fault.at_s + fault.for_s for p in plans for fault in p.faults), default=0.0)
    last_at = max(a.at_s for p in plans for a in p.applications)
    answered_by = max(whole_at, last_at) + _ANSWERED_WITHIN_S
    quiet_by = answered_by
    left = ["not looked at"]
    asked = False
    while not any(w.recorder.failed.is_set() for w in worlds) and recorder.now < quiet_by:
        await asyncio.sleep(quota_checks.LOOK_EVERY_S)
        for watch in watches:
            watch.look()
        for world in worlds:
            world.recorder.sample_engines()
        if not asked and all(one.done() for one in (*faults, *owners)):
            asked, quiet_by = True, max(recorder.now, whole_at) + _QUIET_WITHIN_S
        if asked and recorder.now > whole_at + _SAVED_S:
            left = [one for world in worlds for one in checks.leftovers(world)]
            if not left:
                break
    for owner in owners:
        if owner.done() and not owner.cancelled() and owner.exception() is not None:
            recorder.add_failure("owners_are_not_refused", repr(owner.exception()))
    if not _broken_rules(worlds):
        for world in worlds:
            checks.every_call_has_its_answer(world)
            checks.killers_take_few_engines(world)
    if not _broken_rules(worlds):
        checks.nothing_is_left_over(worlds[0], left)
        for world in worlds:
            checks.state_at_risk_is_bounded(world)
            checks.all_happens_once(world)
            quota_checks.usage_is_what_ran(world)
        quota_checks.limits_hold(worlds)
        quota_checks.use_is_counted_once(worlds)
    tasks = await _stop_all_parts(worlds, loop, [*owners, *faults, *meters])
    if not _broken_rules(worlds):
        checks.tasks_end(worlds[0], tasks)
    checks.nothing_fails_unseen(worlds[0], loop.uncaught_errors)
    for world in worlds:
        struck.update({name: count for name, count in world.network.struck.items() if count})


def _broken_rules(worlds: Sequence[World]) -> bool:
    return any(world.recorder.failures for world in worlds)


async def _inject_all(world: World, struck: Counter[str]) -> None:
    for fault in world.plan.faults:
        await asyncio.sleep(max(0.0, fault.at_s - world.recorder.now))
        struck[_inject_and_describe(world, fault)] += 1


def _inject_and_describe(world: World, fault: Fault) -> str:
    return fault.kind.value if inject(world, fault) else f"{fault.kind.value} (in vain)"


async def _stop_all_parts(
    worlds: Sequence[World], loop: VirtualLoop, ours: "list[asyncio.Task[None]]"
) -> dict[str, list[str]]:
    """Stop all parts in order; return the tasks that are left, by process."""
    for task in ours:
        task.cancel()
    for world in worlds:
        world.over = True
        _stop_ingresses_and_replicas(world)
    await asyncio.sleep(_GOODBYE_S)
    accounts = worlds[0].accounts
    if accounts is not None:
        accounts.over = True
    for world in worlds:
        for scheduler in world.schedulers:
            if scheduler.process.alive and not scheduler.process.paused:
                scheduler.process.start(scheduler.stop())
    processes = [process for world in worlds for process in world.all_processes()]
    for _ in range(_ENDS_WITHIN):
        await asyncio.sleep(1.0)
        if not any(process.running_tasks for process in processes):
            break
    tasks = {p.name: [str(task.get_coro()) for task in p.running_tasks] for p in processes}
    if accounts is not None:
        processes += [host.process for host in accounts.hosts]
    for process in processes:
        loop.unpark(process)
        process.die()
    await asyncio.sleep(0.1)
    await loop.close_generators()
    return tasks


def _stop_ingresses_and_replicas(world: World) -> None:
    for ingress in world.ingresses:
        if ingress.process.alive:
            ingress.process.start(ingress.stop())
    for replica in world.seats:
        if replica.is_pulling and not replica.answers.has_begun:
            world.crash_replica(replica)  # Serve ends a replica once it has no leases.
        elif replica.is_pulling and not replica.draining:
            replica.process.start(replica.answers.leave())


_BATCH = 50
"""Number of simulations that one process runs before it reports."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Seed whose simulation failed a check."""

    seed: int
    check: str
    """First check that the simulation failed."""
    detail: str


@dataclass(slots=True)
class SearchResult:
    """Result of a search over many simulations so far."""

    simulations: int = 0
    inferences: int = 0
    grants: int = 0
    virtual_s: Seconds = 0.0
    took_s: Seconds = 0.0
    struck: Counter[str] = field(default_factory=Counter)
    """Number of faults by kind, and of messages by what happened to them."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def simulations_per_minute(self) -> float:
        """Simulations per minute of wall time."""
        return 60.0 * self.simulations / self.took_s if self.took_s else 0.0

    def add(self, other: "SearchResult") -> None:
        self.simulations += other.simulations
        self.inferences += other.inferences
        self.grants += other.grants
        self.virtual_s += other.virtual_s
        self.struck += other.struck
        self.findings += other.findings


def search(first_seed: int, count: int, jobs: int) -> Iterator[SearchResult]:
    """Run `count` simulations from a seed on; yield the total result after each batch."""
    total, began_at = SearchResult(), time.monotonic()
    ends = range(first_seed, first_seed + count, _BATCH)
    batches = [(start, min(start + _BATCH, first_seed + count)) for start in ends]
    if jobs == 1:
        for batch in batches:
            total.add(run_seeds(batch))
            total.took_s = time.monotonic() - began_at
            yield total
        return
    with ProcessPoolExecutor(jobs, initializer=gc.freeze) as pool:
        for result in pool.map(run_seeds, batches):
            total.add(result)
            total.took_s = time.monotonic() - began_at
            yield total


def run_seeds(seeds: tuple[int, int]) -> SearchResult:
    """Run the simulations of a half-open range of seeds."""
    result = SearchResult()
    for seed in range(*seeds):
        simulated = run_plan(draw_plan(seed))
        result.simulations += 1
        result.inferences += simulated.plan.inferences
        result.grants += simulated.grants
        result.virtual_s += simulated.virtual_s
        result.struck += simulated.struck
        for failure in simulated.failures[:1]:
            result.findings.append(Finding(seed, failure.check, failure.detail))
    gc.collect()
    return result


def shrink(plan: Plan, parts: Parts | None = None) -> SimulationRun:
    """Remove faults and applications one by one while the same check still fails.

    Each removal changes the fate of later messages, so a smaller plan may fail differently or not
    at all, and the result need not be minimal.

    Args:
        plan: A plan that fails.
        parts: Classes of the parts; the real parts if None.
    """
    smallest = run_plan(plan, parts)
    if not smallest.failures:
        return smallest
    check = smallest.failures[0].check
    found = True
    while found:
        found = False
        for smaller in _smaller_plans(smallest.plan):
            simulated = run_plan(smaller, parts)
            if simulated.failures and simulated.failures[0].check == check:
                smallest, found = simulated, True
                break
    return smallest


def _smaller_plans(plan: Plan) -> Iterator[Plan]:
    for k in range(len(plan.faults)):
        yield replace(plan, faults=plan.faults[:k] + plan.faults[k + 1 :])
    if len(plan.applications) > 1:
        for k in range(len(plan.applications)):
            yield replace(plan, applications=plan.applications[:k] + plan.applications[k + 1 :])
    if plan.other is not None:
        for other in _smaller_plans(plan.other):
            yield replace(plan, other=other)
