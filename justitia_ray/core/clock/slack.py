"""Slack: how much larger work may be served first before GPS's promise to anybody is touched.

GPS will have finished application k when V reaches its tag F_k. The slack of k is the service that
GPS gives until then, less what the replicas still have to do of all tags up to F_k:

    slack_k = Σ ω·(min(F, F_k) − V), over the sessions that GPS is active for
              − Σ (chg − att), over the applications with tags up to F_k that are not withdrawn.

By the invariant of `fair_share` both sums are the same over everything, so that the slack of k can
be read from what comes after it alone, and V is not in it:

    slack_k = Σ_{i after k} (chg_i − att_i) − ω_i·(F_i − F_k).

Work of a later tag that is served lowers it by as much; work of an earlier one, and arrivals, never
do. So an application that may still ask for x harms nobody's promise if slack_k ≥ x for every k
before it that is *bound*: that has charge left, or something waiting.
"""

from bisect import bisect_left
from collections.abc import Iterator
from math import inf
from typing import TypeAlias

from justitia_ray.units import ApplicationId, KvTokenTime, VirtualTime

_MOST = 96
"""Applications in a block; more are split in two."""

_Key: TypeAlias = tuple[VirtualTime, int]


class _Entry:
    __slots__ = ("binds", "key", "name", "rank", "remaining", "waits", "weight")

    def __init__(self, name: ApplicationId, key: _Key) -> None:
        self.name = name
        self.key = key
        self.weight: float = 1
        self.remaining: KvTokenTime = 0
        self.binds = False
        self.waits = False
        self.rank: tuple[float, int] = (0, 0)


class _Block:
    """Neighbours in the order of tags, and what is asked of them together.

    Seen from a block, everything after it is a line: at the tag F it comes to `after + weight·F`.
    """

    __slots__ = (
        "_bound",
        "_least",
        "_lowest",
        "choice",
        "entries",
        "keys",
        "offset",
        "stale",
        "weight",
    )

    def __init__(self, entries: list[_Entry]) -> None:
        self.entries = entries
        self.keys = [entry.key for entry in entries]
        self.stale = True

    def refresh(self) -> None:
        """Sum up its applications, last first. O(block)."""
        offset: KvTokenTime = 0
        weight: float = 0
        bound: list[tuple[KvTokenTime, VirtualTime]] = []
        choice: _Entry | None = None
        for entry in reversed(self.entries):
            finish = entry.key[0]
            if entry.binds:
                bound.append((offset + weight * finish, finish))
            offset += entry.remaining - entry.weight * finish
            weight += entry.weight
            if entry.waits and (choice is None or entry.rank < choice.rank):
                choice = entry
        self._bound = bound
        self._least = min((own for own, _ in bound), default=inf)
        self._lowest = bound[-1][1] if bound else 0
        self.offset, self.weight, self.choice = offset, weight, choice
        self.stale = False

    def least_is_above(self, least: KvTokenTime, after: KvTokenTime, weight: float) -> bool:
        """Return whether no slack in it can be below `least`, by a bound that may be too low."""
        return not self._bound or after + self._least + weight * self._lowest >= least

    def least(self, after: KvTokenTime, weight: float) -> KvTokenTime:
        """Return the least slack of what is bound in it. O(block)."""
        return after + min((own + weight * finish for own, finish in self._bound), default=inf)

    def slacks(
        self, after: KvTokenTime, weight: float
    ) -> Iterator[tuple[_Entry, KvTokenTime | None]]:
        """Yield its applications in order, each with its slack, None if it is not bound."""
        bound = iter(reversed(self._bound))
        for entry in self.entries:
            if entry.binds:
                own, finish = next(bound)
                yield entry, after + own + weight * finish
            else:
                yield entry, None


class Slack:
    """The applications in the order of their tags, and who of them may pass whom.

    They stand in blocks of some 64. Changes are O(1) or O(block); a decision looks at every block
    once and into those that changed or that decide it: O(N/block + changed·block), with N = 10,000
    some hundred steps.
    """

    def __init__(self) -> None:
        self._entries: dict[ApplicationId, _Entry] = {}
        self._blocks: list[_Block] = []
        self._ends: list[_Key] = []
        """The last key of each block."""

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
        if entry is not None and entry.key != key:
            self.drop(name)
            entry = None
        if entry is None:
            entry = self._entries[name] = _Entry(name, key)
            block = self._insert(entry)
        else:
            block = self._blocks[bisect_left(self._ends, key)]
        block.stale = True
        entry.weight, entry.remaining, entry.binds, entry.waits = weight, remaining, binds, waits
        entry.rank = (remaining / weight, sequence)

    def drop(self, name: ApplicationId) -> None:
        """Remove an application; an unknown one changes nothing."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        index = bisect_left(self._ends, entry.key)
        block = self._blocks[index]
        at = bisect_left(block.keys, entry.key)
        del block.keys[at], block.entries[at]
        block.stale = True
        if block.keys:
            self._ends[index] = block.keys[-1]
        else:
            del self._blocks[index], self._ends[index]

    def first(self, virtual_time: VirtualTime) -> ApplicationId | None:
        """Return who of those that may pass has least left for its weight; None if nobody may.

        While anything bound is overdue, its tag being V or less, nobody passes anybody.
        """
        if self._is_overdue(virtual_time):
            return None
        best: _Entry | None = None
        least: KvTokenTime = inf
        for block, after, weight in self._walk():
            choice = block.choice
            if choice is not None and (best is None or choice.rank < best.rank):
                wanted = choice.remaining
                if wanted <= least and block.least_is_above(wanted, after, weight):
                    best = choice
                else:
                    best = self._best_in(block, after, weight, least, best)
            if not block.least_is_above(least, after, weight):
                least = min(least, block.least(after, weight))
            if least < 0:
                break
        return None if best is None else best.name

    def passing(self, virtual_time: VirtualTime) -> list[ApplicationId]:
        """Return all that wait and may pass, least left for its weight first. O(N log N)."""
        if self._is_overdue(virtual_time):
            return []
        found: list[_Entry] = []
        least: KvTokenTime = inf
        for block, after, weight in self._walk():
            for entry, slack in block.slacks(after, weight):
                if entry.waits and entry.remaining <= least:
                    found.append(entry)
                if slack is not None:
                    least = min(least, slack)
        return [entry.name for entry in sorted(found, key=lambda entry: entry.rank)]

    def _is_overdue(self, virtual_time: VirtualTime) -> bool:
        """Forget what GPS is done with, and return whether anything bound is left of it."""
        while self._blocks:
            entry = self._blocks[0].entries[0]
            if entry.key[0] > virtual_time:
                return False
            if entry.binds:
                return True
            self.drop(entry.name)
        return False

    def _walk(self) -> Iterator[tuple[_Block, KvTokenTime, float]]:
        """Yield each block, first tags first, with the line of everything after it."""
        offset: KvTokenTime = 0
        weight: float = 0
        for block in self._blocks:
            if block.stale:
                block.refresh()
            offset += block.offset
            weight += block.weight
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
            if slack is not None:
                least = min(least, slack)
        return best

    def _insert(self, entry: _Entry) -> _Block:
        if not self._blocks:
            self._blocks.append(_Block([entry]))
            self._ends.append(entry.key)
            return self._blocks[0]
        index = min(bisect_left(self._ends, entry.key), len(self._blocks) - 1)
        block = self._blocks[index]
        at = bisect_left(block.keys, entry.key)
        block.keys.insert(at, entry.key)
        block.entries.insert(at, entry)
        if len(block.keys) > _MOST:
            half = len(block.keys) // 2
            halves = [_Block(block.entries[:half]), _Block(block.entries[half:])]
            self._blocks[index : index + 1] = halves
            self._ends[index : index + 1] = [one.keys[-1] for one in halves]
            return self._blocks[index + (at >= half)]
        self._ends[index] = block.keys[-1]
        return block
