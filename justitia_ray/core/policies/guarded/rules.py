"""Invariants of an order with overtaking, by the definition of slack; see `core.invariants`."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, cast

from justitia_ray.core.clock.tenant_share import TenantShare
from justitia_ray.core.invariants import (
    RELATIVE_TOLERANCE,
    least_of_clients,
    least_of_tenants,
    same_key,
)
from justitia_ray.units import KvTokenTime

if TYPE_CHECKING:
    from justitia_ray.core.entities import Application
    from justitia_ray.core.invariants import Findings
    from justitia_ray.core.policies.guarded.policy import GuardedPolicy
    from justitia_ray.core.scheduler import SchedulerCore


def first_may_overtake(core: SchedulerCore) -> Findings:
    """The first application may overtake all before it; with `sgps` no shorter one may."""
    policy = cast("GuardedPolicy", core.ledger.policy)
    if policy.lets_pass and (first := core.ledger.queue.first()) is not None:
        yield from comes_first(core, policy, first)


def comes_first(core: SchedulerCore, policy: GuardedPolicy, first: Application) -> Findings:
    """Compare the first application of an order with the definition of slack. O(N²).

    Whether another application is urgent is not checked: only the guard's shadow determines that.
    """
    if isinstance(core.ledger.fair_share, TenantShare):
        return _first_in_tenant(core, core.ledger.fair_share, policy, first)
    return _first_of_all(core, policy, first)


def _first_of_all(core: SchedulerCore, policy: GuardedPolicy, first: Application) -> Findings:
    share, virtual_time = core.ledger.fair_share, core.ledger.fair_share.clock.virtual_time
    live = {
        name: max(0, account.charged - account.attained)
        for name, account in share.accounts.items()
        if not account.withdrawn
    }
    active = [session for session in share.sessions().values() if session.active]
    owed: KvTokenTime = 0
    least = least_overdue = inf
    limits: dict[str, tuple[KvTokenTime, KvTokenTime]] = {}
    for name in sorted(live, key=lambda name: (share.tag(name), share.accounts[name].sequence)):
        application, finish = core.state.applications[name], share.tag(name)
        if name in core.ledger.queue:
            limits[name] = (least, least_overdue)
        owed += live[name]
        if live[name] > 0 or application.waiting:
            given = sum(s.weight * max(0, min(s.finish, finish) - virtual_time) for s in active)
            least_overdue = min(least_overdue, given - owed)  # an upper limit if overdue
            least = least_overdue if finish > virtual_time else -inf
    tolerance = RELATIVE_TOLERANCE * (owed + 1)
    chosen = first.application_id
    if (wanted := policy.overtaking_slack(first)) is not None:
        detail = f"is urgent, and passes where no slack of {wanted} is"
        yield wanted <= limits[chosen][1] + tolerance, (chosen,), detail
        return
    of_least_tag = next(iter(limits))
    if policy.options.own["order"] == "finish":
        yield chosen == of_least_tag, (chosen, of_least_tag), "is first, not of the least tag"
        return
    rank = live[chosen] / first.weight
    may_pass = [name for name, (limit, _) in limits.items() if live[name] <= limit - tolerance]
    shorter = [
        name for name in may_pass if live[name] / share.accounts[name].weight < rank - tolerance
    ]
    if live[chosen] <= limits[chosen][0] + tolerance:
        yield not shorter, (chosen, *shorter), "is first; the others are shorter and may pass"
    else:
        yield chosen == of_least_tag, (chosen,), "passes somebody who has no slack"
        yield not may_pass, (chosen, *may_pass), "is first; the others may pass"


def _first_in_tenant(
    core: SchedulerCore, share: TenantShare, policy: GuardedPolicy, first: Application
) -> Findings:
    """Compare the first tenant, and its first application, with their definitions."""
    heads = least_of_clients(core)
    keys = {client: policy.key(client, head) for client, head in heads.items()}
    client, of_least_key = policy.client(first), min(keys, key=keys.__getitem__)
    yield client == of_least_key, (client, of_least_key), "is first, not of the least key"
    of_tenants = least_of_tenants(core)
    name, chosen, head = first.leaf, first.application_id, of_tenants[first.leaf]
    same = head is heads[client] or same_key(core, head, heads[client])
    yield same, (name, heads[client].leaf), "is first, not the tenant of the least key"
    least = head.application_id
    tenant, limits = share.nodes.kept_leaves()[name], _limits_in_tenant(core, share, name)
    work = tenant.server.remaining
    if share.tag(least) <= share.keys.top_time(name):
        yield chosen == least, (chosen, least), "passes in a tenant that is late"
        return
    tolerance = RELATIVE_TOLERANCE * (tenant.server.total + 1)
    if (wanted := policy.overtaking_slack(first)) is not None:
        detail = f"is urgent, and passes where no slack of {wanted} is"
        yield wanted <= limits[chosen] + tolerance, (chosen,), detail
        return
    if policy.options.own["order"] == "finish":
        yield chosen == least, (chosen, least), "is first, not of the least tag"
        return
    if any(0 < abs(work(other) - limit) <= tolerance for other, limit in limits.items()):
        return  # rounding decides the order
    rank = {
        other: (work(other) / share.accounts[other].weight, share.accounts[other].sequence)
        for other, limit in limits.items()
        if work(other) <= limit
    }
    shortest = min(rank, key=rank.__getitem__, default=least)
    same = chosen == shortest or (
        chosen in rank and shortest in rank and rank[chosen][0] - rank[shortest][0] <= tolerance
    )
    yield same, (chosen, shortest), "is first; the other is the shortest that may pass"


def _limits_in_tenant(core: SchedulerCore, share: TenantShare, name: str) -> dict[str, KvTokenTime]:
    """Return the least slack before each waiting application of a tenant, by its definition.

    For overdue applications this is an upper limit, because the time since which they are overdue
    is unknown here.
    """
    tenant = share.nodes.kept_leaves()[name]
    sessions = {member: tenant.gps.session(member) for member in tenant.members}
    virtual_time, limits = tenant.gps.virtual_time, {}
    owed: KvTokenTime = 0
    least = inf
    for member in sorted(sessions, key=lambda n: (sessions[n].finish, sessions[n].sequence)):
        if member in core.ledger.queue:
            limits[member] = least
        remaining, finish = tenant.server.remaining(member), sessions[member].finish
        owed += remaining
        account = share.accounts.get(member)
        waits = member in core.state.applications and core.state.applications[member].waiting
        if account is not None and not account.withdrawn and (remaining > 0 or waits):
            given = sum(
                s.weight * max(0, min(s.finish, finish) - virtual_time) for s in sessions.values()
            )
            least = min(least, given - owed)
    return limits
