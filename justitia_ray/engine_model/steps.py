"""Iterations of an engine as vLLM's V1 scheduler plans them: tokens computed for each sequence.

An iteration computes at most `max_batched_tokens`. Running sequences come first, in the order of
admission: one token of each sequence that decodes, the next chunk of each prompt. If there are too
few free blocks, the running sequence last in order is preempted: it loses its blocks and waits. If
no sequence was preempted, waiting sequences are admitted in order, up to the first whose whole
prompt does not fit.
"""

from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeVar

from justitia_ray.engine_model.block_pool import BlockPool, Holding
from justitia_ray.engine_model.contents import Content
from justitia_ray.units import Tokens


@dataclass(slots=True, eq=False, kw_only=True)
class EngineSequence:
    """A sequence in the model of an engine: one choice of a prompt."""

    content: Content
    arrival: int
    """Number of the sequence by arrival, which a preemption does not change."""
    prompt_tokens: Tokens
    max_tokens: Tokens
    """Number of tokens that the sequence will generate."""
    priority: int = 0
    reads_cache: bool = True
    """Whether the prompt may use the prefix cache; not with `prompt_logprobs`, which needs every
    token.
    """
    generated: Tokens = 0
    computed: Tokens = 0
    """Number of tokens of the sequence whose KV is in blocks, or will be after the planned
    iterations.
    """
    cached_tokens: Tokens | None = None
    """Prompt tokens found in the cache when the sequence was first admitted (vLLM's
    `num_cached_tokens`); None before.
    """
    preemptions: int = 0
    lost: Tokens = 0
    """Tokens that the sequence had computed when it was last preempted; 0 once it is admitted
    again.
    """
    recomputed: Tokens = 0
    """Tokens of the sequence that preemptions lost and that the cache did not have afterwards."""
    holding: Holding = field(default_factory=Holding)

    @property
    def order(self) -> tuple[int, int]:
        """Sort key: sequences with lower keys are admitted first and preempted last."""
        return self.priority, self.arrival

    @property
    def tokens(self) -> Tokens:
        """Number of prompt tokens and output tokens so far."""
        return self.prompt_tokens + self.generated

    @property
    def finished(self) -> bool:
        """Whether all tokens of the sequence are generated."""
        return self.generated == self.max_tokens


EnginePolicy = Literal["priority", "fcfs"]
SequenceT = TypeVar("SequenceT", bound=EngineSequence)


class StepScheduler(Generic[SequenceT]):
    """Model of an engine's scheduler, with its running and waiting sequences.

    Do not add a sequence that can never fit (prompt and output exceed all blocks).

    Args:
        pool: The engine's blocks.
        block_size: Tokens of a block.
        max_num_seqs: Largest number of running sequences.
        max_batched_tokens: Largest number of tokens computed in an iteration.
        policy: `priority`; or `fcfs`: the sequence admitted last is preempted first and resumed
            first.
    """

    def __init__(
        self,
        pool: BlockPool,
        block_size: Tokens,
        max_num_seqs: int = 256,
        max_batched_tokens: Tokens = 8192,
        policy: EnginePolicy = "priority",
    ) -> None:
        self.pool = pool
        self.block_size = block_size
        self.max_num_seqs = max_num_seqs
        self.max_batched_tokens = max_batched_tokens
        self.running: list[SequenceT] = []
        """Running sequences in the order of admission."""
        self.waiting: list[SequenceT] = []
        """Waiting sequences in the order in which they will be admitted."""
        self.preemptions = 0
        self._by_priority = policy == "priority"
        self._no_more_fit = False
        """Whether no waiting sequence fits until a running sequence has ended."""

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, sequence: SequenceT) -> None:
        self._no_more_fit = False
        if self._by_priority:
            insort(self.waiting, sequence, key=lambda waiting: waiting.order)
        else:
            self.waiting.append(sequence)

    def remove(self, sequence: SequenceT) -> None:
        """Drop a running or waiting sequence; no effect on a sequence that has ended."""
        for sequences in (self.running, self.waiting):
            if sequence in sequences:
                sequences.remove(sequence)
                self._release_blocks(sequence)

    def plan(self) -> dict[SequenceT, Tokens]:
        """Plan the next iteration and allocate its blocks; return the tokens per sequence.

        The previous iteration must have ended. The result is empty if no sequence runs, or if the
        only running sequence was preempted for lack of a block; the next plan then continues.
        """
        step: dict[SequenceT, Tokens] = {}
        budget = self.max_batched_tokens
        index, preempted = 0, self.preemptions
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            tokens = min(sequence.tokens - sequence.computed, budget)
            victim: SequenceT | None = None
            while victim is not sequence and not self._extend_running(sequence, tokens):
                victim = self._choose_victim()
                place = self.running.index(victim)
                if place < index:
                    index -= 1
                budget += step.pop(victim, 0)
                del self.running[place]
                self._preempt_sequence(victim)
            if victim is sequence:
                break  # the last sequence in order preempts itself
            step[sequence] = tokens
            budget -= tokens
            index += 1
        if self.preemptions == preempted:
            self._admit_waiting(step, budget)
        for sequence, tokens in step.items():
            sequence.computed += tokens
        return step

    def count_equal_steps(self, step: Mapping[SequenceT, Tokens]) -> int:
        """Return the number of equal iterations that follow, the planned one included.

        Iterations are equal while all running sequences decode, no sequence ends before the last
        iteration, blocks suffice and no waiting sequence could be admitted. Adding a sequence ends
        the series.
        """
        if (
            len(step) != len(self.running)
            or (self.waiting and not self._no_more_fit)
            or any(
                tokens != 1 or sequence.computed != sequence.tokens
                for sequence, tokens in step.items()
            )
        ):
            return 1
        low, high = 1, min(sequence.max_tokens - sequence.generated for sequence in step)
        while low < high:
            middle = (low + high + 1) // 2
            if self._blocks_missing(step, middle - 1) <= self.pool.free_blocks:
                low = middle
            else:
                high = middle - 1
        return low

    def end(self, step: Mapping[SequenceT, Tokens], iterations: int = 1) -> list[SequenceT]:
        """End one or several equal iterations; return the sequences that generated tokens.

        Finished sequences are removed. Contents must have the generated tokens before the next
        iteration is planned; when several iterations end, before this call.
        """
        made = []
        for sequence in step:
            if sequence.computed < sequence.tokens or not sequence.holding.blocks:
                continue
            if iterations > 1:
                sequence.computed += iterations - 1
                self._allocate_up_to(sequence, sequence.computed)
            sequence.generated += iterations
            made.append(sequence)
        for sequence in made:
            if sequence.finished:
                self.running.remove(sequence)
                self._release_blocks(sequence)
        return made

    def _admit_waiting(self, step: dict[SequenceT, Tokens], budget: Tokens) -> None:
        self._no_more_fit = False
        while self.waiting and budget > 0:
            sequence = self.waiting[0]
            if len(self.running) == self.max_num_seqs or not self._start_sequence(sequence):
                self._no_more_fit = True
                return
            del self.waiting[0]
            self.running.append(sequence)
            tokens = min(sequence.tokens - sequence.computed, budget)
            self._allocate_up_to(sequence, sequence.computed + tokens)
            step[sequence] = tokens
            budget -= tokens

    def _start_sequence(self, sequence: SequenceT) -> bool:
        """Admit a sequence with its cached prefix; return False if the sequence does not fit."""
        pool = self.pool
        # The last token of a prompt is always computed, because decoding starts from it.
        most = (sequence.tokens - 1) // self.block_size if sequence.reads_cache else 0
        found = pool.find(sequence.content, most)
        if not sequence.preemptions:
            sequence.cached_tokens = found.blocks * self.block_size
        needed = self._blocks_of_tokens(sequence.tokens) - found.blocks + found.free_blocks
        if needed > pool.free_blocks:
            return False
        pool.hold(sequence.holding, found)
        sequence.computed = found.blocks * self.block_size
        sequence.recomputed += max(0, sequence.lost - sequence.computed)
        sequence.lost = 0
        return True

    def _extend_running(self, sequence: SequenceT, tokens: Tokens) -> bool:
        """Allocate blocks for a running sequence's next tokens; return False if too few."""
        missing = self._blocks_of_tokens(sequence.computed + tokens) - sequence.holding.blocks
        if missing > self.pool.free_blocks:
            return False
        self._allocate_up_to(sequence, sequence.computed + tokens)
        return True

    def _allocate_up_to(self, sequence: SequenceT, tokens: Tokens) -> None:
        """Allocate blocks for a number of tokens, and cache the blocks that become full."""
        missing = self._blocks_of_tokens(tokens) - sequence.holding.blocks
        if missing > 0:
            self.pool.allocate(sequence.holding, missing)
        self.pool.cache(sequence.holding, sequence.content, tokens // self.block_size)

    def _choose_victim(self) -> SequenceT:
        if self._by_priority:
            return max(self.running, key=lambda running: running.order)
        return self.running[-1]

    def _preempt_sequence(self, sequence: SequenceT) -> None:
        self._release_blocks(sequence)
        sequence.lost, sequence.computed = sequence.computed, 0
        sequence.preemptions += 1
        self.preemptions += 1
        if self._by_priority:
            self.add(sequence)
        else:
            self.waiting.insert(0, sequence)

    def _release_blocks(self, sequence: SequenceT) -> None:
        self._no_more_fit = False
        self.pool.free(sequence.holding)

    def _blocks_of_tokens(self, tokens: Tokens) -> int:
        return -(-tokens // self.block_size)

    def _blocks_missing(self, step: Mapping[SequenceT, Tokens], more: int) -> int:
        """Return the number of free blocks that sequences lack for `more` tokens each."""
        return sum(
            self._blocks_of_tokens(sequence.computed + more) - sequence.holding.blocks
            for sequence in step
        )
