"""Host memory of a replica: a second tier of the prefix cache, from which contexts are loaded.

As with vLLM's offloading connector, the prompt of each finished turn is also in host memory,
whatever is evicted from the GPU. Contexts are evicted in the order of their last use, as whole
chains. If host memory has more tokens of a prompt's context than the GPU, they are loaded at a
fixed rate, in the chunks in which they would be computed. Copies to the host take no time in the
simulation, because they run beside the computation.
"""

from justitia_ray.sim.sessions.trace import ChainPath, TextChain
from justitia_ray.units import Tokens


class HostMemory:
    """Contexts in the host memory of one replica.

    Args:
        room: KV tokens that fit; 0: there is no host memory.
    """

    def __init__(self, room: Tokens) -> None:
        self.room = room
        self._held: dict[TextChain, tuple[Tokens, Tokens]] = {}
        self.tokens: Tokens = 0

    def store(self, path: ChainPath) -> None:
        """Store a prompt as the most recently used; evict others if necessary."""
        if not self.room:
            return
        first = 0
        for chain, end in path:
            _, held_end = self._drop_stored_chain(chain)
            self._held[chain] = first, max(end, held_end)
            self.tokens += self._held[chain][1] - first
            first = end
        while self.tokens > self.room:
            self._drop_stored_chain(next(iter(self._held)))

    def found(self, path: ChainPath) -> Tokens:
        """Return the number of a prompt's first tokens that are in host memory."""
        position = 0
        for chain, end in path:
            _, held_end = self._held.get(chain, (0, 0))
            position = max(position, min(end, held_end))
            if held_end < end:
                break
        return position

    def _drop_stored_chain(self, chain: TextChain) -> tuple[Tokens, Tokens]:
        first, end = self._held.pop(chain, (0, 0))
        self.tokens -= end - first
        return first, end
