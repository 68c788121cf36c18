"""Fairness between tenants at every level of their tree, and between the applications of each.

A tenant is a path, `acme/search/alice`. At the root the served clock shares between the nodes at
the top by weight φ: F_T = max(F_T, V) + C/φ_T. A node with children shares what it is given in the
same way among them (`branch`), and a leaf among its applications (`tenant`): GPS driven by its
share φ_T·dV gives each its tag F_x, and a reference server spends that share on one application at
a time, in order of F_x. An application's key is the root's V at which the reference server finishes
it, so a tenant that splits its work into many applications moves all but the last forward at its
own cost: the last is finished when the root has served all. A tenant that splits itself into nodes
below its own does the same: nothing changes for who is not below it.

The rules are those of `fair_share`, applied at all levels: what a node had given too much goes to
others of the same node first, and beyond it only if all of them are served.

The weight of a leaf is that which the tree gives it. If it gives none, it is that of the leaf's
applications, which should agree; if they do not, the one named last counts, by an arrival or by a
change of weight. A node with children has that of `TenantTree.weights`, or 1, and never more than
its applications may ask for. Inside a leaf each application has its own.

What runs beyond a quota has a tree of its own, below the node `BEYOND`, and a clock of its own
above that: V there moves by the service of what is below it, and V of the root by all other. So
nothing in the one tree has any bearing on a key in the other, and whoever orders them puts the
second behind the first. An application goes from one to the other by `move`.

A tenant that has applications, and tenants below it too, is a branch: its own applications are in a
leaf `/.` among its children. It becomes one when the first arrives below it: what is owed stays.

Invariant, for every leaf T, at its last look (V then of its parent): φ·(F_T − V) =
Σ w_x·(F_x − V_T) over what is active inside = Σ remaining reference work. For every branch N, at
its last look: φ·(F_N − V) = Σ φ_c·(F_c − V_N) over its active children. At the root
Σ φ·(F_T − V) = Σ (chg − att).

Durable: an application's record has its tag, its remaining work and when it was finished. What is
the leaf's alone is carried by the record of one of its applications, and passes to another when
that one goes: it is then saved with what changed, however many tenants there are. What is a
branch's is in the record of the clock, which is saved each time.
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
"""Relative error of what a branch is owed above which it is taken from its children instead."""


class TenantShare(ServedShare):
    """Accounts under the served clock between tenants. `clock` is the root's.

    A verb costs O(log N), N the applications of one tenant, plus as much for each application that
    a reference server has finished since the last verb on the tenants beside it, and O(n log n) for
    each branch above it, n the children that are active there.
    """

    sets_apart = True

    def __init__(self, clock: VirtualClock | None = None, tree: TenantTree | None = None) -> None:
        super().__init__(clock)
        self.tree = TenantTree() if tree is None else tree
        self.beyond = VirtualClock()
        """The clock of what runs beyond a quota; its one session is `BEYOND`."""
        self._tenants: dict[ClientId, Tenant] = {}
        self._branches: dict[ClientId, Branch] = {}
        self._tenant_of: dict[ApplicationId, ClientId] = {}
        self._rekeyed: dict[ClientId, None] = {}
        self._branched: dict[ClientId, None] = {}
        self._changed: dict[ApplicationId, None] = {}
        self._tags: dict[ApplicationId, VirtualTime] = {}
        """Keys that were asked for since the last look or change."""
        self._looked_at: dict[ClientId, Tenant] = {}
        self._restored: dict[ClientId, tuple[VirtualTime, int]] = {}
        """Tag and sequence of branches that are being put back."""
        self._watched: dict[ClientId, dict[ApplicationId, None]] = {}
        """Where is written who moves, of tenants that somebody watches."""

    # --- who reads along

    def watch_tenant(self, name: ClientId) -> dict[ApplicationId, None]:
        """Return where whoever moves inside a tenant is written; the reader empties it.

        All that have a record are there at first. There is one reader: a new one replaces it.
        """
        tenant = self._tenants.get(name)
        moved = self._watched[name] = dict.fromkeys(() if tenant is None else tenant.members)
        return moved

    def unwatch_tenant(self, name: ClientId) -> None:
        """Write down no more who moves inside a tenant."""
        self._watched.pop(name, None)

    def unwatch(self) -> None:
        """Write down no more who moves, inside tenants neither."""
        super().unwatch()
        self._watched.clear()

    def take_rekeyed(self) -> list[ClientId]:
        """Return the nodes at the top below which tags changed since the last call."""
        rekeyed, self._rekeyed = self._rekeyed, {}
        return list(rekeyed)

    def take_branched(self) -> list[ClientId]:
        """Return the nodes at the top below which a leaf became a branch since the last call."""
        branched, self._branched = self._branched, {}
        return list(branched)

    def take_changed(self) -> list[ApplicationId]:
        """Return the applications that either server served, or is done with."""
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

    # --- the rules

    def arrive(
        self,
        application_id: ApplicationId,
        cost: KvTokenTime,
        weight: float,
        sequence: int,
        tenant: str = "",
    ) -> None:
        """Charge max(2, Ĉ) (rule 6).

        An id that is used again takes over what is still owed to the ended application that had it,
        unless that is owed in the other tree.
        """
        debt = self._take_over(application_id, tenant)
        charge = max(MINIMUM_CHARGE, cost)
        account = self.accounts[application_id] = Account(weight, sequence, charge)
        self._join(application_id, tenant, weight)
        self._charge(application_id, account, charge + debt)

    def deliver(
        self, deliveries: Iterable[tuple[ApplicationId, KvTokenTime]]
    ) -> list[ApplicationId]:
        """Book one report's service (rules 1 and 2), each part under its own clock."""
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
        """Move an account to another leaf: what is left of its charge is charged there.

        What either server of the old leaf still owes it was received before GPS gave it. That stays
        where it was received, owed to an ended application: else its old tenant would have it for
        nothing, and who moves would pay twice.
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
        """Book so much work of an application at the place of one of its tenant that it passed.

        No tag inside, nothing that a server owes in all, and no other tenant's key changes.
        """
        tenant = self._look(source)
        tenant.transfer(source, target, amount)
        self._freeze(tenant)
        self._note(tenant)

    def grow(self, tree: TenantTree) -> None:
        """Use the weights of another tree; what is owed stays."""
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

        Of a withdrawn application: as a submission now would make it (rule 5).
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
        """Return F_x; of a withdrawn application, F_x as a submission now would make it."""
        if not self.accounts[application_id].withdrawn:
            tenant = self._tenants[self._tenant_of[application_id]]
            return tenant.gps.session(application_id).finish
        return self._after_resuming(application_id)[0]

    def key_in(self, branch: Branch | None, application_id: ApplicationId) -> VirtualTime:
        """Return V of a branch above an application at which that is finished; None: the root."""
        tenant = self._tenants[self._tenant_of[application_id]]
        return self._key(tenant, application_id, branch)

    def top_time(self, tenant: ClientId) -> VirtualTime:
        """Return V of the clock above all: that in which a tenant's keys are."""
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
        """Return the part of an amount that a tenant is given now: φ/Φ of it at each level."""
        node: Node = self._tenants[tenant]
        for one in (node, *node.up):
            clock = self._clock_of(one)
            if clock.active_weight:
                amount = amount * clock.session(one.name).weight / clock.active_weight
        return amount

    def fair_part(self, node: Node) -> float | None:
        """Return the part of all service that a node is given now; None if it is owed nothing."""
        part = 1.0
        for one in (node, *node.up):
            if self._is_idle(one):
                return None
            part *= one.weight / self._clock_of(one).active_weight
        return part

    # --- the tree

    def tenant(self, name: ClientId) -> Tenant | None:
        """Return a tenant, for reading; None if it is not known."""
        return self._tenants.get(name)

    def branch(self, path: ClientId) -> Branch | None:
        """Return a node with children, for reading; None if it is none."""
        return self._branches.get(path)

    def branches(self) -> dict[ClientId, Branch]:
        """Return the nodes with children that the clocks above have not forgotten."""
        return {path: one for path, one in self._branches.items() if self._is_kept(one)}

    def tenants(self) -> dict[ClientId, Tenant]:
        """Return the tenants that the clocks above have not forgotten, for reading."""
        return {name: tenant for name, tenant in self._tenants.items() if self._is_kept(tenant)}

    def sessions(self) -> dict[ApplicationId, GpsSession]:
        """Return the sessions inside the tenants."""
        return {
            application_id: session
            for tenant in self.tenants().values()
            for application_id, session in tenant.gps.sessions().items()
        }

    # --- the durable state

    def session_record(self, application_id: ApplicationId) -> Record | None:
        """Return the tag and what the reference server knows; a carrier's has its tenant's too."""
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
        """Put back the branches; their sessions come with `end_restore`."""
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
        """Put back the tenant that the record carries, if it carries one."""
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
        """Put back an application of a tenant that was put back before."""
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
        """Put the sessions of the branches back, once those of all below them are there.

        A scheduler that died between two parts of a save may have left a branch that is owed
        something else than its children: it is then owed what they are.
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

    # --- what the rules do to the clocks

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
        """Change the weight of an application inside its tenant, and its tenant's."""
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
        """Let a live application be of a leaf; it is charged there next."""
        leaf = self._leaf(path, weight)
        self._weigh(leaf, self._leaf_weight(leaf, weight), notes=False)
        leaf.live.add(application_id)
        for branch in leaf.up:
            branch.live += 1
        self._tenant_of[application_id] = path

    def _leave_behind(self, application_id: ApplicationId, tenant: Tenant) -> None:
        """Let what a leaf still owes to an ended application be owed to a name of nobody's."""
        if application_id in tenant:
            names = (f"{application_id}|{number}" for number in count())  # no caller can give it
            ended = next(name for name in names if name not in self._tenant_of)
            self._tenant_of[ended] = tenant.path
            tenant.rename(application_id, ended)
            self._note(tenant)

    def _take_over(self, application_id: ApplicationId, path: ClientId) -> KvTokenTime:
        """Refund what is owed to an ended application of this id; return how much it was."""
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
        """Change the weight of a node; what is owed stays.

        Args:
            node: The node.
            weight: The weight.
            notes: Whether what changes by it is noted; not if a charge below the node follows.
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
        """Return the weight of a leaf by the tree; `asked` if that gives none."""
        if leaf.name != leaf.path:  # a branch's own applications
            return asked
        weight = self.tree.node(described_by(leaf.path)).weight
        return asked if weight is None else weight

    def _branch_weight(self, path: ClientId) -> float:
        return 1 if path == BEYOND else self.tree.branch_weight(described_by(path))

    # --- keys

    def _key(
        self, tenant: Tenant, application_id: ApplicationId, branch: Branch | None = None
    ) -> VirtualTime:
        """Return V of the root, or of a branch above, at which an application is finished."""
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
        """Return the tag inside the tenant and the key that rule 5 would give; changes nothing."""
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
        """Tell applications that the last change has finished when that was, at all levels."""
        for _, application_id, at in tenant.take_finished():
            for branch in tenant.up:
                at = branch.to_parent(at)
                tenant.above[application_id].append(at)

    def _complete(self, finished: list[Finished], branch: Branch | None) -> None:
        """Freeze the keys above a branch of applications that were just finished below it."""
        if branch is not None:
            for tenant, application_id, _ in finished:
                tenant.above[application_id] += [one.since for one in (branch, *branch.up)]

    # --- the tree

    def _leaf(self, path: ClientId, weight: float) -> Tenant:
        """Return the leaf of a tenant; one that arrives anew is owed nothing."""
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
        """Add a leaf, among its own children if it is a branch."""
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
        """Return the branch of a path; a leaf becomes one. None: the root.

        Args:
            path: The path; empty for the root.
            looks: Whether the nodes above are brought to V first: not while they are put back.
        """
        parent: Branch | None = None
        for name in ancestors(path) if path else ():
            branch = self._branches.get(name)
            if branch is None:
                branch = self._grow_branch(name, parent, looks=looks)
            parent = branch
        return parent

    def _grow_branch(self, path: ClientId, parent: Branch | None, *, looks: bool) -> Branch:
        """Add a branch; what a leaf that is in its place is owed, its own leaf is owed now."""
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
        """Return the weight that the last live application of a tenant asked for."""
        last = max(leaf.live, key=lambda name: self.accounts[name].sequence)
        return self.accounts[last].weight

    def _drop(self, node: Node | None) -> None:
        """Forget a node that the clock above has forgotten, and all below it."""
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
        """Bring the tenant of an application, and all nodes above it, to the root's V."""
        tenant = self._tenants[self._tenant_of[application_id]]
        self._look_at(tenant)
        return tenant

    def _look_at(self, node: Node) -> None:
        """Bring a node, and all above it, to the root's V."""
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
        """Return the clock that has the session of a node."""
        return self._clock_below(node.parent, node.path)

    def _clock_below(self, parent: Branch | None, path: ClientId) -> VirtualClock:
        """Return the clock among the children of a node, of which this is the path of one."""
        if parent is not None:
            return parent.clock
        return self.beyond if path == BEYOND else self.clock

    def _is_idle(self, node: Node) -> bool:
        """Return whether the parent owes the node nothing."""
        return not self._clock_of(node).is_active(node.name)

    def _is_kept(self, node: Node) -> bool:
        """Return whether the clocks above know the node."""
        return all(one.name in self._clock_of(one) for one in (node, *node.up))

    def _note(self, tenant: Tenant) -> None:
        """Note whose keys and whose records changed."""
        self._note_path(tenant)
        if self._looked_at:
            looked_at = list(self._looked_at.values())
            self._looked_at.clear()
            for other in looked_at:
                self._note_members(other)
        self._note_members(tenant)

    def _note_path(self, node: Node) -> None:
        """Note that the keys below a node changed, and so those of all nodes above it."""
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
    """Return the name of the leaf of a branch's own applications; no tenant can have it."""
    return f"{path}{SEPARATOR}."


def _leaf_of(record: Record) -> ClientId:
    """Return the leaf of a member's record."""
    tenant = RecordReader(record, ("tenant",), None).text("tenant")
    return beyond(tenant) if "beyond" in record else tenant


def _top(node: Node) -> Node:
    """Return the node at the top that a node is below, or is."""
    return node.up[-1] if node.up else node


def _owes(clock: VirtualClock, node: Node, now: VirtualTime) -> bool:
    """Return whether a clock will still owe a node something when its V is `now`."""
    return node.name in clock and clock.session(node.name).finish > now


def _share(clock: VirtualClock, branch: Branch, now: VirtualTime) -> KvTokenTime:
    """Return what a branch will have been given since its last look when V above is `now`."""
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
    """Return the service after which V, `now` then, reaches a level if a child is charged more."""
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
