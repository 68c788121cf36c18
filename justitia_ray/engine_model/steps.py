"""Iterations of an engine as vLLM's V1 scheduler plans them: who computes how many tokens.

An iteration computes at most `max_batched_tokens`. What runs goes first, in the order in which it
was admitted: one token of each that decodes, the next chunk of each prompt. Where blocks are short,
the running sequence last in order is preempted: it loses its blocks and waits. If none was
preempted, waiting sequences are admitted in order, up to the first whose whole prompt does not fit.
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
    """A sequence of an engine: a choice of a prompt."""

    content: Content
    arrival: int
    """Rank of arrival; it stays through preemptions."""
    prompt_tokens: Tokens
    max_tokens: Tokens
    """Tokens that it makes in all."""
    priority: int = 0
    reads_cache: bool = True
    """False for a prompt whose every token has to be computed: `prompt_logprobs`."""
    generated: Tokens = 0
    computed: Tokens = 0
    """Tokens whose KV is in its blocks, or will be after the iterations that are planned."""
    cached_tokens: Tokens | None = None
    """Prompt tokens that were in the cache as it was first admitted (vLLM's `num_cached_tokens`);
    None before."""
    preemptions: int = 0
    holding: Holding = field(default_factory=Holding)

    @property
    def order(self) -> tuple[int, int]:
        """Lower is admitted first and preempted last."""
        return self.priority, self.arrival

    @property
    def tokens(self) -> Tokens:
        """Tokens of prompt and output so far."""
        return self.prompt_tokens + self.generated

    @property
    def finished(self) -> bool:
        """True once all tokens of the sequence are made."""
        return self.generated == self.max_tokens


EnginePolicy = Literal["priority", "fcfs"]
SequenceT = TypeVar("SequenceT", bound=EngineSequence)


class StepScheduler(Generic[SequenceT]):
    """The running and waiting sequences of an engine.

    A sequence that can never fit (prompt and output exceed all blocks) must not be added.

    Args:
        pool: The engine's blocks.
        block_size: Tokens of a block.
        max_num_seqs: Sequences that may run at once.
        max_batched_tokens: Tokens that an iteration computes at most.
        policy: `priority`, or `fcfs`: what was admitted last is preempted first and comes back
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
        """In the order of admission."""
        self.waiting: list[SequenceT] = []
        """In the order of admission to come."""
        self.preemptions = 0
        self._by_priority = policy == "priority"
        self._no_more_fit = False
        """Whether the last plan left sequences waiting that nothing but an end lets in."""

    @property
    def has_work(self) -> bool:
        """Whether anything runs or waits."""
        return bool(self.running or self.waiting)

    def add(self, sequence: SequenceT) -> None:
        """Queue a new sequence."""
        self._no_more_fit = False
        if self._by_priority:
            insort(self.waiting, sequence, key=lambda waiting: waiting.order)
        else:
            self.waiting.append(sequence)

    def remove(self, sequence: SequenceT) -> None:
        """Drop a running or waiting sequence; nothing happens if it has ended."""
        for sequences in (self.running, self.waiting):
            if sequence in sequences:
                sequences.remove(sequence)
                self._leave(sequence)

    def plan(self) -> dict[SequenceT, Tokens]:
        """Plan the next iteration, allocate its blocks, and return what it computes of which.

        The one before must have ended. Empty if nothing runs, and where the first that runs is the
        last in order and was preempted for want of a block: the next plan goes on.
        """
        step: dict[SequenceT, Tokens] = {}
        budget = self.max_batched_tokens
        index, preempted = 0, self.preemptions
        while index < len(self.running) and budget > 0:
            sequence = self.running[index]
            tokens = min(sequence.tokens - sequence.computed, budget)
            victim: SequenceT | None = None
            while victim is not sequence and not self._extend(sequence, tokens):
                victim = self._victim()
                place = self.running.index(victim)
                if place < index:
                    index -= 1
                budget += step.pop(victim, 0)
                del self.running[place]
                self._preempt(victim)
            if victim is sequence:
                break  # it was the last in order itself
            step[sequence] = tokens
            budget -= tokens
            index += 1
        if self.preemptions == preempted:
            self._admit(step, budget)
        for sequence, tokens in step.items():
            sequence.computed += tokens
        return step

    def equal_steps(self, step: Mapping[SequenceT, Tokens]) -> int:
        """Return how many iterations like one that was just planned would follow, it included.

        They are equal as long as all that runs decodes, none ends before the last of them, blocks
        suffice and nothing that waits could be admitted. Something new ends that.
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
            if self._blocks_for(step, middle - 1) <= self.pool.free_blocks:
                low = middle
            else:
                high = middle - 1
        return low

    def end(self, step: Mapping[SequenceT, Tokens], iterations: int = 1) -> list[SequenceT]:
        """End an iteration, or several equal ones; return the sequences that made tokens.

        Those that finish leave. Contents have the tokens that were made, at the latest when the
        next iteration is planned; those of several iterations before.
        """
        made = []
        for sequence in step:
            if sequence.computed < sequence.tokens or not sequence.holding.blocks:
                continue
            if iterations > 1:
                sequence.computed += iterations - 1
                self._fill(sequence, sequence.computed)
            sequence.generated += iterations
            made.append(sequence)
        for sequence in made:
            if sequence.finished:
                self.running.remove(sequence)
                self._leave(sequence)
        return made

    # --- inside

    def _admit(self, step: dict[SequenceT, Tokens], budget: Tokens) -> None:
        self._no_more_fit = False
        while self.waiting and budget > 0:
            sequence = self.waiting[0]
            if len(self.running) == self.max_num_seqs or not self._start(sequence):
                self._no_more_fit = True
                return
            del self.waiting[0]
            self.running.append(sequence)
            tokens = min(sequence.tokens - sequence.computed, budget)
            self._fill(sequence, sequence.computed + tokens)
            step[sequence] = tokens
            budget -= tokens

    def _start(self, sequence: SequenceT) -> bool:
        """Give a sequence the cached beginning of what it has; False if all of it does not fit."""
        pool = self.pool
        # At least the last token is computed, to have something to go on from.
        most = (sequence.tokens - 1) // self.block_size if sequence.reads_cache else 0
        found = pool.find(sequence.content, most)
        if not sequence.preemptions:
            sequence.cached_tokens = found.blocks * self.block_size
        needed = self._blocks(sequence.tokens) - found.blocks + found.free_blocks
        if needed > pool.free_blocks:
            return False
        pool.hold(sequence.holding, found)
        sequence.computed = found.blocks * self.block_size
        return True

    def _extend(self, sequence: SequenceT, tokens: Tokens) -> bool:
        """Allocate blocks for the next tokens of a running sequence; False if they are short."""
        missing = self._blocks(sequence.computed + tokens) - sequence.holding.blocks
        if missing > self.pool.free_blocks:
            return False
        self._fill(sequence, sequence.computed + tokens)
        return True

    def _fill(self, sequence: SequenceT, tokens: Tokens) -> None:
        """Allocate blocks for a number of tokens, and cache those that are full then."""
        missing = self._blocks(tokens) - sequence.holding.blocks
        if missing > 0:
            self.pool.allocate(sequence.holding, missing)
        self.pool.cache(sequence.holding, sequence.content, tokens // self.block_size)

    def _victim(self) -> SequenceT:
        if self._by_priority:
            return max(self.running, key=lambda running: running.order)
        return self.running[-1]

    def _preempt(self, sequence: SequenceT) -> None:
        self._leave(sequence)
        sequence.computed = 0
        sequence.preemptions += 1
        self.preemptions += 1
        if self._by_priority:
            self.add(sequence)
        else:
            self.waiting.insert(0, sequence)

    def _leave(self, sequence: SequenceT) -> None:
        self._no_more_fit = False
        self.pool.free(sequence.holding)

    def _blocks(self, tokens: Tokens) -> int:
        return -(-tokens // self.block_size)

    def _blocks_for(self, step: Mapping[SequenceT, Tokens], more: int) -> int:
        """Return the blocks that a step's sequences lack for `more` tokens each."""
        return sum(
            self._blocks(sequence.computed + more) - sequence.holding.blocks for sequence in step
        )
