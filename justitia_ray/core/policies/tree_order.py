"""The order below a node at the top of the tree of tenants: the least key, level by level.

At a branch, a child stands where its first application does, by V of the branch at which that one
is finished by its tenant's reference server. Keys at the levels rise together (`clock/branch`), so
the least child of the least child is the application of the least key at the root, though only what
was charged has to be looked at again: the branches above it, and the children of each.

Inside a leaf its own order says which is first, by F_x or otherwise. Where a leaf lets one pass,
it stands where that of the least F_x does, as a tenant at the top.
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


class _First(NamedTuple):
    """The application of the least key below a node, and its place in the branch above that."""

    key: Key
    name: ApplicationId
    leaf: LazyHeap
    """The order of its tenant."""


class _Level:
    """The children of a branch of which something waits, as of when none of them was stale."""

    __slots__ = ("branch", "first", "firsts", "heads")

    def __init__(self, branch: Branch) -> None:
        self.branch = branch
        self.firsts: dict[ClientId, _First] = {}
        self.heads = LazyHeap()
        """The children by the keys of their first."""
        self.first: _First | None = None
        """The least of `firsts`; None if nothing waits."""


class TreeOrder(LazyHeap):
    """Applications below one branch at the top. A change costs O(depth · n log n).

    n are the children of a branch that are active in its clock. Who is first costs O(1) if nothing
    has changed since somebody asked.
    """

    __slots__ = (
        "_application",
        "_hidden",
        "_leaf_of",
        "_leaves",
        "_levels",
        "_members",
        "_share",
        "_top",
    )

    def __init__(
        self,
        share: TenantShare,
        top: ClientId,
        application: Callable[[ApplicationId], Application],
        members: Callable[[ClientId], LazyHeap],
    ) -> None:
        """Begin empty.

        Args:
            share: The accounts, whose branches tell from now on whose keys may have changed.
            top: The node at the top.
            application: Returns a live application.
            members: Returns an empty order of a tenant's applications.
        """
        super().__init__()
        self._share = share
        self._top = top
        self._application = application
        self._members = members
        self._leaves: dict[ClientId, LazyHeap] = {}
        """Orders of the tenants of which something waits."""
        self._leaf_of: dict[ApplicationId, ClientId] = {}
        self._hidden: dict[ClientId, None] = {}
        self._levels: dict[ClientId, _Level] = {}

    def __len__(self) -> int:
        return len(self._leaf_of)

    def __contains__(self, name: str) -> bool:
        return name in self._leaf_of

    def __iter__(self) -> Iterator[str]:
        """Yield the names in order. O(N log N)."""
        return self.in_order()

    def in_order(self) -> Iterator[str]:
        """Yield the names in order, by their keys as they are now: each O(depth · log n)."""
        for _, name in self._walk(self._branch(self._top)):
            yield name

    def key(self, name: str) -> Key:
        """Return the place of an application inside its tenant.

        Raises:
            KeyError: If it is not there.
        """
        return self._leaves[self._leaf_of[name]].key(name)

    def put(self, name: str, key: Key) -> None:
        """Put an application at its place inside its tenant, or move it there."""
        tenant = self._leaf_of.get(name)
        if tenant is None:
            tenant = self._leaf_of[name] = self._application(name).leaf
        order = self._leaves.get(tenant)
        if order is None:
            order = self._leaves[tenant] = self._members(tenant)
        order.put(name, key)
        self._mark(self._share.tenant(tenant))

    def drop(self, name: str) -> None:
        """Remove an application; an unknown one changes nothing."""
        tenant = self._leaf_of.pop(name, None)
        if tenant is None:
            return
        self._leaves[tenant].drop(name)
        if not len(self._leaves[tenant]):
            del self._leaves[tenant]
        self._mark(self._share.tenant(tenant))

    def least(self) -> str | None:
        """Return the application of the least key, whoever is first; None if there is none."""
        first = self._catch_up(self._branch(self._top)).first
        return None if first is None else first.name

    def first(self) -> str | None:
        """Return who is first in the tenant that is first; None if nothing waits."""
        order = self.first_leaf()
        return None if order is None else order.first()

    def hide(self, path: str) -> bool:
        """Leave out a node, and all below it."""
        if path == self._top:
            return False
        self._hidden[path] = None
        self._mark(self._share.branch(path) or self._share.tenant(path))
        return True

    def show_hidden(self) -> None:
        """Put back the nodes that are hidden."""
        hidden, self._hidden = self._hidden, {}
        for path in hidden:
            self._mark(self._share.branch(path) or self._share.tenant(path))

    def first_leaf(self) -> LazyHeap | None:
        """Return the order of the tenant that is first; None if nothing waits."""
        first = self._catch_up(self._branch(self._top)).first
        return None if first is None else first.leaf

    def _catch_up(self, branch: Branch) -> _Level:
        """Put the children where their keys say now. O(1) if nothing below the branch changed."""
        level = self._levels.get(branch.path)
        if level is None or level.branch is not branch:  # one that was forgotten may come again
            level = self._levels[branch.path] = _Level(branch)
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

    def _first_below(self, branch: Branch, child: Branch | Tenant) -> _First | None:
        """Return the application of the least key below a child of a branch; None: none waits."""
        if isinstance(child, Branch):
            first = self._catch_up(child).first
            if first is None:
                return None
            at = self._share.key_above(child, first.name, first.key[0])
            return _First((at, first.key[1]), first.name, first.leaf)
        leaf = self._leaves.get(child.path)
        name = None if leaf is None else leaf.least()
        if leaf is None or name is None:
            return None
        key = (self._share.key_in(branch, name), self._application(name).sequence)
        return _First(key, name, leaf)

    def _mark(self, node: Branch | Tenant | None) -> None:
        """Note that another application below a node may be first, and so of all above it."""
        while node is not None and node.parent is not None:
            node.parent.stale[node.name] = None
            node = node.parent

    def _branch(self, path: ClientId) -> Branch:
        branch = self._share.branch(path)
        assert branch is not None
        return branch

    def _walk(self, branch: Branch) -> Iterator[tuple[Key, ApplicationId]]:
        """Yield the applications below a branch in order, with their keys there."""
        heads = self._catch_up(branch).heads
        begun = []
        for number, name in enumerate(list(heads)):
            child = branch.children[name]
            stream = self._below_child(branch, child)
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

    def _below_child(
        self, branch: Branch, child: Branch | Tenant
    ) -> Iterator[tuple[Key, ApplicationId]]:
        """Yield the applications below a child in order, with their keys in the branch above."""
        if isinstance(child, Branch):
            names: Iterator[str] = (name for _, name in self._walk(child))
        else:
            names = self._leaves[child.path].in_order()
        for name in names:
            yield (self._share.key_in(branch, name), self._application(name).sequence), name
