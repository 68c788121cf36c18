"""Keys in the tree of tenants: V of a node at which a reference server finishes an application.

A query of a key updates no state, because a query must not change how later sums round. While
service flows, V of a parent is a fixed function of V of a branch (`branch`), so that a key rises
level by level from the leaf to the root. The keys of a finished application were stored when it was
finished (`Tenant.above`).
"""

from collections.abc import Mapping

from justitia_ray.core.clock.branch import Branch, Node
from justitia_ray.core.clock.fair_share import Account
from justitia_ray.core.clock.hierarchy import Hierarchy, top
from justitia_ray.core.clock.tenant import Tenant
from justitia_ray.core.clock.virtual_clock import VirtualClock
from justitia_ray.units import ApplicationId, ClientId, KvTokenTime, VirtualTime


class TreeKeys:
    """Sort keys of the applications in a tenant tree, at each level of the tree."""

    def __init__(self, nodes: Hierarchy, accounts: Mapping[ApplicationId, Account]) -> None:
        self._nodes = nodes
        self._accounts = accounts

    def key(
        self, leaf: Tenant, application_id: ApplicationId, branch: Branch | None = None
    ) -> VirtualTime:
        """Return the virtual time of a tenant, or of the root, when an application is finished."""
        finished = leaf.server.finished(application_id)
        if finished is not None:
            level = len(leaf.up) if branch is None else leaf.up.index(branch)
            return leaf.above[application_id][level - 1] if level else finished
        at = leaf.server.finish_time(application_id)
        for above in leaf.up:
            if above is branch:
                break
            at = above.to_parent_time(at)
        return at

    def key_in(self, branch: Branch | None, application_id: ApplicationId) -> VirtualTime:
        """Return the virtual time of a tenant at which an application below it is finished."""
        return self.key(self._nodes.leaf_of(application_id), application_id, branch)

    def finish_above(
        self, branch: Branch, application_id: ApplicationId, at: VirtualTime
    ) -> VirtualTime:
        """Return the virtual time of a tenant's parent at which an application is finished.

        Args:
            branch: A branch above the application.
            application_id: The application.
            at: V of the branch at which it is finished, as from `key_in`.
        """
        leaf = self._nodes.leaf_of(application_id)
        if leaf.server.finished(application_id) is None:
            return branch.to_parent_time(at)
        return leaf.above[application_id][leaf.up.index(branch)]

    def top_time(self, path: ClientId) -> VirtualTime:
        """Return the virtual time of the clock at the top of a tenant's tree."""
        return self._nodes.clock_of(top(self._nodes.leaves[path])).virtual_time

    def tag_after_resuming(self, application_id: ApplicationId) -> tuple[VirtualTime, VirtualTime]:
        """Return the tag and key that rule 5 would give an idle application. Changes no state."""
        account = self._accounts[application_id]
        amount = account.charged - account.attained
        leaf = self._nodes.leaf_of(application_id)
        clock = self._nodes.clock_of(top(leaf))
        now = clock.virtual_time
        levels: list[VirtualTime] = []
        for branch in reversed(leaf.up):
            share = _share_received(clock, branch, now)
            levels.append(now)
            clock, now = branch.clock, branch.clock.after(share)
        idle = not _is_still_owed(clock, leaf, now)
        tag, finish = leaf.after_charge(application_id, amount, now, idle=idle)
        child: Node = leaf
        for branch in leaf.up:
            served = _service_to_level(branch.clock, now, finish, child, amount)
            now = levels.pop()
            finish, child = now + served / branch.weight, branch
        return tag, finish


def _is_still_owed(clock: VirtualClock, node: Node, now: VirtualTime) -> bool:
    """Return whether GPS still owes a tenant service at a virtual time."""
    return node.name in clock and clock.session(node.name).finish > now


def _share_received(clock: VirtualClock, branch: Branch, now: VirtualTime) -> KvTokenTime:
    """Return the service that a tenant has received since its last update."""
    if not _is_still_owed(clock, branch, now):
        return float("inf")
    return branch.weight * (now - branch.since)


def _service_to_level(
    clock: VirtualClock,
    now: VirtualTime,
    level: VirtualTime,
    child: Node,
    amount: KvTokenTime,
) -> KvTokenTime:
    """Return the service that moves virtual time to a level after one more charge."""
    tags = {name: (s.finish, s.weight) for name, s in clock.sessions().items() if s.active}
    owed: KvTokenTime = 0
    if child.name in clock:
        session = clock.session(child.name)
        owed = session.weight * max(0, session.finish - now)
    tags[child.name] = (now + (owed + amount) / child.weight, child.weight)
    return sum(
        weight * (min(finish, level) - now)
        for finish, weight in sorted(tags.values())
        if finish > now
    )
