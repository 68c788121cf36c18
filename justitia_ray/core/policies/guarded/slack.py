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

from bisect import insort
from collections.abc import Container, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

from justitia_ray.core.policies.guarded.spans import (
    Block,
    Entry,
    Group,
    Search,
    choices_of,
    key_of,
    lines_of,
    nearest,
    rank_of,
)
from justitia_ray.units import ApplicationId, KvTokenTime, VirtualTime

_MOST = 48
"""Applications in a block; more are split in two."""
_MOST_BLOCKS = 20
"""Blocks in a group; more are split in two."""
_CHANGES_A_GROUP = 16
"""Changes for which a group more is summed up, where nobody has to look."""


class _Answer:
    """Who passes, and how much the slack of others may fall before somebody has to look again."""

    __slots__ = ("_spare", "best")

    def __init__(self, search: Search) -> None:
        """Keep what a search has found."""
        self.best = search.best
        self._spare = -inf if search.best is None or search.passes_over else search.spare

    def outlives(self, entry: Entry, fall: KvTokenTime, *, is_shorter: bool, binds: bool) -> bool:
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


class _Ranking:
    """Applications that may pass, found one after the other and kept."""

    __slots__ = ("_found", "_others")

    def __init__(self, names: Iterator[ApplicationId]) -> None:
        self._found: list[ApplicationId] = []
        self._others = names

    def __iter__(self) -> Iterator[ApplicationId]:
        """Yield them from the first on."""
        yield from self._found
        for name in self._others:
            self._found.append(name)
            yield name


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
        self._entries: dict[ApplicationId, Entry] = {}
        self._groups: list[Group] = []
        self._overdue: list[Entry] = []
        """Bound ones that GPS is done with, by their tags."""
        self._least_overdue: KvTokenTime | None = None
        """Least slack of those and S; None: not known."""
        self._answer: _Answer | None = None
        """Who passes; None: somebody has to look."""
        self._by_rank: _Ranking | None = None
        """Who may pass after that; None: something has changed since somebody asked."""
        self._groups_found: list[tuple[Group, KvTokenTime, float]] | None = None
        """Last result of `lines_of`; None: something has changed since."""
        self._changes = 0
        """Applications that were changed since somebody asked who passes."""

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
            entry = self._entries[name] = Entry(name, key, weight)
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
                insort(self._overdue, entry, key=key_of)
                self._least_overdue = None
            else:
                del self._entries[entry.name]
        self._virtual_time, self._served = virtual_time, served

    def first(self, but: Container[ApplicationId] = ()) -> ApplicationId | None:
        """Return who of those that may pass has least left for its weight; None if nobody may.

        While anything bound is overdue, nobody passes anybody.

        Args:
            but: Some that wait and are left out, a few: each costs a look at who comes next.
        """
        if self._overdue:
            return None
        if self._answer is None:
            search = Search()
            for line in self._lines():
                search.look(*line)
                if search.known < 0:
                    break
            self._answer = _Answer(search)
        elif self._changes:
            # so that no look has to sum up all that has changed since somebody looked last
            self._sum_up(1 + self._changes // _CHANGES_A_GROUP)
        self._changes = 0
        best = self._answer.best
        if best is None or best.name not in but:
            return None if best is None else best.name
        if self._by_rank is None:
            self._by_rank = _Ranking(self._in_rank_order())
        return next((name for name in self._by_rank if name not in but), None)

    def passing(self) -> list[ApplicationId]:
        """Return all that wait and may pass, least left for its weight first. O(N log N)."""
        if self._overdue:
            return []
        found: list[Entry] = []
        least: KvTokenTime = inf
        for group, *after_group in self._lines():
            for block, *after in group.lines(*after_group):
                for entry, slack in block.slacks(*after):
                    if entry.waits and entry.remaining <= least:
                        found.append(entry)
                    if slack is not None:
                        least = min(least, slack)
        return [entry.name for entry in sorted(found, key=rank_of)]

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
        search = Search()
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

    def _in_rank_order(self) -> Iterator[ApplicationId]:
        """Yield those that wait and may pass, least left for its weight first.

        The first few cost O(groups + block) and a look at the slack of those before; all of them
        far more than `passing`. Nothing may change meanwhile.
        """
        least: KvTokenTime = inf
        bounds: dict[Group, KvTokenTime] = {}
        for group, *after in self._lines():
            least = bounds[group] = min(least, group.bound(*after))
        number = count()
        ahead = [(rank, next(number), one) for rank, one in choices_of(self._groups)]
        heapify(ahead)
        while ahead:
            _, _, one = heappop(ahead)
            if not isinstance(one, Entry):
                for rank, part in one.choices():
                    heappush(ahead, (rank, next(number), part))
            elif one.remaining <= bounds[one.block.group] or self.allows(one.name, one.remaining):
                yield one.name

    def _least_of_overdue(self, before: Entry | None) -> KvTokenTime:
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

    def _lines(self) -> list[tuple[Group, KvTokenTime, float]]:
        """Return each group, first tags first, with the line of everything after it."""
        if self._groups_found is None:
            self._sum_up(inf)
            self._groups_found = lines_of(self._groups, 0, 0)
        return self._groups_found

    def _sum_up(self, most: float) -> None:
        """Sum up so many of the stale groups anew, last tags first; leave the others stale."""
        weight: float = 0
        for group in reversed(self._groups):
            if group.is_stale:
                if most <= 0:
                    break
                group.renew(weight)
                most -= 1
            weight += group.weight

    def _note_change(
        self, entry: Entry, fall: KvTokenTime, *, is_shorter: bool = False, binds: bool = False
    ) -> None:
        self._groups_found = self._by_rank = None
        self._changes += 1
        answer = self._answer
        if answer is not None and not answer.outlives(
            entry, fall, is_shorter=is_shorter, binds=binds
        ):
            self._answer = None

    def _take_out(self, entry: Entry) -> None:
        self._note_change(entry, entry.remaining)
        block, group = entry.block, entry.block.group
        block.remove(entry)
        group.outdate()
        if not block.entries:
            group.blocks.remove(block)
        if not group.blocks:
            self._groups.remove(group)

    def _insert(self, entry: Entry) -> None:
        if not self._groups:
            self._groups.append(Group([Block([])]))
        group = nearest(self._groups, entry.key)
        block = nearest(group.blocks, entry.key)
        block.insert(entry)
        group.outdate()
        if len(block.entries) > _MOST:
            group.split(block)
        if len(group.blocks) > _MOST_BLOCKS:
            at, half = self._groups.index(group), len(group.blocks) // 2
            halves = [Group(group.blocks[:half]), Group(group.blocks[half:])]
            self._groups[at : at + 1] = halves
