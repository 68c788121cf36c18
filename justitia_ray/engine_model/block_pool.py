"""KV blocks of an engine with vLLM's prefix cache: shared, reference-counted, evicted in LRU order.

vLLM keeps an object for each block. Blocks of one chain that were cached together have the same
state until a sequence takes only some of them, so here they are one *run*, which is split when
their states differ. The rules are those of vLLM's `BlockPool` and `FullAttentionManager`, block for
block:
- a full block is cached as soon as it is allocated for tokens that will be computed;
- a lookup takes the longest cached beginning; of equal blocks it takes the oldest;
- referenced blocks stay; a sequence frees its blocks from the last to the first;
- new blocks are free uncached blocks first, then the cached ones that were freed first.
"""

from bisect import bisect_left
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from justitia_ray.engine_model.contents import Content

_ID_SPACING = 1 << 32
"""Distance between the ids of two runs' first blocks, and so the maximum number of blocks of a run.
"""


class _CachedRun:
    """Consecutive cached blocks of one chain that are used by the same sequences."""

    __slots__ = ("after", "before", "born", "chain", "first_id", "refs", "start", "stop")

    before: "_CachedRun"
    after: "_CachedRun"
    """Next unused run in the order of eviction; unset while a sequence uses the run."""

    def __init__(
        self, chain: Hashable, start: int, stop: int, first_id: int, refs: int, born: int
    ) -> None:
        self.chain = chain
        self.start = start
        self.stop = stop
        self.first_id = first_id
        self.refs = refs
        """Number of sequences that use the blocks; with 0 the blocks can be reused or evicted."""
        self.born = born
        """Sequence number given when the blocks were cached; smaller is older."""

    def __len__(self) -> int:
        return self.stop - self.start


class _ChainRuns:
    """Cached runs of blocks of one chain, ordered by their first positions."""

    __slots__ = ("overlaps", "runs")

    def __init__(self) -> None:
        self.runs: list[_CachedRun] = []
        self.overlaps = False
        """Whether two runs may contain equal blocks, because a wholly cached prompt computes its
        last block again.
        """

    def add(self, run: _CachedRun) -> None:
        index = bisect_left(self.runs, (run.start, run.born), key=lambda r: (r.start, r.born))
        self.runs.insert(index, run)


class Piece(NamedTuple):
    """Part of a run of cached blocks that a lookup found."""

    run: _CachedRun
    start: int
    stop: int


class CachedPrefix(NamedTuple):
    """Longest prefix of a prompt that is cached; valid until the block pool changes."""

    pieces: list[Piece]
    blocks: int
    free_blocks: int
    """Number of blocks of the prefix that no sequence uses. A sequence that takes the prefix uses
    up this number of free blocks.
    """


_NOTHING = CachedPrefix([], 0, 0)


@dataclass(slots=True)
class Holding:
    """Blocks of the KV cache that a sequence uses."""

    pieces: list[tuple[int, int]] = field(default_factory=list)
    """Ranges (first id, end id) of the sequence's cached blocks, in order."""
    cached: int = 0
    """Number of the sequence's blocks that are cached, counted from the first."""
    blocks: int = 0
    last: _CachedRun | None = None
    """Last run of the sequence's cached blocks, which can still grow."""


class BlockPool:
    """Model of an engine's KV blocks and prefix cache.

    Args:
        blocks: Total number of blocks; vLLM's own number is one more, for its null block.
        caching: Whether full blocks are kept for prompts that begin with the same tokens.
    """

    def __init__(self, blocks: int, *, caching: bool = True) -> None:
        self.blocks = blocks
        self.caching = caching
        self.free_blocks = blocks
        """Number of blocks that no sequence uses."""
        self._empty = blocks
        """Number of free blocks without cached content."""
        self._runs: dict[int, _CachedRun] = {}
        """Runs of cached blocks by the id of their first block."""
        self._lines: dict[Hashable, _ChainRuns] = {}
        self._next_id = 0
        self._born = 0
        self._free = ends = _CachedRun(None, 0, 0, -1, 0, 0)
        """Sentinel of the circular list of unused runs; runs after it are evicted first."""
        ends.before = ends.after = ends

    @property
    def cached_blocks(self) -> int:
        """Number of blocks, in use or free, that a lookup can find."""
        return sum(map(len, self._runs.values()))

    def find(self, content: Content, most: int) -> CachedPrefix:
        """Return the longest cached prefix, of at most `most` blocks."""
        if not self._runs or most <= 0:
            return _NOTHING
        pieces: list[Piece] = []
        found = free = 0
        for chain, start, stop in content.spans(0, most):
            line = self._lines.get(chain)
            if line is None:
                break
            position = self._find_in_chain(line, start, stop, pieces)
            found = position
            if position < stop:
                break
        for run, start, stop in pieces:
            if not run.refs:
                free += stop - start
        return CachedPrefix(pieces, found, free)

    def hold(self, holding: Holding, beginning: CachedPrefix) -> None:
        """Give the cached blocks of a prefix to a sequence without blocks.

        The pool must not have changed since the lookup.
        """
        for found, start, stop in beginning.pieces:
            run = self._cut_out_run(found, start, stop)
            if not run.refs:
                _remove_from_list(run)
                self.free_blocks -= len(run)
            run.refs += 1
            holding.pieces.append((run.first_id, run.first_id + len(run)))
            holding.last = run
        holding.cached = holding.blocks = beginning.blocks

    def allocate(self, holding: Holding, blocks: int) -> None:
        """Give free blocks to a sequence; there must be enough of them."""
        holding.blocks += blocks
        self.free_blocks -= blocks
        left = blocks - self._empty
        self._empty = max(0, -left)
        while left > 0:
            run = self._free.after
            if len(run) > left:
                run.stop -= left
                return
            left -= len(run)
            _remove_from_list(run)
            self._remove_run(run)

    def cache(self, holding: Holding, content: Content, blocks: int) -> None:
        """Cache the first full blocks of a sequence, up to a number of blocks."""
        if not self.caching or blocks <= holding.cached:
            return
        for chain, start, stop in content.spans(holding.cached, blocks):
            self._cache_block_range(holding, chain, start, stop)
        holding.cached = blocks

    def free(self, holding: Holding) -> None:
        not_cached = holding.blocks - holding.cached
        self._empty += not_cached
        self.free_blocks += not_cached
        for first, end in reversed(holding.pieces):
            parts = []
            while first < end:
                run = self._runs[first]
                parts.append(run)
                first += len(run)
            for run in reversed(parts):
                run.refs -= 1
                if not run.refs:
                    self._append_evictable_run(run)
        holding.pieces.clear()
        holding.cached = holding.blocks = 0
        holding.last = None

    def _find_in_chain(self, line: _ChainRuns, start: int, stop: int, pieces: list[Piece]) -> int:
        """Append the cached blocks of a chain from `start` on; return where they end."""
        if line.overlaps:
            while (
                start < stop and (piece := _oldest_cached_piece(line.runs, start, stop)) is not None
            ):
                pieces.append(piece)
                start = piece.stop
            return start
        for run in line.runs:
            if run.start > start or start >= stop:
                break
            if run.stop > start:
                pieces.append(Piece(run, start, min(run.stop, stop)))
                start = pieces[-1].stop
        return start

    def _cut_out_run(self, run: _CachedRun, start: int, stop: int) -> _CachedRun:
        """Return a run of exactly these blocks, split from a longer run."""
        if start > run.start:
            run = self._split_run(run, start)
        if stop < run.stop:
            self._split_run(run, stop)
        return run

    def _split_run(self, run: _CachedRun, at: int) -> _CachedRun:
        first_id = run.first_id + at - run.start
        tail = _CachedRun(run.chain, at, run.stop, first_id, run.refs, run.born)
        run.stop = at
        self._runs[tail.first_id] = tail
        self._lines[run.chain].add(tail)
        if not run.refs:
            _insert_run_before(tail, before=run)  # evicted before the blocks at the start
        return tail

    def _cache_block_range(self, holding: Holding, chain: Hashable, start: int, stop: int) -> None:
        line = self._lines.get(chain)
        if line is None:
            line = self._lines[chain] = _ChainRuns()
        overlaps = any(run.stop > start and run.start < stop for run in line.runs)
        last = holding.last
        if (
            last is not None
            and not overlaps
            and last.chain is chain
            and last.refs == 1
            and last.stop == start
            and holding.pieces[-1][1] == last.first_id + len(last)
        ):
            last.stop = stop
            first, end = holding.pieces[-1]
            holding.pieces[-1] = (first, end + stop - start)
            return
        self._born += 1
        run = _CachedRun(chain, start, stop, self._new_id(), 1, self._born)
        self._runs[run.first_id] = run
        line.overlaps |= overlaps
        line.add(run)
        holding.pieces.append((run.first_id, run.first_id + len(run)))
        holding.last = run

    def _append_evictable_run(self, run: _CachedRun) -> None:
        """Make a run evictable, joined with the next blocks of its chain if possible.

        They can be joined if they were freed just before this run.
        """
        self.free_blocks += len(run)
        tail = self._free.before
        line = self._lines[run.chain]
        if tail.chain is run.chain and tail.start == run.stop and not line.overlaps:
            del self._runs[run.first_id], self._runs[tail.first_id]
            line.runs.remove(tail)
            _remove_from_list(tail)
            run.stop = tail.stop
            run.first_id = self._new_id()
            self._runs[run.first_id] = run
        _insert_run_before(run, before=self._free)

    def _remove_run(self, run: _CachedRun) -> None:
        del self._runs[run.first_id]
        line = self._lines[run.chain]
        line.runs.remove(run)
        if not line.runs:
            del self._lines[run.chain]

    def _new_id(self) -> int:
        self._next_id += _ID_SPACING
        return self._next_id


def _oldest_cached_piece(runs: list[_CachedRun], start: int, stop: int) -> Piece | None:
    """Return the oldest cached run at a position, cut off where an older run starts."""
    best: _CachedRun | None = None
    for run in runs:
        if run.start <= start < run.stop and (best is None or run.born < best.born):
            best = run
    if best is None:
        return None
    end = min(best.stop, stop)
    older = [run.start for run in runs if start < run.start < end and run.born < best.born]
    return Piece(best, start, min(older, default=end))


def _insert_run_before(run: _CachedRun, before: _CachedRun) -> None:
    run.after, run.before = before, before.before
    before.before.after = run
    before.before = run


def _remove_from_list(run: _CachedRun) -> None:
    run.before.after = run.after
    run.after.before = run.before
    del run.before, run.after
