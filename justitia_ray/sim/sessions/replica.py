"""A modelled replica with vLLM's scheduler and prefix cache, in simulated time."""

from collections.abc import Callable, Hashable, Mapping, Sequence

from justitia_ray.engine_model.block_pool import BlockPool
from justitia_ray.engine_model.steps import EnginePolicy, EngineSequence, StepScheduler
from justitia_ray.sim.sessions.holds import Holds
from justitia_ray.sim.sessions.profiles import LongContextProfile
from justitia_ray.units import Seconds, Tokens


class SessionReplica:
    """An engine that simulates iteration by iteration, with equal iterations in one step.

    Args:
        index: Index of the replica.
        profile: Memory and times.
        policy: Order of the sequences that wait in the engine.
    """

    def __init__(self, index: int, profile: LongContextProfile, policy: EnginePolicy) -> None:
        self.index = index
        self.name = str(index)
        self.profile = profile
        self.steps: StepScheduler[EngineSequence] = StepScheduler(
            BlockPool(profile.kv_tokens // profile.block_size),
            profile.block_size,
            profile.max_num_seqs,
            profile.max_batched_tokens,
            policy,
        )
        self.holds = Holds(self.steps.pool, profile.block_size)
        """Prompts of finished sequences that stay in the cache."""
        self.before_plan: Callable[[Sequence[EngineSequence], Seconds], None] | None = None
        """Called with finished sequences before the next iteration is planned: the time at which
        their prompts can be held for certain."""
        self.ends_at: Seconds | None = None
        """End of the present run of iterations; None if nothing runs."""
        self._step: Mapping[EngineSequence, Tokens] = {}
        self._began_at: Seconds = 0.0
        self._iterations = 1
        self._context_tokens: Tokens = 0

    def add(self, sequence: EngineSequence, now: Seconds) -> None:
        """Queue a sequence; the engine considers it at the end of the present iteration."""
        self.steps.add(sequence)
        self._reconsider(now)

    def release(self, name: Hashable, now: Seconds) -> None:
        """Release a held prompt, if it is held; waiting sequences may fit then."""
        if self.holds.drop(name):
            self._reconsider(now)

    def end(self, now: Seconds) -> list[EngineSequence]:
        """End the present iterations, start the next ones, and return the finished sequences."""
        made = self.steps.end(self._step, self._iterations)
        finished = [sequence for sequence in made if sequence.finished]
        if finished and self.before_plan is not None:
            self.before_plan(finished, now)
        self._begin(now)
        return finished

    @property
    def free_tokens(self) -> Tokens:
        """KV memory that no sequence holds."""
        return self.steps.pool.free_blocks * self.profile.block_size

    @property
    def uncomputed_tokens(self) -> Tokens:
        """Prompt tokens of the sequences here that are not computed yet, cached or not."""
        sequences = (*self.steps.running, *self.steps.waiting)
        return sum(max(0, one.tokens - one.computed - 1) for one in sequences)

    @property
    def sequences(self) -> int:
        """Number of sequences that run or wait here."""
        return len(self.steps.running) + len(self.steps.waiting)

    def _reconsider(self, now: Seconds) -> None:
        """Plan again at the end of the present iteration, or now if nothing runs."""
        if self.ends_at is None:
            self._begin(now)
        elif self._iterations > 1:
            self._iterations = self._ended_by(now)
            self.ends_at = self._began_at + self._length_s(self._iterations)

    def _begin(self, now: Seconds) -> None:
        self._make_room()
        self._step = self.steps.plan()
        while not self._step:
            if not self.steps.has_work:
                self.ends_at = None
                return
            if not self.steps.running:
                self.holds.drop_last()
            self._step = self.steps.plan()
        self._began_at = now
        decoding = [s for s, tokens in self._step.items() if tokens == 1]
        self._context_tokens = sum(sequence.computed for sequence in decoding)
        self._iterations = self.steps.equal_steps(self._step)
        if self._iterations > 1:
            self.ends_at = now + self._length_s(self._iterations)
            return
        chunks = [
            (tokens, sequence.computed - tokens)
            for sequence, tokens in self._step.items()
            if tokens > 1
        ]
        self.ends_at = now + self.profile.iteration_s(len(decoding), self._context_tokens, chunks)

    def _make_room(self) -> None:
        """Give up holds that would make the running sequences lose their memory."""
        while self.holds and self._missing_blocks() > self.steps.pool.free_blocks:
            self.holds.drop_last()

    def _missing_blocks(self) -> int:
        size = self.profile.block_size
        return sum(
            max(0, one.tokens // size + 1 - one.holding.blocks) for one in self.steps.running
        )

    def _length_s(self, iterations: int) -> Seconds:
        return self.profile.decode_s(len(self._step), self._context_tokens, iterations)

    def _ended_by(self, now: Seconds) -> int:
        """Return the number of iterations that have begun before a time."""
        low, high = 1, self._iterations
        while low < high:
            middle = (low + high) // 2
            if self._began_at + self._length_s(middle) < now:
                low = middle + 1
            else:
                high = middle
        return low
