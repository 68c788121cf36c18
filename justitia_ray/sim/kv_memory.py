"""KV memory of one modelled replica: what runs holds so much, and will hold so much more."""

from collections.abc import Collection, Iterable

from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.sequence import Sequence
from justitia_ray.units import Tokens


class KvMemory:
    """Whether sequences fit, now and in later iterations. All sizes in tokens, in whole blocks."""

    def __init__(self, profile: EngineProfile) -> None:
        self._profile = profile

    def blocks(self, tokens: Tokens) -> Tokens:
        """Return so many tokens in whole blocks."""
        size = self._profile.block_size
        return -(-tokens // size) * size

    def reserved(self, clients: Iterable[str]) -> Tokens:
        """Return what is kept aside for these clients."""
        each = self._profile.reserved_tokens_per_client
        return each * len(set(clients)) if each else 0

    @property
    def largest(self) -> Tokens:
        """The most that an inference may hold in the end, on a replica that it has alone."""
        room = self._profile.kv_tokens - self._profile.reserved_tokens_per_client
        return room - room % self._profile.block_size

    def room(self, sequences: Iterable[Sequence]) -> Tokens:
        """Return M less what is kept aside."""
        if not self._profile.reserved_tokens_per_client:
            return self._profile.kv_tokens
        return self._profile.kv_tokens - self.reserved(sequence.client for sequence in sequences)

    def held(self, sequences: Iterable[Sequence], iteration: int, more: Tokens = 0) -> Tokens:
        """Return what these hold by an iteration, each with so many more tokens. O(n)."""
        return sum(self.blocks(s.context_by(iteration) + more) for s in sequences)

    def overflows_at(
        self, sequences: Collection[Sequence], context: Tokens, iteration: int, last: int
    ) -> int:
        """Return the first iteration after which the next one would need more than M, or `last`.

        Args:
            sequences: Those that run; each gains a token an iteration.
            context: The tokens that they hold by `iteration`.
            iteration: From there.
            last: As far as is looked; none of them ends before.
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
