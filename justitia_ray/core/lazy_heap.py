"""A priority queue whose entries can move: a heap with lazy deletion."""

import heapq
from collections.abc import Iterator
from typing import TypeAlias

Key: TypeAlias = tuple[float, ...]
"""A place in an order, smallest first; ends in a sequence number so that no two are equal."""

_COMPACT_ABOVE = 64


class LazyHeap:
    """Names by key. Every change is O(log N), amortised; the first is found in O(1)."""

    __slots__ = ("_heap", "_keys")

    def __init__(self) -> None:
        self._keys: dict[str, Key] = {}
        self._heap: list[tuple[Key, str]] = []

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, name: str) -> bool:
        return name in self._keys

    def __iter__(self) -> Iterator[str]:
        """Yield the names in order. O(N log N)."""
        return iter(sorted(self._keys, key=self._keys.__getitem__))

    def in_order(self) -> Iterator[str]:
        """Yield the names in order: the first k of them in O(k log k), but for stale entries.

        Nothing may be put or dropped meanwhile.
        """
        heap, keys = self._heap, self._keys
        ahead = [(heap[0], 0)] if heap else []
        seen: set[str] = set()
        while ahead:
            (key, name), at = heapq.heappop(ahead)
            for child in (2 * at + 1, 2 * at + 2):
                if child < len(heap):
                    heapq.heappush(ahead, (heap[child], child))
            if keys.get(name) == key and name not in seen:  # twice, if it came back to a key
                seen.add(name)
                yield name

    def key(self, name: str) -> Key:
        """Return the key of a name.

        Raises:
            KeyError: If it is not there.
        """
        return self._keys[name]

    def put(self, name: str, key: Key) -> None:
        """Put a name at its place, or move it there."""
        if self._keys.get(name) == key:
            return
        self._keys[name] = key
        if len(self._keys) == 1:  # alone, as an application is that is a client by itself
            self._heap = [(key, name)]
            return
        heapq.heappush(self._heap, (key, name))
        if len(self._heap) > _COMPACT_ABOVE + 4 * len(self._keys):
            self._heap = [(key, name) for name, key in self._keys.items()]
            heapq.heapify(self._heap)

    def drop(self, name: str) -> None:
        """Take a name out; nothing happens if it is not there."""
        self._keys.pop(name, None)

    def first(self) -> str | None:
        """Return the name with the smallest key, or None if there is none."""
        heap, keys = self._heap, self._keys
        while heap:
            key, name = heap[0]
            if keys.get(name) == key:
                return name
            heapq.heappop(heap)
        return None
