"""Amounts in an order, and the sum of all up to a place, while amounts come and go.

A Fenwick tree needs places that are known beforehand; these are tags, and move. So: a treap, whose
every node keeps the sum of its subtree. Its shape depends on what is in it and on nothing that
happened before, because a node's rank is a hash of its arrival sequence. Two trees with the same
amounts therefore add them up in the same order, and give the same sum in floats too: the keys after
a restart are those before it. (Buckets would be faster at small sizes, and round by their history.)
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import TypeAlias

from justitia_ray.units import ApplicationId, KvTokenTime, VirtualTime

Place: TypeAlias = tuple[VirtualTime, int, ApplicationId]
"""Tag, arrival sequence, application."""


class _Node:
    __slots__ = ("amount", "left", "place", "rank", "right", "total")

    def __init__(self, place: Place, rank: tuple[bytes, Place], amount: KvTokenTime) -> None:
        self.place = place
        self.rank = rank
        self.amount = amount
        self.total = amount
        self.left: _Node | None = None
        self.right: _Node | None = None

    def sum_up(self) -> None:
        total = self.amount
        if self.left is not None:
            total += self.left.total
        if self.right is not None:
            total += self.right.total
        self.total = total


class PrefixSums:
    """Every verb is O(log N) in expectation, whatever the tags are."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: _Node | None = None

    @property
    def total(self) -> KvTokenTime:
        """Sum of all amounts."""
        return 0 if self._root is None else self._root.total

    def __iter__(self) -> Iterator[tuple[Place, KvTokenTime]]:
        """Yield all places in order, each with its amount. O(N)."""
        return _in_order(self._root)

    def put(self, place: Place, amount: KvTokenTime) -> None:
        """Set the amount at a place."""
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
            node.left, node.right = _split(below, place)
        node.sum_up()
        self._hang(node, place, path)

    def remove(self, place: Place) -> None:
        """Take out what is at a place.

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
        self._hang(_join(node.left, node.right), place, path)

    def up_to(self, place: Place) -> KvTokenTime:
        """Return the sum of the amounts at this place and before it."""
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
        """Return the first place and its amount, or None if there is none."""
        node = self._root
        if node is None:
            return None
        while node.left is not None:
            node = node.left
        return node.place, node.amount

    def _hang(self, node: _Node | None, place: Place, path: list[_Node]) -> None:
        """Put a subtree at the end of a path, and add up along the path."""
        if not path:
            self._root = node
        elif place < path[-1].place:
            path[-1].left = node
        else:
            path[-1].right = node
        for above in reversed(path):
            above.sum_up()


def _split(node: _Node | None, place: Place) -> tuple[_Node | None, _Node | None]:
    """Return what is before a place and what is after it."""
    if node is None:
        return None, None
    if node.place < place:
        node.right, after = _split(node.right, place)
        node.sum_up()
        return node, after
    before, node.left = _split(node.left, place)
    node.sum_up()
    return before, node


def _join(before: _Node | None, after: _Node | None) -> _Node | None:
    if before is None or after is None:
        return after if before is None else before
    if before.rank > after.rank:
        before.right = _join(before.right, after)
        before.sum_up()
        return before
    after.left = _join(before, after.left)
    after.sum_up()
    return after


def _in_order(node: _Node | None) -> Iterator[tuple[Place, KvTokenTime]]:
    if node is not None:
        yield from _in_order(node.left)
        yield node.place, node.amount
        yield from _in_order(node.right)
