"""What an engine's iterations take, and by which rules it admits and preempts: a YAML file.

The default is the constant-iteration engine of the contract: every iteration takes as long, the
prompts just admitted add to it, KV overflow swaps out.
"""

from dataclasses import dataclass, field, replace

from justitia_ray.units import Seconds, Tokens


@dataclass(frozen=True, slots=True)
class IterationCost:
    """Seconds of one iteration: base + Σ coefficient · quantity."""

    base_s: Seconds = 0.03
    per_sequence_s: Seconds = 0.0
    """For each sequence that decodes."""
    per_context_token_s: Seconds = 0.0
    """For each token of KV that those sequences hold."""
    per_prefill_token_s: Seconds = 0.0
    """For each prompt token that is computed."""
    prefill_tile_tokens: Tokens = 1
    """The prompt tokens computed together count in whole tiles (matrix tiles of a GPU)."""
    prefill_base_s: Seconds = 0.0
    """Added to an iteration that computes any."""

    def scaled(self, factor: float) -> "IterationCost":
        """Return the cost with all times multiplied."""
        return replace(
            self,
            base_s=self.base_s * factor,
            per_sequence_s=self.per_sequence_s * factor,
            per_context_token_s=self.per_context_token_s * factor,
            per_prefill_token_s=self.per_prefill_token_s * factor,
            prefill_base_s=self.prefill_base_s * factor,
        )


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """An engine; defaults are the constant-iteration engine."""

    kv_tokens: Tokens
    """M, KV memory of one replica."""
    name: str = "constant"
    block_size: Tokens = 1
    max_num_seqs: int = 256
    iteration: IterationCost = field(default_factory=IterationCost)
    prefill: str = "mixed"
    """`mixed`: prompts just admitted are computed whole, in the iteration of all others (Orca).
    `chunked`: at most `max_batched_tokens` an iteration, running sequences first (vLLM).
    `separate`: a batch of prompts alone, which makes their first tokens (S-LoRA, LightLLM)."""
    max_batched_tokens: Tokens = 8192
    """Prompt tokens of one `separate` prefill; all tokens of one `chunked` iteration."""
    admission: str = "prompt"
    """`prompt`: the prompt fits now (vLLM). `peak`: the peak of future KV, too."""
    admit_every: int = 1
    """New inferences are considered so many iterations after prompts were computed last, or when
    nothing runs."""
    overflow: str = "swap"
    """`swap`: a preempted inference keeps its tokens. `recompute`: prompt and tokens are computed
    again (vLLM)."""
    reserved_tokens_per_client: Tokens = 0
    """KV kept aside for each distinct client among those that run (S-LoRA: 32, for adapters)."""
    last_token_held: bool = True
    """Whether the latest token of an output takes KV at once, or with the next one (S-LoRA). In the
    second case an inference holds, and is charged for, one token less."""
    prefix_caching: bool = False
    """Whether the prompt of an inference whose predecessor ran on the same replica costs only what
    is new in it."""
    speedup: float = 1.0
    """Of tensor parallelism: all times are divided by it."""
