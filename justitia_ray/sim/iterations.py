"""Iterations of a modelled replica: when each ends, and which prompts it computes.

With n sequences that hold U tokens, iteration i of a run of equal iterations (from 0) takes base +
per_sequence·n + per_context_token·(U + n·i) seconds, and the first one longer if it computes
prompts. Each sequence gains a token per iteration, so that the sum of k iterations has a closed
form.
"""

import math
from collections.abc import Iterable

from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.kv_memory import SimulatedSequence
from justitia_ray.units import RequestId, Seconds, Tokens


class Pace:
    """Computes when the iterations of a simulated engine end.

    A run continues with its times while batch and context are unchanged: so the same iteration ends
    at the same time, to the last digit, however often that time is computed.
    """

    def __init__(self, profile: EngineProfile) -> None:
        self._cost = cost = profile.iteration.with_times(lambda time_s: time_s / profile.speedup)
        self._is_constant = not (cost.per_sequence_s or cost.per_context_token_s)
        self._started_at: Seconds = 0.0
        self._first = 0
        self._first_s: Seconds = 0.0
        self._each_s: Seconds = cost.base_s
        self._growth_s: Seconds = 0.0

    def prefill_s(self, prompt_tokens: Tokens) -> Seconds:
        """Return the seconds that computing prompt tokens adds to an iteration."""
        if not prompt_tokens:
            return 0.0
        tile = self._cost.prefill_tile_tokens
        whole_tiles = -(-prompt_tokens // tile) * tile
        return self._cost.prefill_base_s + self._cost.per_prefill_token_s * whole_tiles

    def start(
        self,
        at: Seconds,
        iteration: int,
        sequences: int,
        context_tokens: Tokens,
        prefill_s: Seconds = 0.0,
    ) -> None:
        """Begin a series of equal iterations.

        Args:
            at: Time of the boundary at which the run starts.
            iteration: Number of iterations that have ended.
            sequences: Number of decoding sequences.
            context_tokens: KV tokens that the decoding sequences hold.
            prefill_s: Time added to the first iteration.
        """
        self._started_at, self._first, self._first_s = at, iteration, prefill_s
        cost = self._cost
        self._growth_s = cost.per_context_token_s * sequences
        self._each_s = (
            cost.base_s
            + cost.per_sequence_s * sequences
            + cost.per_context_token_s * context_tokens
        )

    def change(self, at: Seconds, iteration: int, sequences: int, context_tokens: Tokens) -> None:
        if self._first_s or not self._is_constant:
            self.start(at, iteration, sequences, context_tokens)

    def lengthen_iteration(
        self, at: Seconds, iteration: int, sequences: int, context_tokens: Tokens, by_s: Seconds
    ) -> None:
        """Lengthen the next iteration by `by_s` seconds."""
        if iteration > self._first:
            self.start(at, iteration, sequences, context_tokens)
        self._first_s += by_s

    def at(self, iteration: int) -> Seconds:
        """Return the time at which a number of iterations have ended."""
        k = iteration - self._first
        if k <= 0:
            return self._started_at
        length = k * self._each_s + self._growth_s * (k * (k - 1) // 2)
        return self._started_at + (self._first_s + length)

    def iterations_ended_by(self, instant: Seconds, start: int) -> int:
        """Return the number of iterations that have ended at a time.

        O(1) if all iterations take the same time, otherwise O(log of their number). Uses `at`, so
        that rounding is the same.
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

    def first_iteration_from(self, instant: Seconds, start: int) -> int:
        """Return the first iteration that ends at or after a time."""
        if self.at(start) >= instant:
            return start
        by = self.iterations_ended_by(instant, start)
        return by if self.at(by) == instant else by + 1


class PrefillQueue:
    """Queue of running sequences whose prompts are not fully computed."""

    def __init__(self, profile: EngineProfile) -> None:
        self._profile = profile
        self._sequences: dict[RequestId, SimulatedSequence] = {}
        self._last = -profile.admit_every

    def __len__(self) -> int:
        return len(self._sequences)

    def add_sequence(self, sequence: SimulatedSequence) -> None:
        self._sequences[sequence.request_id] = sequence

    def remove_sequence(self, request_id: RequestId) -> None:
        """Remove a sequence that has been swapped out, if it is in the queue."""
        self._sequences.pop(request_id, None)

    def next_at(self) -> int:
        """Return the number of the next iteration that may compute new prompts."""
        return self._last + self._profile.admit_every

    def take_separate_prefills(
        self, iteration: int, running: int
    ) -> tuple[Tokens, list[SimulatedSequence]]:
        """Return the prompts that the engine computes alone in the next iteration.

        Args:
            iteration: Number of iterations that have ended.
            running: Number of running sequences, including those in the queue.

        Returns:
            Tokens of the batch, and the batch; 0 and an empty list if none is due.
        """
        nothing_decodes = len(self) == running
        if not self._sequences or not (iteration >= self.next_at() or nothing_decodes):
            return 0, []
        batch: list[SimulatedSequence] = []
        tokens = 0
        for sequence in self._sequences.values():
            if batch and tokens + sequence.prefill_tokens > self._profile.max_batched_tokens:
                break
            batch.append(sequence)
            tokens += sequence.prefill_tokens
        self._remove_sequences(batch, iteration)
        return tokens, batch

    def take_with_iteration(
        self, iteration: int, running: int
    ) -> tuple[Tokens, list[SimulatedSequence]]:
        """Return the number of prompt tokens that the next iteration computes.

        Args:
            iteration: Number of iterations that have ended.
            running: Number of running sequences, including those in the queue.

        Returns:
            Tokens that the iteration computes, and the sequences whose prompts it completes.
        """
        if not self._sequences:
            return 0, []
        budget = None
        if self._profile.prefill == "chunked":
            budget = max(1, self._profile.max_batched_tokens - (running - len(self)))
        tokens = 0
        done: list[SimulatedSequence] = []
        for sequence in self._sequences.values():
            left = sequence.prefill_tokens
            part = left if budget is None else min(left, budget - tokens)
            tokens += part
            sequence.prefill_tokens -= part
            if part == left:
                done.append(sequence)
            if tokens == budget:
                break
        self._remove_sequences(done, iteration)
        return tokens, done

    def _remove_sequences(self, sequences: Iterable[SimulatedSequence], iteration: int) -> None:
        for sequence in sequences:
            del self._sequences[sequence.request_id]
        self._last = iteration
