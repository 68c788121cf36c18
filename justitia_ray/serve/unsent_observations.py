"""Applications that finished, on their way to the store in which they are learned from."""

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from justitia_ray.errors import StoreError
from justitia_ray.predictor.observation import Observation
from justitia_ray.store.predictions import Predictions

_KEPT = 10_000


class UnsentObservations:
    """What the store has not taken yet; beyond a bound the oldest are lost."""

    def __init__(self, store: Predictions, *, store_inputs: bool) -> None:
        """Begin with none.

        Args:
            store: Where they go.
            store_inputs: Whether texts of inputs go with them.
        """
        self._store = store
        self._store_inputs = store_inputs
        self._unsent: deque[dict[str, Any]] = deque(maxlen=_KEPT)

    def add(self, observations: Iterable[Observation]) -> None:
        """Take in applications, to be sent with the next `send`."""
        self._unsent.extend(self._as_stored(observation) for observation in observations)

    async def send(self) -> None:
        """Send what there is, in order.

        Raises:
            StoreError: If the store does not take it; it is kept.
        """
        if self._unsent:
            batch = list(self._unsent)
            self._unsent.clear()
            try:
                await self._store.add_observed(batch)
            except StoreError:
                self._unsent.extendleft(reversed(batch))
                raise

    async def send_at_once(self, observations: Iterable[Observation]) -> None:
        """Send these alone, whatever else waits.

        Raises:
            StoreError: If the store does not take them; none of them is kept.
        """
        await self._store.add_observed([self._as_stored(o) for o in observations])

    def _as_stored(self, observation: Observation) -> dict[str, Any]:
        if not self._store_inputs:
            observation = replace(observation, sample=observation.sample.without_text())
        return observation.to_dict()
