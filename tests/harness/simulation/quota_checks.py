"""Rules of quotas and usage that a simulation must keep, one function each.

They compare the service's counts with the runs that the recorders saw in schedulers and engines,
including those that died.
"""

import asyncio
import itertools
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, cast

from ray.exceptions import RayError

from justitia_ray.accounts.windows import LENGTHS
from justitia_ray.core.tenants import OnExhausted, Quota, Unit, Window, ancestors
from justitia_ray.core.usage import DAY_S
from justitia_ray.units import ClientId, Seconds
from tests.harness.simulation.accounts import WatchedBook
from tests.harness.simulation.network import current_process
from tests.harness.simulation.plan import FaultKind
from tests.harness.simulation.tenants import COUNTING
from tests.harness.simulation.use_recorder import METERED, Amount
from tests.harness.simulation.virtual_loop import VirtualLoop
from tests.harness.simulation.world import World

LOOK_EVERY_S: Seconds = 1.0
_HANDED_OVER_S: Seconds = 40.0
"""Seconds until schedulers have told a restarted quota service of the reservations that it lost."""
_REPORTED_S: Seconds = 3.0
"""Seconds until a scheduler has counted an ended inference: replicas report once a second."""
_LOSING = frozenset(FaultKind) - {
    FaultKind.SETTINGS,
    FaultKind.SCHEDULER_CRASH,
    FaultKind.STORE_AWAY,
    FaultKind.STORE_SLOW,
    FaultKind.INGRESS_CRASH,
    FaultKind.ACCOUNTS_CRASH,
    FaultKind.ACCOUNTS_STALL,
    FaultKind.TWO_ACCOUNTS,
    FaultKind.ACCOUNTS_UNREACHED,
    FaultKind.ACCOUNTS_STORE_AWAY,
    FaultKind.ACCOUNTS_STORE_EMPTIED,
    FaultKind.ACCOUNTS_STORE_SLOW,
}
"""Faults that may hide the end of an inference from all schedulers, or empty the store."""


def limits_hold(worlds: Sequence[World]) -> None:
    """Check that no window of a rejecting quota exceeds its limit, over all models.

    Metered units may exceed it by the error of one prediction, and by work without a claim: after
    the inference was cancelled, in a second run, or while the accounts had lost claims.
    """
    first = worlds[0]
    accounts = first.accounts
    if accounts is None:
        return
    forgot_at = _knowledge_lost_at(worlds)
    tree = first.scheduler.answers.term.driver.settings.tenant_tree
    for path in tree.described:
        used = [
            (one, world)
            for world in worlds
            for one in world.recorder.use.amounts
            if path in ancestors(one.tenant)
        ]
        used.sort(key=lambda pair: pair[0].at_s)
        for quota in tree.node(path).quotas:
            if quota.on_exhausted is OnExhausted.REJECT:
                of_unit = [pair for pair in used if pair[0].unit is quota.unit]
                _check_windows(worlds, path, quota, of_unit, forgot_at)


def _knowledge_lost_at(worlds: Sequence[World]) -> list[Seconds]:
    """Return when the quota service died with data that its successors cannot have.

    While their store is away, this is the data of a scheduler that died about the same time.
    """
    first, accounts = worlds[0], worlds[0].accounts
    if accounts is None:
        return []
    began_at = first.network.now - first.recorder.now
    begins = [
        begin
        for world in worlds
        for begin in sorted(term.began_at for term in world.recorder.use.terms.values())[1:]
    ]
    untold_at = [
        at - began_at
        for at in accounts.untold_at
        if any(abs(begin - at + began_at) < _HANDED_OVER_S for begin in begins)
    ]
    return [at - began_at for at in accounts.forgot_at] + untold_at


def _check_windows(
    worlds: Sequence[World],
    path: ClientId,
    quota: Quota,
    used: Sequence[tuple[Amount, World]],
    forgot_at: Sequence[Seconds],
) -> None:
    instants = [one.at_s for one, _ in used]
    total = [0.0, *itertools.accumulate(one.amount for one, _ in used)]
    for end, at_s in enumerate(instants, start=1):
        since_s = _window_begin(worlds[0], quota, at_s)
        if any(since_s - _HANDED_OVER_S < lost_s <= at_s for lost_s in forgot_at):
            continue
        start = bisect_right(instants, since_s)
        amount = total[end] - total[start]
        if amount <= quota.limit:
            continue
        mispredicted = uncovered = 0.0
        if quota.unit in METERED:
            names = {(one.claim, id(w)): (one, w) for one, w in used[start:end]}
            errors = [
                w.recorder.use.use_beyond_claim(one.claim, quota.unit, at_s)
                for one, w in names.values()
            ]
            mispredicted = max(error for error, _ in errors)
            uncovered = sum(more for _, more in errors)
        if amount > (quota.limit + mispredicted + uncovered) * (1 + 1e-9):
            worlds[0].recorder.add_failure(
                "limits_hold",
                f"{path} used {amount:g} {quota.name} up to {at_s:.3f} s: {quota.limit:g} is the"
                f" limit, {mispredicted:g} were mispredicted, {uncovered:g} no claim held",
            )
            return


def _window_begin(world: World, quota: Quota, at_s: Seconds) -> Seconds:
    if quota.window is Window.ROLLING:
        # The output of engines is sampled once a second.
        return at_s - LENGTHS[quota.per] + LOOK_EVERY_S * (quota.unit in METERED)
    midnight_s = world.plan.midnight_s
    if midnight_s is None or at_s < midnight_s:
        return -1.0
    return midnight_s + LOOK_EVERY_S * (quota.unit in METERED) - 1e-9


def use_is_counted_once(worlds: Sequence[World]) -> None:
    """Check that the quota service has counted all admitted calls, and none twice.

    A claim whose scheduler died counts as used in any case. Accounts that die while their store is
    away may lose the data of a scheduler that died as well.
    """
    first = worlds[0]
    accounts = first.accounts
    if accounts is None or _knowledge_lost_at(worlds) or not accounts.newest.in_charge:
        return
    if _fault_kinds(worlds) & {FaultKind.STORE_EMPTIED}:
        return  # A scheduler that lost its applications may count one of them again (seed 14381).
    service = accounts.newest.actor.service
    assert service is not None
    for path, standings in service.book.nodes(accounts.wall()).items():
        for standing in standings:
            if standing.limit != COUNTING:
                continue
            ran = sum(w.recorder.use.use_by_tenant(standing.unit)[path] for w in worlds)
            lost = sum(w.recorder.use.possible_overcount(path, standing.unit) for w in worlds)
            missed = sum(w.recorder.use.possible_undercount(path, standing.unit) for w in worlds)
            if standing.unit is Unit.APPLICATIONS and not _fault_kinds(worlds) <= _EXACT:
                lost += sum(w.recorder.use.reopened[path] for w in worlds)
            if not ran - missed <= standing.used <= ran + lost:
                first.recorder.add_failure(
                    "use_is_counted_once",
                    f"{path}: {standing.used:g} {standing.unit} are counted, {ran:g} were let in,"
                    f" {lost} more or {missed} fewer may be",
                )


_EXACT = frozenset(
    {
        FaultKind.SETTINGS,
        FaultKind.SCHEDULER_CRASH,
        FaultKind.STORE_AWAY,
        FaultKind.STORE_SLOW,
        FaultKind.ACCOUNTS_CRASH,
        FaultKind.ACCOUNTS_STALL,
        FaultKind.TWO_ACCOUNTS,
        FaultKind.ACCOUNTS_UNREACHED,
        FaultKind.ACCOUNTS_STORE_AWAY,
        FaultKind.ACCOUNTS_STORE_SLOW,
    }
)
"""Faults that lose no usage counts: ingresses and replicas live and are connected."""


def usage_is_what_ran(world: World) -> None:
    """Check that the usage totals contain each application and inference that ran, once.

    Some may be missing if an ingress or replica died or was cut off, or the store was emptied.
    """
    scheduler, use = world.scheduler, world.recorder.use
    if not scheduler.in_charge:
        return
    counted: dict[str, dict[ClientId, float]] = {}
    for of_day in scheduler.answers.core.state.usage.totals.values():
        for tenant, totals in of_day.items():
            for name, amount in totals.record().items():
                of_name = counted.setdefault(name, {})
                of_name[tenant] = of_name.get(tenant, 0) + amount
    opened, produced = use.use_by_tenant(Unit.APPLICATIONS), use.use_by_tenant(Unit.KV_TOKEN_TIME)
    is_exact = _fault_kinds([world]) <= _EXACT
    began = Counter({name: tenant for (name, _), tenant in use.begun.items()}.values())
    surely = [end for name, end in use.finished.items() if name not in use.aborted]
    tokens: Counter[ClientId] = Counter()
    for end in surely:
        tokens[end.tenant] += end.output_tokens
    kept = Counter(end.tenant for end in surely) if is_exact else _least_counted_inferences(world)
    for tenant in opened:
        for name, least, most in (
            (
                "applications",
                len({e.name for e in surely if e.tenant == tenant}) if is_exact else 0,
                opened[tenant] + (0 if is_exact else use.reopened[tenant]),
            ),
            ("inferences", kept.get(tenant, 0), began[tenant] + use.again[tenant]),
            ("output_tokens", tokens[tenant] if is_exact else 0, math.inf),
            ("kv_token_time", 0, produced[tenant] * (1 + 1e-6)),
        ):
            found = counted.get(name, {}).get(tenant, 0)
            if not least <= found <= most:
                world.recorder.add_failure(
                    "usage_is_what_ran",
                    f"{name} of {tenant}: {found:g} are counted, {least:g} to {most:g} ran",
                )


def _least_counted_inferences(world: World) -> dict[ClientId, int]:
    """Return the least number of ended inferences that each tenant's quota must have counted.

    Inferences that a dying scheduler may not have saved are excluded.
    """
    use, found = world.recorder.use, dict[ClientId, int]()
    if _fault_kinds([world]) & _LOSING:
        return found
    ends = sorted(use.terms.values(), key=lambda term: term.began_at)
    for at_s, tenant, _, _ in use.finished.values():
        term, following = None, None
        for one, after in itertools.zip_longest(ends, ends[1:]):
            if one.began_at <= at_s:
                term, following = one, after
        if term is None or at_s + _REPORTED_S > world.recorder.now:
            continue
        is_saved = term.saved_at is not None and at_s + _REPORTED_S < term.saved_at
        if following is None or is_saved:
            found[tenant] = found.get(tenant, 0) + 1
    return found


def _fault_kinds(worlds: Sequence[World]) -> set[FaultKind]:
    return {fault.kind for world in worlds for fault in world.plan.faults}


def remaining_claims(world: World) -> list[str]:
    """Return the quota reservations that remain after all clients are done."""
    scheduler, accounts = world.scheduler, world.accounts
    if accounts is None:
        return []
    if not accounts.newest.in_charge:
        return ["no accounts are in office"]
    service, gate = accounts.newest.actor.service, scheduler.answers.term.gate
    assert service is not None
    left = [f"the accounts hold claim {name}" for name in cast(WatchedBook, service.book).claims]
    left += [f"the gate holds claim {name}" for name in gate.book.claims]
    left += [f"the gate has to tell of claim {claim.name}" for claim, _ in gate.book.untold]
    left += [f"the gate has to tell of the end of {use.name}" for use in gate.book.unstored.uses()]
    if gate.held_back:
        left.append(f"the gate holds {gate.held_back} submissions back")
    return left


class FinalTotals:
    """Checks that a day's usage totals never change once they are declared final."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._final: dict[tuple[str, str], dict[str, Any]] = {}
        self._today = int((VirtualLoop.STARTS_AT + world.scheduler.wall_ahead_s) // DAY_S)

    async def keep_asking(self) -> None:
        """Request the usage totals of the ending day repeatedly, as a meter does."""
        while True:
            await asyncio.sleep(self._world.rng.uniform(0.1, 2.0))
            try:
                told = await self._world.scheduler_handle.usage.remote([self._today])
            except RayError:
                continue
            self._compare_totals(told)

    def _compare_totals(self, told: dict[str, Any]) -> None:
        found = dict(self._final_totals(told))
        if FaultKind.STORE_EMPTIED in _fault_kinds([self._world]):
            return  # A store that lost its data with a dying scheduler has no final totals.
        for name in found.keys() | (self._final.keys() if told["open_from"] > self._today else ()):
            before, now = self._final.get(name), found.get(name)
            if name in self._final and before != now:
                self._world.recorder.add_failure(
                    "final_totals_are_final", f"{name}: {before} became {now}"
                )
        if told["open_from"] > self._today and not self._final:
            self._world.recorder.add_event(current_process().name, f"hears final totals {found}")
        self._final |= found

    def _final_totals(
        self, told: dict[str, Any]
    ) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
        for day, of_day in told["days"].items():
            if int(day) < told["open_from"]:
                for tenant, totals in of_day.items():
                    yield (str(day), tenant), totals
