"""Prompts that a replica holds in its cache while no sequence uses them.

Held blocks have a reference, so that they are not evicted: an engine gives them one if a KV
connector touches the blocks of a finished request. A replica gives holds up, the highest rank
first, before it preempts a sequence for lack of memory, and if otherwise no sequence could run.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from justitia_ray.engine_model.block_pool import BlockPool, Holding
from justitia_ray.engine_model.contents import Content
from justitia_ray.units import Tokens


@dataclass(slots=True)
class _HeldPrompt:
    holding: Holding
    rank: float


class Holds:
    """Prompts that must stay in a replica's prefix cache, by name.

    Args:
        pool: The blocks of the engine.
        block_size: Tokens of a block.
    """

    def __init__(self, pool: BlockPool, block_size: Tokens) -> None:
        self._pool = pool
        self._block_size = block_size
        self._holds: dict[Hashable, _HeldPrompt] = {}

    def __len__(self) -> int:
        return len(self._holds)

    def __contains__(self, name: Hashable) -> bool:
        return name in self._holds

    def add(self, name: Hashable, content: Content, tokens: Tokens, rank: float) -> None:
        """Keep the blocks of a prompt in the cache, in place of earlier blocks under the same name.

        Args:
            name: Name of the hold, for example its session.
            content: Content of the prompt.
            tokens: Length of the prompt.
            rank: Holds of the highest rank are given up first.
        """
        found = self._pool.find(content, tokens // self._block_size)
        holding = Holding()
        self._pool.hold(holding, found)
        self.drop(name)
        self._holds[name] = _HeldPrompt(holding, rank)

    def drop(self, name: Hashable) -> bool:
        """Let the blocks of a prompt be evicted; return False if it was not held."""
        hold = self._holds.pop(name, None)
        if hold is None:
            return False
        self._pool.free(hold.holding)
        return True

    def drop_highest_rank(self) -> bool:
        """Let the prompt with the highest rank be evicted; return False if none is held."""
        if not self._holds:
            return False
        return self.drop(max(self._holds, key=lambda name: self._holds[name].rank))
