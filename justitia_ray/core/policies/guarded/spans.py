"""Neighbours in the order of tags: the slack in a block or a group of them, and who may pass.

What slack is, and what a decision costs, is told in `slack`, which asks.
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
        """S when V reached its tag, if it is overdue."""
        self.block: Block
        """Where it stands, while it is not overdue."""


key_of: Callable[[Entry], Key] = attrgetter("key")
"""Returns the place of an application in the order of tags."""
rank_of: Callable[[Entry], Rank] = attrgetter("rank")
"""Returns the place of an application among those that may pass, the shortest first."""


class Span:
    """Neighbours in the order of tags, and what is asked of them together.

    Seen from a span, everything after it is a line: at the tag F it comes to `after + weight·F`.
    The least slack in it was found at one weight. From then on a bound of it is kept, which falls
    with every change and is as far off as the weight has moved times its range of tags.
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
        """With the offset the line that it adds for all before it."""
        self.choice: Entry | None = None
        """The first by rank of those that wait."""
        self.smallest: KvTokenTime = inf
        """At most what is left of any that waits."""
        self.at_weight: float = 0
        self.least: KvTokenTime = inf
        """At most the least slack at that weight, if after that came nothing else."""
        self.is_exact = False
        """Whether it is the least slack at that weight."""
        self.lowest: VirtualTime = 0
        self.highest: VirtualTime = 0
        """Range of the bound tags."""
        self.last: Key = (inf, 0)
        """Key of the last application in it."""

    def bound(self, after: KvTokenTime, weight: float) -> KvTokenTime:
        """Return what no slack in it is below, and some may be far above. O(1)."""
        moved = weight - self.at_weight
        return after + self.least + moved * (self.lowest if moved > 0 else self.highest)

    def refine(
        self, after: KvTokenTime, weight: float
    ) -> tuple[KvTokenTime, Sequence[tuple[Span, KvTokenTime, float]]]:
        """Return its least slack, but for that of the parts that are returned with it."""
        raise NotImplementedError

    def search(self, search: Search, after: KvTokenTime, weight: float) -> None:
        """Look at what is in it."""
        raise NotImplementedError

    def choices(self) -> list[tuple[Rank, Span | Entry]]:
        """Return its parts of which anything waits, each with the first by rank in it."""
        raise NotImplementedError


AnySpan = TypeVar("AnySpan", bound=Span)


_last = attrgetter("last")


def lines_of(
    spans: Sequence[AnySpan], after: KvTokenTime, weight: float
) -> list[tuple[AnySpan, KvTokenTime, float]]:
    """Return neighbours, first tags first, each with the line of everything after it."""
    found = []
    for span in reversed(spans):
        found.append((span, after, weight))
        after += span.offset
        weight += span.weight
    found.reverse()
    return found


def choices_of(spans: Iterable[Span]) -> list[tuple[Rank, Span | Entry]]:
    """Return the spans of which anything waits, each with the first by rank in it."""
    return [(span.choice.rank, span) for span in spans if span.choice is not None]


class Block(Span):
    """Neighbours one by one."""

    __slots__ = ("_bound", "entries", "group")

    def __init__(self, entries: list[Entry]) -> None:
        super().__init__()
        self.group: Group
        self.entries = entries
        self._bound: list[tuple[KvTokenTime, VirtualTime]] | None = None
        """Slack and tag of what is bound, as if nothing came after it; last first."""
        for entry in entries:
            entry.block = self
        self._find_last()
        self._sum_up()
        self._find_least()
        self._choose()

    def insert(self, entry: Entry) -> None:
        """Put an application at its place, with nothing left and not bound."""
        insort(self.entries, entry, key=key_of)
        entry.block = self
        self._find_last()
        self._count(entry, 1)

    def remove(self, entry: Entry) -> None:
        """Remove an application."""
        del self.entries[bisect_left(self.entries, entry.key, key=key_of)]
        self._find_last()
        self._count(entry, -1)
        self.offset -= entry.remaining
        self.least -= entry.remaining
        if entry is self.choice:
            self._choose()

    def change(
        self, entry: Entry, weight: float, remaining: KvTokenTime, *, binds: bool, waits: bool
    ) -> None:
        """Change an application at its place.

        O(1), unless its weight changes, or it begins to be bound, or it is the choice and waits no
        more or has more left: O(block).
        """
        more, was_bound, rank = remaining - entry.remaining, entry.binds, entry.rank
        if weight != entry.weight:
            self._count(entry, -1)
            entry.weight = weight
            self._count(entry, 1)
        self.offset += more
        if more < 0:
            self.least += more
        entry.remaining, entry.binds, entry.waits = remaining, binds, waits
        entry.rank = (remaining / weight, entry.key[1])
        if more or binds != was_bound:
            self._bound, self.is_exact = None, False
        if binds and not was_bound:
            self._bind(entry)
        if entry is self.choice and not (waits and entry.rank <= rank):
            self._choose()
        elif waits:
            self.smallest = min(self.smallest, remaining)
            if self.choice is None or entry.rank < self.choice.rank:
                self.choice = entry

    def refine(
        self, after: KvTokenTime, weight: float
    ) -> tuple[KvTokenTime, Sequence[tuple[Span, KvTokenTime, float]]]:
        """Return the least slack of what is bound in it, and no parts. O(block)."""
        if not (self.is_exact and weight == self.at_weight):
            self.at_weight = weight
            self._find_least()
        return after + self.least, ()

    def search(self, search: Search, after: KvTokenTime, weight: float) -> None:
        """Look at each application in it. O(block)."""
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
        self.refine(after, weight)  # so that the next look need not go into it
        search.note(self, self.bound(after, weight), after, weight)

    def choices(self) -> list[tuple[Rank, Span | Entry]]:
        """Return the applications in it that wait. O(block)."""
        return [(entry.rank, entry) for entry in self.entries if entry.waits]

    def lacks(self, amount: KvTokenTime, before: Entry, after: KvTokenTime, weight: float) -> bool:
        """Return whether the slack of any that is bound before one of them is less. O(block)."""
        for entry, slack in self.slacks(after, weight):
            if entry is before:
                return False
            if slack is not None and slack < amount:
                return True
        raise AssertionError(f"{before.name} is not in its block")

    def slacks(
        self, after: KvTokenTime, weight: float
    ) -> Iterator[tuple[Entry, KvTokenTime | None]]:
        """Yield its applications in order, each with its slack, None if it is not bound."""
        bound = iter(reversed(self._slacks()))
        for entry in self.entries:
            if entry.binds:
                own, finish = next(bound)
                yield entry, after + own + weight * finish
            else:
                yield entry, None

    def _find_last(self) -> None:
        if self.entries:
            self.last = self.entries[-1].key

    def _slacks(self) -> list[tuple[KvTokenTime, VirtualTime]]:
        return self._sum_up() if self._bound is None else self._bound

    def _sum_up(self) -> list[tuple[KvTokenTime, VirtualTime]]:
        """Sum up its applications, last first; return the slacks. O(block)."""
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

    def _find_least(self) -> None:
        bound, weight = self._slacks(), self.at_weight
        self.least = min([own + weight * finish for own, finish in bound], default=inf)
        self.lowest, self.highest = (bound[-1][1], bound[0][1]) if bound else (0, 0)
        self.is_exact = True

    def _choose(self) -> None:
        waiting = [entry for entry in self.entries if entry.waits]
        self.choice = min(waiting, key=rank_of, default=None)
        self.smallest = min([entry.remaining for entry in waiting], default=inf)

    def _count(self, entry: Entry, times: int) -> None:
        """Count the weight of an application in, or out, at its tag."""
        finish = entry.key[0]
        self.offset -= times * entry.weight * finish
        self.weight += times * entry.weight
        self._bound, self.is_exact = None, False
        if times > 0 and self.least < inf:
            self.least -= entry.weight * max(0, finish - self.lowest)

    def _bind(self, entry: Entry) -> None:
        """Let the bound hold for one that is bound from now on."""
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
    """Neighbouring blocks, so that not every block has to be looked at."""

    __slots__ = ("blocks", "is_stale")

    def __init__(self, blocks: list[Block]) -> None:
        super().__init__()
        self.blocks = blocks
        self.is_stale = True
        for block in blocks:
            block.group = self
        self.outdate()

    def outdate(self) -> None:
        """Note that a block has changed."""
        self.is_stale = True
        if self.blocks:
            self.last = self.blocks[-1].last

    def split(self, block: Block) -> None:
        """Replace a block by two halves. O(block)."""
        at, half = self.blocks.index(block), len(block.entries) // 2
        halves = [Block(block.entries[:half]), Block(block.entries[half:])]
        for one in halves:
            one.group = self
        self.blocks[at : at + 1] = halves
        self.outdate()

    def renew(self, weight: float) -> None:
        """Sum up the blocks as they are now, at the weight of everything after. O(blocks)."""
        self.is_stale = False
        self.at_weight = weight
        offset: KvTokenTime = 0
        own: float = 0
        least = smallest = inf
        lowest = highest = 0.0
        first: Entry | None = None
        for block in reversed(self.blocks):
            if block.least < inf:
                # `bound`, written out: a decision does nothing more often
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

    def refine(
        self, after: KvTokenTime, weight: float
    ) -> tuple[KvTokenTime, Sequence[tuple[Span, KvTokenTime, float]]]:
        """Return all its blocks: nothing is known of their least slack that they do not know."""
        self.is_stale = True  # who looks into it may leave it better bounds
        return inf, self.lines(after, weight)

    def search(self, search: Search, after: KvTokenTime, weight: float) -> None:
        """Look at each block. O(blocks) if their bounds say enough."""
        self.is_stale = True  # who looks into it may leave it better bounds
        for line in self.lines(after, weight):
            search.look(*line)

    def choices(self) -> list[tuple[Rank, Span | Entry]]:
        """Return its blocks of which anything waits. O(blocks)."""
        return choices_of(self.blocks)

    def lines(self, after: KvTokenTime, weight: float) -> list[tuple[Block, KvTokenTime, float]]:
        """Return the blocks, each with the line of everything after it."""
        return lines_of(self.blocks, after, weight)


class Search:
    """Who comes first by rank of those that may pass, as span after span is looked at."""

    __slots__ = ("_least", "_loose", "best", "known", "passes_over", "spare")

    def __init__(self) -> None:
        self.best: Entry | None = None
        self.passes_over = False
        """Whether a shorter one may not pass, or may not have been allowed to."""
        self.spare: KvTokenTime = 0
        """At most the slack before the best beyond what is left of it, if it passes over nobody."""
        self.known: KvTokenTime = inf
        """Least slack of what it has looked at, without what is loose."""
        self._loose: list[tuple[KvTokenTime, Span, KvTokenTime, float]] = []
        """Spans with a bound of their slack, below what is known, and the line after them."""
        self._least: KvTokenTime = inf
        """At most the least slack of all that it has looked at."""

    def look(self, span: Span, after: KvTokenTime, weight: float) -> None:
        """Look at the next span. O(1) if the bounds say enough."""
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
        """Return whether an application comes before the best so far."""
        return self.best is None or entry.rank < self.best.rank

    def has_slack(self, wanted: KvTokenTime) -> bool:
        """Return whether no slack so far is less. What bounds leave open is looked into."""
        if wanted <= self._least:
            return True
        open_spans, self._loose = self._loose, []
        while open_spans and wanted <= self.known:
            loose = open_spans.pop()
            bound, span, after, weight = loose
            if bound >= wanted:
                self._loose.append(loose)
                continue
            least, parts = span.refine(after, weight)
            self.known = min(self.known, least)
            open_spans += [(part.bound(a, w), part, a, w) for part, a, w in parts]
        self._loose += open_spans
        self._least = min([self.known, *[bound for bound, *_ in self._loose]])
        return wanted <= self._least

    def note(self, span: Span, bound: KvTokenTime, after: KvTokenTime, weight: float) -> None:
        """Count the slack of a span, and its bound, for what follows it."""
        if bound >= self.known:
            return
        if span.is_exact and weight == span.at_weight:
            self.known = bound
        else:
            self._loose.append((bound, span, after, weight))
        if bound < self._least:
            self._least = bound


def nearest(spans: Sequence[AnySpan], key: Key) -> AnySpan:
    """Return the first of some neighbours that ends at a key or after it, or the last."""
    if len(spans) == 1:
        return spans[0]
    return spans[min(bisect_left(spans, key, key=_last), len(spans) - 1)]
