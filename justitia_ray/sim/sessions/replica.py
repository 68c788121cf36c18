"""A modelled replica with vLLM's scheduler and prefix cache, in simulated time."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from justitia_ray.engine_model.block_pool import BlockPool
from justitia_ray.engine_model.steps import EnginePolicy, EngineSequence, StepScheduler
from justitia_ray.sim.sessions.holds import Holds
from justitia_ray.sim.sessions.host_memory import HostMemory
from justitia_ray.sim.sessions.profiles import LongContextProfile
from justitia_ray.sim.sessions.trace import ChainPath
from justitia_ray.units import Seconds, Tokens


@dataclass(slots=True, eq=False, kw_only=True)
class TurnSequence(EngineSequence):
    """Sequence of a session's turn in an engine."""

    path: ChainPath
    loaded_tokens: Tokens = 0
    """Prompt tokens loaded from host memory when the turn was first admitted."""

    @property
    def found_tokens(self) -> Tokens:
        """Prompt tokens that did not have to be computed."""
        return (self.cached_tokens or 0) + self.loaded_tokens


class SessionReplica:
    """An engine simulated iteration by iteration; equal iterations are simulated in one step.

    Args:
        index: Index of the replica.
        profile: Memory and iteration times.
        policy: Order of the sequences that wait in the engine.
        host_tokens: KV tokens that fit into its host memory.
    """

    def __init__(
        self,
        index: int,
        profile: LongContextProfile,
        policy: EnginePolicy,
        host_tokens: Tokens = 0,
    ) -> None:
        self.index = index
        self.name = str(index)
        self.profile = profile
        self.steps: StepScheduler[TurnSequence] = StepScheduler(
            BlockPool(profile.kv_tokens // profile.block_size),
            profile.block_size,
            profile.max_num_seqs,
            profile.max_batched_tokens,
            policy,
        )
        self.holds = Holds(self.steps.pool, profile.block_size)
        self.host = HostMemory(host_tokens)
        self.before_plan: Callable[[Sequence[TurnSequence], Seconds], None] | None = None
        self.ends_at: Seconds | None = None
        """Time at which the present iterations end; None if no sequence runs."""
        self._step: Mapping[TurnSequence, Tokens] = {}
        self._began_at: Seconds = 0.0
        self._iterations = 1
        self._context_tokens: Tokens = 0

    def add(self, sequence: TurnSequence, now: Seconds) -> None:
        """Queue a sequence; the engine considers it at the end of the present iteration."""
        self.steps.add(sequence)
        self._replan_iterations(now)

    def release(self, name: Hashable, now: Seconds) -> None:
        """Let a held prompt be evicted; waiting sequences may fit then."""
        if self.holds.drop(name):
            self._replan_iterations(now)

    def end(self, now: Seconds) -> list[TurnSequence]:
        """End the present iterations, start the next ones, and return the finished sequences."""
        made = self.steps.end(self._step, self._iterations)
        finished = [sequence for sequence in made if sequence.finished]
        for sequence in finished:
            self.host.store(sequence.path)
        if finished and self.before_plan is not None:
            self.before_plan(finished, now)
        self._begin_iterations(now)
        return finished

    @property
    def free_tokens(self) -> Tokens:
        """KV memory that no sequence holds."""
        return self.steps.pool.free_blocks * self.profile.block_size

    @property
    def uncomputed_tokens(self) -> Tokens:
        """Prompt tokens of the replica's sequences that are not computed yet, cached or not."""
        sequences = (*self.steps.running, *self.steps.waiting)
        return sum(max(0, one.tokens - one.computed - 1) for one in sequences)

    @property
    def sequences(self) -> int:
        """Number of sequences that run or wait on the replica."""
        return len(self.steps.running) + len(self.steps.waiting)

    def _replan_iterations(self, now: Seconds) -> None:
        """Plan new iterations at the end of the present one, or now if no sequence runs."""
        if self.ends_at is None:
            self._begin_iterations(now)
        elif self._iterations > 1:
            self._iterations = self._count_ended_iterations(now)
            self.ends_at = self._began_at + self._iterations_s(self._iterations)

    def _begin_iterations(self, now: Seconds) -> None:
        self._make_room()
        self._step = self.steps.plan()
        while not self._step:
            if not self.steps.has_work:
                self.ends_at = None
                return
            if not self.steps.running:
                self.holds.drop_highest_rank()
            self._step = self.steps.plan()
        self._began_at = now
        decoding = [s for s, tokens in self._step.items() if tokens == 1]
        self._context_tokens = sum(sequence.computed for sequence in decoding)
        self._iterations = self.steps.count_equal_steps(self._step)
        if self._iterations > 1:
            self.ends_at = now + self._iterations_s(self._iterations)
            return
        chunks = [
            self._classify_chunk_tokens(one, tokens)
            for one, tokens in self._step.items()
            if tokens > 1
        ]
        loaded_tokens = sum(loaded for loaded, _, _ in chunks)
        computed = [(tokens, before) for _, tokens, before in chunks]
        length_s = self.profile.iteration_s(len(decoding), self._context_tokens, computed)
        self.ends_at = now + length_s + self.profile.host_token_s * loaded_tokens

    def _classify_chunk_tokens(
        self, sequence: TurnSequence, tokens: Tokens
    ) -> tuple[Tokens, Tokens, Tokens]:
        """Return the number of tokens of a chunk, loaded or computed, and of those before it.

        At least the last token of a prompt is computed.
        """
        before = sequence.computed - tokens
        found = min(self.host.found(sequence.path), sequence.prompt_tokens - 1)
        loaded = max(0, min(found - before, tokens))
        if not sequence.preemptions:
            sequence.loaded_tokens += loaded
        return loaded, tokens - loaded, before + loaded

    def _make_room(self) -> None:
        """Give up held prompts that would cause a preemption of the running sequences."""
        while self.holds and self._missing_blocks() > self.steps.pool.free_blocks:
            self.holds.drop_highest_rank()

    def _missing_blocks(self) -> int:
        size = self.profile.block_size
        return sum(
            max(0, one.tokens // size + 1 - one.holding.blocks) for one in self.steps.running
        )

    def _iterations_s(self, iterations: int) -> Seconds:
        return self.profile.decode_s(len(self._step), self._context_tokens, iterations)

    def _count_ended_iterations(self, now: Seconds) -> int:
        low, high = 1, self._iterations
        while low < high:
            middle = (low + high) // 2
            if self._began_at + self._iterations_s(middle) < now:
                low = middle + 1
            else:
                high = middle
        return low
