"""The waiting inferences of one application, in the order of the policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from justitia_ray.core.lazy_heap import Key, LazyHeap
from justitia_ray.units import RequestId

if TYPE_CHECKING:
    from justitia_ray.core.entities import Inference


class WaitingLine:
    """Inferences by key; adding and taking out are O(log N), amortised."""

    __slots__ = ("_inferences", "_order")

    def __init__(self) -> None:
        self._inferences: dict[RequestId, Inference] = {}
        self._order = LazyHeap()

    def __len__(self) -> int:
        return len(self._inferences)

    def __iter__(self) -> Iterator[Inference]:
        """Yield the inferences in order. O(N log N)."""
        return (self._inferences[name] for name in self._order)

    def __contains__(self, inference: Inference) -> bool:
        return inference.request_id in self._inferences

    @property
    def first(self) -> Inference:
        """The inference that comes first.

        Raises:
            IndexError: If none waits.
        """
        name = self._order.first()
        if name is None:
            raise IndexError("nothing waits")
        return self._inferences[name]

    def add(self, inference: Inference, key: Key) -> None:
        """Put an inference at its place: a re-queued one where it was."""
        self._inferences[inference.request_id] = inference
        self._order.put(inference.request_id, key)

    def remove(self, inference: Inference) -> None:
        """Take an inference out.

        Raises:
            KeyError: If it does not wait here.
        """
        del self._inferences[inference.request_id]
        self._order.drop(inference.request_id)

    def values(self) -> list[Inference]:
        """Return the inferences in no particular order. O(N)."""
        return list(self._inferences.values())
