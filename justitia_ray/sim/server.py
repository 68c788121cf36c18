"""A modelled replica: its running and swapped-out inferences, from one iteration to the next.

A replica does not decide the order: the core decides which inferences are admitted, and in which
order they are swapped out and in (`Rank`).
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from justitia_ray.core.events import LeaseProgress
from justitia_ray.core.queue import LazyHeap
from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.iterations import Pace, PrefillQueue
from justitia_ray.sim.kv_memory import KvMemory, SimulatedSequence
from justitia_ray.units import RequestId, Seconds, Tokens

Rank = Callable[[RequestId], Any]
"""Function that returns an inference's rank in the policy's order; lower ranks are first."""


class Server:
    """Engine of one simulated replica, advanced iteration by iteration.

    Args:
        index: Index of the replica.
        profile: Costs of its iterations, and its rules.
        dispatch_s: Time from sending an inference until it arrives at this replica.
    """

    def __init__(self, index: int, profile: EngineProfile, dispatch_s: Seconds) -> None:
        self.index = index
        self.name = str(index)
        self.profile = profile
        self.at: Seconds = 0.0
        self.iteration = 0
        """Number of iterations that have ended."""
        self.running: dict[RequestId, SimulatedSequence] = {}
        self.swapped: dict[RequestId, SimulatedSequence] = {}
        self.context_tokens: Tokens = 0
        """KV of the running sequences in tokens."""
        self.kv_token_seconds = 0.0
        """Integral of the held KV over time, in token·seconds."""
        self.memory = KvMemory(profile)
        self._dispatch_s = dispatch_s
        self._sent: deque[tuple[Seconds, SimulatedSequence]] = deque()
        """Inferences that were sent to the replica and have not arrived."""
        self._sent_tokens: Tokens = 0
        self._uncomputed = PrefillQueue(profile)
        self._starting: list[SimulatedSequence] = []
        self._ends = LazyHeap()
        self._entered = 0
        self._pace = Pace(profile)
        self._ticks = False

    def next_boundary(self, instant: Seconds) -> Seconds:
        """Return the first time, from a time on, at which an iteration ends.

        The time itself if no inference runs.
        """
        if not self.running:
            return max(instant, self.at)
        return self._pace.at(self._pace.first_iteration_from(instant, self.iteration))

    def next_admission(self, instant: Seconds) -> Seconds:
        """Return the first time at which the engine may start new inferences."""
        if not self.running:
            return max(instant, self.at)
        first = self._pace.first_iteration_from(instant, self.iteration)
        return self._pace.at(max(first, self._uncomputed.next_at()))

    def can_start_inferences(self) -> bool:
        """Return whether the engine may start new inferences with the next iteration."""
        return not self.running or self.iteration >= self._uncomputed.next_at()

    def end_of_iterations_s(self, iterations: int) -> Seconds:
        """Return when a number of further iterations of the same batch will have ended."""
        return self._pace.at(self.iteration + iterations)

    @property
    def is_empty(self) -> bool:
        """Whether no inference runs on the replica or is on its way there."""
        return not self.running and not self._sent

    @property
    def leased_tokens(self) -> Tokens:
        """KV tokens of the running sequences, and of prompts on their way to the replica."""
        return self.context_tokens + self._sent_tokens

    def next_change(self) -> Seconds | None:
        by_itself = self._next_iteration_change()
        if not self._sent:
            return by_itself
        boundary = self.next_boundary(self._sent[0][0])
        return boundary if by_itself is None else min(boundary, by_itself)

    def advance(self, instant: Seconds) -> None:
        """Advance the engine to a time, by whole iterations."""
        if self.at >= instant:
            return
        if not self.running:
            self.at = instant
            return
        iteration = self._pace.iterations_ended_by(instant, self.iteration)
        passed = iteration - self.iteration
        if passed == 0:
            return
        at = self._pace.at(iteration)
        gained = self._decoding_count * passed
        self.kv_token_seconds += (self.context_tokens + gained / 2) * (at - self.at)
        self.context_tokens += gained
        self.iteration, self.at = iteration, at

    def finish(self) -> list[SimulatedSequence]:
        """Remove and return the sequences that have all their tokens."""
        finished = []
        while (name := self._ends.first()) is not None:
            if self._ends.key(name)[0] > self.iteration:
                break
            sequence = self.running[name]
            self._remove_sequence(sequence)
            finished.append(sequence)
        return finished

    def swap_out(self, rank: Rank) -> None:
        """Swap out running sequences until the next iteration fits in memory.

        While the next iteration would need more than the memory M, the running inference last in
        policy order is swapped out; it keeps its tokens.
        """
        if self._next_iteration_fits():
            return
        by_order = sorted(self.running.values(), key=lambda s: rank(s.request_id))
        while by_order and not self._next_iteration_fits():
            sequence = by_order.pop()
            self._remove_sequence(sequence)
            self._uncomputed.remove_sequence(sequence.request_id)
            self.swapped[sequence.request_id] = sequence
            sequence.result.preemptions += 1

    def swap_in(self, rank: Rank) -> None:
        """Resume swapped-out inferences in policy order, until one does not fit."""
        for sequence in sorted(self.swapped.values(), key=lambda s: rank(s.request_id)):
            if not self._has_room_for(sequence):
                return
            del self.swapped[sequence.request_id]
            if self.profile.overflow == "recompute":
                sequence.prefill_tokens = sequence.prompt_tokens + sequence.made
                sequence.computed = False
                if sequence.made:  # The prompt was computed before the inference was swapped out.
                    sequence.recomputed_tokens += sequence.prefill_tokens
            self.admit(sequence)

    def may_swap_in(self) -> bool:
        """Return whether any swapped-out inference fits now."""
        return any(self._has_room_for(sequence) for sequence in self.swapped.values())

    def send(self, sequence: SimulatedSequence, now: Seconds) -> None:
        """Send an inference to the replica; KV for its prompt is reserved at once."""
        self._sent.append((now + self._dispatch_s, sequence))
        self._sent_tokens += sequence.prompt_tokens

    def receive(self, now: Seconds) -> int:
        """Start arrived inferences if an iteration ends at `now`; return their number."""
        arrived = 0
        while self.at == now and self._sent and self._sent[0][0] <= now:
            _, sequence = self._sent.popleft()
            self._sent_tokens -= sequence.prompt_tokens
            self.admit(sequence)
            arrived += 1
        return arrived

    def lengthen_iteration(self, by_s: Seconds) -> None:
        """Lengthen the next iteration."""
        self._pace.lengthen_iteration(
            self.at, self.iteration, self._decoding_count, self.context_tokens, by_s
        )
        for sequence in self.running.values():
            first_token_at_s = sequence.result.first_token_at_s
            if first_token_at_s is not None and first_token_at_s > self.at:
                sequence.result.first_token_at_s = first_token_at_s + by_s

    def admit(self, sequence: SimulatedSequence) -> None:
        """Start an inference with the next iteration."""
        self.running[sequence.request_id] = sequence
        self.context_tokens += sequence.prompt_tokens + sequence.made
        if sequence.computed:
            self._resume_sequence(sequence)
        else:
            self._uncomputed.add_sequence(sequence)

    def start_iteration(self) -> None:
        """Begin the next iterations of the engine with the present batch.

        By the profile's rule, prompts are computed with the next iteration, in chunks over several
        iterations, or alone.
        """
        if not self.running:
            self._ticks = False
            return
        alone = self.profile.prefill == "separate"
        prefill_s = self._compute_alone() if alone else self._compute_in_iteration()
        gaining = self._decoding_count
        if alone and prefill_s:
            self.kv_token_seconds += self.context_tokens * prefill_s
            self.at += prefill_s
            self._pace.start(self.at, self.iteration, gaining, self.context_tokens)
        elif prefill_s or not self._ticks:
            self._pace.start(self.at, self.iteration, gaining, self.context_tokens, prefill_s)
        else:
            self._pace.change(self.at, self.iteration, gaining, self.context_tokens)
        for sequence in self._starting:
            sequence.result.first_token_at_s = self._pace.at(sequence.since + (not alone))
        self._starting.clear()
        self._ticks = True

    def progress(self) -> list[LeaseProgress]:
        """Return the number of tokens that each lease has produced."""
        reports = [
            LeaseProgress(
                s.lease_id,
                s.prompt_tokens,
                s.output_tokens_after(self.iteration),
                running=True,
                recomputed_tokens=s.recomputed_tokens,
            )
            for s in self.running.values()
        ]
        reports += [
            LeaseProgress(
                s.lease_id,
                s.prompt_tokens,
                s.made,
                running=True,
                recomputed_tokens=s.recomputed_tokens,
            )
            for s in self.swapped.values()
        ]
        return reports

    @property
    def _decoding_count(self) -> int:
        """Number of sequences that gain a token in each iteration."""
        return len(self.running) - len(self._uncomputed)

    def _next_iteration_change(self) -> Seconds | None:
        if not self.running:
            return None
        if self._uncomputed:
            prefill = self.iteration + 1
            if self.profile.prefill == "separate":
                prefill = max(prefill, self._uncomputed.next_at())
            if not self._decoding_count or self.profile.prefill != "separate":
                return self._pace.at(prefill)
        first = self._ends.first()
        assert first is not None
        last = int(self._ends.key(first)[0])
        if self._uncomputed:
            last = min(last, prefill)
        overflow = self.memory.first_overflow_after(
            self.running.values(), self.context_tokens, self.iteration, last
        )
        return self._pace.at(overflow)

    def _compute_alone(self) -> Seconds:
        """Compute prompts in an iteration of their own, if due; return its seconds."""
        tokens, batch = self._uncomputed.take_separate_prefills(self.iteration, len(self.running))
        if not batch:
            return 0.0
        for sequence in batch:
            sequence.made += 1
            self.context_tokens += 1
            self._note_computed_prompt(sequence)
        return self._pace.prefill_s(tokens)

    def _compute_in_iteration(self) -> Seconds:
        if not self._uncomputed:
            return 0.0
        tokens, done = self._uncomputed.take_with_iteration(self.iteration, len(self.running))
        prefill_s = self._pace.prefill_s(tokens)
        for sequence in done:
            self._note_computed_prompt(sequence)
        return prefill_s

    def _note_computed_prompt(self, sequence: SimulatedSequence) -> None:
        if sequence.result.first_token_at_s is None:
            self._starting.append(sequence)
        self._resume_sequence(sequence)

    def _resume_sequence(self, sequence: SimulatedSequence) -> None:
        sequence.go_on(self.iteration)
        self._entered += 1
        self._ends.put(sequence.request_id, (sequence.last_iteration, self._entered))

    def _remove_sequence(self, sequence: SimulatedSequence) -> None:
        sequence.stop(self.iteration)
        del self.running[sequence.request_id]
        self._ends.drop(sequence.request_id)
        self.context_tokens -= sequence.prompt_tokens + sequence.made

    def _next_iteration_fits(self) -> bool:
        if self.profile.block_size == 1:
            needed = self.context_tokens + len(self.running)
        else:
            needed = self.memory.held(self.running.values(), self.iteration, 1)
        return needed <= self.memory.room(self.running.values())

    def _has_room_for(self, sequence: SimulatedSequence) -> bool:
        """Return whether a swapped-out sequence fits for at least the next iteration."""
        held = self.memory.held(self.running.values(), self.iteration, 1)
        wanted = held + self.memory.blocks(sequence.prompt_tokens + sequence.made + 1)
        room = self.memory.room([*self.running.values(), sequence])
        return wanted <= room and len(self.running) < self.profile.max_num_seqs
