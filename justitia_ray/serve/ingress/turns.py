"""Fair turns between tenants at a scarce resource: start-time fair queueing on their tree.

Every node of the tree has a start tag, which grows by the charges of its calls. The next call is
found from the root down: at each node, the waiting child with the least tag. A node that starts to
wait gets at least the tag that is being served, so that idle time earns nothing. (P. Goyal, H. Vin,
H. Cheng: Start-time Fair Queueing, 1996; its hierarchical form is in Sec. 3 there.)
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

from justitia_ray.core.tenants import ancestors

T = TypeVar("T")


class Place(Generic[T]):
    """Node of the tree of waiting calls: a tenant, or a leaf for one call."""

    __slots__ = ("children", "item", "members", "name", "now", "parent", "tag", "waiting")

    def __init__(self, parent: "Place[T] | None", name: str, item: T | None = None) -> None:
        self.parent = parent
        self.name = name
        self.item = item
        self.tag = 0.0
        self.now = 0.0
        """Start tag (virtual time) of the child node that was served last."""
        self.members = 0
        """Number of calls below this node that have not ended."""
        self.children: dict[str, Place[T]] = {}
        self.waiting: dict[Place[T], None] = {}
        """Children of this node with a waiting call, in order of arrival."""

    def path_to_root(self) -> "Iterator[tuple[Place[T], Place[T]]]":
        """Yield each node from this node to the root, with its parent."""
        node = self
        while node.parent is not None:
            yield node, node.parent
            node = node.parent


class Turns(Generic[T]):
    """Waiting calls of tenants, which are served in fair order by start tags (virtual times)."""

    def __init__(self) -> None:
        self._root: Place[T] = Place(None, "")

    def __bool__(self) -> bool:
        return bool(self._root.waiting)

    def join(self, tenant: str, item: T) -> Place[T]:
        """Add a tenant's call and return its leaf; the caller must `leave` when the call ends."""
        node = self._root
        for name in ancestors(tenant):
            child = node.children.get(name)
            if child is None:
                child = node.children[name] = Place(node, name)
            node = child
        place = Place(node, "", item)
        self._root.members += 1
        for child, _ in place.path_to_root():
            child.members += 1
        self.line_up(place)
        return place

    def line_up(self, place: Place[T]) -> None:
        """Queue a call again after it has been served once."""
        for node, parent in place.path_to_root():
            if node in parent.waiting:
                return
            node.tag = max(node.tag, parent.now)
            parent.waiting[node] = None

    def first(self) -> Place[T] | None:
        """Return the call to serve next; None if no call waits."""
        node = self._root
        if not node.waiting:
            return None
        while node.waiting:
            node = min(node.waiting, key=lambda child: child.tag)
        return node

    def take(self, place: Place[T]) -> None:
        """Remove a call from the waiting calls, because it is served now."""
        for node, parent in place.path_to_root():
            parent.now = max(parent.now, node.tag)
        self._remove_from_waiting(place)

    def charge(self, place: Place[T], cost: float) -> None:
        """Charge a call and its tenants for the cost of serving it once."""
        for node, _ in place.path_to_root():
            node.tag += cost

    def leave(self, place: Place[T]) -> None:
        """Remove a call for good, waiting or not."""
        self._remove_from_waiting(place)
        self._root.members -= 1
        for node, parent in place.path_to_root():
            node.members -= 1
            if not node.members and node.tag <= parent.now:
                parent.children.pop(node.name, None)
        if not self._root.members:
            self._root.children.clear()

    def _remove_from_waiting(self, place: Place[T]) -> None:
        for node, parent in place.path_to_root():
            parent.waiting.pop(node, None)
            if parent.waiting:
                return
