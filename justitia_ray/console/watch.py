"""Record one core's queue from the first console viewer on, and describe it in frames."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from justitia_ray.access.identity import is_within
from justitia_ray.application_key import split_key
from justitia_ray.console.calls import CallRecorder
from justitia_ray.console.lanes import Lanes
from justitia_ray.console.plan import planned_bars
from justitia_ray.console.queue_view import count_inferences, queue_listing, waiting_time_quantiles
from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Action, Grant
from justitia_ray.core.entities import Application, KnownReplica
from justitia_ray.protocol.console import (
    Bar,
    Frame,
    Label,
    PlannedBar,
    ReplicaLane,
    SharePast,
    ShareRow,
    Strip,
)
from justitia_ray.protocol.status import Counts
from justitia_ray.units import ApplicationId, ClientId, Epoch, ReplicaId, Seconds, Tokens

SHARES_EVERY_S: Seconds = 5.0
_SHARES_KEPT = 180


@dataclass(frozen=True, slots=True)
class Sight:
    """Snapshot of the scheduler core, used for every browser until the next snapshot."""

    number: int
    at: Seconds
    strip: Strip
    shares: tuple[ShareRow, ...]
    replicas: tuple[ReplicaLane, ...]
    planned: tuple[PlannedBar, ...]
    by_tenant: Mapping[ClientId, Mapping[ApplicationId, Application]]
    counts: Counts
    """Numbers of applications and inferences, over all tenants."""


class Watch:
    """Records a scheduler core's events for the console, while a browser shows it.

    Args:
        core: The core; its driver passes every event to `observe`.
        model: Name of the core's model.
        epoch: Term of the scheduler.
        now: The core's time.
    """

    def __init__(self, core: SchedulerCore, model: str, epoch: Epoch, now: Seconds) -> None:
        self.calls = CallRecorder(core, now)
        self.lanes = Lanes()
        self.sight: Sight | None = None
        """Last snapshot of the scheduler core; None before the first."""
        self._core = core
        self._model = model
        self._epoch = epoch
        self._since = now
        self._shares_past: deque[SharePast] = deque(maxlen=_SHARES_KEPT)

    # --- recording

    def observe(self, event: ev.Event, actions: Sequence[Action], now: Seconds) -> None:
        """Record an event that the scheduler core has handled, with the resulting actions."""
        for ended in self.calls.observe(event, actions, now):
            self.lanes.release(*ended, now=now, iteration_s=self._core.outlooks.iteration_s)
        for action in actions:
            if isinstance(action, Grant):
                self.lanes.grant(self._core, action.lease_id, now)

    def look(
        self,
        now: Seconds,
        strip: Strip,
        shares: tuple[ShareRow, ...],
        used_kv_tokens: Callable[[ReplicaId], Tokens | None],
    ) -> Sight:
        """Record the scheduler core's state, which the console shows for a second.

        Args:
            now: The core's time.
            strip: Summary of the queue's state; this method fills in the sums over replicas.
            shares: Nodes of the tree of tenants.
            used_kv_tokens: Returns the KV that a replica uses by its own gauge; None if unknown.
        """
        state = self._core.state
        number = max(int(now - self._since) + 1, 0 if self.sight is None else self.sight.number + 1)
        self.calls.look(now)
        self.lanes.look(self._core, number, now)
        by_tenant: dict[ClientId, dict[ApplicationId, Application]] = {}
        for name, application in state.applications.items():
            by_tenant.setdefault(split_key(name)[0], {})[name] = application
        lanes = tuple(
            _replica_lane(replica, now, used_kv_tokens(name), _running_count(self._core, replica))
            for name, replica in state.replicas.items()
        )
        self._record_shares(now, shares)
        self.sight = Sight(
            number,
            now,
            _add_kv_totals(strip, lanes),
            shares,
            lanes,
            tuple(planned_bars(self._core, now)),
            by_tenant,
            count_inferences(state.applications.values()),
        )
        return self.sight

    # --- frames

    def frame(
        self, sight: Sight, tenant: ClientId | None = None, since: int | None = None
    ) -> Frame:
        """Return the data that a browser gets of a snapshot, for one tenant or for all.

        Args:
            sight: The snapshot.
            tenant: Tenant whose applications are shown, with all tenants below it; None: all. A
                tenant's frame contains nothing of other tenants but their numbers.
            since: Number of the last frame that the reader has; None without one.
        """
        shown = _applications_below(sight.by_tenant, tenant)
        seen = None if since is None else self.lanes.since(since)
        bars, known = (self.lanes.whole(), 0) if seen is None else seen
        if tenant is not None:
            bars = [bar for bar in bars if _belongs_to_tenant(bar.application, tenant)]
        planned = [
            bar
            for bar in sight.planned
            if tenant is None or _belongs_to_tenant(bar.application, tenant)
        ]
        told = tuple(bars)
        own = count_inferences(shown.values())
        left_out = self.lanes.left_out if seen is not None else 0
        return Frame(
            model=self._model,
            epoch=self._epoch,
            number=sight.number,
            at=sight.at,
            recorded_from=self._since,
            is_whole=seen is None,
            strip=sight.strip if tenant is None else _strip_for_tenant(sight.strip),
            replicas=tuple(map(_lane_for_tenant, sight.replicas)) if tenant else sight.replicas,
            bars=told,
            planned=tuple(planned),
            labels=self._application_labels(told, known, planned),
            queue=queue_listing(self._core, shown, sight.at),
            ages=waiting_time_quantiles(shown.values(), sight.at),
            own=own,
            others=Counts(
                sight.counts.applications - own.applications,
                sight.counts.waiting - own.waiting,
                sight.counts.running - own.running,
            ),
            shares=_shares_below(sight.shares, tenant),
            shares_past=self._past_shares_below(tenant) if seen is None else (),
            left_out={"bars": left_out} if left_out else {},
        )

    # --- internals

    def _application_labels(
        self, bars: Iterable[Bar], known: int, planned: Iterable[PlannedBar]
    ) -> dict[ApplicationId, Label]:
        names = dict.fromkeys(bar.application for bar in bars if bar.id > known)
        names |= dict.fromkeys(bar.application for bar in planned)
        return {name: self._application_label(name) for name in names}

    def _application_label(self, name: ApplicationId) -> Label:
        tenant, plain = split_key(name)
        live = self._core.state.applications.get(name)
        known = live or self.calls.application(name)
        if known is None:
            return Label(tenant, plain, "")
        return Label(tenant or known.tenant, plain, known.application_class)

    def _record_shares(self, now: Seconds, shares: Iterable[ShareRow]) -> None:
        if self._shares_past and now - self._shares_past[-1].at < SHARES_EVERY_S:
            return
        used = {row.node: round(row.used, 4) for row in shares if row.used}
        self._shares_past.append(SharePast(now, used))

    def _past_shares_below(self, tenant: ClientId | None) -> tuple[SharePast, ...]:
        if tenant is None:
            return tuple(self._shares_past)
        return tuple(
            SharePast(
                one.at, {node: part for node, part in one.used.items() if is_within(node, tenant)}
            )
            for one in self._shares_past
        )


def _applications_below(
    by_tenant: Mapping[ClientId, Mapping[ApplicationId, Application]], tenant: ClientId | None
) -> Mapping[ApplicationId, Application]:
    found: dict[ApplicationId, Application] = {}
    for name, applications in by_tenant.items():
        if tenant is None or is_within(name, tenant):
            found.update(applications)
    return found


def _belongs_to_tenant(application: ApplicationId, tenant: ClientId) -> bool:
    return is_within(split_key(application)[0], tenant)


def _shares_below(shares: Iterable[ShareRow], tenant: ClientId | None) -> tuple[ShareRow, ...]:
    return tuple(row for row in shares if tenant is None or is_within(row.node, tenant))


def _running_count(core: SchedulerCore, replica: KnownReplica) -> int:
    leases = core.state.leases
    return sum(leases[name].state.name == "RUNNING" for name in replica.leases)


def _replica_lane(
    replica: KnownReplica, now: Seconds, used_kv_tokens: Tokens | None, running: int
) -> ReplicaLane:
    return ReplicaLane(
        replica_id=replica.replica_id,
        kv_tokens=replica.capacity.kv_tokens,
        state=replica.shown_state,
        used_kv_tokens=used_kv_tokens,
        leased_kv_tokens=replica.context_tokens,
        held_kv_tokens=replica.contexts.live_tokens,
        leases=len(replica.leases),
        running=running,
        sequences=replica.leases.sequences,
        max_num_seqs=replica.capacity.max_num_seqs,
        silent_s=round(max(0.0, now - replica.last_seen_at), 3),
    )


def _lane_for_tenant(lane: ReplicaLane) -> ReplicaLane:
    return ReplicaLane(replica_id=lane.replica_id, kv_tokens=lane.kv_tokens, state=lane.state)


def _add_kv_totals(strip: Strip, lanes: Sequence[ReplicaLane]) -> Strip:
    total = sum(lane.kv_tokens for lane in lanes)
    leased = sum(lane.leased_kv_tokens or 0 for lane in lanes)
    held = sum(lane.held_kv_tokens or 0 for lane in lanes)
    # A replica that reports no KV gauge counts the tokens of its leases as used.
    used = sum(
        (lane.leased_kv_tokens or 0) if lane.used_kv_tokens is None else lane.used_kv_tokens
        for lane in lanes
    )
    return replace(
        strip,
        kv_tokens=total,
        used_kv_tokens=used,
        leased_kv_tokens=leased,
        held_kv_tokens=held,
        free_kv_tokens=max(0, total - used - held),
    )


def _strip_for_tenant(strip: Strip) -> Strip:
    return Strip(state=strip.state, why=strip.why, policy=strip.policy)
