"""The structure of the tenant tree: its nodes, their parents, and the clock of each level.

This module has only the edges of the tree. Charges and services are in `tenant_share`, the keys
computed from both in `tree_keys`, the order of waiting applications in `policies/tree_order`.

A node without children is a leaf (`tenant`), one with children a branch (`branch`). A tenant that
has both applications and child tenants is a branch: its own applications are in a leaf `/.` among
its children.

Applications beyond a quota have a tree below the node `BEYOND`, with a clock of their own above it.
"""

from collections.abc import Iterator

from justitia_ray.core.clock.branch import Branch, Node
from justitia_ray.core.clock.tenant import Tenant
from justitia_ray.core.clock.virtual_clock import VirtualClock
from justitia_ray.core.tenants import BEYOND, SEPARATOR, TenantTree, settings_path
from justitia_ray.units import ApplicationId, ClientId, KvTokenTime, VirtualTime


class Hierarchy:
    """Tenant tree with the GPS clock of each tenant, and the tenant of each application."""

    def __init__(self, root: VirtualClock, weights: TenantTree) -> None:
        """Create a tenant tree without nodes.

        Args:
            root: Clock of the top nodes.
            weights: The configured weights of nodes.
        """
        self.root = root
        self.beyond = VirtualClock()
        """GPS clock of applications beyond a quota; its only session is `BEYOND`."""
        self.weights = weights
        self.leaves: dict[ClientId, Tenant] = {}
        """Tenants without children, by path, including those dropped by their parents' GPS clocks.
        """
        self.branches: dict[ClientId, Branch] = {}
        """Tenants with children, by path, including those dropped by their parents' GPS clocks."""
        self.path_of: dict[ApplicationId, ClientId] = {}
        """Path of the tenant that each application belongs to."""
        self.looked_at: dict[ClientId, Tenant] = {}
        """Tenants that were updated together with a sibling since changes were last recorded."""

    # --- edges

    def leaf_of(self, application_id: ApplicationId) -> Tenant:
        return self.leaves[self.path_of[application_id]]

    def node(self, path: ClientId) -> Node | None:
        """Return the tenant at a path; None if the path is unknown."""
        return self.branches.get(path) or self.leaves.get(path)

    def add_leaf(
        self,
        path: ClientId,
        parent: Branch | None,
        since: VirtualTime | None,
        weight: float,
        inner_time: VirtualTime = 0,
    ) -> Tenant:
        """Add a tenant without children to the tree.

        Args:
            path: Its path. If the path is that of the parent, it is the leaf of the branch's own
                applications.
            parent: The branch above it; None: the root.
            since: V of the parent at its last update; None: V now.
            weight: Weight among the children of the parent.
            inner_time: V of GPS inside.
        """
        now = self.clock_of_children(parent, path).virtual_time if since is None else since
        leaf = self.leaves[path] = Tenant(path, parent, now, weight, inner_time)
        if parent is not None:
            if parent.path == path:
                leaf.name = own_leaf_name(path)
            parent.children[leaf.name] = leaf
        return leaf

    def add_branch(
        self,
        path: ClientId,
        parent: Branch | None,
        since: VirtualTime,
        weight: float,
        inner_time: VirtualTime | None = None,
    ) -> Branch:
        """Add a tenant with children to the tree."""
        branch = Branch(path, parent, since, weight, self.looked_at, inner_time)
        self.branches[path] = branch
        if parent is not None:
            parent.children[path] = branch
        return branch

    def drop(self, node: Node) -> list[ApplicationId]:
        """Remove a tenant and all tenants below it; return their applications."""
        if node.parent is not None:
            node.parent.remove(node.name)
        if isinstance(node, Branch):
            del self.branches[node.path]
            return [name for child in list(node.children.values()) for name in self.drop(child)]
        del self.leaves[node.path]
        self.looked_at.pop(node.path, None)
        for application_id in node.members:
            del self.path_of[application_id]
        return node.members

    # --- clocks

    def clock_of(self, node: Node) -> VirtualClock:
        """Return the GPS clock in which a tenant has its session."""
        return self.clock_of_children(node.parent, node.path)

    def clock_of_children(self, parent: Branch | None, path: ClientId) -> VirtualClock:
        """Return the GPS clock in which the children of a tenant have their sessions.

        Args:
            parent: The parent; None: the root.
            path: Path of the child; `BEYOND` has a clock of its own.
        """
        if parent is not None:
            return parent.clock
        return self.beyond if path == BEYOND else self.root

    def forgotten(self) -> Iterator[Node]:
        """Yield the tenants that their parents' GPS clocks have dropped since the last call."""
        for clock in (self.root, self.beyond):
            for name in clock.take_forgotten():
                if name not in clock and (node := self.node(name)) is not None:
                    yield node
        for branch in list(self.branches.values()):
            for name in branch.clock.take_forgotten():
                if name not in branch.clock and (child := branch.children.get(name)) is not None:
                    yield child

    def is_idle(self, node: Node) -> bool:
        """Return whether the parent's GPS clock owes a tenant nothing."""
        return not self.clock_of(node).is_active(node.name)

    def has_gps_session(self, node: Node) -> bool:
        """Return whether a tenant, and all tenants above it, have GPS sessions."""
        return all(one.name in self.clock_of(one) for one in (node, *node.up))

    def kept_leaves(self) -> dict[ClientId, Tenant]:
        """Return the tenants without children, by path, that have GPS sessions."""
        return {path: leaf for path, leaf in self.leaves.items() if self.has_gps_session(leaf)}

    def kept_branches(self) -> dict[ClientId, Branch]:
        """Return the tenants with children, by path, that have GPS sessions."""
        return {path: one for path, one in self.branches.items() if self.has_gps_session(one)}

    # --- weights

    def leaf_weight(self, leaf: Tenant, requested: float) -> float:
        """Return the configured weight of a tenant without children, or `requested`."""
        if leaf.name != leaf.path:  # a parent tenant's own applications
            return requested
        weight = self.weights.node(settings_path(leaf.path)).weight
        return requested if weight is None else weight

    def branch_weight(self, path: ClientId) -> float:
        """Return the configured weight of a tenant with children, or 1."""
        return 1 if path == BEYOND else self.weights.branch_weight(settings_path(path))

    def part_of(self, path: ClientId, amount: KvTokenTime) -> KvTokenTime:
        """Return the part of an amount of service that a tenant receives now.

        The part is the weight φ over the active weight Φ, multiplied over all levels.
        """
        leaf: Node = self.leaves[path]
        for one in (leaf, *leaf.up):
            clock = self.clock_of(one)
            if clock.active_weight:
                amount = amount * clock.session(one.name).weight / clock.active_weight
        return amount

    def fair_fraction(self, node: Node) -> float | None:
        """Return a tenant's fraction of all service now; None if the tenant is owed nothing."""
        part = 1.0
        for one in (node, *node.up):
            if self.is_idle(one):
                return None
            part *= one.weight / self.clock_of(one).active_weight
        return part


def own_leaf_name(path: ClientId) -> ClientId:
    """Return a name, used by no tenant, for the own applications of a tenant with children."""
    return f"{path}{SEPARATOR}."


def top(node: Node) -> Node:
    """Return the topmost node on the path of a tenant."""
    return node.up[-1] if node.up else node
