"""Blocks and groups of applications with neighbouring tags: least slack, and which may overtake.

`slack` uses them; it defines slack, and states the cost of a decision.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from operator import attrgetter
from typing import TypeAlias, TypeVar

from justitia_ray.units import ApplicationId, KvTokenTime, VirtualTime

Key: TypeAlias = tuple[VirtualTime, int]
Rank: TypeAlias = tuple[float, int]


class Entry:
    """An application in the order of tags."""

    __slots__ = (
        "binds", "block", "due_at", "key", "name", "rank", "remaining", "waits", "weight"
    )  # fmt: skip

    def __init__(self, name: ApplicationId, key: Key, weight: float) -> None:
        self.name = name
        self.key = key
        self.weight = weight
        self.remaining: KvTokenTime = 0
        self.binds = False
        self.waits = False
        self.rank: Rank = (0, 0)
        self.due_at: KvTokenTime | None = None
        """Service of all replicas when GPS finished the application; None: GPS has not finished it.
        """
        self.block: Block
        """Block that contains the application; None once GPS has finished it."""


key_of: Callable[[Entry], Key] = attrgetter("key")
"""Sort key of an application in the order of tags."""
rank_of: Callable[[Entry], Rank] = attrgetter("rank")
"""Sort key of an application among the ones that may overtake, the shortest first."""


class Span:
    """Applications with neighbouring tags, summarised so that a search can skip them together.

    The applications after a span add a linear function of the tag F to its slack, its *line*:
    `after + weight·F`. The least slack in the span was computed for one weight. From then on a
    lower bound is kept, which falls with every change, and is too low by at most the change of the
    weight times the range of tags.
    """

    __slots__ = (
        "at_weight",
        "choice",
        "highest",
        "is_exact",
        "last",
        "least",
        "lowest",
        "offset",
        "smallest",
        "weight",
    )

    def __init__(self) -> None:
        self.offset: KvTokenTime = 0
        self.weight: float = 0
        """Weight of the applications in this span, which lowers the slack of all applications
        before it.
        """
        self.choice: Entry | None = None
        """Waiting application of this span that would overtake first."""
        self.smallest: KvTokenTime = inf
        """Lower bound of the remaining work of any waiting application in this span."""
        self.at_weight: float = 0
        self.least: KvTokenTime = inf
        """Lower bound of the slack in this span, without the applications behind the span."""
        self.is_exact = False
        """Whether the lower bound `least` is exactly the least slack."""
        self.lowest: VirtualTime = 0
        self.highest: VirtualTime = 0
        """Largest tag of the applications in this span that limit overtaking; `lowest` is the
        smallest.
        """
        self.last: Key = (inf, 0)
        """Sort key of the last application in this span."""

    def bound(self, after: KvTokenTime, weight: float) -> KvTokenTime:
        """Return a lower bound of the slack of all applications in this span. O(1)."""
        moved = weight - self.at_weight
        return after + self.least + moved * (self.lowest if moved > 0 else self.highest)

    def search_within(
        self, after: KvTokenTime, weight: float
    ) -> tuple[KvTokenTime, Sequence[tuple[Span, KvTokenTime, float]]]:
        """Return the least slack in this span, and the parts of it that must be searched."""
        raise NotImplementedError

    def search(self, search: Search, after: KvTokenTime, weight: float) -> None:
        """Search this span for the shortest application that may overtake."""
        raise NotImplementedError

    def choices(self) -> list[tuple[Rank, Span | Entry]]:
        """Return the parts of this span with waiting applications, each with its shortest."""
        raise NotImplementedError


AnySpan = TypeVar("AnySpan", bound=Span)


_last = attrgetter("last")


def weights_behind(
    spans: Sequence[AnySpan], after: KvTokenTime, weight: float
) -> list[tuple[AnySpan, KvTokenTime, float]]:
    """Return each span with the total weight of the applications behind it."""
    found = []
    for span in reversed(spans):
        found.append((span, after, weight))
        after += span.offset
        weight += span.weight
    found.reverse()
    return found


def shortest_by_span(spans: Iterable[Span]) -> list[tuple[Rank, Span | Entry]]:
    """Return the spans with waiting applications, each with its shortest application."""
    return [(span.choice.rank, span) for span in spans if span.choice is not None]


class Block(Span):
    """A block of applications with neighbouring tags."""

    __slots__ = ("_bound", "entries", "group")

    def __init__(self, entries: list[Entry]) -> None:
        super().__init__()
        self.group: Group
        self.entries = entries
        self._bound: list[tuple[KvTokenTime, VirtualTime]] | None = None
        """Slack and tag of each application of the block that limits overtaking, last first."""
        for entry in entries:
            entry.block = self
        self._update_last_key()
        self._recompute_block_sums()
        self._update_least_slack()
        self._choose_first()

    def insert(self, entry: Entry) -> None:
        """Insert an application without remaining work."""
        insort(self.entries, entry, key=key_of)
        entry.block = self
        self._update_last_key()
        self._count_weight(entry, 1)

    def remove(self, entry: Entry) -> None:
        del self.entries[bisect_left(self.entries, entry.key, key=key_of)]
        self._update_last_key()
        self._count_weight(entry, -1)
        self.offset -= entry.remaining
        self.least -= entry.remaining
        if entry is self.choice:
            self._choose_first()

    def change(
        self, entry: Entry, weight: float, remaining: KvTokenTime, *, binds: bool, waits: bool
    ) -> None:
        """Change weight, work or state of an application in this block.

        O(1), unless its weight changes, or it starts to bind, or it is the choice and no longer
        waits or has more remaining work: O(block).
        """
        more, was_bound, rank = remaining - entry.remaining, entry.binds, entry.rank
        if weight != entry.weight:
            self._count_weight(entry, -1)
            entry.weight = weight
            self._count_weight(entry, 1)
        self.offset += more
        if more < 0:
            self.least += more
        entry.remaining, entry.binds, entry.waits = remaining, binds, waits
        entry.rank = (remaining / weight, entry.key[1])
        if more or binds != was_bound:
            self._bound, self.is_exact = None, False
        if binds and not was_bound:
            self._extend_bound(entry)
        if entry is self.choice and not (waits and entry.rank <= rank):
            self._choose_first()
        elif waits:
            self.smallest = min(self.smallest, remaining)
            if self.choice is None or entry.rank < self.choice.rank:
                self.choice = entry

    def search_within(
        self, after: KvTokenTime, weight: float
    ) -> tuple[KvTokenTime, Sequence[tuple[Span, KvTokenTime, float]]]:
        if not (self.is_exact and weight == self.at_weight):
            self.at_weight = weight
            self._update_least_slack()
        return after + self.least, ()

    def search(self, search: Search, after: KvTokenTime, weight: float) -> None:
        least: KvTokenTime = inf
        for entry, slack in self.slacks(after, weight):
            if (
                entry.waits
                and entry.remaining <= least
                and search.would_be_best(entry)
                and search.has_slack(entry.remaining)
            ):
                search.best = entry
            if slack is not None and slack < least:
                least = slack
                if least < self.smallest:
                    break
        self.search_within(after, weight)  # an exact bound lets searches skip the block
        search.note(self, self.bound(after, weight), after, weight)

    def choices(self) -> list[tuple[Rank, Span | Entry]]:
        return [(entry.rank, entry) for entry in self.entries if entry.waits]

    def lacks(self, amount: KvTokenTime, before: Entry, after: KvTokenTime, weight: float) -> bool:
        """Return whether any application before a key has less slack than `wanted`."""
        for entry, slack in self.slacks(after, weight):
            if entry is before:
                return False
            if slack is not None and slack < amount:
                return True
        raise AssertionError(f"{before.name} is not in its block")

    def slacks(
        self, after: KvTokenTime, weight: float
    ) -> Iterator[tuple[Entry, KvTokenTime | None]]:
        """Yield the block's applications in order, each with its slack, or None if it has none."""
        bound = iter(reversed(self._bound_slacks()))
        for entry in self.entries:
            if entry.binds:
                own, finish = next(bound)
                yield entry, after + own + weight * finish
            else:
                yield entry, None

    def _update_last_key(self) -> None:
        if self.entries:
            self.last = self.entries[-1].key

    def _bound_slacks(self) -> list[tuple[KvTokenTime, VirtualTime]]:
        return self._recompute_block_sums() if self._bound is None else self._bound

    def _recompute_block_sums(self) -> list[tuple[KvTokenTime, VirtualTime]]:
        """Recompute the sums of this block, and return the slacks. O(block)."""
        offset: KvTokenTime = 0
        weight: float = 0
        bound: list[tuple[KvTokenTime, VirtualTime]] = []
        for entry in reversed(self.entries):
            finish = entry.key[0]
            if entry.binds:
                bound.append((offset + weight * finish, finish))
            offset += entry.remaining - entry.weight * finish
            weight += entry.weight
        self._bound, self.offset, self.weight = bound, offset, weight
        return bound

    def _update_least_slack(self) -> None:
        bound, weight = self._bound_slacks(), self.at_weight
        self.least = min([own + weight * finish for own, finish in bound], default=inf)
        self.lowest, self.highest = (bound[-1][1], bound[0][1]) if bound else (0, 0)
        self.is_exact = True

    def _choose_first(self) -> None:
        waiting = [entry for entry in self.entries if entry.waits]
        self.choice = min(waiting, key=rank_of, default=None)
        self.smallest = min([entry.remaining for entry in waiting], default=inf)

    def _count_weight(self, entry: Entry, times: int) -> None:
        finish = entry.key[0]
        self.offset -= times * entry.weight * finish
        self.weight += times * entry.weight
        self._bound, self.is_exact = None, False
        if times > 0 and self.least < inf:
            self.least -= entry.weight * max(0, finish - self.lowest)

    def _extend_bound(self, entry: Entry) -> None:
        finish = entry.key[0]
        own = self.at_weight * finish
        for other in reversed(self.entries):
            if other is entry:
                break
            own += other.remaining - other.weight * (other.key[0] - finish)
        if self.least == inf:
            self.least, self.lowest, self.highest = own, finish, finish
        else:
            self.least = min(self.least, own)
            self.lowest = min(self.lowest, finish)
            self.highest = max(self.highest, finish)


class Group(Span):
    """A group of neighbouring blocks, which a search can skip together."""

    __slots__ = ("blocks", "is_stale")

    def __init__(self, blocks: list[Block]) -> None:
        super().__init__()
        self.blocks = blocks
        self.is_stale = True
        for block in blocks:
            block.group = self
        self.mark_sums_stale()

    def mark_sums_stale(self) -> None:
        self.is_stale = True
        if self.blocks:
            self.last = self.blocks[-1].last

    def split(self, block: Block) -> None:
        """Replace a block of the group by two halves. O(block)."""
        at, half = self.blocks.index(block), len(block.entries) // 2
        halves = [Block(block.entries[:half]), Block(block.entries[half:])]
        for one in halves:
            one.group = self
        self.blocks[at : at + 1] = halves
        self.mark_sums_stale()

    def recompute_group_sums(self, weight: float) -> None:
        """Recompute the sums of this group for the weight of all applications behind it.

        Takes O(blocks).
        """
        self.is_stale = False
        self.at_weight = weight
        offset: KvTokenTime = 0
        own: float = 0
        least = smallest = inf
        lowest = highest = 0.0
        first: Entry | None = None
        for block in reversed(self.blocks):
            if block.least < inf:
                # the method `bound` inlined, because a decision calls it most often
                moved = weight + own - block.at_weight
                bound = (
                    offset + block.least + moved * (block.lowest if moved > 0 else block.highest)
                )
                if bound < least:
                    least = bound
                highest = highest or block.highest
                lowest = block.lowest
            offset += block.offset
            own += block.weight
            choice = block.choice
            if choice is not None:
                smallest = min(smallest, block.smallest)
                if first is None or choice.rank < first.rank:
                    first = choice
        self.offset, self.weight, self.choice = offset, own, first
        self.least, self.smallest, self.lowest, self.highest = least, smallest, lowest, highest

    def search_within(
        self, after: KvTokenTime, weight: float
    ) -> tuple[KvTokenTime, Sequence[tuple[Span, KvTokenTime, float]]]:
        self.is_stale = True  # a caller may change the blocks
        return inf, self.lines(after, weight)

    def search(self, search: Search, after: KvTokenTime, weight: float) -> None:
        self.is_stale = True  # a search may change the blocks
        for line in self.lines(after, weight):
            search.search_span(*line)

    def choices(self) -> list[tuple[Rank, Span | Entry]]:
        return shortest_by_span(self.blocks)

    def lines(self, after: KvTokenTime, weight: float) -> list[tuple[Block, KvTokenTime, float]]:
        """Return each block with the total weight of the applications behind it."""
        return weights_behind(self.blocks, after, weight)


class Search:
    """Search for the shortest application that may overtake, span after span."""

    __slots__ = ("_least", "_loose", "best", "known", "passes_over", "spare")

    def __init__(self) -> None:
        self.best: Entry | None = None
        self.passes_over = False
        """Whether the search skipped a shorter application that had, or might have had, too little
        slack.
        """
        self.spare: KvTokenTime = 0
        """Lower bound of the slack before the best application, less its remaining work. Valid if
        no shorter application was skipped.
        """
        self.known: KvTokenTime = inf
        """Smallest slack of the searched spans that is known exactly."""
        self._loose: list[tuple[KvTokenTime, Span, KvTokenTime, float]] = []
        """Spans in which slack may be below `known`."""
        self._least: KvTokenTime = inf
        """Smallest slack in all spans searched so far, or a lower bound of it."""

    def search_span(self, span: Span, after: KvTokenTime, weight: float) -> None:
        """Search the next span. O(1) if the span's lower bound suffices."""
        choice, best, bound = span.choice, self.best, span.bound(after, weight)
        if choice is not None and (best is None or choice.rank < best.rank):
            if choice.remaining <= bound and self.has_slack(choice.remaining):
                self.best = choice
                self.spare = min(bound, self._least) - choice.remaining
            else:
                self.passes_over = True
                if span.smallest <= self.known:
                    span.search(self, after, weight)
                    return
        if bound < self.known:
            self.note(span, bound, after, weight)

    def would_be_best(self, entry: Entry) -> bool:
        return self.best is None or entry.rank < self.best.rank

    def has_slack(self, wanted: KvTokenTime) -> bool:
        """Return whether no slack in the searched spans is below `wanted`."""
        if wanted <= self._least:
            return True
        open_spans, self._loose = self._loose, []
        while open_spans and wanted <= self.known:
            loose = open_spans.pop()
            bound, span, after, weight = loose
            if bound >= wanted:
                self._loose.append(loose)
                continue
            least, parts = span.search_within(after, weight)
            self.known = min(self.known, least)
            open_spans += [(part.bound(a, w), part, a, w) for part, a, w in parts]
        self._loose += open_spans
        self._least = min([self.known, *[bound for bound, *_ in self._loose]])
        return wanted <= self._least

    def note(self, span: Span, bound: KvTokenTime, after: KvTokenTime, weight: float) -> None:
        """Remember the least slack of a span for the search of later spans."""
        if bound >= self.known:
            return
        if span.is_exact and weight == span.at_weight:
            self.known = bound
        else:
            self._loose.append((bound, span, after, weight))
        if bound < self._least:
            self._least = bound


def nearest(spans: Sequence[AnySpan], key: Key) -> AnySpan:
    """Return the first span whose last application is at or after a sort key.

    Otherwise the last span.
    """
    if len(spans) == 1:
        return spans[0]
    return spans[min(bisect_left(spans, key, key=_last), len(spans) - 1)]
