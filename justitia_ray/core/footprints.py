"""KV memory of one replica's leases: now, and as time goes by if nothing else is admitted.

All sequences gain a token an iteration until their lease ends, so KV rises between the ends of
leases and falls at each: it peaks just before an end, and only those moments are looked at
(LightLLM's rule; S-LoRA's, in the VTC artifact).
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from justitia_ray.units import ApplicationId, LeaseId, Tokens


class Footprint(NamedTuple):
    """KV memory of one lease on its replica, now and to come; a tuple, as every report makes one.

    All sequences of a lease are taken as of equal length, and gain a token an iteration. Sorts by
    its end.
    """

    iterations: Tokens
    """Iterations to its end."""
    choices: int
    """Sequences that run under the lease: the tokens that it gains in an iteration."""
    context_tokens: Tokens
    """Prompt and generated tokens of all its sequences, without what their last blocks waste."""
    application_id: ApplicationId

    @property
    def full_tokens(self) -> Tokens:
        """The most KV that it will hold, without what the last blocks waste."""
        return self.context_tokens + self.choices * self.iterations


class Forecast:
    """The ends of leases in order, and the KV held just before each. Immutable.

    `sequences` and `contexts` have an entry for each lease, soonest end first, and a 0 for the time
    after the last.
    """

    def __init__(self, leases: Sequence[Footprint], block_size: Tokens) -> None:
        """Look ahead to the end of every lease. O(n).

        Args:
            leases: The leases that the replica runs, sorted.
            block_size: Each sequence may waste all of its last block but one token.
        """
        self.leases = tuple(leases)
        self.block_size = block_size
        waste = block_size - 1
        self.ends = [lease[0] for lease in leases]
        """Iterations to the end of each lease."""
        self.sequences = list(accumulate([lease[1] for lease in reversed(leases)], initial=0))
        """Sequences that run until each end or longer."""
        self.contexts = list(accumulate([lease[2] for lease in reversed(leases)], initial=0))
        """KV that those hold now, without waste."""
        self.sequences.reverse()
        self.contexts.reverse()
        columns = zip(self.contexts, self.sequences, self.ends, strict=False)
        self.held = [context + choices * (waste + end) for context, choices, end in columns]
        """KV held just before each end, in whole blocks."""
        self._most_from = _running_max(reversed(self.held))
        self._most_from.reverse()
        self._most_until: dict[int, list[Tokens]] = {}

    def whole_blocks(self, lease: Footprint) -> Tokens:
        """Return the KV that a lease holds at its start."""
        return lease.context_tokens + lease.choices * (self.block_size - 1)

    def peak_with(self, lease: Footprint) -> Tokens:
        """Return the most KV that is held at any moment if one more starts now. O(log n)."""
        end, choices = lease.iterations, lease.choices
        own = self.whole_blocks(lease)
        at_end = bisect_left(self.ends, end)
        after_end = bisect_right(self.ends, end, at_end)
        beside = self.contexts[at_end] + self.sequences[at_end] * (self.block_size - 1 + end)
        return max(
            beside + own + choices * end,
            self._most_until_with(choices)[after_end] + own,
            self._most_from[after_end],
        )

    def _most_until_with(self, choices: int) -> list[Tokens]:
        """Return the most held up to each end if so many more sequences grow from 0 tokens."""
        if choices not in self._most_until:
            self._most_until[choices] = _running_max(
                [held + choices * end for held, end in zip(self.held, self.ends, strict=True)]
            )
        return self._most_until[choices]


def _running_max(values: Iterable[Tokens]) -> list[Tokens]:
    """Return the maximum of 0 and the first n values, for each n. Faster than `accumulate`."""
    most = 0
    maxima = [0]
    for value in values:
        if value > most:
            most = value
        maxima.append(most)
    return maxima


class Footprints(MutableMapping[LeaseId, Footprint]):
    """Footprints by lease, with their sums. Setting and deleting one is cheap: every report does.

    The order of their ends is kept over grants and ends of leases, and lost with each report.
    """

    def __init__(self) -> None:
        self._by_lease: dict[LeaseId, Footprint] = {}
        self._held_by: dict[ApplicationId, Tokens] = {}
        self._ends: list[Footprint] | None = None
        self._forecast: Forecast | None = None
        self._former: Forecast | None = None
        """Forecast of a part of these leases, all as they are now: others have come since."""
        self.context_tokens: Tokens = 0
        """KV held now, without what the last blocks waste."""
        self.full_tokens: Tokens = 0
        """KV held if all were at their fullest at once."""
        self.sequences = 0
        self.changes = 0
        """How often any of them was set or deleted."""

    def __getitem__(self, lease_id: LeaseId) -> Footprint:
        return self._by_lease[lease_id]

    def __setitem__(self, lease_id: LeaseId, footprint: Footprint) -> None:
        self.changes += 1
        before = self._by_lease.get(lease_id)
        self._by_lease[lease_id] = footprint
        if before is None:
            if self._ends is not None:
                insort(self._ends, footprint)
            if self._forecast is not None:
                self._former, self._forecast = self._forecast, None
            self._count(footprint, 1)
            return
        self._ends = self._forecast = self._former = None
        if before.full_tokens == footprint.full_tokens:
            # It has grown as expected, as nearly always: all other sums stay.
            self.context_tokens += footprint.context_tokens - before.context_tokens
        else:
            self._count(before, -1)
            self._count(footprint, 1)

    def __delitem__(self, lease_id: LeaseId) -> None:
        self.changes += 1
        footprint = self._by_lease.pop(lease_id)
        self._count(footprint, -1)
        self._forecast = self._former = None
        if self._ends is not None:
            del self._ends[bisect_left(self._ends, footprint)]

    def __iter__(self) -> Iterator[LeaseId]:
        return iter(self._by_lease)

    def __len__(self) -> int:
        return len(self._by_lease)

    def held_by(self, application_id: ApplicationId) -> Tokens:
        """Return the most KV that the leases of an application are expected to hold."""
        return self._held_by.get(application_id, 0)

    def forecast(self, block_size: Tokens) -> Forecast:
        """Return the forecast of these leases; computed once after each change."""
        if self._forecast is None or self._forecast.block_size != block_size:
            if self._ends is None:
                self._ends = sorted(self._by_lease.values())
            self._forecast = Forecast(self._ends, block_size)
        return self._forecast

    def exceed(self, kv_tokens: Tokens, lease: Footprint, block_size: Tokens) -> bool:
        """Return whether these and one more will at any moment hold more than so much KV.

        O(log n) where a part of them would already, of which there was a forecast; else as
        `forecast`.
        """
        former = self._former
        if (
            self._forecast is None
            and former is not None
            and former.block_size == block_size
            and former.peak_with(lease) > kv_tokens
        ):
            return True
        return self.forecast(block_size).peak_with(lease) > kv_tokens

    def forecast_with(self, lease: Footprint, block_size: Tokens) -> Forecast:
        """Return the forecast of these leases together with one more."""
        return Forecast(sorted([*self.forecast(block_size).leases, lease]), block_size)

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
