"""Read-only views of the scheduler for `/v1/status` and `/v1/examination`.

A status contains counts; its cost grows only with the running inferences, so readiness probes may
request it. A report lists everything with both sides of each relation, so that `justitia doctor`
can compare it with the reports of ingresses and replicas; it iterates over the whole state, at most
once a second.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain, islice
from math import isfinite
from typing import Any

from justitia_ray.accounts.messages import NodeStanding
from justitia_ray.config import AppConfig
from justitia_ray.core import SchedulerCore
from justitia_ray.core.clock.fair_share import Account, ServedShare
from justitia_ray.core.clock.tenant_share import TenantShare
from justitia_ray.core.clock.virtual_clock import GpsSession
from justitia_ray.core.entities import Application, Inference, KnownReplica
from justitia_ray.core.invariants import InvariantViolation, check_rule, rules_of
from justitia_ray.core.states import LeaseState
from justitia_ray.protocol.inspection import (
    MAX_ENTRIES,
    ApplicationFacts,
    InferenceFacts,
    IngressFacts,
    LeaseFacts,
    ReplicaFacts,
    SchedulerReport,
    SilenceLimits,
    StoreFacts,
)
from justitia_ray.protocol.messages import Pull
from justitia_ray.serve.scheduler.checkpointer import Checkpointer
from justitia_ray.serve.scheduler.leadership import Term
from justitia_ray.serve.scheduler.outboxes import LONG_POLL_S, Outbox
from justitia_ray.serve.scheduler.shares import shares_view
from justitia_ray.serve.stores import store_kind
from justitia_ray.units import ClientId, ReplicaId, Seconds, Tokens, VirtualTime

_TIMES_ITS_COST = 20
"""Maximum age of a cached answer about all applications, as a multiple of the time to compute it.
"""
_MAX_CHECKED = 20_000
"""Maximum number of inferences with which the core's invariants are checked; the scheduler is
blocked meanwhile."""


class KvMeter:
    """Integrals of KV usage over time, which only grow; readers use differences of readings."""

    def __init__(self) -> None:
        self._last: dict[ReplicaId, tuple[Seconds, Tokens, Tokens, int]] = {}
        """Last reading of each replica: time, used KV, KV capacity, preemptions."""
        self._used_token_s = 0.0
        self._capacity_token_s = 0.0
        self._preemptions = 0

    def record_pull(self, pull: Pull, now: Seconds) -> None:
        """Record the reading in a replica's pull, which ends the previous one at `now`."""
        self._preemptions += pull.preemptions
        if pull.replica_id in self._last:
            at, used, capacity, preemptions = self._last[pull.replica_id]
            self._used_token_s += used * (now - at)
            self._capacity_token_s += capacity * (now - at)
            self._preemptions -= preemptions
        capacity = pull.capacity.kv_tokens
        used = capacity - pull.free_kv_tokens
        self._last[pull.replica_id] = (now, used, capacity, pull.preemptions)

    def used_tokens(self, replica_id: ReplicaId) -> Tokens | None:
        """Return the KV tokens used at a replica's last report; None without any."""
        return self._last[replica_id][1] if replica_id in self._last else None

    def totals(self) -> dict[str, Any]:
        """Return used KV and KV capacity in token·seconds, and preemptions, since the start."""
        return {
            "used_token_s": self._used_token_s,
            "capacity_token_s": self._capacity_token_s,
            "preemptions": self._preemptions,
        }


class SchedulerInspector:
    """Describes the scheduler of a term for status and inspection, whether it leads or not."""

    def __init__(self, term: Term) -> None:
        self._term = term
        self.kv_meter = KvMeter()
        """Integrals of the KV usage that the replicas report."""
        self._last_report: tuple[Seconds, dict[str, Any]] | None = None
        self._last_shares: tuple[Seconds, list[dict[str, Any]]] | None = None

    def status(self, applications: int) -> dict[str, Any]:
        """Return the scheduler's part of `/v1/status`.

        Args:
            applications: Number of first live applications to describe.
        """
        driver, checkpointer = self._term.driver, self._term.checkpointer
        core, now = driver.core, driver.now()
        return {
            **self._term.standing(),
            "saves": checkpointer.saves,
            "settings": driver.settings.model_dump(),
            **core_view(core, now, self.kv_meter.used_tokens),
            "head": head_view(core, now),
            "first_applications": first_applications(core, now, applications),
            "store": store_view(self._term.config, checkpointer, core),
            "kv": self.kv_meter.totals(),
            "decisions": driver.decisions.totals(),
            "shares": self._shares(core, now),
            "quotas": quotas_view(self._term.gate.exchange.known.nodes),
            "size": self._size(core, now),
        }

    def _size(self, core: SchedulerCore, now: Seconds) -> dict[str, Any] | None:
        """Return the wanted number of replicas and why; None until replicas have reported."""
        if core.recovery.holding:
            return None
        autoscaled = self._term.config.autoscaling is not None
        return self._term.fleet.decision(core, now).as_json() | {"autoscaled": autoscaled}

    def _shares(self, core: SchedulerCore, now: Seconds) -> list[dict[str, Any]]:
        """Return the shares of the tree's nodes, cached for a second, or longer if they take long.

        Computing them iterates over all applications, 25 ms with 10,000; the cache limits the cost
        to a twentieth of the time.
        """
        if self._last_shares is None or now >= self._last_shares[0]:
            began_at = time.perf_counter()
            shares = shares_view(core)
            took_s = time.perf_counter() - began_at
            self._last_shares = (now + max(1.0, _TIMES_ITS_COST * took_s), shares)
        return self._last_shares[1]

    def report(self) -> dict[str, Any]:
        """Return a `SchedulerReport` as a dict, at most a second old."""
        now = self._term.driver.now()
        if self._last_report is None or now - self._last_report[0] >= 1.0:
            self._last_report = (now, _report(self._term, now).model_dump(mode="json"))
        return self._last_report[1]


def _store_facts(config: AppConfig, checkpointer: Checkpointer) -> StoreFacts:
    saved_at = checkpointer.saved_at
    saved_s_ago = None if saved_at is None else asyncio.get_running_loop().time() - saved_at
    return StoreFacts(
        kind=store_kind(config),
        trouble=checkpointer.trouble,
        saves=checkpointer.saves,
        saved_s_ago=saved_s_ago,
        save_interval_s=config.store.save_interval_s,
    )


# --- status


def application_view(core: SchedulerCore, application: Application, now: Seconds) -> dict[str, Any]:
    """Return a live application: predicted cost, service received, tag, counts."""
    application_id = application.application_id
    account = core.ledger.fair_share.accounts[application_id]
    lag = core.lag(application_id)
    return {
        "application_id": application_id,
        "application_class": application.application_class,
        "recognized_by": application.recognized_by,
        "tenant": application.tenant,
        "weight": application.weight,
        "state": application.state.public_name,
        "predicted_kv_token_time": application.predicted_kv_token_time,
        "kv_token_time": account.attained,
        "virtual_finish_time": core.tag(application_id),
        "age_s": now - application.arrived_at,
        "waiting": application.waiting_count,
        "running": len(application.in_flight),
        "ended": application.inferences,
        "prompt_tokens": application.prompt_tokens,
        "cached_prompt_tokens": application.cached_tokens,
        "gps_lag": None if lag is None else asdict(lag),
    }


def core_view(
    core: SchedulerCore,
    now: Seconds,
    used_kv_tokens: Callable[[ReplicaId], Tokens | None] = lambda replica_id: None,
) -> dict[str, Any]:
    """Return the counts of a core: applications, inferences, leases, ingresses, replicas.

    Args:
        core: The core.
        now: The core's current time, used for the silence of replicas.
        used_kv_tokens: Returns the KV that a replica uses by its own gauge; None if unknown.
    """
    state = core.state
    eligible_at = core.ledger.queue.next_eligible()
    return {
        "policy": core.ledger.policy_name,
        "virtual_time": core.ledger.fair_share.clock.virtual_time,
        "applications": len(state.applications),
        "waiting": state.waiting,
        "kept_out": core.ingresses.suspended,
        "held_back_s": None if eligible_at is None else max(0.0, eligible_at - now),
        "in_flight": len(state.leases),
        "backlog_kv_tokens": state.counters.waiting_kv_tokens,
        "grants": state.grants,
        "prompt_tokens": sum(state.counters.prompt_tokens.values()),
        "cached_prompt_tokens": sum(state.counters.cached_tokens.values()),
        "late_reports": state.late_reports,
        "engine_failures": {
            cause.value: count for cause, count in state.counters.engine_failures.items()
        },
        "suspects": core.suspects.open_count,
        "recovering": core.recovery.holding,
        "ingresses": len(state.ingresses),
        "replicas": {
            replica_id: {
                "kv_tokens": replica.capacity.kv_tokens,
                "leases": len(replica.leases),
                "running": sum(
                    state.leases[name].state is LeaseState.RUNNING for name in replica.leases
                ),
                "sequences": replica.leases.sequences,
                "max_num_seqs": replica.capacity.max_num_seqs,
                "draining": replica.draining,
                "state": replica_state(replica),
                "silent_s": round(now - replica.last_seen_at, 3),
                "used_kv_tokens": used_kv_tokens(replica_id),
            }
            for replica_id, replica in state.replicas.items()
        },
    }


def replica_state(replica: KnownReplica) -> str:
    """Return the state of a replica as named in `/v1/status`."""
    if replica.stalled_since is not None:
        return "stalled"
    if replica.is_silent:
        return "silent"
    return "draining" if replica.draining else "serving"


def quotas_view(
    nodes: Mapping[ClientId, Sequence[NodeStanding]],
) -> dict[ClientId, list[dict[str, Any]]]:
    """Return the quotas of each node in the accounts' last answer, over all models."""
    return {
        path: [
            {
                "unit": one.unit.value,
                "per": one.per,
                "limit": one.limit,
                "used": one.used,
                "claimed": one.claimed,
                "remaining": one.remaining,
                "reset_s": one.reset_s,
                "on_exhausted": one.on_exhausted,
                "exceeded": one.exceeded,
            }
            for one in standings
        ]
        for path, standings in nodes.items()
    }


def store_view(
    config: AppConfig, checkpointer: Checkpointer, core: SchedulerCore
) -> dict[str, Any]:
    """Return the state of the scheduler's store, and how much is not saved yet.

    Args:
        config: The application's arguments.
        checkpointer: Saves the core's durable state.
        core: The state to save.
    """
    stores, facts = config.store.durability != "none", _store_facts(config, checkpointer)
    # Usually only few applications changed since, but a failed save may leave all of them.
    changed = sum(name not in checkpointer.unsaved for name in core.state.changed)
    return {
        "kind": facts.kind,
        "durability": config.store.durability,
        "connected": facts.trouble is None if stores else None,
        "trouble": facts.trouble,
        "saved_s_ago": facts.saved_s_ago if stores else None,
        "save_interval_s": facts.save_interval_s if stores else None,
        "unsaved_applications": len(checkpointer.unsaved) + changed if stores else None,
    }


def head_view(core: SchedulerCore, now: Seconds) -> dict[str, Any] | None:
    """Return the next inference to grant and what it waits for; None if none may be granted."""
    application = core.ledger.queue.first()
    if application is None:
        return None
    policy = core.ledger.policy
    client = policy.client(application)
    inference = application.waiting.first
    if core.recovery.holding:
        waits_for = "recovery"
    elif not any(replica.takes_leases for replica in core.state.replicas.values()):
        waits_for = "replica"
    else:
        waits_for = "room"
    return {
        "application_id": application.application_id,
        "application_class": application.application_class,
        "tenant": application.tenant,
        "client": client,
        "key": [part for part in policy.key(client, application) if isfinite(part)],
        "virtual_finish_time": core.tag(application.application_id),
        "prompt_tokens": inference.prompt_tokens,
        "predicted_output_tokens": inference.predicted_output_tokens,
        "waited_s": now - inference.submitted_at,
        "waits_for": waits_for,
    }


def first_applications(core: SchedulerCore, now: Seconds, most: int) -> list[dict[str, Any]]:
    """Return the first live applications, in the order of the policy.

    Applications with a waiting inference come first, in the order of grants if nothing changes;
    then those that only run, by F; then the others (idle, held back, suspended) by arrival. The
    cost grows with `most` and with what runs, not with the number of applications.
    """
    return [application_view(core, one, now) for one in islice(in_order(core), most)]


def in_order(core: SchedulerCore) -> Iterator[Application]:
    """Yield every live application once, in the order of the policy."""
    applications, inferences = core.state.applications, core.state.inferences
    seen: set[str] = set()
    running = {inferences[lease.request_id].application_id for lease in core.state.leases.values()}
    by_tag = sorted(running, key=lambda name: (core.ledger.rank(name), applications[name].sequence))
    for application in chain(
        core.ledger.queue.in_order(),
        (applications[name] for name in by_tag),
        applications.values(),
    ):
        if application.application_id not in seen:
            seen.add(application.application_id)
            yield application


# --- report


def _report(term: Term, now: Seconds) -> SchedulerReport:
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
        store=_store_facts(config, term.checkpointer),
        applications={
            name: _application_facts(
                application,
                accounts[name],
                sessions[name],
                clocks.get(application.leaf, virtual_time),
                now,
            )
            for name, application in islice(state.applications.items(), MAX_ENTRIES)
            if name in accounts and name in sessions  # otherwise reported as a broken rule
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
    """Return V inside each tenant; empty unless shares are by tenant."""
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
    unread = [] if outbox is None else outbox.unread(0)
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
        except Exception as error:  # the state is too damaged to check the rule
            yield f"{rule.__name__}: {type(error).__name__}: {error}"
