"""Whether an inference fits a replica, now or later: the queue's question, never the policy's.

Both rules are about a replica that runs something. What may have an empty one is said by
`placement`.
"""

from abc import ABC, abstractmethod

from justitia_ray.core.entities import Inference, Replica
from justitia_ray.core.footprints import Footprint
from justitia_ray.core.forecast import Forecast
from justitia_ray.units import Tokens


class Admission(ABC):
    """A rule of admission. Lengths are predicted ones, bounded by their maximum."""

    @abstractmethod
    def fits(self, replica: Replica, inference: Inference) -> bool:
        """Return whether an inference may start now beside what the replica runs."""

    @abstractmethod
    def start(self, replica: Replica, inference: Inference, forecast: Forecast) -> Tokens:
        """Return after how many iterations an inference will first fit. O(n).

        Args:
            replica: Its capacity is what counts, and its tokens that no lease explains.
            inference: One that does not fit now.
            forecast: Of what the replica runs; nothing else is admitted meanwhile. When all of it
                has ended, anything fits.
        """


class PromptAdmission(Admission):
    """vLLM's rule and the paper's: the prompt fits now, beside a token for every sequence.

    Should KV overflow later, the engine preempts the last in order and recomputes it.
    """

    def fits(self, replica: Replica, inference: Inference) -> bool:
        """Return whether the prompt fits now. O(1)."""
        sequences = replica.sequences + inference.choices
        wanted = replica.context_tokens + _prompt_blocks(replica, inference) + sequences
        return sequences <= replica.capacity.max_num_seqs and wanted <= _room(replica)

    def start(self, replica: Replica, inference: Inference, forecast: Forecast) -> Tokens:
        """Return the first end of a lease that leaves room: until the next one KV only grows."""
        prompt, room = _prompt_blocks(replica, inference), _room(replica)
        seats = replica.capacity.max_num_seqs
        waste = forecast.block_size - 1
        ends = [0, *forecast.ends]
        for end, running, context in zip(ends, forecast.sequences, forecast.contexts, strict=True):
            sequences = running + inference.choices
            if (
                sequences <= seats
                and context + running * (waste + end) + prompt + sequences <= room
            ):
                return end
        return ends[-1]


class PeakAdmission(Admission):
    """The peak of future KV of all that runs stays within M: nothing is recomputed."""

    def fits(self, replica: Replica, inference: Inference) -> bool:
        """Return whether no moment from now on holds too much.

        O(1) where the sums decide: all at their fullest at once fit, or the prompt does not fit
        now. O(log n) otherwise, after O(n) once for each change of the replica's leases.
        """
        leases, block = replica.leases, replica.capacity.block_size
        if leases.sequences + inference.choices > replica.capacity.max_num_seqs:
            return False
        room = _room(replica)
        if replica.context_tokens + _prompt_blocks(replica, inference) > room:
            return False
        wanted = expected_footprint(inference).load
        sequences = leases.sequences + inference.choices
        if leases.full_tokens + wanted.full_tokens + sequences * (block - 1) <= room:
            return True
        return leases.forecast(block).peak_with(wanted) <= room

    def start(self, replica: Replica, inference: Inference, forecast: Forecast) -> Tokens:
        """Return the first iteration from which on no moment holds too much.

        That may be before the next end of a lease: what starts later has grown less by then. At a
        peak H of the others in e iterations, prompt p + c·(e − t) of one started at t must fit, if
        it runs at e. So each end forbids an interval of starts: from where its own end, with the
        others growing towards that peak, would hold too much, to where it has grown little enough.
        The intervals are in the order of the ends.
        """
        load, room = expected_footprint(inference).load, _room(replica)
        own, length, choices = forecast.whole_blocks(load), load.iterations, load.choices
        ends, seats = forecast.ends, replica.capacity.max_num_seqs
        full = own + choices * length
        if full > room:
            return ends[-1]
        start, ended, waste = 0, 0, forecast.block_size - 1
        for end, held, running in zip(ends, forecast.held, forecast.sequences, strict=False):
            if held > room or running + choices > seats:
                start = end
        for end, held, running, context in zip(
            ends, forecast.held, forecast.sequences, forecast.contexts, strict=False
        ):
            if held + full > room:
                fits_until = (room - full - context - running * waste) // running
                if start + length <= max(ended, fits_until):
                    break
                start = max(start, min(end, end - (room - held - own) // choices))
            ended = end
        return start


ADMISSIONS: dict[str, Admission] = {"peak": PeakAdmission(), "prompt": PromptAdmission()}


def expected_remaining(inference: Inference, output_tokens: Tokens = 0) -> Tokens:
    """Return the output still expected after `output_tokens`, over all sequences.

    One that has outlived its prediction is expected to make as much again as it has made, up to its
    maximum: doubling finds any length in a logarithmic number of steps.
    """
    expected = inference.predicted_output_tokens
    while expected <= output_tokens:
        expected = max(1, expected) * 2
    return max(0, min(expected, inference.max_output_tokens) - output_tokens)


def expected_footprint(inference: Inference, output_tokens: Tokens = 0) -> Footprint:
    """Return the KV that an inference holds on a replica after `output_tokens`, and will hold."""
    return Footprint(
        inference.prompt_tokens + output_tokens,
        expected_remaining(inference, output_tokens),
        inference.choices,
        inference.application_id,
    )


def kv_need_tokens(inference: Inference, block_size: Tokens) -> Tokens:
    """Return the most KV that the inference is expected to hold, in whole blocks."""
    total = inference.prompt_tokens + expected_remaining(inference)
    return total + inference.choices * (block_size - 1)


def _prompt_blocks(replica: Replica, inference: Inference) -> Tokens:
    return inference.prompt_tokens + inference.choices * (replica.capacity.block_size - 1)


def _room(replica: Replica) -> Tokens:
    return replica.capacity.kv_tokens - replica.unaccounted_tokens
