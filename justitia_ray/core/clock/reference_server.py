"""Reference server: spends a tenant's share on one application at a time (Fair Sojourn Protocol).

Friedman and Henderson (SIGMETRICS 2003): serve the job that processor sharing would finish first.
Here the order is that of the tags of GPS inside the tenant (`tenant_share`), and the share is φ·dV,
the root's service to the tenant. So the root's V at which each application will be finished is
known in advance, and does not change by service:

    finish_time(x) = V + R(≤ F_x)/φ,

R(≤ F) is the remaining work of applications whose tag is at most F, with equal tags ordered by
arrival. Nothing is updated until an event other than service happens: V and R stay as they were at
`since`.
"""

from hashlib import blake2b
from math import inf
from typing import TypeAlias

from justitia_ray.units import ApplicationId, KvTokenTime, VirtualTime

Place: TypeAlias = tuple[VirtualTime, int, ApplicationId]
"""Sort key of an application in its tenant: tag, arrival sequence, id."""


class _Node:
    __slots__ = ("amount", "left", "place", "rank", "right", "total")

    def __init__(self, place: Place, rank: tuple[bytes, Place], amount: KvTokenTime) -> None:
        self.place = place
        self.rank = rank
        self.amount = amount
        self.total = amount
        self.left: _Node | None = None
        self.right: _Node | None = None

    def recompute_total(self) -> None:
        total = self.amount
        if self.left is not None:
            total += self.left.total
        if self.right is not None:
            total += self.right.total
        self.total = total


class PrefixSums:
    """Sorted amounts with prefix sums, in a treap; changes and sums take O(log N).

    A Fenwick tree needs positions that are known in advance, but tags move. This is a treap whose
    nodes store the sums of their subtrees. Its shape depends only on its content, not on its
    history, because a node's rank is a hash of its arrival sequence. Two trees with the same
    amounts therefore add them in the same order, and give the same float sums: keys after a restart
    equal those before it. (Buckets would be faster at small sizes, but their rounding depends on
    history.) Every operation takes expected O(log N), whatever the tags are.
    """

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: _Node | None = None

    @property
    def total(self) -> KvTokenTime:
        return 0 if self._root is None else self._root.total

    def put(self, place: Place, amount: KvTokenTime) -> None:
        rank = (blake2b(place[1].to_bytes(8), digest_size=8).digest(), place)
        path: list[_Node] = []
        node = self._root
        while node is not None and node.rank > rank:
            path.append(node)
            node = node.left if place < node.place else node.right
        if node is not None and node.place == place:
            node.amount = amount
        else:
            below, node = node, _Node(place, rank, amount)
            node.left, node.right = _split_at_key(below, place)
        node.recompute_total()
        self._attach_subtree(node, place, path)

    def remove(self, place: Place) -> None:
        """Remove the amount at this sort key.

        Raises:
            KeyError: If nothing is there.
        """
        path: list[_Node] = []
        node = self._root
        while node is not None and node.place != place:
            path.append(node)
            node = node.left if place < node.place else node.right
        if node is None:
            raise KeyError(place)
        self._attach_subtree(_join_subtrees(node.left, node.right), place, path)

    def sum_up_to(self, place: Place) -> KvTokenTime:
        """Return the sum of the amounts at a sort key and at all smaller keys."""
        total: KvTokenTime = 0
        node = self._root
        while node is not None:
            if place < node.place:
                node = node.left
                continue
            total += node.amount
            if node.left is not None:
                total += node.left.total
            node = node.right
        return total

    def first(self) -> tuple[Place, KvTokenTime] | None:
        """Return the smallest sort key and the amount there, or None."""
        node = self._root
        if node is None:
            return None
        while node.left is not None:
            node = node.left
        return node.place, node.amount

    def change_first_amount(self, amount: KvTokenTime) -> None:
        path: list[_Node] = []
        node = self._root
        while node is not None:
            path.append(node)
            node = node.left
        path[-1].amount = amount
        for above in reversed(path):
            above.recompute_total()

    def _attach_subtree(self, node: _Node | None, place: Place, path: list[_Node]) -> None:
        """Attach a subtree below the last node of a path, and update the sums along the path."""
        if not path:
            self._root = node
        elif place < path[-1].place:
            path[-1].left = node
        else:
            path[-1].right = node
        for above in reversed(path):
            above.recompute_total()


def _split_at_key(node: _Node | None, place: Place) -> tuple[_Node | None, _Node | None]:
    """Split the tree at a sort key: return the subtree of smaller keys and the other subtree."""
    if node is None:
        return None, None
    if node.place < place:
        node.right, after = _split_at_key(node.right, place)
        node.recompute_total()
        return node, after
    before, node.left = _split_at_key(node.left, place)
    node.recompute_total()
    return before, node


def _join_subtrees(before: _Node | None, after: _Node | None) -> _Node | None:
    if before is None or after is None:
        return after if before is None else before
    if before.rank > after.rank:
        before.right = _join_subtrees(before.right, after)
        before.recompute_total()
        return before
    after.left = _join_subtrees(before, after.left)
    after.recompute_total()
    return after


class ReferenceServer:
    """Model of a tenant's service in which its applications are served one by one, by tag."""

    def __init__(self, since: VirtualTime, weight: float) -> None:
        self.since = since
        """Virtual time of the tenant tree's root until which the applications have been served."""
        self.weight = weight
        """Weight φ of the tenant: service that it receives while the root's virtual time rises by
        1.
        """
        self._work = PrefixSums()
        self._owed: dict[ApplicationId, tuple[Place, KvTokenTime]] = {}
        """Sort key and remaining work of each application that the model has not finished."""
        self._finished: dict[ApplicationId, VirtualTime] = {}
        """Virtual time of the root at which the model finished each application."""
        self._just_finished: dict[ApplicationId, VirtualTime] = {}

    @property
    def total(self) -> KvTokenTime:
        return self._work.total

    def remaining(self, application_id: ApplicationId) -> KvTokenTime:
        return self._owed[application_id][1] if application_id in self._owed else 0

    def share(self, now: VirtualTime, *, idle: bool) -> KvTokenTime:
        """Return the service that the tenant has received since the last update."""
        return inf if idle else self.weight * (now - self.since)

    def work_up_to(self, place: Place) -> KvTokenTime:
        """Return the remaining work of all applications up to a sort key, at the last update."""
        return self._work.sum_up_to(place)

    def finished(self, application_id: ApplicationId) -> VirtualTime | None:
        """Return the virtual time at which an application was finished, or None."""
        return self._finished.get(application_id)

    def finish_time(self, application_id: ApplicationId) -> VirtualTime:
        """Return the root's virtual time at which an application is, or was, finished.

        Raises:
            KeyError: If it is not known.
        """
        if application_id not in self._owed:
            return self._finished[application_id]
        return self._finish_applications_at(self._owed[application_id][0])

    def next_finish(self) -> VirtualTime | None:
        """Return the virtual time at which the first application is finished; None without work."""
        first = self._work.first()
        return None if first is None else self.since + first[1] / self.weight

    def take_finished(self) -> list[tuple[ApplicationId, VirtualTime]]:
        """Return the applications finished since the last call, with the virtual times."""
        finished, self._just_finished = self._just_finished, {}
        return list(finished.items())

    def advance(self, now: VirtualTime, share: KvTokenTime) -> list[ApplicationId]:
        """Serve applications until virtual time is `now`; return the served applications."""
        served = self._serve_in_order(share, at_once=False)
        self.since = now
        return served

    def charge(
        self, application_id: ApplicationId, tag: VirtualTime, sequence: int, amount: KvTokenTime
    ) -> None:
        remaining = self.remaining(application_id) + amount
        self._remove_unfinished(application_id)
        self._set_remaining((tag, sequence, application_id), remaining)

    def refund(
        self, application_id: ApplicationId, tag: VirtualTime, amount: KvTokenTime
    ) -> list[ApplicationId]:
        """Remove work of an application.

        Work that was already served goes to other applications at once.

        Returns:
            The applications that received the work.
        """
        remaining = self.remaining(application_id)
        taken = min(amount, remaining)
        if remaining > taken:
            sequence = self._owed[application_id][0][1]
            self._remove_unfinished(application_id)
            self._set_remaining((tag, sequence, application_id), remaining - taken)
        elif remaining:
            self._finish_application(application_id, self.since)
        return self._serve_in_order(amount - taken, at_once=True)

    def move(self, application_id: ApplicationId, tag: VirtualTime) -> None:
        if application_id in self._owed:
            self.charge(application_id, tag, self._owed[application_id][0][1], 0)

    def transfer(self, source: ApplicationId, target: ApplicationId, amount: KvTokenTime) -> None:
        """Move work of an application to the position of another that it has overtaken.

        At most the remaining work of `source`; nothing if `target` has none. Applications between
        the two, and `target`, are finished later by that amount; nothing else changes.
        """
        if source not in self._owed or target not in self._owed:
            return
        (place, remaining), (earlier, work) = self._owed[source], self._owed[target]
        moved = min(amount, remaining)
        self._set_remaining(earlier, work + moved)
        self._remove_unfinished(source)
        self._set_remaining(place, remaining - moved)

    def forget(self, application_id: ApplicationId) -> None:
        self._finished.pop(application_id, None)
        self._just_finished.pop(application_id, None)

    def restore(self, place: Place, remaining: KvTokenTime, finished: VirtualTime | None) -> None:
        if remaining > 0:
            self._set_remaining(place, remaining)
        elif finished is not None:
            self._finished[place[2]] = finished

    def _serve_in_order(self, amount: KvTokenTime, *, at_once: bool) -> list[ApplicationId]:
        served: list[ApplicationId] = []
        spent: KvTokenTime = 0
        while amount > 0 and (first := self._work.first()) is not None:
            place, remaining = first
            served.append(place[2])
            if remaining > amount:
                self._owed[place[2]] = (place, remaining - amount)
                self._work.change_first_amount(remaining - amount)
                break
            amount -= remaining
            spent += remaining
            self._finish_application(
                place[2], self.since if at_once else self.since + spent / self.weight
            )
        return served

    def _finish_applications_at(self, place: Place) -> VirtualTime:
        return self.since + self._work.sum_up_to(place) / self.weight

    def _set_remaining(self, place: Place, remaining: KvTokenTime) -> None:
        if remaining > 0:
            self._finished.pop(place[2], None)
            self._just_finished.pop(place[2], None)
            self._owed[place[2]] = (place, remaining)
            self._work.put(place, remaining)
        else:
            self._note_finished(place[2], self._finish_applications_at(place))

    def _finish_application(self, application_id: ApplicationId, at: VirtualTime) -> None:
        self._remove_unfinished(application_id)
        self._note_finished(application_id, at)

    def _note_finished(self, application_id: ApplicationId, at: VirtualTime) -> None:
        self._finished[application_id] = at
        self._just_finished[application_id] = at

    def _remove_unfinished(self, application_id: ApplicationId) -> None:
        owed = self._owed.pop(application_id, None)
        if owed is not None:
            self._work.remove(owed[0])
