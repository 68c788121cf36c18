"""Lanes of replicas: bars that show how much KV memory each application held over time.

Bars start and end with leases. Once a second a snapshot of the core corrects the bars' heights, and
finds idle contexts and leases that ended without an event.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from justitia_ray.core import SchedulerCore
from justitia_ray.core.entities import Application, KnownReplica
from justitia_ray.protocol.console import PAST_S, Bar, BarKind
from justitia_ray.units import ApplicationId, LeaseId, ReplicaId, Seconds, Tokens

MOST_ENDED = 8_000
"""Maximum number of ended bars that the chart of KV memory keeps."""
MOST_CHANGES = 4_000
"""Maximum number of changed bars that a browser receives per second."""
LOOKS_KEPT = 8
"""Number of snapshots whose changes are kept; a browser that is further behind gets all bars."""
MERGED_S: Seconds = 0.25
"""Longest pause between two leases of an application that are drawn as one bar."""
_PART_OF_REPLICA, _PART_OF_BAR = 1 / 200, 1 / 4
"""A bar is split when its height changes by more than this part of the replica's memory and this
part of its own height.
"""

_Key = tuple[BarKind, ReplicaId, ApplicationId]


@dataclass(slots=True)
class _OpenBar:
    """Bar in the console's chart of KV memory that has not ended."""

    id: int
    start: Seconds
    kv_tokens: Tokens
    seen_at: Seconds
    kv_token_s: float = 0.0
    leases: int = 0
    end: Seconds | None = None

    def expected_kv_tokens(self, now: Seconds, iteration_s: Seconds) -> Tokens:
        """Estimate the KV tokens of a bar at `now`: each lease gains a token per iteration."""
        return self.kv_tokens + self.leases * int(max(0.0, now - self.seen_at) / iteration_s)

    def set_height(self, kv_tokens: Tokens, now: Seconds) -> None:
        self.kv_token_s += (self.kv_tokens + kv_tokens) / 2 * max(0.0, now - self.seen_at)
        self.seen_at = max(self.seen_at, now)
        self.kv_tokens = kv_tokens


class Lanes:
    """The bars of all replicas: KV memory of each application over time."""

    def __init__(self) -> None:
        self.left_out = 0
        self._ids = 0
        self._open: dict[_Key, _OpenBar] = {}
        self._ended: deque[Bar] = deque(maxlen=MOST_ENDED)
        self._changed: dict[_Key, _OpenBar] = {}
        self._cut: list[Bar] = []
        self._looks: deque[tuple[int, int, tuple[Bar, ...]]] = deque(maxlen=LOOKS_KEPT)
        """Last snapshots, each as (number, largest bar id before the snapshot, changed bars)."""
        self._ids_before = 0

    # --- events

    def grant(self, core: SchedulerCore, lease_id: LeaseId, now: Seconds) -> None:
        """Begin or continue a bar for a new lease, unless the lease has already ended."""
        lease = core.state.leases.get(lease_id)
        if lease is None:
            return
        footprint = core.state.replicas[lease.replica_id].leases[lease_id]
        application_id = footprint.application_id
        self._close_context_bar(lease.replica_id, application_id, now)
        key = (BarKind.RUN, lease.replica_id, application_id)
        bar = self._open.get(key)
        if bar is not None and bar.end is not None and now - bar.end > MERGED_S:
            self._close_bar(key, bar)
            bar = None
        if bar is None:
            bar = self._begin_bar(key, now, 0)
        elif bar.end is not None:
            bar.seen_at, bar.end, bar.kv_tokens = now, None, 0
        bar.set_height(bar.expected_kv_tokens(now, core.outlooks.iteration_s), now)
        block_size = core.state.replicas[lease.replica_id].capacity.block_size
        bar.kv_tokens += footprint.held_tokens(block_size)
        bar.leases += 1
        self._changed[key] = bar

    def release(
        self,
        replica_id: ReplicaId,
        application_id: ApplicationId,
        kv_tokens: Tokens | None,
        *,
        now: Seconds,
        iteration_s: Seconds,
    ) -> None:
        """Lower or end the bar of an application whose lease has ended.

        Args:
            replica_id: Its replica.
            application_id: Its application.
            kv_tokens: Prompt and output tokens that it held at its end; None: not reported.
            now: The core's time.
            iteration_s: Length of an engine's iteration.
        """
        key = (BarKind.RUN, replica_id, application_id)
        bar = self._open.get(key)
        if bar is None or not bar.leases:
            return
        expected = bar.expected_kv_tokens(now, iteration_s)
        share = expected // bar.leases
        last = share if kv_tokens is None else kv_tokens
        bar.set_height(expected - share + last, now)
        bar.leases -= 1
        if bar.leases:
            bar.kv_tokens = max(0, bar.kv_tokens - last)  # the next snapshot corrects the height
            self._changed[key] = bar
        else:
            self._end_bar(key, bar, now)

    # --- snapshots

    def look(self, core: SchedulerCore, number: int, now: Seconds) -> None:
        """Correct all bars by the state of the scheduler core.

        Args:
            core: The core.
            number: Number of this snapshot, larger than that of the one before.
            now: The core's time.
        """
        held = self._update_run_bars(core, now)
        held |= self._update_context_bars(core, now)
        for key in [key for key in self._open if key not in held]:
            bar = self._open[key]
            self._end_bar(key, bar, now)
            if bar.end is not None and now - bar.end > MERGED_S:
                self._close_bar(key, bar)
        while self._ended and now - (self._ended[0].end or now) > PAST_S:
            self._ended.popleft()
        changed = [_to_protocol_bar(key, bar) for key, bar in self._changed.items()] + self._cut
        self._changed, self._cut = {}, []
        self.left_out = max(0, len(changed) - MOST_CHANGES)
        self._looks.append((number, self._ids_before, tuple(changed[:MOST_CHANGES])))
        self._ids_before = self._ids

    def whole(self) -> Iterator[Bar]:
        yield from self._ended
        for key, bar in self._open.items():
            yield _to_protocol_bar(key, bar)

    def since(self, number: int) -> tuple[Iterable[Bar], int] | None:
        """Return the bars of the chart that have changed since a snapshot.

        The result is None if the snapshot is too long ago.
        """
        if not self._looks or self._looks[0][0] > number + 1 or number > self._looks[-1][0]:
            return None
        later = [(before, bars) for looked, before, bars in self._looks if looked > number]
        known = later[0][0] if later else self._ids
        return {bar.id: bar for _, bars in later for bar in bars}.values(), known

    # --- internals

    def _update_run_bars(self, core: SchedulerCore, now: Seconds) -> set[_Key]:
        """Update the chart's bars of running leases."""
        kv_tokens: dict[_Key, Tokens] = {}
        leases: dict[_Key, int] = {}
        for replica in core.state.replicas.values():
            block_size = replica.capacity.block_size
            for part in replica.leases.parts():
                key = (BarKind.RUN, replica.replica_id, part.application_id)
                kv_tokens[key] = kv_tokens.get(key, 0) + part.held_tokens(block_size)
                leases[key] = leases.get(key, 0) + (part.choices > 0)
        granted_at: dict[_Key, Seconds] | None = None
        for key, tokens in kv_tokens.items():
            bar = self._open.get(key)
            if bar is not None and bar.end is not None:
                self._close_bar(key, bar)
                bar = None
            if bar is None:
                if granted_at is None:
                    granted_at = _oldest_grant_times(core)
                self._close_context_bar(key[1], key[2], now)
                bar = self._begin_bar(key, granted_at.get(key, now), tokens)
            bar.leases = leases[key]
            self._resize_bar(key, bar, tokens, core.state.replicas[key[1]], now)
        return set(kv_tokens)

    def _update_context_bars(self, core: SchedulerCore, now: Seconds) -> set[_Key]:
        """Update the chart's bars of contexts that stay in the prefix cache."""
        found: set[_Key] = set()
        replicas = {
            name: replica
            for name, replica in core.state.replicas.items()
            if replica.capacity.caches_prefixes
        }
        if not replicas:
            return found
        for application in core.state.applications.values():
            for name in _usable_replicas(application, replicas):
                replica = replicas[name]
                contexts = [
                    context
                    for context in replica.contexts.of(application.application_id)
                    if context.is_live and not context.leases
                ]
                if not contexts:
                    continue
                tokens = sum(context.own_tokens for context in contexts)
                key = (BarKind.HELD, name, application.application_id)
                bar = self._open.get(key)
                if bar is not None and bar.end is not None:
                    self._close_bar(key, bar)
                    bar = None
                if bar is None:
                    since = max(context.idle_since for context in contexts) or now
                    bar = self._begin_bar(key, since, tokens)
                self._resize_bar(key, bar, tokens, replica, now)
                found.add(key)
        return found

    def _begin_bar(self, key: _Key, start: Seconds, kv_tokens: Tokens) -> _OpenBar:
        self._ids += 1
        bar = self._open[key] = _OpenBar(self._ids, start, kv_tokens, start)
        self._changed[key] = bar
        return bar

    def _resize_bar(
        self, key: _Key, bar: _OpenBar, kv_tokens: Tokens, replica: KnownReplica, now: Seconds
    ) -> None:
        """Set the KV tokens of a bar; a large change begins another bar."""
        before = bar.kv_tokens
        change = abs(kv_tokens - before)
        bar.set_height(kv_tokens, now)
        if not change:
            return
        least = replica.capacity.kv_tokens * _PART_OF_REPLICA
        if change > max(least, before * _PART_OF_BAR) and now > bar.start:
            leases = bar.leases
            bar.end = now
            self._close_bar(key, bar)
            self._begin_bar(key, now, kv_tokens).leases = leases
        else:
            self._changed[key] = bar

    def _close_context_bar(
        self, replica_id: ReplicaId, application_id: ApplicationId, now: Seconds
    ) -> None:
        key = (BarKind.HELD, replica_id, application_id)
        bar = self._open.get(key)
        if bar is not None:
            self._end_bar(key, bar, now)
            self._close_bar(key, bar)

    def _end_bar(self, key: _Key, bar: _OpenBar, now: Seconds) -> None:
        if bar.end is None:
            bar.set_height(bar.kv_tokens, now)
            bar.end, bar.leases = max(now, bar.start), 0
            self._changed[key] = bar

    def _close_bar(self, key: _Key, bar: _OpenBar) -> None:
        del self._open[key]
        self._changed.pop(key, None)
        told = _to_protocol_bar(key, bar)
        self._ended.append(told)
        self._cut.append(told)


def _to_protocol_bar(key: _Key, bar: _OpenBar) -> Bar:
    kind, replica_id, application_id = key
    kv_tokens = bar.kv_tokens
    if bar.end is not None and bar.end > bar.start:
        kv_tokens = round(bar.kv_token_s / (bar.end - bar.start))
    end = None if bar.end is None else round(bar.end, 3)
    return Bar(bar.id, replica_id, application_id, kind, round(bar.start, 3), end, kv_tokens)


def _oldest_grant_times(core: SchedulerCore) -> dict[_Key, Seconds]:
    """Return when each application's oldest running lease on each replica was granted."""
    found: dict[_Key, Seconds] = {}
    for lease in core.state.leases.values():
        application_id = core.state.inferences[lease.request_id].application_id
        key = (BarKind.RUN, lease.replica_id, application_id)
        found[key] = min(lease.granted_at, found.get(key, lease.granted_at))
    return found


def _usable_replicas(
    application: Application, replicas: dict[ReplicaId, KnownReplica]
) -> Iterator[ReplicaId]:
    return (name for name in application.replicas if name in replicas)
