"""Read-only views of the scheduler for `/v1/status` and `/v1/examination`.

A status contains counts; its cost grows only with the running inferences, so readiness probes may
request it. A report lists every inference and lease, so that `justitia doctor` can compare it with
the reports of ingresses and replicas. It walks through the whole state, at most once a second.
"""

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Generic, TypeVar

from justitia_ray.config import LONG_POLL_S
from justitia_ray.core import SchedulerCore
from justitia_ray.core.clock.fair_share import Account, ServedShare
from justitia_ray.core.clock.tenant_share import TenantShare
from justitia_ray.core.clock.virtual_clock import GpsSession
from justitia_ray.core.entities import Application, Inference, KnownReplica
from justitia_ray.core.invariants import InvariantViolation, check_rule, rules_of
from justitia_ray.protocol.inspection import (
    MAX_ENTRIES,
    ApplicationFacts,
    InferenceFacts,
    IngressFacts,
    LeaseFacts,
    ReplicaFacts,
    SchedulerReport,
    SilenceLimits,
)
from justitia_ray.protocol.status import NodeShare, SchedulerStatus, WorkingSetView
from justitia_ray.serve.scheduler.leadership import Term
from justitia_ray.serve.scheduler.outboxes import Outbox
from justitia_ray.serve.scheduler.shares import shares_view
from justitia_ray.serve.scheduler.status import (
    KvMeter,
    core_view,
    first_applications,
    quotas_view,
    store_facts,
    store_view,
    working_set_view,
)
from justitia_ray.units import ClientId, Seconds, VirtualTime

_TIMES_ITS_COST = 20
"""Maximum age of a cached answer about all applications, as a multiple of the time to compute it.
"""
_MAX_CHECKED = 20_000
"""Maximum number of inferences up to which an inspection checks the core's invariants, because this
blocks the scheduler.
"""


T = TypeVar("T")


class _CachedWalk(Generic[T]):
    """Cached result of a walk over all applications, recomputed at most once a second.

    A long walk is repeated less often, so that walks take at most a twentieth of the time.
    """

    def __init__(self, walk: Callable[[SchedulerCore], T]) -> None:
        self._walk = walk
        self._last: tuple[Seconds, T] | None = None

    def of(self, core: SchedulerCore, now: Seconds) -> T:
        if self._last is None or now >= self._last[0]:
            began_at = time.perf_counter()
            found = self._walk(core)
            took_s = time.perf_counter() - began_at
            self._last = (now + max(1.0, _TIMES_ITS_COST * took_s), found)
        return self._last[1]


class SchedulerInspector:
    """Describes the scheduler in its term for status and inspection, whether it leads or not."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self.kv_meter = KvMeter()
        """Integrals of the KV usage that the replicas report."""
        term.driver.outboxes.on_lost_replica = self.kv_meter.forget
        self._last_report: tuple[Seconds, dict[str, Any]] | None = None
        self._shares: _CachedWalk[tuple[NodeShare, ...]] = _CachedWalk(shares_view)
        self._working_set: _CachedWalk[WorkingSetView | None] = _CachedWalk(working_set_view)

    def status(self, applications: int = 0) -> SchedulerStatus:
        """Return the scheduler's part of `/v1/status`.

        Args:
            applications: Number of first live applications to describe.
        """
        driver, checkpointer = self._term.driver, self._term.checkpointer
        core, now = driver.core, driver.now()
        return replace(
            core_view(core, now, self.kv_meter.used_tokens, self.kv_meter.kept),
            **self._term.standing(),
            saves=checkpointer.saves,
            settings=driver.settings.model_dump(),
            first_applications=first_applications(core, now, applications),
            store=store_view(self._term.config, checkpointer, core),
            kv=self.kv_meter.totals(),
            decisions=driver.decisions.totals(),
            shares=self._shares.of(core, now),
            working_set=self._working_set.of(core, now),
            quotas=quotas_view(self._term.gate.exchange.known.nodes),
            size=self._wanted_size(core, now),
        )

    def _wanted_size(self, core: SchedulerCore, now: Seconds) -> dict[str, Any] | None:
        """Return the wanted number of replicas and the reason; None while replicas recover."""
        if core.recovery.holding:
            return None
        autoscaled = self._term.config.autoscaling is not None
        return self._term.fleet.decision(core, now).as_json() | {"autoscaled": autoscaled}

    def report(self) -> dict[str, Any]:
        """Return a `SchedulerReport` as a dict, reusing a report of the last second."""
        now = self._term.driver.now()
        if self._last_report is None or now - self._last_report[0] >= 1.0:
            self._last_report = (now, _scheduler_report(self._term, now).model_dump(mode="json"))
        return self._last_report[1]


def _scheduler_report(term: Term, now: Seconds) -> SchedulerReport:
    config, core, outboxes = term.config, term.driver.core, term.driver.outboxes
    state, fair_share = core.state, core.ledger.fair_share
    accounts, sessions = fair_share.accounts, fair_share.sessions()
    virtual_time, clocks = fair_share.clock.virtual_time, _tenant_clocks(fair_share)
    first = core.ledger.queue.first()
    next_up = None if first is None else first.waiting.first
    tables: dict[str, Collection[str]] = {
        "applications": state.applications,
        "ended": [name for name in sessions if name not in state.applications],
        "inferences": state.inferences,
        "leases": state.leases,
    }
    checkable = len(state.inferences) <= _MAX_CHECKED
    return SchedulerReport(
        **term.standing(),
        held_back=len(term.admission.unstored()) + term.gate.held_back,
        virtual_time=virtual_time,
        recovering=core.recovery.holding,
        waiting=sum(application.waiting_count for application in state.applications.values()),
        first=None if next_up is None else next_up.request_id,
        limits=SilenceLimits(
            lease_s=config.scheduler.lease_timeout_s,
            replica_s=config.scheduler.replica_timeout_s,
            heartbeat_s=config.replica.heartbeat_s,
            ingress_s=config.scheduler.ingress_timeout_s,
            long_poll_s=LONG_POLL_S,
            application_s=config.scheduler.application_idle_s,
        ),
        store=store_facts(config, term.checkpointer),
        applications={
            name: _application_facts(
                application,
                accounts[name],
                sessions[name],
                clocks.get(application.leaf, virtual_time),
                now,
            )
            for name, application in islice(state.applications.items(), MAX_ENTRIES)
            if name in accounts
            and name in sessions  # Missing accounts or sessions violate an invariant.
        },
        ended=tuple(islice(tables["ended"], MAX_ENTRIES)),
        inferences={
            name: InferenceFacts(
                application_id=inference.application_id,
                ingress_id=inference.ingress_id,
                state=inference.state.public_name,
            )
            for name, inference in islice(state.inferences.items(), MAX_ENTRIES)
        },
        leases={
            name: LeaseFacts(
                request_id=lease.request_id,
                replica_id=lease.replica_id,
                state=lease.state.value,
                age_s=now - lease.granted_at,
            )
            for name, lease in islice(state.leases.items(), MAX_ENTRIES)
        },
        replicas={
            name: _replica_facts(core, replica, outboxes.replicas.get(name), next_up, now)
            for name, replica in state.replicas.items()
        },
        ingresses={
            name: IngressFacts(
                silent_s=now - last_seen_at, unread=len(outboxes.ingresses.get(name, ()))
            )
            for name, last_seen_at in state.ingresses.items()
        },
        scaling=None if core.recovery.holding else term.fleet.facts(core, now),
        broken_rules=tuple(_broken_rules(core)) if checkable else (),
        unchecked_rules=(
            None
            if checkable
            else f"{len(state.inferences)} inferences; they are looked at up to {_MAX_CHECKED}"
        ),
        left_out={
            name: len(there) - MAX_ENTRIES
            for name, there in tables.items()
            if len(there) > MAX_ENTRIES
        },
    )


def _application_facts(
    application: Application,
    account: Account,
    session: GpsSession,
    clock: VirtualTime,
    now: Seconds,
) -> ApplicationFacts:
    since = application.idle_since
    return ApplicationFacts(
        state=application.state.public_name,
        ingress_id=application.ingress_id,
        finish=session.finish,
        clock=clock,
        active=session.active,
        withdrawn=account.withdrawn,
        charged=account.charged,
        attained=account.attained,
        age_s=now - application.arrived_at,
        idle_s=None if since is None else now - since,
        idle_limit_s=application.idle_s,
        waiting=application.waiting_count,
        in_flight=len(application.in_flight),
    )


def _tenant_clocks(fair_share: ServedShare) -> dict[ClientId, VirtualTime]:
    """Return the virtual time V inside each tenant; empty unless `fairness` is `tenant`."""
    if not isinstance(fair_share, TenantShare):
        return {}
    leaves = fair_share.nodes.kept_leaves()
    return {path: leaf.gps.virtual_time for path, leaf in leaves.items()}


def _replica_facts(
    core: SchedulerCore,
    replica: KnownReplica,
    outbox: Outbox | None,
    first: Inference | None,
    now: Seconds,
) -> ReplicaFacts:
    unread = [] if outbox is None else outbox.unread_after(0)
    capacity, since = replica.capacity, replica.drains_since
    return ReplicaFacts(
        address="" if outbox is None or outbox.last_pull is None else outbox.last_pull.address,
        unclaimed=tuple(
            lease_id
            for lease_id, reported in core.recovery.reported.items()
            if reported.replica_id == replica.replica_id
        ),
        silent_s=now - replica.last_seen_at,
        draining_s=now - since if replica.draining and since is not None else None,
        stalled_s=None if replica.stalled_since is None else now - replica.stalled_since,
        kv_tokens=capacity.kv_tokens,
        block_size=capacity.block_size,
        unexplained_kv_tokens=replica.unaccounted_tokens,
        leases=len(replica.leases),
        unread=len(unread),
        next_unread=unread[0][0] if unread else None,
        free_for_first=first is not None
        and replica.takes_leases
        and not replica.leases
        and replica.replica_id not in first.avoided
        and first.kv_need_tokens(capacity.block_size) <= capacity.kv_tokens
        and first.choices <= capacity.max_num_seqs,
    )


def _broken_rules(core: SchedulerCore) -> Iterator[str]:
    for rule in rules_of(core):
        try:
            check_rule(rule, core)
        except InvariantViolation as violation:
            yield str(violation)
        except Exception as error:  # The scheduler's state is too damaged to check the invariant.
            yield f"{rule.__name__}: {type(error).__name__}: {error}"
