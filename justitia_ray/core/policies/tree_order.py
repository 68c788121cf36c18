"""Order of applications below a top node of the tenant tree: the smallest key at each level.

In a branch, a child has the position of its first application: V of the branch at which the
tenant's reference server finishes that application. Keys at the levels rise together
(`clock/branch`), so the first child of the first child contains the application with the smallest
key at the root. After a charge only the branches above the charged leaf, and their children, are
sorted again.

Inside a leaf, the leaf's own order selects the first application, by the tag F_x or another rule. A
leaf that allows overtaking is sorted by its smallest F_x, like a tenant at the top.
"""

import heapq
from collections.abc import Callable, Iterator
from typing import NamedTuple

from justitia_ray.core.clock.branch import Branch
from justitia_ray.core.clock.tenant import Tenant
from justitia_ray.core.clock.tenant_share import TenantShare
from justitia_ray.core.entities import Application
from justitia_ray.core.queue import Key, LazyHeap
from justitia_ray.units import ApplicationId, ClientId


class _FirstBelow(NamedTuple):
    """Application with the smallest sort key below a tenant."""

    key: Key
    name: ApplicationId
    leaf: LazyHeap
    """Order of the tenant to which the application belongs."""


class _ChildOrder:
    """Children of a tenant with waiting work, in the order in which they were last sorted."""

    __slots__ = ("branch", "first", "firsts", "heads")

    def __init__(self, branch: Branch) -> None:
        self.branch = branch
        self.firsts: dict[ClientId, _FirstBelow] = {}
        self.heads = LazyHeap()
        """Heap of the tenant's children, sorted by the key of each child's first application."""
        self.first: _FirstBelow | None = None
        """First application below this tenant; None if no application waits."""


class TreeOrder(LazyHeap):
    """Waiting applications below a topmost tenant with children. A change costs O(depth · n log n).

    n is the number of children of a branch that are active in its clock. Reading the first
    application costs O(1) if no key has changed since the last time.
    """

    __slots__ = (
        "_application",
        "_hidden",
        "_leaf_of",
        "_leaves",
        "_levels",
        "_members",
        "_nodes",
        "_top",
        "_tree_keys",
    )

    def __init__(
        self,
        share: TenantShare,
        top: ClientId,
        application: Callable[[ApplicationId], Application],
        members: Callable[[ClientId], LazyHeap],
    ) -> None:
        """Create an order without applications.

        Args:
            share: The accounts, whose branches mark from now on the children whose keys may have
                changed.
            top: The top node.
            application: Returns a live application.
            members: Returns an empty order of a tenant's applications.
        """
        super().__init__()
        self._nodes = share.nodes
        self._tree_keys = share.keys
        self._top = top
        self._application = application
        self._members = members
        self._leaves: dict[ClientId, LazyHeap] = {}
        """Order of the applications of each tenant with waiting work."""
        self._leaf_of: dict[ApplicationId, ClientId] = {}
        self._hidden: dict[ClientId, None] = {}
        self._levels: dict[ClientId, _ChildOrder] = {}

    def __len__(self) -> int:
        return len(self._leaf_of)

    def __contains__(self, name: str) -> bool:
        return name in self._leaf_of

    def __iter__(self) -> Iterator[str]:
        """Yield the application ids in order. O(N log N)."""
        return self.in_order()

    def in_order(self) -> Iterator[str]:
        """Yield the names in the order of their current keys: each O(depth · log n)."""
        for _, name in self._in_order_below(self._branch_at(self._top)):
            yield name

    def key(self, name: str) -> Key:
        """Return the key of an application inside its tenant.

        Raises:
            KeyError: If the application is not in the order.
        """
        return self._leaves[self._leaf_of[name]].key(name)

    def put(self, name: str, key: Key) -> None:
        """Insert an application into its tenant's order, or move the application there."""
        tenant = self._leaf_of.get(name)
        if tenant is None:
            tenant = self._leaf_of[name] = self._application(name).leaf
        order = self._leaves.get(tenant)
        if order is None:
            order = self._leaves[tenant] = self._members(tenant)
        order.put(name, key)
        self._mark_changed(self._nodes.leaves.get(tenant))

    def drop(self, name: str) -> None:
        """Remove an application; an unknown application is ignored."""
        tenant = self._leaf_of.pop(name, None)
        if tenant is None:
            return
        self._leaves[tenant].drop(name)
        if not len(self._leaves[tenant]):
            del self._leaves[tenant]
        self._mark_changed(self._nodes.leaves.get(tenant))

    def least(self) -> str | None:
        """Return the application with the smallest key; None if no application waits."""
        first = self._sort_changed_children(self._branch_at(self._top)).first
        return None if first is None else first.name

    def first(self) -> str | None:
        """Return the first application of the first tenant; None if no application waits."""
        order = self.first_leaf()
        return None if order is None else order.first()

    def hide(self, path: str) -> bool:
        """Exclude a tenant, and all tenants below it."""
        if path == self._top:
            return False
        self._hidden[path] = None
        self._mark_changed(self._nodes.node(path))
        return True

    def show_hidden(self) -> None:
        """Include excluded tenants again."""
        hidden, self._hidden = self._hidden, {}
        for path in hidden:
            self._mark_changed(self._nodes.node(path))

    def first_leaf(self) -> LazyHeap | None:
        """Return the order of the first tenant; None if no application waits."""
        first = self._sort_changed_children(self._branch_at(self._top)).first
        return None if first is None else first.leaf

    def _sort_changed_children(self, branch: Branch) -> _ChildOrder:
        """Sort the children marked as changed by their current keys.

        O(1) if no key below the branch changed.
        """
        level = self._levels.get(branch.path)
        if level is None or level.branch is not branch:  # added again
            level = self._levels[branch.path] = _ChildOrder(branch)
        if not branch.stale:
            return level
        stale, branch.stale = branch.stale, {}
        for name in stale:
            child = branch.children.get(name)
            first = None
            if child is not None and name not in self._hidden:
                first = self._first_below(branch, child)
            if first is None:
                level.heads.drop(name)
                level.firsts.pop(name, None)
            else:
                level.heads.put(name, first.key)
                level.firsts[name] = first
        head = level.heads.first()
        level.first = None if head is None else level.firsts[head]
        return level

    def _first_below(self, branch: Branch, child: Branch | Tenant) -> _FirstBelow | None:
        """Return the application with the smallest sort key below a child of a tenant, or None."""
        if isinstance(child, Branch):
            first = self._sort_changed_children(child).first
            if first is None:
                return None
            at = self._tree_keys.finish_above(child, first.name, first.key[0])
            return _FirstBelow((at, first.key[1]), first.name, first.leaf)
        leaf = self._leaves.get(child.path)
        name = None if leaf is None else leaf.least()
        if leaf is None or name is None:
            return None
        key = (self._tree_keys.key_in(branch, name), self._application(name).sequence)
        return _FirstBelow(key, name, leaf)

    def _mark_changed(self, node: Branch | Tenant | None) -> None:
        """Mark a tenant, and all above it, because their first applications may have changed."""
        while node is not None and node.parent is not None:
            node.parent.stale[node.name] = None
            node = node.parent

    def _branch_at(self, path: ClientId) -> Branch:
        branch = self._nodes.branches.get(path)
        assert branch is not None
        return branch

    def _in_order_below(self, branch: Branch) -> Iterator[tuple[Key, ApplicationId]]:
        """Yield the waiting applications below a tenant in order, with their sort keys."""
        heads = self._sort_changed_children(branch).heads
        begun = []
        for number, name in enumerate(list(heads)):
            child = branch.children[name]
            stream = self._in_order_below_child(branch, child)
            if (first := next(stream, None)) is not None:
                begun.append((first[0], number, first[1], stream))
        heapq.heapify(begun)
        while begun:
            key, number, name, stream = begun[0]
            yield key, name
            if (following := next(stream, None)) is None:
                heapq.heappop(begun)
            else:
                heapq.heapreplace(begun, (following[0], number, following[1], stream))

    def _in_order_below_child(
        self, branch: Branch, child: Branch | Tenant
    ) -> Iterator[tuple[Key, ApplicationId]]:
        """Yield the waiting applications below a child of a tenant, with their sort keys there."""
        if isinstance(child, Branch):
            names: Iterator[str] = (name for _, name in self._in_order_below(child))
        else:
            names = self._leaves[child.path].in_order()
        for name in names:
            yield (self._tree_keys.key_in(branch, name), self._application(name).sequence), name
