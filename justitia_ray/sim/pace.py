"""When the iterations of a replica end, while nothing changes what runs on it.

With n sequences that hold U tokens, iteration i of a stretch (from 0) takes
base + per_sequence·n + per_context_token·(U + n·i) seconds, and the first one longer if it computes
prompts. Each gains a token an iteration, so that k of them take a sum in closed form.
"""

import math

from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.units import Seconds, Tokens


class Pace:
    """The instants at which the iterations of one stretch end.

    A stretch goes on, with the instants it gave, for as long as nothing that counts has changed: so
    the same iteration ends at the same instant, to the last digit, whoever asks and how often.
    """

    def __init__(self, profile: EngineProfile) -> None:
        cost = profile.iteration
        self._base_s = cost.base_s / profile.speedup
        self._per_sequence_s = cost.per_sequence_s / profile.speedup
        self._per_context_token_s = cost.per_context_token_s / profile.speedup
        self._per_prefill_token_s = cost.per_prefill_token_s / profile.speedup
        self._prefill_base_s = cost.prefill_base_s / profile.speedup
        self._tile = cost.prefill_tile_tokens
        self._is_constant = not (self._per_sequence_s or self._per_context_token_s)
        self._started_at: Seconds = 0.0
        self._first = 0
        self._first_s: Seconds = 0.0
        self._each_s: Seconds = self._base_s
        self._growth_s: Seconds = 0.0

    def prefill_s(self, prompt_tokens: Tokens) -> Seconds:
        """Return what computing so many prompt tokens takes, or adds to an iteration."""
        if not prompt_tokens:
            return 0.0
        whole_tiles = -(-prompt_tokens // self._tile) * self._tile
        return self._prefill_base_s + self._per_prefill_token_s * whole_tiles

    def start(
        self,
        at: Seconds,
        iteration: int,
        sequences: int,
        context_tokens: Tokens,
        prefill_s: Seconds = 0.0,
    ) -> None:
        """Begin a stretch.

        Args:
            at: The boundary that it begins with.
            iteration: Number of iterations ended by then.
            sequences: How many run from here on.
            context_tokens: The KV that they hold.
            prefill_s: Added to the first iteration.
        """
        self._started_at, self._first, self._first_s = at, iteration, prefill_s
        self._growth_s = self._per_context_token_s * sequences
        self._each_s = (
            self._base_s
            + self._per_sequence_s * sequences
            + self._per_context_token_s * context_tokens
        )

    def change(self, at: Seconds, iteration: int, sequences: int, context_tokens: Tokens) -> None:
        """Begin a stretch at a boundary of this one, if anything that counts is another now."""
        if self._first_s or not self._is_constant:
            self.start(at, iteration, sequences, context_tokens)

    def hold_up(
        self, at: Seconds, iteration: int, sequences: int, context_tokens: Tokens, by_s: Seconds
    ) -> None:
        """Make the iteration that follows a boundary longer; the arguments are those of `start`."""
        if iteration > self._first:
            self.start(at, iteration, sequences, context_tokens)
        self._first_s += by_s

    def at(self, iteration: int) -> Seconds:
        """Return the instant by which so many iterations have ended."""
        k = iteration - self._first
        if k <= 0:
            return self._started_at
        length = k * self._each_s + self._growth_s * (k * (k - 1) // 2)
        return self._started_at + (self._first_s + length)

    def ended_by(self, instant: Seconds, start: int) -> int:
        """Return how many iterations have ended by an instant, at least `start`.

        O(1) if all take as long, O(log of them) otherwise; by `at`, so that no rounding differs.
        """
        low, step = start, 1
        if not self._growth_s:
            passed = (instant - self._started_at - self._first_s) / self._each_s
            low = max(start, self._first + math.floor(passed) - 1)
            while low > start and self.at(low) > instant:
                low -= 1
        while self.at(low + step) <= instant:
            low += step
            step *= 2
        while step > 1:
            step //= 2
            if self.at(low + step) <= instant:
                low += step
        return low

    def first_from(self, instant: Seconds, start: int) -> int:
        """Return the first iteration, from `start` on, that ends at or after an instant."""
        if self.at(start) >= instant:
            return start
        if self._growth_s:
            by = self.ended_by(instant, start)
            return by if self.at(by) == instant else by + 1
        passed = (instant - self._started_at - self._first_s) / self._each_s
        first = max(start + 1, self._first + math.ceil(passed))
        while self.at(first) < instant:
            first += 1
        while self.at(first - 1) >= instant:
            first -= 1
        return first
