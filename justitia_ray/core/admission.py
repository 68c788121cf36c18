"""Decides whether an inference fits a replica, now or later.

Both rules apply to a replica that runs something. `placement` calls them; it does not call them for
an empty replica, which has memory for every inference.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

from justitia_ray.core.entities import Inference, KnownReplica
from justitia_ray.core.footprints import Footprint, Forecast
from justitia_ray.errors import ConfigError
from justitia_ray.units import Tokens


class Admission(ABC):
    """Rule that decides whether a replica has KV memory for an inference, by predicted lengths."""

    @abstractmethod
    def fits(self, replica: KnownReplica, inference: Inference, kv_tokens: Tokens) -> bool:
        """Return whether a replica has KV memory for one more inference.

        Args:
            replica: The replica.
            inference: The inference.
            kv_tokens: KV of the replica that leases may use, in total.
        """

    @abstractmethod
    def start(
        self, replica: KnownReplica, inference: Inference, forecast: Forecast, kv_tokens: Tokens
    ) -> Tokens:
        """Return the iterations after which a replica has KV memory for an inference. O(n).

        This is an upper estimate: a lease with which the inference shares a prompt may have ended
        by then.

        Args:
            replica: The replica; only its capacity counts.
            inference: An inference that does not fit now.
            forecast: Forecast of the replica's leases; nothing else is admitted meanwhile. Anything
                fits after all have ended.
            kv_tokens: KV of the replica that leases may use, in total.
        """


class PromptAdmission(Admission):
    """Admit an inference if its prompt fits now, with a free token for every sequence.

    If KV overflows later, the engine preempts the last in order and recomputes it.
    """

    def fits(self, replica: KnownReplica, inference: Inference, kv_tokens: Tokens) -> bool:
        sequences = replica.leases.sequences + inference.choices
        prompt = _prompt_blocks(replica, inference, replica.footprint_beside)
        wanted = replica.context_tokens + prompt + sequences
        return sequences <= replica.capacity.max_num_seqs and wanted <= kv_tokens

    def start(
        self, replica: KnownReplica, inference: Inference, forecast: Forecast, kv_tokens: Tokens
    ) -> Tokens:
        """Return the number of iterations until enough leases have ended for the prompt to fit."""
        prompt = _prompt_blocks(replica, inference, replica.footprint_alone)
        seats = replica.capacity.max_num_seqs
        waste = forecast.block_size - 1
        ends = [0, *forecast.ends]
        for end, running, context in zip(ends, forecast.sequences, forecast.contexts, strict=True):
            sequences = running + inference.choices
            held = context + running * (waste + end)
            if sequences <= seats and held + prompt + sequences <= kv_tokens:
                return end
        return ends[-1]


class PeakAdmission(Admission):
    """Admit an inference if the predicted peak KV of all leases stays within the memory."""

    def fits(self, replica: KnownReplica, inference: Inference, kv_tokens: Tokens) -> bool:
        """Return whether the predicted KV of the leases and this inference stays within the memory.

        O(1) if sums decide: the peaks of all leases fit even at the same time, or the prompt does
        not fit now. Otherwise O(log n), after O(n) once per change of the replica's leases; after a
        grant only if it would have fitted before.
        """
        leases, block = replica.leases, replica.capacity.block_size
        sequences = leases.sequences + inference.choices
        if sequences > replica.capacity.max_num_seqs:
            return False
        wanted: Footprint | None = None
        prompt = inference.prompt_tokens
        if inference.shares:
            wanted = replica.footprint_beside(inference)
            prompt = wanted.context_tokens
        if replica.context_tokens + prompt + inference.choices * (block - 1) > kv_tokens:
            return False
        if wanted is None:
            wanted = inference.expected_footprint()
        if leases.full_tokens + wanted.full_tokens + sequences * (block - 1) <= kv_tokens:
            return True
        extension = replica.extension_by(inference) if inference.shares else ()
        return not leases.exceed(kv_tokens, wanted, block, extension)

    def start(
        self, replica: KnownReplica, inference: Inference, forecast: Forecast, kv_tokens: Tokens
    ) -> Tokens:
        """Return the first iteration from which the predicted KV never exceeds the memory.

        The iteration may be before the next lease ends, because an inference that starts later has
        grown less at each peak. A peak H of the other leases is in e iterations, when one of them
        ends. An inference started at t with a prompt of p tokens then holds p + c·(e − t), which
        must fit beside H if the inference still runs. So each ending lease forbids an interval of
        start times, and these intervals are in the order in which the leases end.
        """
        lease = replica.footprint_alone(inference)
        own, length = lease.held_tokens(forecast.block_size), lease.iterations
        choices = lease.choices
        ends, seats = forecast.ends, replica.capacity.max_num_seqs
        full = own + choices * length
        if full > kv_tokens:
            return ends[-1]
        start, ended, waste = 0, 0, forecast.block_size - 1
        for end, held, running in zip(ends, forecast.held, forecast.sequences, strict=False):
            if held > kv_tokens or running + choices > seats:
                start = end
        for end, held, running, context in zip(
            ends, forecast.held, forecast.sequences, forecast.contexts, strict=False
        ):
            if held + full > kv_tokens:
                fits_until = (kv_tokens - full - context - running * waste) // running
                if start + length <= max(ended, fits_until):
                    break
                start = max(start, min(end, end - (kv_tokens - held - own) // choices))
            ended = end
        return start


ADMISSIONS: dict[str, Admission] = {"peak": PeakAdmission(), "prompt": PromptAdmission()}


def find_admission(name: str) -> Admission:
    """Return the admission rule with a name in `ADMISSIONS`.

    Raises:
        ConfigError: If the name is unknown.
    """
    if name not in ADMISSIONS:
        raise ConfigError(f"admission: {name!r} is not one of {', '.join(ADMISSIONS)}")
    return ADMISSIONS[name]


def _prompt_blocks(
    replica: KnownReplica, inference: Inference, footprint: Callable[[Inference], Footprint]
) -> Tokens:
    """Return the KV memory of a prompt in tokens, rounded up to whole blocks."""
    prompt = inference.prompt_tokens
    if inference.shares:
        prompt = footprint(inference).context_tokens
    return prompt + inference.choices * (replica.capacity.block_size - 1)
