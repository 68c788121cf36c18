"""Injection of each kind of fault into a simulation, and the end of the fault."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.harness.simulation.accounts import NAME, SimulatedAccounts
from tests.harness.simulation.connections import Block
from tests.harness.simulation.network import Cut, NetworkConditions
from tests.harness.simulation.plan import OF_ACCOUNTS, Fault, FaultKind
from tests.harness.simulation.store import RedisMemory
from tests.harness.simulation.world import World

_FAIR = NetworkConditions()
_STORM = NetworkConditions(
    slow=0.3, slow_s=1.0, lost=0.08, unanswered=0.08, repeated=0.1, broken=0.03
)
_OTHER_SETTINGS: tuple[dict[str, Any], ...] = (
    {"policy": "justitia", "policy_options": {"fairness": "tenant"}},
    {"policy": "fcfs"},
    {"policy": "justitia", "admission": "prompt"},
)


def inject(world: World, fault: Fault) -> bool:
    world.recorder.add_event("fault", f"{fault.kind} for {fault.for_s} s, party {fault.party}")
    if fault.kind in OF_ACCOUNTS:
        _simulated_accounts(world).are_struck = True
    return _FAULTS[fault.kind](world, fault)


def _crash_scheduler(world: World, fault: Fault) -> bool:
    host = world.scheduler
    world.crash_scheduler(host, fault.for_s, fault.jump_s)
    return True


def _pause_scheduler(world: World, fault: Fault) -> bool:
    world.pause(world.scheduler.process, fault.for_s)
    return True


def _replace_paused_scheduler(world: World, fault: Fault) -> bool:
    """Pause the scheduler, start another, and resume the old one, which some calls still reach."""
    old = world.scheduler
    if not old.in_charge:
        return False
    world.pause(old.process, fault.for_s)
    names = [host.process.name for host in world.seats]
    names += [host.process.name for host in world.ingresses]
    whole_s = fault.for_s + world.rng.uniform(0.5, 4.0)
    for name in names:
        if world.rng.random() < 0.5:
            world.pin_scheduler_of(name, old)
        elif world.rng.random() < 0.5:
            back_s = world.rng.uniform(0.0, whole_s)
            world.network.later(back_s, partial(world.pin_scheduler_of, name, old))

    def replace_scheduler() -> None:
        if world.scheduler is old and not world.over:
            world.start_scheduler(old.wall_ahead_s + fault.jump_s)

    def find_new_scheduler() -> None:
        for name in names:
            world.pin_scheduler_of(name, None)
        if world.scheduler is not old:
            world.crash_scheduler(old, 0.0, 0.0)  # Ray ends the old scheduler

    world.network.later(world.rng.uniform(0.0, fault.for_s), replace_scheduler)
    world.network.later(whole_s, find_new_scheduler)
    return True


def _crash_replica(world: World, fault: Fault) -> bool:
    host = world.seats[fault.party]
    alive = host.process.alive
    world.crash_replica(host)
    return alive


def _pause_replica(world: World, fault: Fault) -> bool:
    world.pause(world.seats[fault.party].process, fault.for_s)
    return True


def _drain_replica(world: World, fault: Fault) -> bool:
    world.drain_replica(world.seats[fault.party])
    return True


def _kill_engine(world: World, fault: Fault) -> bool:
    host = world.seats[fault.party]
    if host.process.alive:
        host.process.run(lambda: host.engine.die(by_itself=False))
    return host.process.alive


def _pause_engine(world: World, fault: Fault) -> bool:
    host = world.seats[fault.party]
    if not (host.process.alive and host.answers.has_begun):
        return False
    host.process.run(lambda: host.engine.stall("the engine" if fault.both else ""))

    def resume_engine() -> None:
        if host.process.alive:
            host.process.run(host.engine.go_on)

    world.network.later(fault.for_s, resume_engine)
    return True


def _crash_ingress(world: World, fault: Fault) -> bool:
    world.crash_ingress(world.ingresses[fault.party], fault.for_s)
    return True


def _pause_ingress(world: World, fault: Fault) -> bool:
    world.pause(world.ingresses[fault.party].process, fault.for_s)
    return True


def _cut_faulted_link(world: World, fault: Fault) -> bool:
    world.cut(*_faulted_link(world, fault), Cut(world.network.now + fault.for_s, fault.cut))
    return True


def _mute_connections(world: World, fault: Fault) -> bool:
    return world.connections.silence_connections(*_faulted_link(world, fault), both=fault.both)


def _block_port(world: World, fault: Fault) -> bool:
    block = Block(world.network.now + fault.for_s, answers=fault.both)
    world.connections.block(*_faulted_link(world, fault), block)
    return True


def _faulted_link(world: World, fault: Fault) -> tuple[str, str]:
    """Return the calling and the called process of the link that a fault hits."""
    replica = f"replica-{fault.party}"
    ingress = f"ingress-{fault.party % world.plan.ingresses}"
    if fault.other == 0:
        return replica, "scheduler"
    return (ingress, "scheduler") if fault.other == 1 else (ingress, replica)


def _disturb_all_messages(world: World, fault: Fault) -> bool:
    world.network.conditions = _STORM
    world.storms += 1

    def end_storm() -> None:
        world.storms -= 1
        if not world.storms:
            world.network.conditions = _FAIR

    world.network.later(fault.for_s, end_storm)
    return True


def _disconnect_store(world: World, fault: Fault) -> bool:
    return _make_store_unreachable(world, fault, world.redis)


def _make_store_unreachable(world: World, fault: Fault, redis: RedisMemory) -> bool:
    redis.away = True

    def make_reachable() -> None:
        redis.away = False

    world.network.later(fault.for_s, make_reachable)
    return True


def _empty_store(world: World, fault: Fault) -> bool:
    world.redis.empty()
    return True


def _slow_redis_down(world: World, fault: Fault) -> bool:
    return _slow_store_down(world, fault, world.redis)


def _slow_store_down(world: World, fault: Fault, redis: RedisMemory) -> bool:
    redis.slow_s = 0.8

    def restore_speed() -> None:
        redis.slow_s = 0.0

    world.network.later(fault.for_s, restore_speed)
    return True


def _crash_accounts(world: World, fault: Fault) -> bool:
    accounts = _simulated_accounts(world)
    return accounts.crash(accounts.newest, fault.for_s)


def _pause_accounts(world: World, fault: Fault) -> bool:
    world.pause(_simulated_accounts(world).newest.process, fault.for_s)
    return True


def _replace_paused_accounts(world: World, fault: Fault) -> bool:
    """Pause the quota service, start another, and resume the old one with its late calls."""
    accounts = _simulated_accounts(world)
    old = accounts.newest
    if not old.in_charge:
        return False
    world.pause(old.process, fault.for_s)

    def replace_accounts() -> None:
        if accounts.newest is old and old.process.alive and not accounts.over:
            accounts.replace_newest()

    world.network.later(world.rng.uniform(0.0, fault.for_s), replace_accounts)
    return True


def _cut_scheduler_from_accounts(world: World, fault: Fault) -> bool:
    world.cut("scheduler", NAME, Cut(world.network.now + fault.for_s, fault.cut))
    return True


def _accounts_store_away(world: World, fault: Fault) -> bool:
    return _make_store_unreachable(world, fault, _simulated_accounts(world).redis)


def _accounts_store_emptied(world: World, fault: Fault) -> bool:
    _simulated_accounts(world).lose_store()
    return True


def _accounts_store_slow(world: World, fault: Fault) -> bool:
    return _slow_store_down(world, fault, _simulated_accounts(world).redis)


def _simulated_accounts(world: World) -> SimulatedAccounts:
    assert world.accounts is not None, "only a plan with quotas has faults of accounts"
    return world.accounts


def _change_settings(world: World, fault: Fault) -> bool:
    world.configure(_OTHER_SETTINGS[fault.party % len(_OTHER_SETTINGS)])
    return True


_FAULTS: dict[FaultKind, Callable[[World, Fault], bool]] = {
    FaultKind.SCHEDULER_CRASH: _crash_scheduler,
    FaultKind.SCHEDULER_STALL: _pause_scheduler,
    FaultKind.TWO_SCHEDULERS: _replace_paused_scheduler,
    FaultKind.REPLICA_CRASH: _crash_replica,
    FaultKind.REPLICA_STALL: _pause_replica,
    FaultKind.REPLICA_DRAIN: _drain_replica,
    FaultKind.ENGINE_DEATH: _kill_engine,
    FaultKind.ENGINE_STALL: _pause_engine,
    FaultKind.INGRESS_CRASH: _crash_ingress,
    FaultKind.INGRESS_STALL: _pause_ingress,
    FaultKind.PARTITION: _cut_faulted_link,
    FaultKind.HALF_OPEN: _mute_connections,
    FaultKind.PORT_BLOCKED: _block_port,
    FaultKind.STORM: _disturb_all_messages,
    FaultKind.STORE_AWAY: _disconnect_store,
    FaultKind.STORE_EMPTIED: _empty_store,
    FaultKind.STORE_SLOW: _slow_redis_down,
    FaultKind.SETTINGS: _change_settings,
    FaultKind.ACCOUNTS_CRASH: _crash_accounts,
    FaultKind.ACCOUNTS_STALL: _pause_accounts,
    FaultKind.TWO_ACCOUNTS: _replace_paused_accounts,
    FaultKind.ACCOUNTS_UNREACHED: _cut_scheduler_from_accounts,
    FaultKind.ACCOUNTS_STORE_AWAY: _accounts_store_away,
    FaultKind.ACCOUNTS_STORE_EMPTIED: _accounts_store_emptied,
    FaultKind.ACCOUNTS_STORE_SLOW: _accounts_store_slow,
}
