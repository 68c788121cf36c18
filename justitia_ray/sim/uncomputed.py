"""Which prompts a modelled replica computes next: alone, or with its iterations, in chunks."""

from collections.abc import Iterable

from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.sequence import Sequence
from justitia_ray.units import RequestId, Tokens


class Uncomputed:
    """What runs on a replica and has tokens to be computed before it gains any; in order."""

    def __init__(self, profile: EngineProfile) -> None:
        self._profile = profile
        self._sequences: dict[RequestId, Sequence] = {}
        self._last = -profile.admit_every
        """Iterations that had ended when prompts were computed last."""

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._sequences)

    def put(self, sequence: Sequence) -> None:
        """Take in what has begun to run."""
        self._sequences[sequence.request_id] = sequence

    def drop(self, request_id: RequestId) -> None:
        """Forget what has been swapped out, if it is here."""
        self._sequences.pop(request_id, None)

    def next_at(self) -> int:
        """Return the iteration from which on new prompts are considered."""
        return self._last + self._profile.admit_every

    def take_alone(self, iteration: int, running: int) -> tuple[Tokens, list[Sequence]]:
        """Take out a batch to be computed now by itself, if it is time.

        Args:
            iteration: Iterations that have ended.
            running: How many run, these included.

        Returns:
            Its tokens, and the batch; 0 and nothing if it is not time.
        """
        nothing_decodes = len(self) == running
        if not self._sequences or not (iteration >= self.next_at() or nothing_decodes):
            return 0, []
        batch: list[Sequence] = []
        tokens = 0
        for sequence in self._sequences.values():
            if batch and tokens + sequence.prefill_tokens > self._profile.max_batched_tokens:
                break
            batch.append(sequence)
            tokens += sequence.prefill_tokens
        self._take(batch, iteration)
        return tokens, batch

    def take_with_iteration(self, iteration: int, running: int) -> tuple[Tokens, list[Sequence]]:
        """Count what the next iteration computes beside its tokens; take out what is done then.

        Args:
            iteration: Iterations that have ended.
            running: How many run, these included.

        Returns:
            Tokens that it computes, and what has nothing left after it.
        """
        if not self._sequences:
            return 0, []
        budget = None
        if self._profile.prefill == "chunked":
            budget = max(1, self._profile.max_batched_tokens - (running - len(self)))
        tokens = 0
        done: list[Sequence] = []
        for sequence in self._sequences.values():
            left = sequence.prefill_tokens
            part = left if budget is None else min(left, budget - tokens)
            tokens += part
            sequence.prefill_tokens -= part
            if part == left:
                done.append(sequence)
            if tokens == budget:
                break
        self._take(done, iteration)
        return tokens, done

    def _take(self, sequences: Iterable[Sequence], iteration: int) -> None:
        for sequence in sequences:
            del self._sequences[sequence.request_id]
        self._last = iteration
