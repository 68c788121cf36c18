"""Slack: the amount of other work that may be served first without breaking a guarantee of GPS.

GPS will have finished application k when V reaches its tag F_k. The slack of k is the service of
GPS until then, less the remaining work of the replicas for all tags up to F_k:

    slack_k = Σ ω·(min(F, F_k) − V), over the active sessions of GPS − Σ (chg − att), over the
        applications with tags up to F_k that are not withdrawn.

By the invariant of `fair_share` both sums are equal over all applications, so that the slack of k
depends only on the applications after it, and not on V:

    slack_k = Σ_{i after k} (chg_i − att_i) − ω_i·(F_i − F_k).

If k is *overdue*, F_k ≤ V, the first sum is negative, the service since V reached F_k: with S the
service of the replicas, slack_k = S(then) − S(now) − Σ (chg − att).

Serving work of a later tag lowers slack by the same amount; serving work of an earlier tag, and
arrivals, never lower it. So an application that may still request x breaks no guarantee if slack_k
≥ x for every k before it that *binds*: an application binds if it has remaining charge, or a
waiting inference.
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
    key_of,
    nearest,
    rank_of,
    shortest_by_span,
    weights_behind,
)
from justitia_ray.units import ApplicationId, KvTokenTime, VirtualTime

_MOST = 48
"""Maximum number of applications in a block; a larger block is split."""
_MOST_BLOCKS = 20
"""Maximum number of blocks in a group; a larger group is split."""
_CHANGES_PER_GROUP_SUM = 16
"""Number of changed applications after which the sums of one more group are recomputed."""


class _OvertakingAnswer:
    """Application that may overtake, valid until the slack of others has fallen too far."""

    __slots__ = ("_spare", "best")

    def __init__(self, search: Search) -> None:
        self.best = search.best
        self._spare = -inf if search.best is None or search.passes_over else search.spare

    def outlives(self, entry: Entry, fall: KvTokenTime, *, is_shorter: bool, binds: bool) -> bool:
        """Return whether the cached application may still overtake after another has changed. O(1).

        Args:
            entry: The application, in its current state.
            fall: Most by which the change lowers the slack of others.
            is_shorter: For the overtaking application itself: whether it still waits, without more
                remaining work than before. Its service lowers the slack that it needs by as much as
                the slack before it.
            binds: Whether the changed application has started to bind, so that its slack was not
                included.
        """
        best = self.best
        if best is None or entry is best:
            return is_shorter and self._spare >= 0
        if (entry.waits and entry.rank < best.rank) or (binds and entry.key < best.key):
            return False
        self._spare -= fall
        return self._spare >= 0


class _OvertakingRanking:
    """Applications that may overtake, found one by one and cached."""

    __slots__ = ("_found", "_others")

    def __init__(self, names: Iterator[ApplicationId]) -> None:
        self._found: list[ApplicationId] = []
        self._others = names

    def __iter__(self) -> Iterator[ApplicationId]:
        """Yield the applications that may overtake, the shortest first."""
        yield from self._found
        for name in self._others:
            self._found.append(name)
            yield name


class Slack:
    """Applications in order of tags, with the slack that decides which may overtake.

    Applications are in blocks of some forty, blocks in groups of some fifteen; overdue applications
    are kept apart. A change is O(1) or O(block), and makes the sums of its group stale. A decision
    reads every group once, and searches the groups and blocks that may decide it: O(N/500 + 50),
    O(N) at worst. The result is kept through changes that leave enough slack before the overtaking
    application, which is checked in O(1).
    """

    def __init__(self, virtual_time: VirtualTime = 0, served: KvTokenTime = 0) -> None:
        """Create an order without applications, at this virtual time V and service S."""
        self._virtual_time = virtual_time
        self._served = served
        self._entries: dict[ApplicationId, Entry] = {}
        self._groups: list[Group] = []
        self._overdue: list[Entry] = []
        """Applications that GPS has finished but the replicas have not, by their tags."""
        self._least_overdue: KvTokenTime | None = None
        """Smallest slack of applications finished in GPS, plus the total service; None: unknown."""
        self._answer: _OvertakingAnswer | None = None
        """The application that overtakes; None: a search is needed."""
        self._by_rank: _OvertakingRanking | None = None
        """Other applications that may overtake, by remaining work per weight; None after a change.
        """
        self._groups_found: list[tuple[Group, KvTokenTime, float]] | None = None
        """Cached groups of applications with their sums; None after a change."""
        self._changes = 0
        """Number of applications changed since the last query."""

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
        """Insert an application in the order of tags, or change it there.

        Args:
            name: The application, live or ended before GPS finished it.
            finish: Its tag F.
            sequence: Its arrival sequence number, which orders equal tags.
            weight: Its weight ω.
            remaining: Work that it may still request, chg − att, in token·iterations; 0 if it has
                ended.
            binds: Whether the applications behind it need its slack to overtake.
            waits: Whether it has a waiting inference, so that it may be chosen.
        """
        key = (finish, sequence)
        entry = self._entries.get(name)
        if entry is not None and (entry.key != key or (entry.due_at is not None and not binds)):
            self.drop(name)
            entry = None
        fall: KvTokenTime
        if entry is None:
            entry = self._entries[name] = Entry(name, key, weight)
            self._insert_entry(entry)
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
            entry.block.group.mark_sums_stale()
            is_shorter = waits and entry.rank <= rank and fall < inf
            self._note_change(entry, fall, is_shorter=is_shorter, binds=binds and not was_bound)
        else:
            entry.weight, entry.remaining, entry.waits = weight, remaining, waits
            self._least_overdue = None

    def drop(self, name: ApplicationId) -> None:
        """Remove an application; an unknown one is ignored."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        if entry.due_at is None:
            self._remove_entry(entry)
        else:
            self._overdue.remove(entry)
            self._least_overdue = None

    def advance(self, virtual_time: VirtualTime, served: KvTokenTime) -> None:
        """Set virtual time and total service; drop applications that need no slack any more.

        V is assumed to have reached a tag at the previous call, or just after it. For tags below V
        of the previous call the time is unknown: no application overtakes these tags.
        """
        while self._groups:
            entry = self._groups[0].blocks[0].entries[0]
            finish = entry.key[0]
            if finish > virtual_time:
                break
            self._remove_entry(entry)
            if entry.binds:
                entry.due_at = self._served if finish >= self._virtual_time else -inf
                insort(self._overdue, entry, key=key_of)
                self._least_overdue = None
            else:
                del self._entries[entry.name]
        self._virtual_time, self._served = virtual_time, served

    def first(self, but: Container[ApplicationId] = ()) -> ApplicationId | None:
        """Return the shortest application that may overtake, by work per weight; or None.

        While any application that binds is overdue, none overtakes.

        Args:
            but: A few waiting applications to leave out: each costs a search for the next one.
        """
        if self._overdue:
            return None
        if self._answer is None:
            search = Search()
            for line in self._group_lines():
                search.search_span(*line)
                if search.known < 0:
                    break
            self._answer = _OvertakingAnswer(search)
        elif self._changes:
            # Without a search the sums of changed applications are recomputed in small steps.
            self._sum_up_groups(1 + self._changes // _CHANGES_PER_GROUP_SUM)
        self._changes = 0
        best = self._answer.best
        if best is None or best.name not in but:
            return None if best is None else best.name
        if self._by_rank is None:
            self._by_rank = _OvertakingRanking(self._in_rank_order())
        return next((name for name in self._by_rank if name not in but), None)

    def passing(self) -> list[ApplicationId]:
        """Return all waiting applications that may overtake, shortest first. O(N log N)."""
        if self._overdue:
            return []
        found: list[Entry] = []
        least: KvTokenTime = inf
        for group, *after_group in self._group_lines():
            for block, *after in group.lines(*after_group):
                for entry, slack in block.slacks(*after):
                    if entry.waits and entry.remaining <= least:
                        found.append(entry)
                    if slack is not None:
                        least = min(least, slack)
        return [entry.name for entry in sorted(found, key=rank_of)]

    def allows(self, name: ApplicationId, amount: KvTokenTime) -> bool:
        """Return whether every application before this one has at least this much slack.

        Args:
            name: An application in the order.
            amount: Service in token·iterations; a negative amount is slack that the applications
                before it may lack.
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
        for group, *after_group in self._group_lines():
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
        """Yield the waiting applications that may overtake, shortest first.

        The first few cost O(groups + block) and a check of the slack before each. All of them cost
        far more than `passing`. The order must not change during the iteration.
        """
        least: KvTokenTime = inf
        bounds: dict[Group, KvTokenTime] = {}
        for group, *after in self._group_lines():
            least = bounds[group] = min(least, group.bound(*after))
        number = count()
        ahead = [(rank, next(number), one) for rank, one in shortest_by_span(self._groups)]
        heapify(ahead)
        while ahead:
            _, _, one = heappop(ahead)
            if not isinstance(one, Entry):
                for rank, part in one.choices():
                    heappush(ahead, (rank, next(number), part))
            elif one.remaining <= bounds[one.block.group] or self.allows(one.name, one.remaining):
                yield one.name

    def _least_of_overdue(self, before: Entry | None) -> KvTokenTime:
        """Return the smallest slack of applications that GPS has finished, plus all service."""
        least: KvTokenTime = inf
        owed: KvTokenTime = 0
        for entry in self._overdue:
            if entry is before:
                break
            owed += entry.remaining
            assert entry.due_at is not None
            least = min(least, entry.due_at - owed)
        return least

    def _group_lines(self) -> list[tuple[Group, KvTokenTime, float]]:
        """Return each group with the total weight of the applications behind it."""
        if self._groups_found is None:
            self._sum_up_groups(inf)
            self._groups_found = weights_behind(self._groups, 0, 0)
        return self._groups_found

    def _sum_up_groups(self, most: float) -> None:
        """Recompute the sums of at most this many changed groups, last tags first."""
        weight: float = 0
        for group in reversed(self._groups):
            if group.is_stale:
                if most <= 0:
                    break
                group.recompute_group_sums(weight)
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

    def _remove_entry(self, entry: Entry) -> None:
        self._note_change(entry, entry.remaining)
        block, group = entry.block, entry.block.group
        block.remove(entry)
        group.mark_sums_stale()
        if not block.entries:
            group.blocks.remove(block)
        if not group.blocks:
            self._groups.remove(group)

    def _insert_entry(self, entry: Entry) -> None:
        if not self._groups:
            self._groups.append(Group([Block([])]))
        group = nearest(self._groups, entry.key)
        block = nearest(group.blocks, entry.key)
        block.insert(entry)
        group.mark_sums_stale()
        if len(block.entries) > _MOST:
            group.split(block)
        if len(group.blocks) > _MOST_BLOCKS:
            at, half = self._groups.index(group), len(group.blocks) // 2
            halves = [Group(group.blocks[:half]), Group(group.blocks[half:])]
            self._groups[at : at + 1] = halves
