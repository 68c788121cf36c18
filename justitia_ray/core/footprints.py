"""KV memory of one replica's leases, now and until they end, if no other lease is admitted.

Every sequence gains one token per iteration until its lease ends, so the KV rises until a lease
ends and then falls. It peaks just before a lease ends, and only these times are evaluated
(LightLLM's rule; S-LoRA's, in the VTC artifact).
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from justitia_ray.core.prefixes import Beginning, Beginnings, Prefix
from justitia_ray.units import ApplicationId, LeaseId, Tokens

Extension = tuple[tuple[Tokens, Tokens], ...]
"""Pairs (iterations, KV tokens), the earliest first: shared KV that a new lease would use longer
than the present ones.
"""


class Footprint(NamedTuple):
    """KV memory of one lease on its replica, from now until the lease ends.

    A tuple, because every report creates one. All sequences of a lease are assumed to be equally
    long, and gain one token per iteration. Footprints sort by the time at which the leases end.
    """

    iterations: Tokens
    """Engine iterations until the inference of the lease ends."""
    choices: int
    """Number of the lease's sequences, each of which gains a token per iteration."""
    context_tokens: Tokens
    """Prompt and generated tokens of all sequences of the lease, not rounded to blocks."""
    application_id: ApplicationId

    @property
    def full_tokens(self) -> Tokens:
        """Return the most KV tokens that the lease will hold, not rounded to blocks."""
        return self.context_tokens + self.choices * self.iterations

    def held_tokens(self, block_size: Tokens) -> Tokens:
        """Return the KV tokens that the lease holds now, in whole blocks."""
        return self.context_tokens + self.choices * (block_size - 1)

    def most_tokens(self, block_size: Tokens) -> Tokens:
        """Return the most KV tokens that the lease will hold, in whole blocks."""
        return self.full_tokens + self.choices * (block_size - 1)

    def less(self, shared: Tokens) -> "Footprint":
        return Footprint(self[0], self[1], max(0, self[2] - shared), self[3])


class Forecast:
    """Times in iterations at which a replica's leases end, and the KV memory used before each.

    `sequences` and `contexts` have an entry for each lease, in the order in which the leases end,
    and a 0 for the time after the last lease.
    """

    def __init__(self, leases: Sequence[Footprint], block_size: Tokens) -> None:
        """Compute the KV memory used when each lease ends. O(n).

        Args:
            leases: The leases that the replica runs, sorted.
            block_size: Each sequence may leave all of its last block but one token unused.
        """
        self.leases = tuple(leases)
        self.block_size = block_size
        waste = block_size - 1
        self.ends = [lease[0] for lease in leases]
        """Iterations until each lease ends."""
        self.sequences = list(accumulate([lease[1] for lease in reversed(leases)], initial=0))
        """Number of sequences that still run when each lease ends."""
        self.contexts = list(accumulate([lease[2] for lease in reversed(leases)], initial=0))
        """KV tokens of the sequences that still run when each lease ends, not rounded to blocks."""
        self.sequences.reverse()
        self.contexts.reverse()
        columns = zip(self.contexts, self.sequences, self.ends, strict=False)
        self.held = [context + choices * (waste + end) for context, choices, end in columns]
        """KV tokens held just before each lease ends, in whole blocks."""
        self._most_from = _running_maxima(reversed(self.held))
        self._most_from.reverse()
        self._most_until: dict[int, list[Tokens]] = {}

    def peak_with_lease(self, lease: Footprint, extension: Extension = ()) -> Tokens:
        """Return the largest KV memory of the replica if another lease starts now.

        O(log n); O(n) if the lease outlasts others that share a beginning with it.

        Args:
            lease: The KV of the lease alone.
            extension: Shared beginnings that the lease uses after all present leases with them have
                ended.
        """
        if extension:
            return self._peak_with_extension(lease, extension)
        end, choices = lease.iterations, lease.choices
        own = lease.held_tokens(self.block_size)
        at_end = bisect_left(self.ends, end)
        after_end = bisect_right(self.ends, end, at_end)
        beside = self.contexts[at_end] + self.sequences[at_end] * (self.block_size - 1 + end)
        return max(
            beside + own + choices * end,
            self._most_until_with(choices)[after_end] + own,
            self._most_from[after_end],
        )

    def _peak_with_extension(self, lease: Footprint, extension: Extension) -> Tokens:
        end, choices, _, _ = lease
        held = lease.held_tokens(self.block_size)
        at_end = bisect_left(self.ends, end)
        after_end = bisect_right(self.ends, end, at_end)
        most, begin = self._most_from[after_end], 0
        for until, tokens in (*extension, (end, 0)):
            stop = bisect_right(self.ends, until, begin)
            for before, at in zip(self.held[begin:stop], self.ends[begin:stop], strict=True):
                if (peak := held + before + choices * at) > most:
                    most = peak
            held += tokens
            begin = stop
        beside = self.contexts[at_end] + self.sequences[at_end] * (self.block_size - 1 + end)
        return max(most, beside + held + choices * end)

    def _most_until_with(self, choices: int) -> list[Tokens]:
        """Return the largest KV memory before each end if `choices` more sequences start empty."""
        if choices not in self._most_until:
            self._most_until[choices] = _running_maxima(
                [held + choices * end for held, end in zip(self.held, self.ends, strict=True)]
            )
        return self._most_until[choices]


def _running_maxima(values: Iterable[Tokens]) -> list[Tokens]:
    most = 0
    maxima = [0]
    for value in values:
        if value > most:
            most = value
        maxima.append(most)
    return maxima


class Footprints(MutableMapping[LeaseId, Footprint]):
    """KV memory of all leases of a replica, with sums. Changing one lease is cheap.

    The forecast's order of leases is kept when leases are granted or end, and dropped with each
    report. A lease whose beginnings are known (`join`) is set as if it were alone, and its unshared
    part is stored; shared beginnings are counted separately.
    """

    def __init__(self) -> None:
        self._by_lease: dict[LeaseId, Footprint] = {}
        self._ends: list[Footprint] | None = None
        self._forecast: Forecast | None = None
        self._former: Forecast | None = None
        """Forecast from before the latest leases were added; the leases in it have not changed
        since.
        """
        self.context_tokens: Tokens = 0
        """KV tokens held now by all leases, not rounded to blocks."""
        self.full_tokens: Tokens = 0
        """KV tokens that all leases would hold at their largest sizes together."""
        self.sequences = 0
        self.changes = 0
        """Number of changes of any lease's KV memory."""
        self.beginnings: Beginnings | None = None
        """Beginnings of prompts that leases may share; None until a lease has one."""
        self._contexts: dict[LeaseId, Tokens] = {}
        """Tokens of each lease whose prompt has known beginnings, without sharing any."""
        self._counted: dict[Beginning, tuple[Tokens, ApplicationId]] = {}
        """Shared beginnings of prompts, each with its KV tokens and the application charged for
        them.
        """
        self._beginning_ends: dict[Beginning, Tokens] = {}
        """Iterations until the last lease that shares each beginning ends; cleared by each report.
        """

    def __getitem__(self, lease_id: LeaseId) -> Footprint:
        return self._by_lease[lease_id]

    def __setitem__(self, lease_id: LeaseId, footprint: Footprint) -> None:
        self.changes += 1
        if self.beginnings is not None and lease_id in self._contexts:
            self._contexts[lease_id] = footprint.context_tokens
            if shared := self.beginnings.shared.get(lease_id):
                footprint = footprint.less(shared)
        before = self._by_lease.get(lease_id)
        self._by_lease[lease_id] = footprint
        if before is None:
            if self._ends is not None:
                insort(self._ends, footprint)
            if self._forecast is not None:
                self._former, self._forecast = self._forecast, None
            self._add_to_sums(footprint, 1)
            if self._beginning_ends:
                self._extend_beginnings(lease_id, footprint.iterations)
            return
        self._ends = self._forecast = self._former = None
        self._beginning_ends.clear()
        if before.full_tokens == footprint.full_tokens:
            # Usually a lease has grown as expected, and all other sums of KV memory stay.
            self.context_tokens += footprint.context_tokens - before.context_tokens
        else:
            self._add_to_sums(before, -1)
            self._add_to_sums(footprint, 1)

    def __delitem__(self, lease_id: LeaseId) -> None:
        self.changes += 1
        footprint = self._by_lease.pop(lease_id)
        self._add_to_sums(footprint, -1)
        self._forecast = self._former = None
        if self._ends is not None:
            del self._ends[bisect_left(self._ends, footprint)]
        if self.beginnings is not None and lease_id in self._contexts:
            self._remove_from_beginnings(self.beginnings, lease_id)

    def __iter__(self) -> Iterator[LeaseId]:
        return iter(self._by_lease)

    def __len__(self) -> int:
        return len(self._by_lease)

    def parts(self) -> Iterator[Footprint]:
        """Yield the KV memory of each lease without shared parts, and each shared beginning once.

        Their context tokens add up to `context_tokens`, their choices to `sequences`. O(n).
        """
        yield from self._by_lease.values()
        for tokens, owner in self._counted.values():
            yield Footprint(0, 0, tokens, owner)

    def join(self, lease_id: LeaseId, prefixes: tuple[Prefix, ...]) -> None:
        """Record the beginnings of a lease's prompt, at least one.

        The caller then sets the lease's footprint.
        """
        if self.beginnings is None:
            self.beginnings = Beginnings()
        self._contexts[lease_id] = 0
        self._recount_leases(self.beginnings.join(lease_id, prefixes))
        self._recount_shared_memory(self.beginnings.path(lease_id))

    def note_found(self, lease_id: LeaseId, tokens: Tokens) -> None:
        """Add the tokens that a lease stores itself because they were not in the cache."""
        if self.beginnings is not None and self.beginnings.note_found(lease_id, tokens):
            self.changes += 1
            self._forecast = self._former = None
            self._recount_shared_memory(self.beginnings.path(lease_id))

    def longest_shared_beginning(self, prefixes: tuple[Prefix, ...]) -> Tokens:
        """Return the length of the longest of these beginnings that any lease also has.

        0 if none has one.
        """
        longest = None if self.beginnings is None else self.beginnings.longest(prefixes)
        return 0 if longest is None else longest.prefix.tokens

    def extension(self, prefixes: tuple[Prefix, ...], iterations: Tokens) -> Extension:
        """Return the shared KV that a new lease would keep longer than the present leases."""
        found: list[tuple[Tokens, Tokens]] = []
        node = None if self.beginnings is None else self.beginnings.longest(prefixes)
        while node is not None and (end := self._end_of_beginning(node)) < iterations:
            found.append((end, node.own_tokens))
            node = node.parent
        return tuple(found)

    def leases_taking_over(self, lease_id: LeaseId) -> list[tuple[LeaseId, Tokens]]:
        """Return the leases that take over a lease's shared beginnings, each with the KV tokens."""
        nodes = [] if self.beginnings is None else self.beginnings.path(lease_id)
        found = []
        for node in nodes:
            if len(node.leases) > 1 and node.first_lease == lease_id:
                _, heir, *_ = node.leases
                found.append((heir, node.own_tokens))
        return found

    def forecast(self, block_size: Tokens) -> Forecast:
        """Return the forecast of these leases, which is cached until the next change."""
        if self._forecast is None or self._forecast.block_size != block_size:
            if self._ends is None:
                self._ends = sorted(self._by_lease.values())
            ends = (
                sorted([*self._ends, *self._shared_footprints()]) if self._counted else self._ends
            )
            self._forecast = Forecast(ends, block_size)
        return self._forecast

    def exceed(
        self,
        kv_tokens: Tokens,
        lease: Footprint,
        block_size: Tokens,
        extension: Extension = (),
    ) -> bool:
        """Return whether one more lease would ever make the memory need exceed `kv_tokens`.

        O(log n) if a cached forecast of a subset of the leases already exceeds it; otherwise the
        cost of `forecast`. `extension` is that of `Forecast.peak_with_lease`.
        """
        former = self._former
        if (
            self._forecast is None
            and former is not None
            and former.block_size == block_size
            and former.peak_with_lease(lease, extension) > kv_tokens
        ):
            return True
        return self.forecast(block_size).peak_with_lease(lease, extension) > kv_tokens

    def forecast_with(
        self, lease: Footprint, block_size: Tokens, extension: Extension = ()
    ) -> Forecast:
        """Return the forecast of these leases together with another lease."""
        leases = sorted([*self.forecast(block_size).leases, lease])
        if extension:
            end, _, _, owner = lease
            leases += [Footprint(end, 0, tokens, owner) for _, tokens in extension]
            # Shared KV is in the forecast until this time, and must not be counted twice.
            leases += [Footprint(until, 0, -tokens, owner) for until, tokens in extension]
            # At equal times shared KV sorts before leases.
            leases.sort(key=lambda one: (one.iterations, one.context_tokens < 0, one.choices))
        return Forecast(leases, block_size)

    def _remove_from_beginnings(self, beginnings: Beginnings, lease_id: LeaseId) -> None:
        del self._contexts[lease_id]
        path = beginnings.path(lease_id)
        for node in path:
            self._beginning_ends.pop(node, None)
        self._recount_leases(beginnings.leave(lease_id))
        self._recount_shared_memory(path)

    def _recount_leases(self, changed: Iterable[LeaseId]) -> None:
        """Recompute the memory of leases whose shared part of the KV has changed."""
        for lease_id in changed:
            before = self._by_lease.get(lease_id)
            if before is not None:
                assert self.beginnings is not None
                whole = before._replace(context_tokens=self._contexts[lease_id])
                self._add_to_sums(before, -1)
                self._by_lease[lease_id] = whole.less(self.beginnings.shared[lease_id])
                self._add_to_sums(self._by_lease[lease_id], 1)
                self._ends = None

    def _recount_shared_memory(self, beginnings: Iterable[Beginning]) -> None:
        """Recompute the memory of shared beginnings whose leases have changed."""
        counted = self._counted
        for node in beginnings:
            if node in counted:
                tokens, owner = counted.pop(node)
                self._add_to_sums(Footprint(0, 0, tokens, owner), -1)
            if len(node.leases) > 1:
                tokens = node.held_tokens
                owner = self._by_lease[node.first_lease].application_id
                self._counted[node] = tokens, owner
                self._add_to_sums(Footprint(0, 0, tokens, owner), 1)

    def _shared_footprints(self) -> Iterator[Footprint]:
        for node, (tokens, owner) in self._counted.items():
            yield Footprint(self._end_of_beginning(node), 0, tokens, owner)

    def _end_of_beginning(self, node: Beginning) -> Tokens:
        end = self._beginning_ends.get(node)
        if end is None:
            end = max([self._by_lease[lease_id].iterations for lease_id in node.leases])
            self._beginning_ends[node] = end
        return end

    def _extend_beginnings(self, lease_id: LeaseId, iterations: Tokens) -> None:
        """Let the beginnings of a new lease end no earlier than the lease."""
        for node in () if self.beginnings is None else self.beginnings.path(lease_id):
            end = self._beginning_ends.get(node)
            if end is not None and end < iterations:
                self._beginning_ends[node] = iterations

    def _add_to_sums(self, footprint: Footprint, sign: int) -> None:
        self.context_tokens += sign * footprint.context_tokens
        self.full_tokens += sign * footprint.full_tokens
        self.sequences += sign * footprint.choices
