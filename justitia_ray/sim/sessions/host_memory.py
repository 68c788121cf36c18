"""Host memory of a replica: a second tier of the prefix cache, from which contexts are loaded.

As with vLLM's offloading connector, the prompt of each finished turn is there too, whatever is
evicted from the GPU. Contexts leave in the order of their last use, as whole chains. A prompt that
begins with more tokens of a context than the GPU still has loads them at a fixed rate, in the
chunks in which it would compute them. Copies to the host take no time here: they run beside the
computation.
"""

from justitia_ray.sim.sessions.trace import Chain, ChainPath
from justitia_ray.units import Tokens


class HostMemory:
    """The contexts in the host memory of one replica.

    Args:
        room: KV tokens that fit; 0: there is no such tier.
    """

    def __init__(self, room: Tokens) -> None:
        self.room = room
        self._held: dict[Chain, tuple[Tokens, Tokens]] = {}
        """(first, end) of the positions held of each chain, the least recently used first."""
        self.tokens: Tokens = 0

    def store(self, path: ChainPath) -> None:
        """Store a prompt as the most recently used, in place of others if necessary."""
        if not self.room:
            return
        first = 0
        for chain, end in path:
            _, held_end = self._drop(chain)
            self._held[chain] = first, max(end, held_end)
            self.tokens += self._held[chain][1] - first
            first = end
        while self.tokens > self.room:
            self._drop(next(iter(self._held)))

    def found(self, path: ChainPath) -> Tokens:
        """Return the number of a prompt's first tokens that are here."""
        position = 0
        for chain, end in path:
            _, held_end = self._held.get(chain, (0, 0))
            position = max(position, min(end, held_end))
            if held_end < end:
                break
        return position

    def _drop(self, chain: Chain) -> tuple[Tokens, Tokens]:
        first, end = self._held.pop(chain, (0, 0))
        self.tokens -= end - first
        return first, end
