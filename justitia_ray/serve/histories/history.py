"""One history: all start, the clients ask, the faults strike, and in the end all is quiet."""

import asyncio
import gc
import logging
import random
from collections import Counter
from dataclasses import dataclass, field

from justitia_ray.serve.histories import checks
from justitia_ray.serve.histories.faults import strike
from justitia_ray.serve.histories.parts import Parts
from justitia_ray.serve.histories.plan import Fault, Plan
from justitia_ray.serve.histories.story import Story
from justitia_ray.serve.histories.virtual_loop import NothingLeftToDo, VirtualLoop, run_virtually
from justitia_ray.serve.histories.witness import Failure, Witness
from justitia_ray.serve.histories.world import World
from justitia_ray.units import Seconds

_LOOK_EVERY_S: Seconds = 1.0
_ANSWERED_WITHIN_S: Seconds = 210.0
"""After the last fault: thirty inferences of up to 5 s each, one after the other on one replica,
and three stages with a reader that takes 20 s."""
_SAVED_S: Seconds = 2.0
"""After the last fault, everything is saved again."""
_GOODBYE_S: Seconds = 3.0
"""A replica that leaves has 2 s to say so."""
_ENDS_WITHIN = 30
"""Seconds in which every task ends, once all is told to stop."""
_QUIET_WITHIN_S: Seconds = 130.0
"""After the last answer: an ingress may be silent for 30 s, an application idle for 60 s."""


@dataclass(frozen=True, slots=True)
class History:
    """What became of one plan."""

    plan: Plan
    failures: tuple[Failure, ...]
    story: str
    """Empty if it was not wanted."""
    virtual_s: Seconds
    steps: int
    """Callbacks of the event loop."""
    grants: int
    struck: Counter[str] = field(default_factory=Counter)
    """Faults by kind, as far as they found something to strike."""


def play(plan: Plan, parts: Parts | None = None, *, told: bool = False) -> History:
    """Run a plan to its end.

    Args:
        plan: What is to happen.
        parts: What it is made of; the real parts if None.
        told: Whether to keep its story.
    """
    story = Story(told=told)
    struck: Counter[str] = Counter()
    loop = VirtualLoop(random.Random(f"order {plan.seed}") if plan.shuffled else None)
    disabled, collects = logging.root.manager.disable, gc.isenabled()
    logging.disable(logging.CRITICAL)  # what goes wrong on purpose is no news
    gc.disable()  # so that nothing is finalised at an instant that depends on what ran before
    witness: Witness | None = None

    async def main() -> None:
        nonlocal witness
        witness = Witness(story)
        await _play(World(plan, parts or Parts(), witness, loop), loop, struck)

    try:
        run_virtually(main(), loop)
    except NothingLeftToDo as error:
        assert witness is not None
        witness.fail("histories_end", str(error))
    finally:
        logging.disable(disabled)
        if collects:
            gc.enable()
    assert witness is not None
    return History(
        plan,
        tuple(witness.failures),
        story.text(),
        loop.time() - VirtualLoop.STARTS_AT,
        loop.taken,
        witness.grants,
        struck,
    )


async def _play(world: World, loop: VirtualLoop, struck: Counter[str]) -> None:
    witness, plan = world.witness, world.plan
    world.begin()
    owners = [
        world.callers_process.start(world.callers.play(application))
        for application in plan.applications
    ]
    faults = asyncio.create_task(_strike_all(world, struck))
    strays = checks.StrayWatch(world)
    whole_at = max((fault.at_s + fault.for_s for fault in plan.faults), default=0.0)
    answered_by = max(whole_at, *(a.at_s for a in plan.applications)) + _ANSWERED_WITHIN_S
    quiet_by = answered_by
    left = ["not looked at"]
    asked = False
    while not witness.failed.is_set() and witness.now < quiet_by:
        await asyncio.sleep(_LOOK_EVERY_S)
        strays.look()
        if not asked and faults.done() and all(owner.done() for owner in owners):
            asked, quiet_by = True, max(witness.now, whole_at) + _QUIET_WITHIN_S
        if asked and witness.now > whole_at + _SAVED_S:
            left = checks.leftovers(world)
            if not left:
                break
    for owner in owners:
        if owner.done() and not owner.cancelled() and owner.exception() is not None:
            witness.fail("owners_are_not_refused", repr(owner.exception()))
    checks.every_call_has_its_answer(world)
    if not witness.failures:
        checks.nothing_is_left_over(world, left)
        checks.state_at_risk_is_bounded(world)
        checks.all_happens_once(world)
    tasks = await _end(world, loop, [*owners, faults])
    if not witness.failures:
        checks.tasks_end(world, tasks)
    checks.nothing_fails_unseen(world, loop.mishaps)
    struck.update({name: count for name, count in world.network.struck.items() if count})


async def _strike_all(world: World, struck: Counter[str]) -> None:
    for fault in world.plan.faults:
        await asyncio.sleep(max(0.0, fault.at_s - world.witness.now))
        struck[_kind(world, fault)] += 1


def _kind(world: World, fault: Fault) -> str:
    return fault.kind.value if strike(world, fault) else f"{fault.kind.value} (in vain)"


async def _end(
    world: World, loop: VirtualLoop, ours: "list[asyncio.Task[None]]"
) -> dict[str, list[str]]:
    """Stop all parts in order; return the tasks that are left, by process."""
    world.over = True
    for task in ours:
        task.cancel()
    for ingress in world.ingresses:
        if ingress.process.alive:
            ingress.process.start(ingress.answers.dispatcher.stop())
    for replica in world.seats:
        if replica.pulls and not replica.draining:
            replica.process.start(replica.answers.leave())
    await asyncio.sleep(_GOODBYE_S)
    for scheduler in world.schedulers:
        if scheduler.process.alive and not scheduler.process.paused:
            scheduler.process.start(scheduler.answers.stop())
    processes = [world.callers_process, *world.left]
    processes += [host.process for host in world.ingresses]
    processes += [host.process for host in world.seats]
    processes += [host.process for host in world.schedulers]
    for _ in range(_ENDS_WITHIN):
        await asyncio.sleep(1.0)
        if not any(process.tasks for process in processes):
            break
    tasks = {p.name: [str(task.get_coro()) for task in p.tasks] for p in processes}
    for process in processes:
        loop.unpark(process)
        process.die()
    await asyncio.sleep(0.1)
    await loop.close_generators()
    return tasks
