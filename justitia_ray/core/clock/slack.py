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

from bisect import bisect_left, insort
from collections.abc import Iterator
from math import inf
from typing import TypeAlias

from justitia_ray.units import ApplicationId, KvTokenTime, VirtualTime

_MOST = 128
"""Applications in a block; more are split in two."""

_Key: TypeAlias = tuple[VirtualTime, int]


class _Entry:
    __slots__ = ("binds", "due_at", "key", "name", "rank", "remaining", "waits", "weight")

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


def _key(entry: _Entry) -> _Key:
    return entry.key


def _rank(entry: _Entry) -> tuple[float, int]:
    return entry.rank


class _Block:
    """Neighbours in the order of tags, and what is asked of them together.

    Seen from a block, everything after it is a line: at the tag F it comes to `after + weight·F`.
    The least slack in it was found at one weight. From then on a bound of it is kept, which falls
    with every change and is as far off as the weight has moved times its range of tags.
    """

    __slots__ = (
        "_at_weight",
        "_bound",
        "_highest",
        "_is_exact",
        "_least",
        "_lowest",
        "choice",
        "entries",
        "keys",
        "offset",
        "smallest",
        "weight",
    )

    def __init__(self, entries: list[_Entry]) -> None:
        self.entries = entries
        self.keys = [entry.key for entry in entries]
        self.choice: _Entry | None = None
        """The first by rank of those that wait."""
        self.smallest: KvTokenTime = inf
        """At most what is left of any that waits."""
        self._at_weight: float = 0
        self._least: KvTokenTime = inf
        """At most the least slack at that weight, if after that came nothing else."""
        self._is_exact = False
        self._lowest: VirtualTime = 0
        self._highest: VirtualTime = 0
        """Range of the bound tags."""
        self._bound: list[tuple[KvTokenTime, VirtualTime]] | None = None
        """Slack and tag of what is bound, as if nothing came after it; last first."""
        self._sum_up()
        self._find_least()
        self._choose()

    def insert(self, entry: _Entry) -> None:
        """Put an application at its place, with nothing left and not bound."""
        at = bisect_left(self.keys, entry.key)
        self.keys.insert(at, entry.key)
        self.entries.insert(at, entry)
        self._count(entry, 1)

    def remove(self, entry: _Entry) -> None:
        """Remove an application."""
        at = bisect_left(self.keys, entry.key)
        del self.keys[at], self.entries[at]
        self._count(entry, -1)
        self.offset -= entry.remaining
        self._least -= entry.remaining
        if entry is self.choice:
            self._choose()

    def change(
        self, entry: _Entry, weight: float, remaining: KvTokenTime, *, binds: bool, waits: bool
    ) -> None:
        """Change an application at its place. O(1) while its weight stays and it is not chosen."""
        more, was_bound = remaining - entry.remaining, entry.binds
        if weight != entry.weight:
            self._count(entry, -1)
            entry.weight = weight
            self._count(entry, 1)
        self.offset += more
        if more < 0:
            self._least += more
        entry.remaining, entry.binds, entry.waits = remaining, binds, waits
        entry.rank = (remaining / weight, entry.key[1])
        if more or binds != was_bound:
            self._bound, self._is_exact = None, False
        if binds and not was_bound:
            self._bind(entry)
        if entry is self.choice:
            self._choose()
        elif waits:
            self.smallest = min(self.smallest, remaining)
            if self.choice is None or entry.rank < self.choice.rank:
                self.choice = entry

    def bound(self, after: KvTokenTime, weight: float) -> KvTokenTime:
        """Return what no slack in it is below, and some may be far above. O(1)."""
        moved = weight - self._at_weight
        return after + self._least + moved * (self._lowest if moved > 0 else self._highest)

    def is_exact(self, weight: float) -> bool:
        """Return whether `bound` is the least slack."""
        return self._is_exact and weight == self._at_weight

    def least(self, after: KvTokenTime, weight: float) -> KvTokenTime:
        """Return the least slack of what is bound in it. O(block)."""
        if not self.is_exact(weight):
            self._at_weight = weight
            self._find_least()
        return after + self._least

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
        bound, weight = self._slacks(), self._at_weight
        self._least = min([own + weight * finish for own, finish in bound], default=inf)
        self._lowest, self._highest = (bound[-1][1], bound[0][1]) if bound else (0, 0)
        self._is_exact = True

    def _choose(self) -> None:
        waiting = [entry for entry in self.entries if entry.waits]
        self.choice = min(waiting, key=_rank, default=None)
        self.smallest = min([entry.remaining for entry in waiting], default=inf)

    def _count(self, entry: _Entry, times: int) -> None:
        """Count the weight of an application in, or out, at its tag."""
        finish = entry.key[0]
        self.offset -= times * entry.weight * finish
        self.weight += times * entry.weight
        self._bound, self._is_exact = None, False
        if times > 0 and self._least < inf:
            self._least -= entry.weight * max(0, finish - self._lowest)

    def _bind(self, entry: _Entry) -> None:
        """Let the bound hold for one that is bound from now on."""
        finish = entry.key[0]
        own = self._at_weight * finish
        for other in reversed(self.entries):
            if other is entry:
                break
            own += other.remaining - other.weight * (other.key[0] - finish)
        if self._least == inf:
            self._least, self._lowest, self._highest = own, finish, finish
        else:
            self._least = min(self._least, own)
            self._lowest = min(self._lowest, finish)
            self._highest = max(self._highest, finish)


class Slack:
    """The applications in the order of their tags, and who of them may pass whom.

    They stand in blocks of some hundred, the overdue apart. A change is O(1) or O(block). A
    decision looks at every block once, and into those that may decide it: O(N/block + block), with
    N = 10,000 some hundred steps.
    """

    def __init__(self, virtual_time: VirtualTime = 0, served: KvTokenTime = 0) -> None:
        """Begin empty, at this V and S."""
        self._virtual_time = virtual_time
        self._served = served
        self._entries: dict[ApplicationId, _Entry] = {}
        self._blocks: list[_Block] = []
        self._ends: list[_Key] = []
        """The last key of each block."""
        self._overdue: list[_Entry] = []
        """Bound ones that GPS is done with, by their tags."""
        self._least_overdue: KvTokenTime | None = None
        """Least slack of those and S; None: not known."""

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
        if entry is None:
            entry = self._entries[name] = _Entry(name, key)
            self._insert(entry)
        if entry.due_at is None:
            block = self._blocks[bisect_left(self._ends, key)]
            block.change(entry, weight, remaining, binds=binds, waits=waits)
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
        while self._blocks:
            entry = self._blocks[0].entries[0]
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
        best: _Entry | None = None
        known: KvTokenTime = inf
        least: KvTokenTime = inf
        loose: list[tuple[_Block, KvTokenTime, float]] = []
        for block, after, weight in self._walk():
            choice, bound = block.choice, block.bound(after, weight)
            if choice is not None and (best is None or choice.rank < best.rank):
                if least < choice.remaining and loose:
                    for other, *line in loose:
                        known = min(known, other.least(*line))
                    loose, least = [], known
                if choice.remaining <= bound and choice.remaining <= least:
                    best = choice
                elif block.smallest <= least:
                    best = self._best_in(block, after, weight, least, best)
            if known < 0:
                break
            if bound < least:
                least = bound
                if block.is_exact(weight):
                    known = bound
                else:
                    loose.append((block, after, weight))
        return None if best is None else best.name

    def passing(self) -> list[ApplicationId]:
        """Return all that wait and may pass, least left for its weight first. O(N log N)."""
        if self._overdue:
            return []
        found: list[_Entry] = []
        least: KvTokenTime = inf
        for block, after, weight in self._walk():
            for entry, slack in block.slacks(after, weight):
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
        for block, after, weight in self._walk():
            is_last = entry.key <= block.keys[-1]
            if block.bound(after, weight) < amount:
                for other, slack in block.slacks(after, weight):
                    if other is entry:
                        return True
                    if slack is not None and slack < amount:
                        return False
            if is_last:
                return True
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

    def _walk(self) -> Iterator[tuple[_Block, KvTokenTime, float]]:
        """Yield each block, first tags first, with the line of everything after it."""
        offset = sum([block.offset for block in self._blocks])
        weight = sum([block.weight for block in self._blocks])
        for block in self._blocks:
            offset -= block.offset
            weight -= block.weight
            yield block, offset, weight

    @staticmethod
    def _best_in(
        block: _Block, after: KvTokenTime, weight: float, least: KvTokenTime, best: _Entry | None
    ) -> _Entry | None:
        for entry, slack in block.slacks(after, weight):
            if (
                entry.waits
                and entry.remaining <= least
                and (best is None or entry.rank < best.rank)
            ):
                best = entry
            if slack is not None and slack < least:
                least = slack
                if least < block.smallest:
                    break
        return best

    def _take_out(self, entry: _Entry) -> None:
        index = bisect_left(self._ends, entry.key)
        block = self._blocks[index]
        block.remove(entry)
        if block.keys:
            self._ends[index] = block.keys[-1]
        else:
            del self._blocks[index], self._ends[index]

    def _insert(self, entry: _Entry) -> None:
        if not self._blocks:
            self._blocks.append(_Block([entry]))
            self._ends.append(entry.key)
            return
        index = min(bisect_left(self._ends, entry.key), len(self._blocks) - 1)
        block = self._blocks[index]
        block.insert(entry)
        if len(block.keys) > _MOST:
            half = len(block.keys) // 2
            halves = [_Block(block.entries[:half]), _Block(block.entries[half:])]
            self._blocks[index : index + 1] = halves
            self._ends[index : index + 1] = [one.keys[-1] for one in halves]
        else:
            self._ends[index] = block.keys[-1]
