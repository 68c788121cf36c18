"""What an ingress keeps of the inputs of open applications, to tell with their ends."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from justitia_ray.predictor.input_features import InputFeatures, features_of
from justitia_ray.units import ApplicationId

_MOST_WEIGHT = 4_000_000
"""Numbers and characters kept: some tens of megabytes. The oldest inputs go first; what is learned
of their applications is their cost alone."""
_WEIGHT_OF_ONE = 64
_LONG_CHARS = 2_000
"""Features of 2,000 characters take a quarter of a millisecond; longer texts go to a thread."""


@dataclass(frozen=True, slots=True)
class SeenInput:
    """What is kept of one input."""

    features: InputFeatures
    text: str | None = None
    """Only where texts are stored."""

    @property
    def weight(self) -> int:
        """How much memory it takes, in numbers and characters."""
        text = 0 if self.text is None else len(self.text)
        return _WEIGHT_OF_ONE + 2 * len(self.features.terms) + text


class OpenInputs:
    """Inputs by application, bounded in all."""

    def __init__(self, *, store_inputs: bool, most_weight: int = _MOST_WEIGHT) -> None:
        """Start empty.

        Args:
            store_inputs: Whether to keep texts.
            most_weight: Sum of the weights kept.
        """
        self._store_inputs = store_inputs
        self._most_weight = most_weight
        self._seen: OrderedDict[ApplicationId, SeenInput] = OrderedDict()
        self._weight = 0

    async def look_at(self, text: str) -> SeenInput:
        """Return what is to be kept of an input."""
        if len(text) > _LONG_CHARS:
            features = await asyncio.to_thread(features_of, text)
        else:
            features = features_of(text)
        return SeenInput(features, text if self._store_inputs else None)

    def remember(self, application_id: ApplicationId, seen: SeenInput) -> None:
        """Keep it until its application ends."""
        self.take(application_id)
        self._seen[application_id] = seen
        self._weight += seen.weight
        while self._weight > self._most_weight:
            _, oldest = self._seen.popitem(last=False)
            self._weight -= oldest.weight

    def take(self, application_id: ApplicationId) -> SeenInput | None:
        """Return what was kept of an application's input, and keep it no longer."""
        seen = self._seen.pop(application_id, None)
        if seen is not None:
            self._weight -= seen.weight
        return seen

    def __len__(self) -> int:
        return len(self._seen)
