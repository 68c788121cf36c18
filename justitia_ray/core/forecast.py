"""KV memory of one replica's leases as time goes by, if nothing else is admitted.

All sequences gain a token an iteration until their lease ends, so KV rises between the ends of
leases and falls at each: it peaks just before an end, and only those moments are looked at
(LightLLM's rule; S-LoRA's, in the VTC artifact).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from justitia_ray.units import Tokens


class Load(NamedTuple):
    """One lease, its sequences taken as of equal length. Sorts by its end."""

    iterations: Tokens
    """To its end."""
    choices: int
    """Sequences: so many tokens it gains in an iteration."""
    context_tokens: Tokens
    """Held now, without what its last blocks waste."""

    @property
    def full_tokens(self) -> Tokens:
        """Most that it will hold, without what its last blocks waste."""
        return self.context_tokens + self.choices * self.iterations


class Forecast:
    """The ends of leases in order, and what is held just before each.

    `sequences` and `contexts` have an entry for each lease, soonest end first, and a 0 for the time
    after the last. Changes nothing once made.
    """

    def __init__(self, loads: Sequence[Load], block_size: Tokens) -> None:
        """Look ahead. O(n).

        Args:
            loads: What the replica runs, sorted.
            block_size: Each sequence may waste all of its last block but one token.
        """
        self.loads = tuple(loads)
        self.block_size = block_size
        waste = block_size - 1
        self.ends = [load[0] for load in loads]
        """Iterations to the end of each lease."""
        self.sequences = list(accumulate([load[1] for load in reversed(loads)], initial=0))
        """That run until each end or longer."""
        self.contexts = list(accumulate([load[2] for load in reversed(loads)], initial=0))
        """What those hold now, without waste."""
        self.sequences.reverse()
        self.contexts.reverse()
        columns = zip(self.contexts, self.sequences, self.ends, strict=False)
        self.held = [context + choices * (waste + end) for context, choices, end in columns]
        """Just before each end, in whole blocks."""
        self._most_from = _running_max(reversed(self.held))
        self._most_from.reverse()
        self._most_until: dict[int, list[Tokens]] = {}

    def whole_blocks(self, load: Load) -> Tokens:
        """Return what a lease holds at its start."""
        return load.context_tokens + load.choices * (self.block_size - 1)

    def peak_with(self, load: Load) -> Tokens:
        """Return the most that is held at any moment if this one starts now. O(log n)."""
        end, choices, _ = load
        own = self.whole_blocks(load)
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
