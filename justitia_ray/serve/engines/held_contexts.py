"""Contexts of applications between two inferences, which vLLM's prefix cache evicts last.

vLLM evicts the free blocks first that were freed first. The context of an agent that waits for a
tool is therefore evicted before the blocks of a single call that ended later, although no later
call reads those blocks. A *held* context stays free, but its blocks are moved behind all others in
the queue of free blocks before the blocks in front of them are used up.

No block is ever taken away from the engine. Every running inference can have all of the memory, so
a hold causes no preemption, does not change the engine's gauge, and does not block the reset of the
prefix cache; an engine without work evicts nothing, so no timer has to end holds. If memory is
short, the held contexts are evicted like other blocks; the hold that ends first is evicted first.

A hold ends after a time, or when an inference continues its context. Holds are keyed by the last
block of the context, so that parallel inferences of an application do not replace each other's
holds.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from justitia_ray.units import ApplicationId, Seconds

_SHARE = 0.75
"""Largest fraction of the free KV blocks that held contexts may take at the end of the eviction
queue.
"""
_WORTH = 0.25
"""Held KV blocks are moved again when the blocks freed behind them exceed this fraction of their
number.
"""
_MOST_OF_ONE = 8
"""Maximum number of held contexts of one application."""
_MOST = 4096
"""Maximum number of held contexts of one engine."""


class Block(Protocol):
    """Part of vLLM's `KVCacheBlock` that is used for holding contexts."""

    block_id: int
    ref_cnt: int
    is_null: bool

    @property
    def block_hash(self) -> object | None:
        """Hash of the tokens cached in the KV block; None if nothing is cached."""


class Pool(Protocol):
    """Part of vLLM's `BlockPool` that is used for holding contexts."""

    def touch(self, blocks: Sequence[Block]) -> None:
        """Add a reference to each KV block; a free block leaves the eviction queue."""

    def free_blocks(self, ordered_blocks: Iterable[Block]) -> None:
        """Remove a reference from each KV block; a block without one joins the eviction queue."""

    def get_num_free_blocks(self) -> int:
        """Return the number of KV blocks in the eviction queue."""


class _ContextHold(NamedTuple):
    application_id: ApplicationId
    blocks: list[tuple[Block, object]]
    """KV blocks of the held context, first to last, with the hashes that they had when the hold
    began.
    """
    ends_at: Seconds

    @property
    def last_id(self) -> int:
        return self.blocks[-1][0].block_id

    def is_cached_to_its_end(self) -> bool:
        """Return whether the context's last KV block has stayed cached since the hold began."""
        block, cached = self.blocks[-1]
        return block.block_hash == cached


class HeldContexts:
    """Contexts that an engine keeps in its KV cache for an application's next inference.

    Args:
        pool: vLLM's block pool.
        step_blocks: Blocks that a step of the engine usually takes at most.
    """

    def __init__(self, pool: Pool, step_blocks: int) -> None:
        self._pool = pool
        self._step_blocks = step_blocks
        self._holds: dict[int, _ContextHold] = {}
        """Held contexts by the id of their last KV block."""
        self._of: dict[ApplicationId, dict[int, None]] = {}
        """Ids of the last KV blocks of each application's held contexts, oldest first."""
        self._ids: set[int] = set()
        """Ids of held KV blocks that `_in_front` does not count, because they were in use, moved or
        held at the last move or later.
        """
        self._in_front = 0
        """Lower bound of the number of free KV blocks that are evicted before any held block."""
        self._moved = 0
        """Number of held KV blocks that the last move put at the end of the eviction queue."""
        self.changes = 0
        """Number of changes of the held contexts so far, by which a reader notices new changes."""

    def __len__(self) -> int:
        return len(self._holds)

    def hold(
        self, application_id: ApplicationId, blocks: Iterable[Block], ends_at: Seconds
    ) -> None:
        """Hold the cached KV blocks of an inference that ends, before vLLM frees them.

        Args:
            application_id: The application of the inference.
            blocks: All blocks of the inference, from its first token to its last.
            ends_at: Time at which the hold ends.
        """
        kept = [
            (block, block.block_hash)
            for block in blocks
            if block.block_hash is not None and not block.is_null
        ]
        if not kept:
            return
        if not self._holds:
            self._ids.clear()
            self._in_front, self._moved = self._pool.get_num_free_blocks(), 0
        of_application = self._of.get(application_id, {})
        if len(of_application) >= _MOST_OF_ONE:
            self._drop_hold(next(iter(of_application)))
        elif len(self._holds) >= _MOST:
            self._drop_hold(next(iter(self._holds)))
        self._add_hold(_ContextHold(application_id, kept, ends_at))
        self._ids.update(block.block_id for block, _ in kept)

    def release(self, application_id: ApplicationId) -> None:
        """Stop holding an application's contexts, whose blocks are then evicted in vLLM's order."""
        for last_id in self._of.pop(application_id, ()):
            del self._holds[last_id]
            self.changes += 1

    def cached_blocks(self, now: Seconds) -> list[tuple[Seconds, int]]:
        """Return the time at which each hold ends and its number of cached KV blocks, latest first.

        A block of several contexts counts for the hold that ends last. Holds that have ended, and
        those without a cached block, are left out. O(blocks of held contexts).

        Args:
            now: Current time, on the clock of `ends_at`.
        """
        found: list[tuple[Seconds, int]] = []
        counted: set[int] = set()
        for hold in sorted(self._holds.values(), key=lambda hold: -hold.ends_at):
            cached = {block.block_id for block, tokens in hold.blocks if block.block_hash == tokens}
            if hold.ends_at > now and cached:
                found.append((hold.ends_at, len(cached - counted)))
                counted |= cached
        return found

    def make_room(self, blocks: int, now: Seconds) -> None:
        """Move held KV blocks to the end of the eviction queue if few other blocks are before them.

        Args:
            blocks: Number of blocks that the inference about to start needs.
            now: Current time, on the clock of `ends_at`.
        """
        if self._in_front < blocks and self._holds:
            behind = self._pool.get_num_free_blocks() - self._in_front - self._moved
            if behind > _WORTH * self._moved:
                self._move_to_end(now)

    def allocated(self, block_ids: Iterable[int], now: Seconds) -> None:
        """Count the KV blocks that vLLM gave to inferences in an iteration.

        Args:
            block_ids: The blocks; those found in the prefix cache are included.
            now: Current time, on the clock of `ends_at`.
        """
        for block_id in block_ids:
            if block_id not in self._ids:
                self._in_front -= 1
            hold = self._holds.get(block_id)
            if hold is not None and hold.is_cached_to_its_end():
                self._drop_hold(block_id)  # The held context is now in use by the next inference.
        self.make_room(self._step_blocks, now)

    def _move_to_end(self, now: Seconds) -> None:
        """Move free held KV blocks behind all other free blocks. O(blocks of held contexts)."""
        free = self._pool.get_num_free_blocks()
        room = int(_SHARE * free)
        holds = sorted(self._holds.values(), key=lambda hold: hold.ends_at)
        self._holds.clear()
        self._of.clear()
        self._ids.clear()
        self.changes += 1
        moved: dict[int, Block] = {}
        for hold in reversed(holds):
            blocks = [
                (block, cached) for block, cached in hold.blocks if block.block_hash == cached
            ]
            if hold.ends_at <= now or not blocks:
                continue
            self._add_hold(hold._replace(blocks=blocks))
            for block, _ in blocks:
                if block.ref_cnt:
                    self._ids.add(block.block_id)
                elif len(moved) < room:
                    moved[block.block_id] = block
        # Blocks freed last are evicted last, so the first tokens of the longest hold come last.
        blocks_in_order = list(moved.values())
        self._pool.touch(blocks_in_order)
        self._pool.free_blocks(reversed(blocks_in_order))
        self._ids.update(moved)
        self._in_front, self._moved = free - len(moved), len(moved)

    def _add_hold(self, hold: _ContextHold) -> None:
        self._drop_hold(hold.last_id)
        self._holds[hold.last_id] = hold
        self.changes += 1
        self._of.setdefault(hold.application_id, {})[hold.last_id] = None

    def _drop_hold(self, last_id: int) -> None:
        hold = self._holds.pop(last_id, None)
        if hold is None:
            return
        self.changes += 1
        of_application = self._of[hold.application_id]
        del of_application[last_id]
        if not of_application:
            del self._of[hold.application_id]
