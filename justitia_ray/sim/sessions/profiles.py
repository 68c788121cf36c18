"""Engine profiles for long contexts: memory, and the time of an iteration."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from justitia_ray.cost import PrefillCost
from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.units import Seconds, Tokens


@dataclass(frozen=True, slots=True)
class LongContextProfile:
    """Speed and memory of a vLLM replica with long contexts."""

    name: str
    kv_tokens: Tokens
    base_s: Seconds
    """Fixed part of the time of every iteration, in seconds."""
    per_sequence_s: Seconds
    """Time per decoding sequence, in seconds."""
    per_context_token_s: Seconds
    """Time per token that the decoding sequences hold, in seconds."""
    per_prompt_token_s: Seconds
    """Time per computed prompt token, in seconds."""
    per_pair_s: Seconds
    """Time per pair of a computed prompt token and an earlier token, for attention, in seconds."""
    host_token_s: Seconds
    """Time to load the KV of a token from host memory, in seconds."""
    least_prefill_s: Seconds = 0.0
    """Least time of an iteration that computes any prompt token, in seconds."""
    block_size: Tokens = 16
    max_num_seqs: int = 256
    max_batched_tokens: Tokens = 8192

    @classmethod
    def of_engine(cls, engine: EngineProfile, name: str, block_size: Tokens = 16) -> Self:
        """Return a replica with the memory and times of an engine profile, under vLLM's rules."""
        times = engine.iteration.with_times(lambda time_s: time_s / engine.speedup)
        return cls(
            name,
            kv_tokens=engine.kv_tokens,
            base_s=times.base_s,
            per_sequence_s=times.per_sequence_s,
            per_context_token_s=times.per_context_token_s,
            per_prompt_token_s=times.per_prefill_token_s,
            per_pair_s=0.0,
            host_token_s=0.0,
            least_prefill_s=times.base_s + times.prefill_base_s,
            block_size=block_size,
        )

    @property
    def prefill_cost(self) -> PrefillCost:
        """Cost of computing prompts on this engine."""
        return PrefillCost.from_step_times(
            self.kv_tokens,
            self.base_s,
            self.per_context_token_s,
            self.per_prompt_token_s,
            self.per_pair_s,
        )

    def decode_s(self, sequences: int, context_tokens: Tokens, iterations: int = 1) -> Seconds:
        """Return the seconds of iterations in which all sequences decode.

        `context_tokens` is the context of the first iteration.
        """
        first = (
            self.base_s
            + self.per_sequence_s * sequences
            + self.per_context_token_s * context_tokens
        )
        grown = sequences * (iterations - 1) * iterations / 2
        return first * iterations + self.per_context_token_s * grown

    def solo_turn_s(
        self, prompt_tokens: Tokens, output_tokens: Tokens, computed_tokens: Tokens
    ) -> Seconds:
        """Return the seconds of a turn that runs alone, with a cached part of its prompt."""
        attention = computed_tokens * (prompt_tokens - computed_tokens / 2)
        prefill_s = self.per_prompt_token_s * computed_tokens + self.per_pair_s * attention
        return prefill_s + self.decode_s(1, prompt_tokens, output_tokens)

    def iteration_s(
        self, sequences: int, context_tokens: Tokens, chunks: Iterable[tuple[Tokens, Tokens]]
    ) -> Seconds:
        """Return the seconds of an iteration that also computes chunks of prompts.

        Args:
            sequences: Number of decoding sequences.
            context_tokens: Tokens that the decoding sequences hold.
            chunks: For each chunk, its tokens and the tokens before it in its sequence.
        """
        decode_s = self.decode_s(sequences, context_tokens)
        prompt_s = sum(
            tokens * (self.per_prompt_token_s + self.per_pair_s * (before + tokens / 2))
            for tokens, before in chunks
        )
        return max(self.least_prefill_s, decode_s + prompt_s) if prompt_s else decode_s


PROFILES: Mapping[str, LongContextProfile] = {
    profile.name: profile
    for profile in (
        # Host memory is loaded at 50 GB/s a GPU (PCIe 5, not measured here).
        # Llama 3 8B on an H200: prompts of 64, 1,024, 32,768 tokens measured 25, 30, 1,227 ms.
        # The H200's KV memory is computed: 0.9 of 139 GiB less 16 GB of weights, 128 KiB a token.
        LongContextProfile(
            "h200-llama3-8b",
            kv_tokens=870_000,
            base_s=0.005,
            per_sequence_s=6e-6,
            per_context_token_s=2.2e-8,
            per_prompt_token_s=2.3e-5,
            per_pair_s=8e-10,
            host_token_s=2.6e-6,
            least_prefill_s=0.025,
        ),
        # A dense model of 32B on two H100 was not measured; its times follow from bandwidths.
        # The KV memory, and a prefill that fills it in 19 s, are from the notes on agents.
        LongContextProfile(
            "2xh100-32b",
            kv_tokens=305_000,
            base_s=0.014,
            per_sequence_s=1e-5,
            per_context_token_s=5.6e-8,
            per_prompt_token_s=5.5e-5,
            per_pair_s=1.3e-9,
            host_token_s=2.6e-6,
        ),
    )
}
