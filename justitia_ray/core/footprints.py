"""KV memory of the leases of one replica: of each, and their sums, kept up to date."""

from bisect import bisect_left, insort
from collections.abc import Iterator, MutableMapping
from typing import NamedTuple

from justitia_ray.core.forecast import Forecast, Load
from justitia_ray.units import ApplicationId, LeaseId, Tokens


class Footprint(NamedTuple):
    """KV memory of one lease on its replica, now and to come; a tuple, as every report makes one.

    All sequences of a lease are taken as of equal length, and gain a token an iteration.
    """

    context_tokens: Tokens
    """Prompt and generated tokens of all its sequences."""
    remaining_tokens: Tokens
    """Output tokens still expected, over all its sequences."""
    choices: int
    """Its sequences."""
    application_id: ApplicationId

    @property
    def load(self) -> Load:
        """What the forecast looks at."""
        choices = self.choices
        return Load(-(-self.remaining_tokens // choices), choices, self.context_tokens)

    @property
    def full_tokens(self) -> Tokens:
        """Most that it will hold, without what its last blocks waste."""
        return self.context_tokens + -(-self.remaining_tokens // self.choices) * self.choices


class Footprints(MutableMapping[LeaseId, Footprint]):
    """Footprints by lease, with their sums. Setting and deleting one is cheap: every report does.

    The order of their ends is kept over grants and ends of leases, and lost with each report.
    """

    def __init__(self) -> None:
        self._by_lease: dict[LeaseId, Footprint] = {}
        self._held_by: dict[ApplicationId, Tokens] = {}
        self._ends: list[Load] | None = None
        self._forecast: Forecast | None = None
        self.context_tokens: Tokens = 0
        """Held now, without what the last blocks waste."""
        self.full_tokens: Tokens = 0
        """Held if all were at their fullest at once."""
        self.sequences = 0

    def __getitem__(self, lease_id: LeaseId) -> Footprint:
        return self._by_lease[lease_id]

    def __setitem__(self, lease_id: LeaseId, footprint: Footprint) -> None:
        before = self._by_lease.get(lease_id)
        self._by_lease[lease_id] = footprint
        if before is None:
            if self._ends is not None:
                insort(self._ends, footprint.load)
            self._count(footprint, 1)
            return
        self._ends = self._forecast = None
        if before.full_tokens == footprint.full_tokens:
            # It has grown as expected, as nearly always: all other sums stay.
            self.context_tokens += footprint.context_tokens - before.context_tokens
        else:
            self._count(before, -1)
            self._count(footprint, 1)

    def __delitem__(self, lease_id: LeaseId) -> None:
        footprint = self._by_lease.pop(lease_id)
        self._count(footprint, -1)
        if self._ends is not None:
            del self._ends[bisect_left(self._ends, footprint.load)]

    def __iter__(self) -> Iterator[LeaseId]:
        return iter(self._by_lease)

    def __len__(self) -> int:
        return len(self._by_lease)

    def held_by(self, application_id: ApplicationId) -> Tokens:
        """Return the most that the leases of an application are expected to hold."""
        return self._held_by.get(application_id, 0)

    def forecast(self, block_size: Tokens) -> Forecast:
        """Return what they hold as time goes by; made anew once after a change."""
        if self._forecast is None or self._forecast.block_size != block_size:
            if self._ends is None:
                self._ends = sorted(footprint.load for footprint in self._by_lease.values())
            self._forecast = Forecast(self._ends, block_size)
        return self._forecast

    def forecast_with(self, load: Load, block_size: Tokens) -> Forecast:
        """Return what they would hold together with one more."""
        return Forecast(sorted([*self.forecast(block_size).loads, load]), block_size)

    def _count(self, footprint: Footprint, sign: int) -> None:
        full, owner = footprint.full_tokens, footprint.application_id
        self.context_tokens += sign * footprint.context_tokens
        self.full_tokens += sign * full
        self.sequences += sign * footprint.choices
        held = self._held_by.get(owner, 0) + sign * full
        if held:
            self._held_by[owner] = held
        else:
            self._held_by.pop(owner, None)
        self._forecast = None
