"""Fair sharing between tenants at every level of their tree, and between their applications.

A tenant is a path, `acme/search/alice`. At the root the served clock shares service between the top
nodes by weight φ: F_T = max(F_T, V) + C/φ_T. A node with children shares its service in the same
way among them (`branch`), and a leaf among its applications (`tenant`): GPS driven by its share
φ_T·dV gives each application its tag F_x, and a reference server spends that share on one
application at a time, in order of F_x. An application's key is the root's V at which the reference
server finishes it. If a tenant splits its work into many applications, all but the last finish
earlier, at the cost of the same tenant: the last is finished when the root has served all. The same
holds for a tenant that splits itself into child nodes: keys outside its subtree do not change.

The rules are those of `fair_share`, applied at all levels: service that a node has given to one
child in excess goes to the other children of that node first, and beyond the node only if all of
them are served.

The weight of a leaf is the one that the tree gives it. If the tree gives none, the leaf has the
weight of its applications, which should agree; if they do not, the last one set counts, by an
arrival or by a change of weight. A node with children has the weight in `TenantTree.weights`, or 1,
and never more than its applications may request. Inside a leaf each application has its own weight.

Applications beyond a quota have a tree of their own, below the node `BEYOND`, and a clock of their
own above that node: V there moves by the service of that tree, and V of the root by all other
service. So nothing in one tree changes a key in the other, and the policy orders the second tree
behind the first. `move` moves an application from one tree to the other.

The nodes and the clock of each level are in `hierarchy`, the keys in `tree_keys`; here are the
amounts: charges, service, refunds, and the changes of the tree that move a debt. A leaf becomes a
branch when the first application arrives below it; its debt is kept.

Invariant, for every leaf T, at its last update (with V of its parent at that time): φ·(F_T − V) = Σ
w_x·(F_x − V_T) over the active applications inside = Σ remaining reference work. For every branch
N, at its last update: φ·(F_N − V) = Σ φ_c·(F_c − V_N) over its active children. At the root Σ
φ·(F_T − V) = Σ (chg − att).

The form of the durable records is in `tree_records`.
"""

from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

from justitia_ray.core.clock.branch import Branch, Node
from justitia_ray.core.clock.fair_share import MINIMUM_CHARGE, Account, ServedShare
from justitia_ray.core.clock.hierarchy import Hierarchy, own_leaf_name, top
from justitia_ray.core.clock.tenant import Finished, Tenant
from justitia_ray.core.clock.tree_keys import TreeKeys
from justitia_ray.core.clock.tree_records import (
    MEMBER_FIELDS,
    NODE_FIELDS,
    application_record,
    branch_records,
    leaf_path,
)
from justitia_ray.core.clock.virtual_clock import GpsSession, VirtualClock
from justitia_ray.core.records import Record, RecordReader, read_fields
from justitia_ray.core.tenants import BEYOND, SEPARATOR, TenantTree, ancestors, settings_path
from justitia_ray.units import ApplicationId, ClientId, KvTokenTime, VirtualTime

_REPAIRED_ABOVE = 1e-6
"""Relative error of the service owed to a tenant against the sum owed to its children, above which
a restore corrects it.
"""


class TenantShare(ServedShare):
    """GPS accounts with fairness between tenants; delivered service moves virtual time.

    `clock` is the root's clock.

    A method costs O(log N), where N is the number of applications of one tenant, plus O(log N) for
    each application that a reference server has finished since the last call for its sibling
    tenants, and O(n log n) for each branch above it with n active children.
    """

    sets_apart = True

    def __init__(self, clock: VirtualClock | None = None, tree: TenantTree | None = None) -> None:
        super().__init__(clock)
        self.nodes = Hierarchy(self.clock, TenantTree() if tree is None else tree)
        self.keys = TreeKeys(self.nodes, self.accounts)
        self._rekeyed: dict[ClientId, None] = {}
        self._branched: dict[ClientId, None] = {}
        self._changed: dict[ApplicationId, None] = {}
        self._tags: dict[ApplicationId, VirtualTime] = {}
        """Cached sort keys of applications; each change of the tree clears the cache."""
        self._restored: dict[ClientId, tuple[VirtualTime, int]] = {}
        """Tag and sequence number of each tenant with children during a restore, by path."""
        self._watched: dict[ClientId, dict[ApplicationId, None]] = {}
        """Sets to which applications are added when their sort keys change, by tenant."""

    # --- recorded changes

    def watch_tenant(self, name: ClientId) -> dict[ApplicationId, None]:
        """Return a set to which a tenant's applications are added when their sort keys change.

        The set contains all applications of the tenant at first; the reader empties it. Each tenant
        has one reader: a new one replaces it.
        """
        tenant = self.nodes.leaves.get(name)
        moved = self._watched[name] = dict.fromkeys(() if tenant is None else tenant.members)
        return moved

    def unwatch_tenant(self, name: ClientId) -> None:
        self._watched.pop(name, None)

    def unwatch(self) -> None:
        super().unwatch()
        self._watched.clear()

    def take_retagged_tenants(self) -> list[ClientId]:
        """Return the topmost tenants with changed tags below them since the last call."""
        rekeyed, self._rekeyed = self._rekeyed, {}
        return list(rekeyed)

    def take_reordered_tenants(self) -> list[ClientId]:
        """Return the topmost tenants below which a tenant got its first child."""
        branched, self._branched = self._branched, {}
        return list(branched)

    def take_changed(self) -> list[ApplicationId]:
        for node in self.nodes.forgotten():
            self._drop_subtree(node)
        changed, self._changed = self._changed, {}
        return list(changed)

    # --- rules of the accounts

    def arrive(
        self,
        application_id: ApplicationId,
        cost: KvTokenTime,
        weight: float,
        sequence: int,
        tenant: str = "",
    ) -> None:
        """Open an account with the predicted cost Ĉ as its charge, at least 2 (rule 6).

        If the id belonged to an ended application that is still owed service, the new account takes
        over this debt, unless it is in the other tree.
        """
        debt = self._refund_ended_debt(application_id, tenant)
        charge = max(MINIMUM_CHARGE, cost)
        account = self.accounts[application_id] = Account(weight, sequence, charge)
        self._join_leaf(application_id, tenant, weight)
        self._charge_application(application_id, account, charge + debt)

    def deliver(
        self, deliveries: Iterable[tuple[ApplicationId, KvTokenTime]]
    ) -> list[ApplicationId]:
        if BEYOND not in self.nodes.beyond:
            return super().deliver(deliveries)
        with_quota: list[tuple[ApplicationId, KvTokenTime]] = []
        without: list[tuple[ApplicationId, KvTokenTime]] = []
        for application_id, amount in deliveries:
            is_beyond = top(self.nodes.leaf_of(application_id)).name == BEYOND
            (without if is_beyond else with_quota).append((application_id, amount))
        recharged = self._book_deliveries(with_quota, self.clock) if with_quota else []
        return recharged + (self._book_deliveries(without, self.nodes.beyond) if without else [])

    def miss(self, application_id: ApplicationId, amount: KvTokenTime) -> KvTokenTime:
        """Charge a tenant, at all levels, for a recomputed prompt for which no application pays.

        It is served at once (rules 6 and 2) to an application of the tenant's own that has ended:
        GPS gives it the service later, from the tenant's share.
        """
        tenant = self.nodes.leaf_of(application_id)
        name = f"{tenant.path}|misses"  # no caller can use this name
        self.nodes.path_of[name] = tenant.path
        account = self.accounts[application_id]
        self._charge_application(name, Account(account.weight, account.sequence, amount), amount)
        self.served += amount
        self.nodes.clock_of(top(tenant)).serve(amount)
        return amount

    def move(self, application_id: ApplicationId, leaf: ClientId, weight: float) -> None:
        """Move an application to another tenant, and charge its unserved part there.

        Service that the servers of the old leaf still owe to the application was received before
        GPS gave it. This debt stays in the old leaf, owed to an ended application: otherwise the
        old tenant would get it for nothing, and the moved application would pay twice.
        """
        account = self.accounts[application_id]
        if self.nodes.path_of[application_id] == leaf:
            if account.weight != weight:
                self.reweigh(application_id, weight)
            return
        was_withdrawn, tenant = account.withdrawn, self._updated_tenant(application_id)
        self.withdraw(application_id)
        self._release_application(application_id)
        self._rename_ended_debt(application_id, tenant)
        account.weight, account.withdrawn = weight, False
        self._join_leaf(application_id, leaf, weight)
        self._charge_application(application_id, account, account.charged - account.attained)
        if was_withdrawn:
            self.withdraw(application_id)

    def transfer(self, source: ApplicationId, target: ApplicationId, amount: KvTokenTime) -> None:
        """Move an application's work to the position of the one that it overtook in its tenant.

        Only the places in the reference server change: tags inside the tenant, the total debt of
        each server, and keys of other tenants stay.
        """
        tenant = self._updated_tenant(source)
        tenant.transfer(source, target, amount)
        self._store_final_keys(tenant)
        self._note_changes(tenant)

    def apply_weights(self, tree: TenantTree) -> None:
        before, self.nodes.weights = self.nodes.weights, tree
        for branch in list(self.nodes.branches.values()):
            self._set_weight(branch, self.nodes.branch_weight(branch.path))
        for leaf in list(self.nodes.leaves.values()):
            asked = leaf.weight
            if leaf.live and before.node(settings_path(leaf.path)).weight is not None:
                asked = self._requested_weight(leaf)
            self._set_weight(leaf, self.nodes.leaf_weight(leaf, asked))

    # --- keys

    def tag(self, application_id: ApplicationId) -> VirtualTime:
        """Return the root's virtual time at which an application is finished.

        For a withdrawn application: the tag that a submission now would give it (rule 5).
        """
        tag = self._tags.get(application_id)
        if tag is not None:
            return tag
        if self.accounts[application_id].withdrawn:
            return self.keys.tag_after_resuming(application_id)[1]
        leaf = self.nodes.leaf_of(application_id)
        tag = self._tags[application_id] = self.keys.key(leaf, application_id)
        return tag

    def tag_in_tenant(self, application_id: ApplicationId) -> VirtualTime:
        """Return the tag of an application inside its tenant.

        Of a withdrawn application, the tag that a submission now would give it.
        """
        if not self.accounts[application_id].withdrawn:
            return self.nodes.leaf_of(application_id).gps.session(application_id).finish
        return self.keys.tag_after_resuming(application_id)[0]

    def sessions(self) -> dict[ApplicationId, GpsSession]:
        return {
            application_id: session
            for tenant in self.nodes.kept_leaves().values()
            for application_id, session in tenant.gps.sessions().items()
        }

    # --- durable state

    def session_record(self, application_id: ApplicationId) -> Record | None:
        return application_record(self.nodes, application_id)

    def clock_state(self) -> dict[str, Any]:
        """Return the tenants with children by path, with their GPS sessions."""
        return branch_records(self.nodes)

    def can_restore(self, tenants: Iterable[ClientId], clock_state: Mapping[str, Any]) -> bool:
        """Return whether stored records of these tenants can be restored into these accounts.

        Records of earlier versions have all tenants at the top, whatever their paths.
        """
        return bool(clock_state) or not any(SEPARATOR in tenant for tenant in tenants)

    def restore_clock_state(self, state: Mapping[str, Any]) -> None:
        """Restore the tenants with children; `end_restore` adds their GPS sessions."""
        if BEYOND in state:
            reader = RecordReader(state[BEYOND], ("above",), None, where=BEYOND)
            self.nodes.beyond.start(reader.number("above"))
        for path in sorted(state):
            fields = RecordReader(state, (path,), None).record(path, NODE_FIELDS)
            parent = self._branch_of(path.rpartition(SEPARATOR)[0], looks=False)
            inner_time = fields["virtual_time"]
            self.nodes.add_branch(path, parent, fields["since"], fields["weight"], inner_time)
            self._restored[path] = fields["finish"], fields["sequence"]

    def prepare_restore(self, application_id: ApplicationId, record: Record) -> None:
        """Restore a tenant if this application's record contains the tenant's state."""
        if "carries" not in record:
            return
        reader = RecordReader(record, ("tenant", "carries"), None)
        path = leaf_path(record)
        carried = reader.record("carries", NODE_FIELDS)
        since, inner_time = carried.pop("since"), carried.pop("virtual_time")
        tenant = self._add_leaf(path, since, carried["weight"], inner_time)
        self.nodes.clock_of(tenant).restore_session(tenant.name, **carried)
        tenant.carry(application_id)

    def restore_session(self, application_id: ApplicationId, record: Record, *, live: bool) -> None:
        fields = read_fields(record, MEMBER_FIELDS)
        del fields["tenant"]
        name = leaf_path(record)
        tenant = self.nodes.leaves[name]
        tenant.restore(application_id, **fields, live=live)
        tenant.take_finished()
        if "above" in record:
            reader = RecordReader(record, ("above",), None)
            tenant.above[application_id] = [*map(float, reader.items("above"))]
        self.nodes.path_of[application_id] = name
        if live:
            for branch in tenant.up:
                branch.live += 1

    def end_restore(self) -> None:
        """Restore the GPS sessions of tenants with children, after everything below them.

        If a scheduler died between two parts of a save, a branch may be owed a different amount
        than its children together; it then gets the sum of its children's debts.
        """
        for path in sorted(self.nodes.branches, key=lambda path: -path.count(SEPARATOR)):
            branch = self.nodes.branches[path]
            for child in branch.children.values():
                branch.place(child)
            finish, sequence = self._restored.pop(path, (branch.since, 0))
            inside = branch.clock.backlog()
            owed = branch.weight * max(0, finish - branch.since)
            if abs(owed - inside) > _REPAIRED_ABOVE * (1 + max(owed, inside)):
                finish = branch.since + inside / branch.weight
            self.nodes.clock_of(branch).restore_session(
                path, finish, branch.weight, sequence, released=not branch.live
            )

    # --- changes of the clocks

    def _charge_application(
        self, application_id: ApplicationId, account: Account, amount: KvTokenTime
    ) -> None:
        tenant = self._updated_tenant(application_id)
        node: Node = tenant
        for branch in tenant.up:
            branch.charge(node, amount, account.sequence)
            node = branch
        self.nodes.clock_of(node).charge(node.name, amount, node.weight, account.sequence)
        tenant.charge(application_id, amount, account.weight, account.sequence)
        self._store_final_keys(tenant)
        self._note_changes(tenant)

    def _refund_application(self, application_id: ApplicationId, amount: KvTokenTime) -> None:
        tenant = self._updated_tenant(application_id)
        tenant.refund(application_id, amount)
        self._store_final_keys(tenant)
        node: Node = tenant
        for branch in tenant.up:
            self._store_keys_above(branch.refund(node, amount), branch.parent)
            branch.place(node)
            node = branch
        self.nodes.clock_of(node).refund(node.name, amount)
        self._note_changes(tenant)

    def _reweigh_application(self, application_id: ApplicationId, weight: float) -> None:
        """Change the weight of an application in its tenant, and the tenant's own weight."""
        tenant = self._updated_tenant(application_id)
        tenant.reweigh(application_id, weight)
        self._store_final_keys(tenant)
        self._set_weight(tenant, self.nodes.leaf_weight(tenant, weight))
        self._note_changes(tenant)

    def _release_application(self, application_id: ApplicationId) -> VirtualTime:
        tenant = self._updated_tenant(application_id)
        final = self.keys.key(tenant, application_id)
        tenant.end(application_id)
        if not tenant.live:
            self.nodes.clock_of(tenant).release(tenant.name)
        for branch in tenant.up:
            branch.live -= 1
            if not branch.live:
                self.nodes.clock_of(branch).release(branch.name)
        self._note_changes(tenant)
        return final

    def _join_leaf(self, application_id: ApplicationId, path: ClientId, weight: float) -> None:
        """Add a live application to a tenant; the caller then charges the application."""
        leaf = self.nodes.leaves.get(path) or self._add_leaf(path, None, weight)
        self._set_weight(leaf, self.nodes.leaf_weight(leaf, weight), notes=False)
        leaf.live.add(application_id)
        for branch in leaf.up:
            branch.live += 1
        self.nodes.path_of[application_id] = path

    def _rename_ended_debt(self, application_id: ApplicationId, tenant: Tenant) -> None:
        """Rename an ended application, so that a new one with its id does not get its service."""
        if application_id in tenant:
            names = (f"{application_id}|{number}" for number in count())  # no caller can use it
            ended = next(name for name in names if name not in self.nodes.path_of)
            self.nodes.path_of[ended] = tenant.path
            tenant.rename(application_id, ended)
            self._note_changes(tenant)

    def _refund_ended_debt(self, application_id: ApplicationId, path: ClientId) -> KvTokenTime:
        """Refund the unserved charge of an ended application whose id is used again."""
        if application_id not in self.nodes.path_of:
            return 0
        tenant = self._updated_tenant(application_id)
        self._note_changes(tenant)
        if application_id not in tenant:
            return 0
        if (top(tenant).name == BEYOND) != (ancestors(path)[0] == BEYOND):
            self._rename_ended_debt(application_id, tenant)
            return 0
        debt = tenant.debt(application_id)
        self._refund_application(application_id, debt)
        return debt

    def _set_weight(self, node: Node, weight: float, *, notes: bool = True) -> None:
        """Change the weight of a tenant; the service that GPS owes it stays the same.

        Args:
            node: The node.
            weight: The weight.
            notes: Whether changed keys are recorded; False if a charge below the node follows.
        """
        if node.weight == weight:
            return
        self._update_path(node)
        node.reweigh_all(weight)
        if node.name in (clock := self.nodes.clock_of(node)):
            clock.reweigh(node.name, weight)
        if isinstance(node, Tenant):
            node.mark_carrier_changed()
        if not notes:
            return
        if isinstance(node, Tenant):
            self._note_changes(node)
        else:
            self._mark_path_changed(node)

    def _store_final_keys(self, tenant: Tenant) -> None:
        """Store the final sort keys of applications that the last change finished."""
        for _, application_id, at in tenant.take_finished():
            for branch in tenant.up:
                at = branch.to_parent_time(at)
                tenant.above[application_id].append(at)

    def _store_keys_above(self, finished: list[Finished], branch: Branch | None) -> None:
        """Store the sort keys, above a tenant, of applications that are finished now."""
        if branch is not None:
            for tenant, application_id, _ in finished:
                tenant.above[application_id] += [one.since for one in (branch, *branch.up)]

    # --- the tree

    def _add_leaf(
        self,
        path: ClientId,
        since: VirtualTime | None,
        weight: float,
        inner_time: VirtualTime = 0,
    ) -> Tenant:
        """Add a tenant without children, and missing tenants above it."""
        parent = self.nodes.branches.get(path)
        if parent is None and SEPARATOR in path:
            parent = self._branch_of(path.rpartition(SEPARATOR)[0], looks=since is None)
        return self.nodes.add_leaf(path, parent, since, weight, inner_time)

    def _branch_of(self, path: ClientId, *, looks: bool) -> Branch | None:
        """Return the tenant at a path, made a tenant with children; None for the root.

        Args:
            path: The path; empty for the root.
            looks: Whether the nodes above are updated to V first; False during a restore.
        """
        parent: Branch | None = None
        for name in ancestors(path) if path else ():
            branch = self.nodes.branches.get(name)
            if branch is None:
                branch = self._grow_branch(name, parent, looks=looks)
            parent = branch
        return parent

    def _grow_branch(self, path: ClientId, parent: Branch | None, *, looks: bool) -> Branch:
        """Add a tenant with children; its own applications move into one of the children."""
        if looks and parent is not None:
            self._update_path(parent)
        leaf = self.nodes.leaves.get(path)
        clock = self.nodes.clock_of_children(parent, path)
        if leaf is not None and path not in clock:
            self._drop_subtree(leaf)
            leaf = None
        if leaf is not None and looks:
            self._update_path(leaf)
        now = clock.virtual_time
        weight = self.nodes.branch_weight(path) if leaf is None else leaf.weight
        branch = self.nodes.add_branch(path, parent, now, weight)
        if leaf is not None:
            session = clock.session(path)
            leaf.move_below(branch, own_leaf_name(path))
            branch.children[leaf.name] = leaf
            branch.clock.restore_session(
                leaf.name, session.finish, weight, session.sequence, released=session.released
            )
            branch.live = len(leaf.live)
            for application_id in leaf.members:
                if (at := leaf.server.finished(application_id)) is not None:
                    leaf.above.setdefault(application_id, []).insert(0, at)
            leaf.mark_members_changed()
            self._branched[ancestors(path)[0]] = None
            if leaf.live:
                self._set_weight(leaf, self._requested_weight(leaf))
            branch.place(leaf)
            self._note_changes(leaf)
            self._set_weight(branch, self.nodes.branch_weight(path))
        return branch

    def _requested_weight(self, leaf: Tenant) -> float:
        """Return the weight that the newest live application of a tenant requested."""
        last = max(leaf.live, key=lambda name: self.accounts[name].sequence)
        return self.accounts[last].weight

    def _drop_subtree(self, node: Node) -> None:
        """Remove a tenant that the GPS clock above has dropped, with all tenants below it."""
        self._changed.update(dict.fromkeys(self.nodes.drop(node)))

    def _updated_tenant(self, application_id: ApplicationId) -> Tenant:
        """Return an application's tenant, after updating all tenants on its path."""
        tenant = self.nodes.leaf_of(application_id)
        self._update_path(tenant)
        return tenant

    def _update_path(self, node: Node) -> None:
        """Pass on the service that the tenants on a path have received so far."""
        self._tags.clear()
        clock = self.nodes.clock_of(top(node))
        for branch in reversed(node.up):
            finished = branch.catch_up(clock.virtual_time, idle=not clock.is_active(branch.name))
            if finished:
                self._store_keys_above(finished, branch.parent)
            clock = branch.clock
        finished = node.catch_up(clock.virtual_time, idle=not clock.is_active(node.name))
        if finished:
            self._store_keys_above(finished, node.parent)

    def _note_changes(self, tenant: Tenant) -> None:
        self._mark_path_changed(tenant)
        if self.nodes.looked_at:
            looked_at = list(self.nodes.looked_at.values())
            self.nodes.looked_at.clear()
            for other in looked_at:
                self._mark_members_changed(other)
        self._mark_members_changed(tenant)

    def _mark_path_changed(self, node: Node) -> None:
        """Mark all tenants on a path, because sort keys below them have changed."""
        self._tags.clear()
        while node.parent is not None:
            node.parent.place(node)
            node = node.parent
        self._rekeyed[node.name] = None

    def _mark_members_changed(self, tenant: Tenant) -> None:
        watched = self._watched.get(tenant.path)
        for application_id in tenant.take_changed():
            self._changed[application_id] = None
            if watched is not None:
                watched[application_id] = None
            if application_id not in tenant:
                self.nodes.path_of.pop(application_id, None)
