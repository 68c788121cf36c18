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

A tenant that has both applications and child tenants is a branch: its own applications are in a
leaf `/.` among its children. A leaf becomes a branch when the first application arrives below it;
its debt is kept.

Invariant, for every leaf T, at its last update (with V of its parent at that time): φ·(F_T − V) = Σ
w_x·(F_x − V_T) over the active applications inside = Σ remaining reference work. For every branch
N, at its last update: φ·(F_N − V) = Σ φ_c·(F_c − V_N) over its active children. At the root Σ
φ·(F_T − V) = Σ (chg − att).

Durable state: an application's record has its tag, its remaining work and the time at which it was
finished. The state of a leaf is saved in the record of one of its applications, the carrier, and
passes to another application when the carrier is removed; so it is saved only when it changes,
however many tenants there are. The state of a branch is in the record of the clock, which is saved
each time.
"""

from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any

from justitia_ray.core.clock.branch import Branch, Node
from justitia_ray.core.clock.fair_share import (
    MINIMUM_CHARGE,
    SESSION_FIELDS,
    Account,
    ServedShare,
)
from justitia_ray.core.clock.tenant import Finished, Tenant
from justitia_ray.core.clock.virtual_clock import GpsSession, VirtualClock
from justitia_ray.core.records import Fields, Record, RecordReader, read_fields
from justitia_ray.core.tenants import (
    BEYOND,
    SEPARATOR,
    TenantTree,
    ancestors,
    beyond,
    described_by,
)
from justitia_ray.units import ApplicationId, ClientId, KvTokenTime, VirtualTime

_MEMBER_FIELDS: Fields = {
    **SESSION_FIELDS,
    "tenant": RecordReader.text,
    "remaining": RecordReader.number,
    "finished": RecordReader.number_or_none,
}
_CARRIED_FIELDS: Fields = {
    **SESSION_FIELDS,
    "released": RecordReader.flag,
    "since": RecordReader.number,
    "virtual_time": RecordReader.number,
}
_REPAIRED_ABOVE = 1e-6
"""Relative difference between a branch's debt and the sum of its children's above which
`end_restore` replaces it by that sum.
"""


class TenantShare(ServedShare):
    """Accounts under the served clock between tenants. `clock` is the root's.

    A method costs O(log N), N the applications of one tenant, plus O(log N) for each application
    that a reference server has finished since the last call for its sibling tenants, and O(n log n)
    for each branch above it, n its active children.
    """

    sets_apart = True

    def __init__(self, clock: VirtualClock | None = None, tree: TenantTree | None = None) -> None:
        super().__init__(clock)
        self.tree = TenantTree() if tree is None else tree
        self.beyond = VirtualClock()
        """Clock of the applications beyond a quota; its one session is `BEYOND`."""
        self._tenants: dict[ClientId, Tenant] = {}
        self._branches: dict[ClientId, Branch] = {}
        self._tenant_of: dict[ApplicationId, ClientId] = {}
        self._rekeyed: dict[ClientId, None] = {}
        self._branched: dict[ClientId, None] = {}
        self._changed: dict[ApplicationId, None] = {}
        self._tags: dict[ApplicationId, VirtualTime] = {}
        """Cache of keys; cleared by each change."""
        self._looked_at: dict[ClientId, Tenant] = {}
        self._restored: dict[ClientId, tuple[VirtualTime, int]] = {}
        """Tag and sequence of the branches that are being restored."""
        self._watched: dict[ClientId, dict[ApplicationId, None]] = {}
        """For each watched tenant, the set in which changed applications are recorded."""

    # --- recorded changes

    def watch_tenant(self, name: ClientId) -> dict[ApplicationId, None]:
        """Return the set in which applications of a tenant are recorded when their keys change.

        The set contains all applications of the tenant at first; the reader empties it. Each tenant
        has one reader: a new one replaces it.
        """
        tenant = self._tenants.get(name)
        moved = self._watched[name] = dict.fromkeys(() if tenant is None else tenant.members)
        return moved

    def unwatch_tenant(self, name: ClientId) -> None:
        """Stop recording key changes inside a tenant."""
        self._watched.pop(name, None)

    def unwatch(self) -> None:
        """Stop recording all key changes, also those inside tenants."""
        super().unwatch()
        self._watched.clear()

    def take_rekeyed(self) -> list[ClientId]:
        """Return the top nodes below which tags changed since the last call."""
        rekeyed, self._rekeyed = self._rekeyed, {}
        return list(rekeyed)

    def take_branched(self) -> list[ClientId]:
        """Return the top nodes below which a leaf became a branch since the last call."""
        branched, self._branched = self._branched, {}
        return list(branched)

    def take_changed(self) -> list[ApplicationId]:
        """Return the applications whose records changed or were dropped since the last call."""
        for clock in (self.clock, self.beyond):
            for name in clock.take_forgotten():
                if name not in clock:
                    self._drop(self._branches.get(name) or self._tenants.get(name))
        for branch in list(self._branches.values()):
            for name in branch.clock.take_forgotten():
                if name not in branch.clock:
                    self._drop(branch.children.get(name))
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
        """Open an account and charge it max(2, Ĉ) (rule 6).

        If the id belonged to an ended application that is still owed service, the new account takes
        over this debt, unless it is in the other tree.
        """
        debt = self._take_over(application_id, tenant)
        charge = max(MINIMUM_CHARGE, cost)
        account = self.accounts[application_id] = Account(weight, sequence, charge)
        self._join(application_id, tenant, weight)
        self._charge(application_id, account, charge + debt)

    def deliver(
        self, deliveries: Iterable[tuple[ApplicationId, KvTokenTime]]
    ) -> list[ApplicationId]:
        """Book the service of one report (rules 1 and 2), each part under its own clock."""
        if BEYOND not in self.beyond:
            return super().deliver(deliveries)
        with_quota: list[tuple[ApplicationId, KvTokenTime]] = []
        without: list[tuple[ApplicationId, KvTokenTime]] = []
        for application_id, amount in deliveries:
            top = _top(self._tenants[self._tenant_of[application_id]])
            (without if top.name == BEYOND else with_quota).append((application_id, amount))
        recharged = self._deliver(with_quota, self.clock) if with_quota else []
        return recharged + (self._deliver(without, self.beyond) if without else [])

    def move(self, application_id: ApplicationId, leaf: ClientId, weight: float) -> None:
        """Move an account to another leaf, and charge the unserved part of its charge there.

        Service that the servers of the old leaf still owe to the application was received before
        GPS gave it. This debt stays in the old leaf, owed to an ended application: otherwise the
        old tenant would get it for nothing, and the moved application would pay twice.
        """
        account = self.accounts[application_id]
        if self._tenant_of[application_id] == leaf:
            if account.weight != weight:
                self.reweigh(application_id, weight)
            return
        was_withdrawn, tenant = account.withdrawn, self._look(application_id)
        self.withdraw(application_id)
        self._release(application_id)
        self._leave_behind(application_id, tenant)
        account.weight, account.withdrawn = weight, False
        self._join(application_id, leaf, weight)
        self._charge(application_id, account, account.charged - account.attained)
        if was_withdrawn:
            self.withdraw(application_id)

    def transfer(self, source: ApplicationId, target: ApplicationId, amount: KvTokenTime) -> None:
        """Move work of an application to the place of one of its tenant that it has overtaken.

        Only the places in the reference server change: tags inside the tenant, the total debt of
        each server, and keys of other tenants stay.
        """
        tenant = self._look(source)
        tenant.transfer(source, target, amount)
        self._freeze(tenant)
        self._note(tenant)

    def grow(self, tree: TenantTree) -> None:
        """Use the weights of another tree; debts are kept."""
        before, self.tree = self.tree, tree
        for branch in list(self._branches.values()):
            self._weigh(branch, self._branch_weight(branch.path))
        for leaf in list(self._tenants.values()):
            asked = leaf.weight
            if leaf.live and before.node(described_by(leaf.path)).weight is not None:
                asked = self._asked(leaf)
            self._weigh(leaf, self._leaf_weight(leaf, asked))

    # --- keys

    def tag(self, application_id: ApplicationId) -> VirtualTime:
        """Return the root's V at which the reference server finishes the application.

        For a withdrawn application: the tag that a submission now would give it (rule 5).
        """
        tag = self._tags.get(application_id)
        if tag is not None:
            return tag
        if self.accounts[application_id].withdrawn:
            return self._after_resuming(application_id)[1]
        tenant = self._tenants[self._tenant_of[application_id]]
        tag = self._tags[application_id] = self._key(tenant, application_id)
        return tag

    def tag_in_tenant(self, application_id: ApplicationId) -> VirtualTime:
        """Return F_x; for a withdrawn application, the F_x that a submission now would give it."""
        if not self.accounts[application_id].withdrawn:
            tenant = self._tenants[self._tenant_of[application_id]]
            return tenant.gps.session(application_id).finish
        return self._after_resuming(application_id)[0]

    def key_in(self, branch: Branch | None, application_id: ApplicationId) -> VirtualTime:
        """Return V of a branch (None: of the root) at which an application below it is finished."""
        tenant = self._tenants[self._tenant_of[application_id]]
        return self._key(tenant, application_id, branch)

    def top_time(self, tenant: ClientId) -> VirtualTime:
        """Return V of the tenant's topmost clock, in which the tenant's keys are."""
        return self._clock_of(_top(self._tenants[tenant])).virtual_time

    def key_above(
        self, branch: Branch, application_id: ApplicationId, at: VirtualTime
    ) -> VirtualTime:
        """Return V of the parent of a branch at which an application is finished.

        Args:
            branch: A branch above the application.
            application_id: The application.
            at: V of the branch at which it is finished, as from `key_in`.
        """
        tenant = self._tenants[self._tenant_of[application_id]]
        if tenant.server.finished(application_id) is None:
            return branch.to_parent(at)
        return tenant.above[application_id][tenant.up.index(branch)]

    def part_of(self, tenant: ClientId, amount: KvTokenTime) -> KvTokenTime:
        """Return the part of an amount that a tenant receives now: φ/Φ of it at each level."""
        node: Node = self._tenants[tenant]
        for one in (node, *node.up):
            clock = self._clock_of(one)
            if clock.active_weight:
                amount = amount * clock.session(one.name).weight / clock.active_weight
        return amount

    def fair_part(self, node: Node) -> float | None:
        """Return the fraction of all service that a node receives now; None if nothing is owed."""
        part = 1.0
        for one in (node, *node.up):
            if self._is_idle(one):
                return None
            part *= one.weight / self._clock_of(one).active_weight
        return part

    # --- the tree

    def tenant(self, name: ClientId) -> Tenant | None:
        """Return a tenant, for reading; None if it is unknown."""
        return self._tenants.get(name)

    def branch(self, path: ClientId) -> Branch | None:
        """Return a node with children, for reading; None if the path is unknown or a leaf."""
        return self._branches.get(path)

    def branches(self) -> dict[ClientId, Branch]:
        """Return the branches, by path, that have sessions in the clocks above."""
        return {path: one for path, one in self._branches.items() if self._is_kept(one)}

    def tenants(self) -> dict[ClientId, Tenant]:
        """Return the tenants, by path, that have sessions in the clocks above."""
        return {name: tenant for name, tenant in self._tenants.items() if self._is_kept(tenant)}

    def sessions(self) -> dict[ApplicationId, GpsSession]:
        """Return the sessions of the applications inside all tenants."""
        return {
            application_id: session
            for tenant in self.tenants().values()
            for application_id, session in tenant.gps.sessions().items()
        }

    # --- durable state

    def session_record(self, application_id: ApplicationId) -> Record | None:
        """Return the tag and remaining reference work of an application.

        The record of a carrier also has the state of its tenant.
        """
        name = self._tenant_of.get(application_id)
        if name is None or not self._is_kept(self._tenants[name]):
            return None
        tenant = self._tenants[name]
        session = tenant.gps.session(application_id)
        finished = tenant.server.finished(application_id)
        record: Record = {
            "finish": session.finish,
            "weight": session.weight,
            "sequence": session.sequence,
            "tenant": described_by(name),
            "remaining": tenant.server.remaining(application_id),
            "finished": finished,
        }
        if name != record["tenant"]:
            record["beyond"] = True
        if finished is not None and (above := tenant.above.get(application_id)):
            record["above"] = [*above]
        if application_id != tenant.carrier:
            return record
        in_parent = self._clock_of(tenant).session(tenant.name)
        return record | {
            "carries": {
                "finish": in_parent.finish,
                "weight": tenant.server.weight,
                "sequence": in_parent.sequence,
                "released": in_parent.released,
                "since": tenant.server.since,
                "virtual_time": tenant.gps.virtual_time,
            }
        }

    def clock_state(self) -> dict[str, Any]:
        """Return the branches by path, and the sessions that they have in the clocks above."""
        found: dict[str, Any] = {}
        for path, branch in self.branches().items():
            session = self._clock_of(branch).session(branch.name)
            found[path] = {
                "finish": session.finish,
                "weight": branch.weight,
                "sequence": session.sequence,
                "released": session.released,
                "since": branch.since,
                "virtual_time": branch.clock.virtual_time,
            }
        if BEYOND in found:
            found[BEYOND]["above"] = self.beyond.virtual_time
        return found

    def takes(self, tenants: Iterable[ClientId], clock_state: Mapping[str, Any]) -> bool:
        """Return whether records of these tenants have the form of these accounts.

        Records of earlier versions have all tenants at the top, whatever their paths.
        """
        return bool(clock_state) or not any(SEPARATOR in tenant for tenant in tenants)

    def restore_clock_state(self, state: Mapping[str, Any]) -> None:
        """Restore the branches; `end_restore` adds their sessions."""
        if BEYOND in state:
            reader = RecordReader(state[BEYOND], ("above",), None, where=BEYOND)
            self.beyond = VirtualClock(reader.number("above"))
        for path in sorted(state):
            fields = RecordReader(state, (path,), None).record(path, _CARRIED_FIELDS)
            parent = self._branch(path.rpartition(SEPARATOR)[0], looks=False)
            self._branches[path] = branch = Branch(
                path,
                parent,
                fields["since"],
                fields["weight"],
                self._looked_at,
                fields["virtual_time"],
            )
            self._restored[path] = fields["finish"], fields["sequence"]
            if parent is not None:
                parent.children[path] = branch

    def prepare_restore(self, application_id: ApplicationId, record: Record) -> None:
        """Restore the tenant whose state this record carries, if it carries one."""
        if "carries" not in record:
            return
        reader = RecordReader(record, ("tenant", "carries"), None)
        path = _leaf_of(record)
        carried = reader.record("carries", _CARRIED_FIELDS)
        since, inner_time = carried.pop("since"), carried.pop("virtual_time")
        tenant = self._add(path, since, carried["weight"], inner_time)
        self._clock_of(tenant).restore_session(tenant.name, **carried)
        tenant.carry(application_id)

    def restore_session(self, application_id: ApplicationId, record: Record, *, live: bool) -> None:
        """Restore an application of a tenant that has been restored."""
        fields = read_fields(record, _MEMBER_FIELDS)
        del fields["tenant"]
        name = _leaf_of(record)
        tenant = self._tenants[name]
        tenant.restore(application_id, **fields, live=live)
        tenant.take_finished()
        if "above" in record:
            reader = RecordReader(record, ("above",), None)
            tenant.above[application_id] = [*map(float, reader.items("above"))]
        self._tenant_of[application_id] = name
        if live:
            for branch in tenant.up:
                branch.live += 1

    def end_restore(self) -> None:
        """Restore the sessions of the branches, after everything below them.

        If a scheduler died between two parts of a save, a branch may be owed a different amount
        than its children together; it then gets the sum of its children's debts.
        """
        for path in sorted(self._branches, key=lambda path: -path.count(SEPARATOR)):
            branch = self._branches[path]
            for child in branch.children.values():
                branch.place(child)
            finish, sequence = self._restored.pop(path, (branch.since, 0))
            inside = branch.clock.backlog()
            owed = branch.weight * max(0, finish - branch.since)
            if abs(owed - inside) > _REPAIRED_ABOVE * (1 + max(owed, inside)):
                finish = branch.since + inside / branch.weight
            self._clock_of(branch).restore_session(
                path, finish, branch.weight, sequence, released=not branch.live
            )

    # --- changes of the clocks

    def _charge(self, application_id: ApplicationId, account: Account, amount: KvTokenTime) -> None:
        tenant = self._look(application_id)
        node: Node = tenant
        for branch in tenant.up:
            branch.charge(node, amount, account.sequence)
            node = branch
        self._clock_of(node).charge(node.name, amount, node.weight, account.sequence)
        tenant.charge(application_id, amount, account.weight, account.sequence)
        self._freeze(tenant)
        self._note(tenant)

    def _refund(self, application_id: ApplicationId, amount: KvTokenTime) -> None:
        tenant = self._look(application_id)
        tenant.refund(application_id, amount)
        self._freeze(tenant)
        node: Node = tenant
        for branch in tenant.up:
            self._complete(branch.refund(node, amount), branch.parent)
            branch.place(node)
            node = branch
        self._clock_of(node).refund(node.name, amount)
        self._note(tenant)

    def _reweigh(self, application_id: ApplicationId, weight: float) -> None:
        """Change the weight of an application inside its tenant, and the weight of the tenant."""
        tenant = self._look(application_id)
        tenant.reweigh(application_id, weight)
        self._freeze(tenant)
        self._weigh(tenant, self._leaf_weight(tenant, weight))
        self._note(tenant)

    def _release(self, application_id: ApplicationId) -> VirtualTime:
        tenant = self._look(application_id)
        final = self._key(tenant, application_id)
        tenant.end(application_id)
        if not tenant.live:
            self._clock_of(tenant).release(tenant.name)
        for branch in tenant.up:
            branch.live -= 1
            if not branch.live:
                self._clock_of(branch).release(branch.name)
        self._note(tenant)
        return final

    def _join(self, application_id: ApplicationId, path: ClientId, weight: float) -> None:
        """Add a live application to a leaf; the caller charges it there next."""
        leaf = self._leaf(path, weight)
        self._weigh(leaf, self._leaf_weight(leaf, weight), notes=False)
        leaf.live.add(application_id)
        for branch in leaf.up:
            branch.live += 1
        self._tenant_of[application_id] = path

    def _leave_behind(self, application_id: ApplicationId, tenant: Tenant) -> None:
        """Rename a leaf's debt to an ended application, so that no new one takes it over."""
        if application_id in tenant:
            names = (f"{application_id}|{number}" for number in count())  # no caller can use it
            ended = next(name for name in names if name not in self._tenant_of)
            self._tenant_of[ended] = tenant.path
            tenant.rename(application_id, ended)
            self._note(tenant)

    def _take_over(self, application_id: ApplicationId, path: ClientId) -> KvTokenTime:
        """Refund the debt to an ended application with this id; return its amount."""
        if application_id not in self._tenant_of:
            return 0
        tenant = self._look(application_id)
        self._note(tenant)
        if application_id not in tenant:
            return 0
        if (_top(tenant).name == BEYOND) != (ancestors(path)[0] == BEYOND):
            self._leave_behind(application_id, tenant)
            return 0
        debt = tenant.debt(application_id)
        self._refund(application_id, debt)
        return debt

    def _weigh(self, node: Node, weight: float, *, notes: bool = True) -> None:
        """Change the weight of a node; debts are kept.

        Args:
            node: The node.
            weight: The weight.
            notes: Whether changed keys are recorded; False if a charge below the node follows.
        """
        if node.weight == weight:
            return
        self._look_at(node)
        node.reweigh_all(weight)
        if node.name in (clock := self._clock_of(node)):
            clock.reweigh(node.name, weight)
        if isinstance(node, Tenant):
            node.note_carrier()
        if not notes:
            return
        if isinstance(node, Tenant):
            self._note(node)
        else:
            self._note_path(node)

    def _leaf_weight(self, leaf: Tenant, asked: float) -> float:
        """Return the weight that the tree gives a leaf; `asked` if it gives none."""
        if leaf.name != leaf.path:  # the leaf of a branch's own applications
            return asked
        weight = self.tree.node(described_by(leaf.path)).weight
        return asked if weight is None else weight

    def _branch_weight(self, path: ClientId) -> float:
        return 1 if path == BEYOND else self.tree.branch_weight(described_by(path))

    # --- keys

    def _key(
        self, tenant: Tenant, application_id: ApplicationId, branch: Branch | None = None
    ) -> VirtualTime:
        """Return V of the root, or of a branch above the application, at which it is finished."""
        finished = tenant.server.finished(application_id)
        if finished is not None:
            level = len(tenant.up) if branch is None else tenant.up.index(branch)
            return tenant.above[application_id][level - 1] if level else finished
        at = tenant.server.finish_time(application_id)
        for above in tenant.up:
            if above is branch:
                break
            at = above.to_parent(at)
        return at

    def _after_resuming(self, application_id: ApplicationId) -> tuple[VirtualTime, VirtualTime]:
        """Return the tag inside the tenant and the key that rule 5 would give, without a change."""
        account = self.accounts[application_id]
        tenant, amount = (
            self._tenants[self._tenant_of[application_id]],
            account.charged - account.attained,
        )
        path = tenant.up
        clock = self._clock_of(_top(tenant))
        now = clock.virtual_time
        levels: list[VirtualTime] = []
        for branch in reversed(path):
            share = _share(clock, branch, now)
            levels.append(now)
            clock, now = branch.clock, branch.clock.after(share)
        idle = not _owes(clock, tenant, now)
        tag, finish = tenant.after_charge(application_id, amount, now, idle=idle)
        child: Node = tenant
        for branch in path:
            served = _until(branch.clock, now, finish, child, amount)
            now = levels.pop()
            finish, child = now + served / branch.weight, branch
        return tag, finish

    def _freeze(self, tenant: Tenant) -> None:
        """Store the final keys of applications that the last change has finished, at all levels."""
        for _, application_id, at in tenant.take_finished():
            for branch in tenant.up:
                at = branch.to_parent(at)
                tenant.above[application_id].append(at)

    def _complete(self, finished: list[Finished], branch: Branch | None) -> None:
        """Store the final keys, above a branch, of applications just finished below it."""
        if branch is not None:
            for tenant, application_id, _ in finished:
                tenant.above[application_id] += [one.since for one in (branch, *branch.up)]

    # --- the tree

    def _leaf(self, path: ClientId, weight: float) -> Tenant:
        """Return the leaf of a tenant; add it if it is new, owed nothing."""
        if path not in self._tenants:
            self._add(path, None, weight)
        return self._tenants[path]

    def _add(
        self,
        path: ClientId,
        since: VirtualTime | None,
        weight: float,
        inner_time: VirtualTime = 0,
    ) -> Tenant:
        """Add a leaf; if its path is a branch, among the branch's own children."""
        is_own = path in self._branches
        parent = self._branches.get(path)
        if not is_own and SEPARATOR in path:
            parent = self._branch(path.rpartition(SEPARATOR)[0], looks=since is None)
        clock = self._clock_below(parent, path)
        now = clock.virtual_time if since is None else since
        tenant = self._tenants[path] = Tenant(path, parent, now, weight, inner_time)
        if is_own:
            tenant.name = own_leaf(path)
        if parent is not None:
            parent.children[tenant.name] = tenant
        return tenant

    def _branch(self, path: ClientId, *, looks: bool) -> Branch | None:
        """Return the branch of a path, made from the leaf there if necessary; None: the root.

        Args:
            path: The path; empty for the root.
            looks: Whether the nodes above are updated to V first; False during a restore.
        """
        parent: Branch | None = None
        for name in ancestors(path) if path else ():
            branch = self._branches.get(name)
            if branch is None:
                branch = self._grow_branch(name, parent, looks=looks)
            parent = branch
        return parent

    def _grow_branch(self, path: ClientId, parent: Branch | None, *, looks: bool) -> Branch:
        """Add a branch; the debt to a leaf with its path moves to the branch's own leaf."""
        if looks and parent is not None:
            self._look_at(parent)
        leaf = self._tenants.get(path)
        clock = self._clock_below(parent, path)
        if leaf is not None and path not in clock:
            self._drop(leaf)
            leaf = None
        if leaf is not None and looks:
            self._look_at(leaf)
        now = clock.virtual_time
        weight = self._branch_weight(path) if leaf is None else leaf.weight
        branch = self._branches[path] = Branch(path, parent, now, weight, self._looked_at)
        if parent is not None:
            parent.children[path] = branch
        if leaf is not None:
            session = clock.session(path)
            leaf.move_below(branch, own_leaf(path))
            branch.children[leaf.name] = leaf
            branch.clock.restore_session(
                leaf.name, session.finish, weight, session.sequence, released=session.released
            )
            branch.live = len(leaf.live)
            for application_id in leaf.members:
                if (at := leaf.server.finished(application_id)) is not None:
                    leaf.above.setdefault(application_id, []).insert(0, at)
            leaf.note_all()
            self._branched[ancestors(path)[0]] = None
            if leaf.live:
                self._weigh(leaf, self._asked(leaf))
            branch.place(leaf)
            self._note(leaf)
            self._weigh(branch, self._branch_weight(path))
        return branch

    def _asked(self, leaf: Tenant) -> float:
        """Return the weight that the newest live application of a tenant requested."""
        last = max(leaf.live, key=lambda name: self.accounts[name].sequence)
        return self.accounts[last].weight

    def _drop(self, node: Node | None) -> None:
        """Remove a node whose session the clock above has dropped, and all nodes below it."""
        if node is None:
            return
        if node.parent is not None:
            node.parent.remove(node.name)
        if isinstance(node, Branch):
            del self._branches[node.path]
            for child in list(node.children.values()):
                self._drop(child)
            return
        del self._tenants[node.path]
        self._looked_at.pop(node.path, None)
        for application_id in node.members:
            del self._tenant_of[application_id]
            self._changed[application_id] = None

    def _look(self, application_id: ApplicationId) -> Tenant:
        """Update the tenant of an application, and all nodes above it, to the root's V."""
        tenant = self._tenants[self._tenant_of[application_id]]
        self._look_at(tenant)
        return tenant

    def _look_at(self, node: Node) -> None:
        """Update a node, and all nodes above it, to the root's V."""
        self._tags.clear()
        clock = self._clock_of(_top(node))
        for branch in reversed(node.up):
            finished = branch.look(clock.virtual_time, idle=not clock.is_active(branch.name))
            if finished:
                self._complete(finished, branch.parent)
            clock = branch.clock
        finished = node.look(clock.virtual_time, idle=not clock.is_active(node.name))
        if finished:
            self._complete(finished, node.parent)

    def _clock_of(self, node: Node) -> VirtualClock:
        """Return the clock that contains a node's session."""
        return self._clock_below(node.parent, node.path)

    def _clock_below(self, parent: Branch | None, path: ClientId) -> VirtualClock:
        """Return the clock that contains the sessions of a parent's children.

        Args:
            parent: The parent; None: the root.
            path: Path of the child; `BEYOND` has a clock of its own.
        """
        if parent is not None:
            return parent.clock
        return self.beyond if path == BEYOND else self.clock

    def _is_idle(self, node: Node) -> bool:
        """Return whether the parent owes the node nothing."""
        return not self._clock_of(node).is_active(node.name)

    def _is_kept(self, node: Node) -> bool:
        """Return whether the clocks above have sessions of the node and of all its parents."""
        return all(one.name in self._clock_of(one) for one in (node, *node.up))

    def _note(self, tenant: Tenant) -> None:
        """Record the applications whose keys and records changed."""
        self._note_path(tenant)
        if self._looked_at:
            looked_at = list(self._looked_at.values())
            self._looked_at.clear()
            for other in looked_at:
                self._note_members(other)
        self._note_members(tenant)

    def _note_path(self, node: Node) -> None:
        """Record that the keys below a node changed, and so those of all nodes above it."""
        self._tags.clear()
        while node.parent is not None:
            node.parent.place(node)
            node = node.parent
        self._rekeyed[node.name] = None

    def _note_members(self, tenant: Tenant) -> None:
        watched = self._watched.get(tenant.path)
        for application_id in tenant.take_changed():
            self._changed[application_id] = None
            if watched is not None:
                watched[application_id] = None
            if application_id not in tenant:
                self._tenant_of.pop(application_id, None)


def own_leaf(path: ClientId) -> ClientId:
    """Return the name of the leaf of a branch's own applications; no tenant can have this name."""
    return f"{path}{SEPARATOR}."


def _leaf_of(record: Record) -> ClientId:
    """Return the path of the leaf to which an application's record belongs."""
    tenant = RecordReader(record, ("tenant",), None).text("tenant")
    return beyond(tenant) if "beyond" in record else tenant


def _top(node: Node) -> Node:
    """Return the top node above a node, or the node itself if it is at the top."""
    return node.up[-1] if node.up else node


def _owes(clock: VirtualClock, node: Node, now: VirtualTime) -> bool:
    """Return whether a clock will still owe a node service when its V is `now`."""
    return node.name in clock and clock.session(node.name).finish > now


def _share(clock: VirtualClock, branch: Branch, now: VirtualTime) -> KvTokenTime:
    """Return the service that a branch received since its last update, when V above it is `now`."""
    if not _owes(clock, branch, now):
        return float("inf")
    return branch.weight * (now - branch.since)


def _until(
    clock: VirtualClock,
    now: VirtualTime,
    level: VirtualTime,
    child: Node,
    amount: KvTokenTime,
) -> KvTokenTime:
    """Return the service by which V rises from `now` to `level` if a child is charged more."""
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
