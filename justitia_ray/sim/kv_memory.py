"""Sequences of a modelled replica, and its KV memory: free now and later, and cached prefixes."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.results import InferenceResult
from justitia_ray.units import ApplicationId, LeaseId, RequestId, Tokens


@dataclass(slots=True, eq=False)
class SimulatedSequence:
    """Lengths and progress of an inference on a simulated replica."""

    request_id: RequestId
    lease_id: LeaseId
    application_id: ApplicationId
    client: str
    """Client of the inference, for engines that reserve memory for each client."""
    prompt_tokens: Tokens
    output_tokens: Tokens
    result: InferenceResult
    prefill_tokens: Tokens
    """Tokens that are computed before the sequence decodes: the prompt without its cached prefix.
    """
    follows: bool
    """Whether the inference continues an earlier inference of its application."""
    made: Tokens = 0
    since: int = 0
    computed: bool = False
    recomputed_tokens: Tokens = 0
    """Tokens computed again after the sequence was swapped out."""

    def output_tokens_after(self, iteration: int) -> Tokens:
        """Return the number of output tokens up to an iteration."""
        return self.made + (iteration - self.since if self.computed else 0)

    def context_tokens_after(self, iteration: int) -> Tokens:
        """Return the KV tokens held after an iteration."""
        return self.prompt_tokens + self.output_tokens_after(iteration)

    @property
    def last_iteration(self) -> int:
        return self.since + self.output_tokens - self.made

    def stop(self, iteration: int) -> None:
        self.made, self.since = self.output_tokens_after(iteration), iteration

    def go_on(self, iteration: int) -> None:
        self.since, self.computed = iteration, True


class KvMemory:
    """KV memory of a simulated replica: its room for sequences, now and in later iterations.

    All sizes are in tokens, in whole blocks.
    """

    def __init__(self, profile: EngineProfile) -> None:
        self._profile = profile

    def blocks(self, tokens: Tokens) -> Tokens:
        """Return a number of tokens rounded up to whole blocks."""
        size = self._profile.block_size
        return -(-tokens // size) * size

    def reserved(self, clients: Iterable[str]) -> Tokens:
        """Return the KV tokens reserved for the given clients."""
        each = self._profile.reserved_tokens_per_client
        return each * len(set(clients)) if each else 0

    @property
    def largest(self) -> Tokens:
        """Largest KV memory that a single inference can hold."""
        room = self._profile.kv_tokens - self._profile.reserved_tokens_per_client
        return room - room % self._profile.block_size

    def room(self, sequences: Iterable[SimulatedSequence]) -> Tokens:
        """Return the KV memory that is not reserved for clients of the running sequences."""
        if not self._profile.reserved_tokens_per_client:
            return self._profile.kv_tokens
        return self._profile.kv_tokens - self.reserved(sequence.client for sequence in sequences)

    def held(
        self, sequences: Iterable[SimulatedSequence], iteration: int, more: Tokens = 0
    ) -> Tokens:
        """Return the KV that sequences hold after an iteration."""
        return sum(self.blocks(s.context_tokens_after(iteration) + more) for s in sequences)

    def first_overflow_after(
        self, sequences: Collection[SimulatedSequence], context: Tokens, iteration: int, last: int
    ) -> int:
        """Return the first iteration whose successor would need more than the KV memory.

        Args:
            sequences: Running sequences; each gains a token per iteration.
            context: Tokens that the sequences hold at `iteration`.
            iteration: First iteration to check.
            last: Last iteration to check; no sequence ends before it.
        """
        gaining, room = len(sequences), self.room(sequences)
        waste = gaining * (self._profile.block_size - 1)
        if context + waste + gaining * (last - iteration) <= room:
            return last
        if self._profile.block_size == 1:
            return min(last, max(iteration, iteration + (room - context) // gaining))
        low, high = iteration, last
        while low < high:
            middle = (low + high) // 2
            if self.held(sequences, middle, 1) > room:
                high = middle
            else:
                low = middle + 1
        return low


class PrefixCache:
    """Simulated prefix cache with the last context of each application.

    An inference that follows another of its application starts with the other's context if its
    prompt is at least as long, as the turns of an agent do. Contexts are kept in otherwise unused
    memory, and evicted when the memory is needed.
    """

    def __init__(self, profile: EngineProfile) -> None:
        self._profile = profile
        self._contexts: dict[ApplicationId, Tokens] = {}
        self._tokens: Tokens = 0

    def keep_context(self, sequence: SimulatedSequence) -> None:
        """Keep the context of a finished inference in the cache."""
        if self._profile.prefix_caching:
            self._evict_context(sequence.application_id)
            context = sequence.prompt_tokens + sequence.made
            self._contexts[sequence.application_id] = context
            self._tokens += context

    def use_prefix(self, sequence: SimulatedSequence, free_tokens: Tokens) -> None:
        """Shorten the prefill of an inference by its cached prefix.

        Args:
            sequence: An inference that will start now, after another of its application.
            free_tokens: KV tokens that are free for this inference.
        """
        self._evict_down_to(free_tokens)
        held = self._evict_context(sequence.application_id)
        if held <= sequence.prompt_tokens:
            whole_blocks = held - held % self._profile.block_size
            # vLLM computes at least one token, because decoding starts from it.
            cached = min(whole_blocks, sequence.prompt_tokens - 1)
            sequence.prefill_tokens = sequence.prompt_tokens - cached
        self._evict_down_to(free_tokens - sequence.prompt_tokens)

    def _evict_down_to(self, tokens: Tokens) -> None:
        while self._tokens > tokens and self._contexts:
            self._evict_context(next(iter(self._contexts)))

    def _evict_context(self, application_id: ApplicationId) -> Tokens:
        tokens = self._contexts.pop(application_id, 0)
        self._tokens -= tokens
        return tokens
