"""Slack: how much other work may be served first before GPS's promise to anybody is touched.

GPS will have finished application k when V reaches its tag F_k. The slack of k is the service that
GPS gives until then, less what the replicas still have to do of all tags up to F_k:

    slack_k = Σ ω·(min(F, F_k) − V), over the sessions that GPS is active for
              − Σ (chg − att), over the applications with tags up to F_k that are not withdrawn.

By the invariant of `fair_share` both sums are the same over everything, so that the slack of k can
be read from what comes after it alone, and V is not in it:

    slack_k = Σ_{i after k} (chg_i − att_i) − ω_i·(F_i − F_k).

Of an *overdue* k, with F_k ≤ V, the first sum is the service since V reached F_k, below 0: with S
the service of the replicas, slack_k = S(then) − S(now) − Σ (chg − att).

Work of a later tag that is served lowers slack by as much; work of an earlier one, and arrivals,
never do. So an application that may still ask for x harms nobody's promise if slack_k ≥ x for every
k before it that is *bound*: that has charge left, or something waiting.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from math import inf
from operator import attrgetter
from typing import TypeAlias, TypeVar

from justitia_ray.units import ApplicationId, KvTokenTime, VirtualTime

_MOST = 48
"""Applications in a block; more are split in two."""
_MOST_BLOCKS = 20
"""Blocks in a group; more are split in two."""

_Key: TypeAlias = tuple[VirtualTime, int]


class _Entry:
    __slots__ = (
        "binds", "block", "due_at", "key", "name", "rank", "remaining", "waits", "weight"
    )  # fmt: skip

    def __init__(self, name: ApplicationId, key: _Key) -> None:
        self.name = name
        self.key = key
        self.weight: float = 1
        self.remaining: KvTokenTime = 0
        self.binds = False
        self.waits = False
        self.rank: tuple[float, int] = (0, 0)
        self.due_at: KvTokenTime | None = None
        """S when V reached its tag, if it is overdue."""
        self.block: _Block
        """Where it stands, while it is not overdue."""


def _key(entry: _Entry) -> _Key:
    return entry.key


def _rank(entry: _Entry) -> tuple[float, int]:
    return entry.rank


class _Span:
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
        self.choice: _Entry | None = None
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
        self.last: _Key = (inf, 0)
        """Key of the last application in it."""

    def bound(self, after: KvTokenTime, weight: float) -> KvTokenTime:
        """Return what no slack in it is below, and some may be far above. O(1)."""
        moved = weight - self.at_weight
        return after + self.least + moved * (self.lowest if moved > 0 else self.highest)

    def refine(
        self, after: KvTokenTime, weight: float
    ) -> tuple[KvTokenTime, Sequence[tuple[_Span, KvTokenTime, float]]]:
        """Return its least slack, but for that of the parts that are returned with it."""
        raise NotImplementedError

    def search(self, search: _Search, after: KvTokenTime, weight: float) -> None:
        """Look at what is in it."""
        raise NotImplementedError


_AnySpan = TypeVar("_AnySpan", bound=_Span)


_last = attrgetter("last")


def _lines(
    spans: Sequence[_AnySpan], after: KvTokenTime, weight: float
) -> list[tuple[_AnySpan, KvTokenTime, float]]:
    """Return neighbours, first tags first, each with the line of everything after it."""
    found = []
    for span in reversed(spans):
        found.append((span, after, weight))
        after += span.offset
        weight += span.weight
    found.reverse()
    return found


class _Block(_Span):
    """Neighbours one by one."""

    __slots__ = ("_bound", "entries", "group")

    def __init__(self, entries: list[_Entry]) -> None:
        super().__init__()
        self.group: _Group
        self.entries = entries
        self._bound: list[tuple[KvTokenTime, VirtualTime]] | None = None
        """Slack and tag of what is bound, as if nothing came after it; last first."""
        for entry in entries:
            entry.block = self
        self._find_last()
        self._sum_up()
        self._find_least()
        self._choose()

    def insert(self, entry: _Entry) -> None:
        """Put an application at its place, with nothing left and not bound."""
        insort(self.entries, entry, key=_key)
        entry.block = self
        self._find_last()
        self._count(entry, 1)

    def remove(self, entry: _Entry) -> None:
        """Remove an application."""
        del self.entries[bisect_left(self.entries, entry.key, key=_key)]
        self._find_last()
        self._count(entry, -1)
        self.offset -= entry.remaining
        self.least -= entry.remaining
        if entry is self.choice:
            self._choose()

    def change(
        self, entry: _Entry, weight: float, remaining: KvTokenTime, *, binds: bool, waits: bool
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
    ) -> tuple[KvTokenTime, Sequence[tuple[_Span, KvTokenTime, float]]]:
        """Return the least slack of what is bound in it, and no parts. O(block)."""
        if not (self.is_exact and weight == self.at_weight):
            self.at_weight = weight
            self._find_least()
        return after + self.least, ()

    def search(self, search: _Search, after: KvTokenTime, weight: float) -> None:
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

    def lacks(self, amount: KvTokenTime, before: _Entry, after: KvTokenTime, weight: float) -> bool:
        """Return whether the slack of any that is bound before one of them is less. O(block)."""
        for entry, slack in self.slacks(after, weight):
            if entry is before:
                return False
            if slack is not None and slack < amount:
                return True
        raise AssertionError(f"{before.name} is not in its block")

    def slacks(
        self, after: KvTokenTime, weight: float
    ) -> Iterator[tuple[_Entry, KvTokenTime | None]]:
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
        self.choice = min(waiting, key=_rank, default=None)
        self.smallest = min([entry.remaining for entry in waiting], default=inf)

    def _count(self, entry: _Entry, times: int) -> None:
        """Count the weight of an application in, or out, at its tag."""
        finish = entry.key[0]
        self.offset -= times * entry.weight * finish
        self.weight += times * entry.weight
        self._bound, self.is_exact = None, False
        if times > 0 and self.least < inf:
            self.least -= entry.weight * max(0, finish - self.lowest)

    def _bind(self, entry: _Entry) -> None:
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


class _Group(_Span):
    """Neighbouring blocks, so that not every block has to be looked at."""

    __slots__ = ("blocks", "is_stale")

    def __init__(self, blocks: list[_Block]) -> None:
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

    def split(self, block: _Block) -> None:
        """Replace a block by two halves. O(block)."""
        at, half = self.blocks.index(block), len(block.entries) // 2
        halves = [_Block(block.entries[:half]), _Block(block.entries[half:])]
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
        first: _Entry | None = None
        for block in reversed(self.blocks):
            if block.least < inf:
                least = min(least, block.bound(offset, weight + own))
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
    ) -> tuple[KvTokenTime, Sequence[tuple[_Span, KvTokenTime, float]]]:
        """Return all its blocks: nothing is known of their least slack that they do not know."""
        self.is_stale = True  # who looks into it may leave it better bounds
        return inf, self.lines(after, weight)

    def search(self, search: _Search, after: KvTokenTime, weight: float) -> None:
        """Look at each block. O(blocks) if their bounds say enough."""
        self.is_stale = True  # who looks into it may leave it better bounds
        for line in self.lines(after, weight):
            search.look(*line)

    def lines(self, after: KvTokenTime, weight: float) -> list[tuple[_Block, KvTokenTime, float]]:
        """Return the blocks, each with the line of everything after it."""
        return _lines(self.blocks, after, weight)


class _Search:
    """Who comes first by rank of those that may pass, as span after span is looked at."""

    __slots__ = ("_least", "_loose", "best", "known", "passes_over", "spare")

    def __init__(self) -> None:
        self.best: _Entry | None = None
        self.passes_over = False
        """Whether a shorter one may not pass, or may not have been allowed to."""
        self.spare: KvTokenTime = 0
        """At most the slack before the best beyond what is left of it, if it passes over nobody."""
        self.known: KvTokenTime = inf
        """Least slack of what it has looked at, without what is loose."""
        self._loose: list[tuple[KvTokenTime, _Span, KvTokenTime, float]] = []
        """Spans with a bound of their slack, below what is known, and the line after them."""
        self._least: KvTokenTime = inf
        """At most the least slack of all that it has looked at."""

    def look(self, span: _Span, after: KvTokenTime, weight: float) -> None:
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

    def would_be_best(self, entry: _Entry) -> bool:
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

    def note(self, span: _Span, bound: KvTokenTime, after: KvTokenTime, weight: float) -> None:
        """Count the slack of a span, and its bound, for what follows it."""
        if bound >= self.known:
            return
        if span.is_exact and weight == span.at_weight:
            self.known = bound
        else:
            self._loose.append((bound, span, after, weight))
        if bound < self._least:
            self._least = bound


class _Answer:
    """Who passes, and how much the slack of others may fall before somebody has to look again."""

    __slots__ = ("_spare", "best")

    def __init__(self, search: _Search) -> None:
        """Keep what a search has found."""
        self.best = search.best
        self._spare = -inf if search.best is None or search.passes_over else search.spare

    def outlives(self, entry: _Entry, fall: KvTokenTime, *, is_shorter: bool, binds: bool) -> bool:
        """Return whether a change of one application leaves it the answer. O(1).

        Args:
            entry: The application, as it is now.
            fall: The most by which it makes the slack of others fall.
            is_shorter: Of the best: whether it still waits, and no more is left of it than before.
                What is served of it lowers what it needs by as much as the slack before it.
            binds: Whether it has begun to be bound: nobody has asked for its slack.
        """
        best = self.best
        if best is None or entry is best:
            return is_shorter and self._spare >= 0
        if (entry.waits and entry.rank < best.rank) or (binds and entry.key < best.key):
            return False
        self._spare -= fall
        return self._spare >= 0


class Slack:
    """The applications in the order of their tags, and who of them may pass whom.

    They stand in blocks of some forty, these in groups of some fifteen, the overdue apart. A change
    is O(1) or O(block), and makes its group sum up its blocks anew. A decision looks at every group
    once, and into those groups and blocks that may decide it: O(N/500 + 50), O(N) at worst. The
    answer is kept through changes that leave enough slack before the one that passes, which is told
    in O(1).
    """

    def __init__(self, virtual_time: VirtualTime = 0, served: KvTokenTime = 0) -> None:
        """Begin empty, at this V and S."""
        self._virtual_time = virtual_time
        self._served = served
        self._entries: dict[ApplicationId, _Entry] = {}
        self._groups: list[_Group] = []
        self._overdue: list[_Entry] = []
        """Bound ones that GPS is done with, by their tags."""
        self._least_overdue: KvTokenTime | None = None
        """Least slack of those and S; None: not known."""
        self._answer: _Answer | None = None
        """Who passes; None: somebody has to look."""
        self._groups_found: list[tuple[_Group, KvTokenTime, float]] | None = None
        """Last result of `_lines`; None: something has changed since."""

    def __len__(self) -> int:
        return len(self._entries)

    def put(
        self,
        name: ApplicationId,
        finish: VirtualTime,
        sequence: int,
        weight: float,
        remaining: KvTokenTime,
        *,
        binds: bool,
        waits: bool,
    ) -> None:
        """Put an application at its place, or change it there.

        Args:
            name: The application, or one that ended before GPS was done with it.
            finish: Its tag F.
            sequence: Its arrival, the tie-break of equal tags.
            weight: Its weight ω.
            remaining: What it may still ask for, chg − att, token·iterations; 0 if it ended.
            binds: Whether those behind it need its slack to pass.
            waits: Whether it is one of those to choose from.
        """
        key = (finish, sequence)
        entry = self._entries.get(name)
        if entry is not None and (entry.key != key or (entry.due_at is not None and not binds)):
            self.drop(name)
            entry = None
        fall: KvTokenTime
        if entry is None:
            entry = self._entries[name] = _Entry(name, key)
            self._insert(entry)
            fall = max(0, weight * (finish - self._virtual_time) - remaining)
        elif (weight, remaining, binds, waits) == (
            entry.weight, entry.remaining, entry.binds, entry.waits
        ):  # fmt: skip
            return
        else:
            fall = max(0, entry.remaining - remaining) if weight == entry.weight else inf
        if entry.due_at is None:
            rank, was_bound = entry.rank, entry.binds
            entry.block.change(entry, weight, remaining, binds=binds, waits=waits)
            entry.block.group.outdate()
            is_shorter = waits and entry.rank <= rank and fall < inf
            self._note_change(entry, fall, is_shorter=is_shorter, binds=binds and not was_bound)
        else:
            entry.weight, entry.remaining, entry.waits = weight, remaining, waits
            self._least_overdue = None

    def drop(self, name: ApplicationId) -> None:
        """Remove an application; an unknown one changes nothing."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        if entry.due_at is None:
            self._take_out(entry)
        else:
            self._overdue.remove(entry)
            self._least_overdue = None

    def advance(self, virtual_time: VirtualTime, served: KvTokenTime) -> None:
        """Set V and S. Who is not bound when V reaches its tag is forgotten.

        V is taken to have reached a tag at the call before, or just after. Of tags below the V of
        that call nothing is known: nobody passes them.
        """
        while self._groups:
            entry = self._groups[0].blocks[0].entries[0]
            finish = entry.key[0]
            if finish > virtual_time:
                break
            self._take_out(entry)
            if entry.binds:
                entry.due_at = self._served if finish >= self._virtual_time else -inf
                insort(self._overdue, entry, key=_key)
                self._least_overdue = None
            else:
                del self._entries[entry.name]
        self._virtual_time, self._served = virtual_time, served

    def first(self) -> ApplicationId | None:
        """Return who of those that may pass has least left for its weight; None if nobody may.

        While anything bound is overdue, nobody passes anybody.
        """
        if self._overdue:
            return None
        if self._answer is None:
            search = _Search()
            for line in self._lines():
                search.look(*line)
                if search.known < 0:
                    break
            self._answer = _Answer(search)
        best = self._answer.best
        return None if best is None else best.name

    def passing(self) -> list[ApplicationId]:
        """Return all that wait and may pass, least left for its weight first. O(N log N)."""
        if self._overdue:
            return []
        found: list[_Entry] = []
        least: KvTokenTime = inf
        for group, *after_group in self._lines():
            for block, *after in group.lines(*after_group):
                for entry, slack in block.slacks(*after):
                    if entry.waits and entry.remaining <= least:
                        found.append(entry)
                    if slack is not None:
                        least = min(least, slack)
        return [entry.name for entry in sorted(found, key=_rank)]

    def allows(self, name: ApplicationId, amount: KvTokenTime) -> bool:
        """Return whether everything bound before an application has so much slack.

        Args:
            name: An application that has been put here.
            amount: Service, token·iterations; what those before are to be left short of is below 0.
        """
        entry = self._entries[name]
        if entry.due_at is not None:
            return self._least_of_overdue(entry) - self._served >= amount
        if self._overdue:
            if self._least_overdue is None:
                self._least_overdue = self._least_of_overdue(None)
            if self._least_overdue - self._served < amount:
                return False
        search = _Search()
        own = entry.block
        for group, *after_group in self._lines():
            if group is not own.group:
                search.note(group, group.bound(*after_group), *after_group)
                continue
            for block, *after in group.lines(*after_group):
                bound = block.bound(*after)
                if block is not own:
                    search.note(block, bound, *after)
                    continue
                if bound < amount and block.lacks(amount, entry, *after):
                    return False
                return search.has_slack(amount)
        raise AssertionError(f"{name} is in no block")

    def _least_of_overdue(self, before: _Entry | None) -> KvTokenTime:
        """Return the least slack of the overdue before one, or of all, and S together."""
        least: KvTokenTime = inf
        owed: KvTokenTime = 0
        for entry in self._overdue:
            if entry is before:
                break
            owed += entry.remaining
            assert entry.due_at is not None
            least = min(least, entry.due_at - owed)
        return least

    def _lines(self) -> list[tuple[_Group, KvTokenTime, float]]:
        """Return each group, first tags first, with the line of everything after it."""
        if self._groups_found is None:
            weight: float = 0
            for group in reversed(self._groups):
                if group.is_stale:
                    group.renew(weight)
                weight += group.weight
            self._groups_found = _lines(self._groups, 0, 0)
        return self._groups_found

    def _note_change(
        self, entry: _Entry, fall: KvTokenTime, *, is_shorter: bool = False, binds: bool = False
    ) -> None:
        self._groups_found = None
        answer = self._answer
        if answer is not None and not answer.outlives(
            entry, fall, is_shorter=is_shorter, binds=binds
        ):
            self._answer = None

    def _take_out(self, entry: _Entry) -> None:
        self._note_change(entry, entry.remaining)
        block, group = entry.block, entry.block.group
        block.remove(entry)
        group.outdate()
        if not block.entries:
            group.blocks.remove(block)
        if not group.blocks:
            self._groups.remove(group)

    def _insert(self, entry: _Entry) -> None:
        if not self._groups:
            self._groups.append(_Group([_Block([])]))
        group = _nearest(self._groups, entry.key)
        block = _nearest(group.blocks, entry.key)
        block.insert(entry)
        group.outdate()
        if len(block.entries) > _MOST:
            group.split(block)
        if len(group.blocks) > _MOST_BLOCKS:
            at, half = self._groups.index(group), len(group.blocks) // 2
            halves = [_Group(group.blocks[:half]), _Group(group.blocks[half:])]
            self._groups[at : at + 1] = halves


def _nearest(spans: Sequence[_AnySpan], key: _Key) -> _AnySpan:
    """Return the first of some neighbours that ends at a key or after it, or the last."""
    if len(spans) == 1:
        return spans[0]
    return spans[min(bisect_left(spans, key, key=_last), len(spans) - 1)]
