"""Whether an inference fits a replica now: the queue's question, never the policy's."""

from collections.abc import Callable, Iterable

from justitia_ray.core.entities import Footprint, Inference, Replica
from justitia_ray.units import Tokens

Admission = Callable[[Replica, Inference], bool]


def fits_prompt(replica: Replica, inference: Inference) -> bool:
    """Ask as vLLM and the paper do: the prompt fits now, beside a token for everybody running.

    Should KV overflow later, the engine preempts the last in order and recomputes it.
    """
    if not replica.leases:
        return True
    added = _whole_blocks(replica, inference.prompt_tokens, inference.choices)
    wanted = replica.context_tokens + added + inference.choices + replica.sequences
    return _seats(replica, inference) and wanted <= _room(replica)


def fits_peak(replica: Replica, inference: Inference) -> bool:
    """The peak of future KV of all that runs stays within M: nothing is recomputed.

    The peak is taken over the moments at which sequences end, with predicted lengths (LightLLM's
    rule; S-LoRA's, in the VTC artifact).
    """
    if not replica.leases:
        return True
    if not _seats(replica, inference):
        return False
    candidate = Footprint(inference.prompt_tokens, expected_remaining(inference), inference.choices)
    peak = peak_kv_tokens([*replica.leases.values(), candidate], replica.capacity.block_size)
    return peak <= _room(replica)


ADMISSIONS: dict[str, Admission] = {"peak": fits_peak, "prompt": fits_prompt}


def expected_remaining(inference: Inference, output_tokens: Tokens = 0) -> Tokens:
    """Return the output still expected after `output_tokens`, over all sequences.

    One that has outlived its prediction is expected to make as much again as it has made, up to its
    maximum: doubling finds any length in a logarithmic number of steps.
    """
    expected = inference.predicted_output_tokens
    while expected <= output_tokens:
        expected = max(1, expected) * 2
    return max(0, min(expected, inference.max_output_tokens) - output_tokens)


def kv_need_tokens(inference: Inference, block_size: Tokens) -> Tokens:
    """Return the most KV that the inference is expected to hold, in whole blocks."""
    total = inference.prompt_tokens + expected_remaining(inference)
    return total + inference.choices * (block_size - 1)


def peak_kv_tokens(footprints: Iterable[Footprint], block_size: Tokens) -> Tokens:
    """Return the largest KV that these leases will hold together, at any moment from now on.

    All sequences gain a token an iteration; a lease's are taken as of equal length. KV peaks just
    before a lease ends, so only those moments are looked at: O(n log n).
    """
    ends = sorted(
        (-(-footprint.remaining_tokens // footprint.choices), footprint.choices,
         footprint.context_tokens + footprint.choices * (block_size - 1))
        for footprint in footprints
    )  # fmt: skip
    peak = held = sequences = 0
    for remaining, choices, context in reversed(ends):
        held += context
        sequences += choices
        peak = max(peak, held + sequences * remaining)
    return peak


def _whole_blocks(replica: Replica, tokens: Tokens, choices: int) -> Tokens:
    return tokens + choices * (replica.capacity.block_size - 1)


def _seats(replica: Replica, inference: Inference) -> bool:
    return replica.sequences + inference.choices <= replica.capacity.max_num_seqs


def _room(replica: Replica) -> Tokens:
    return replica.capacity.kv_tokens - replica.unaccounted_tokens
