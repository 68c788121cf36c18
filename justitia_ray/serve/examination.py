"""What the scheduler and a replica say of themselves when they are examined. Changes nothing."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

from justitia_ray.config import AppConfig
from justitia_ray.core import SchedulerCore
from justitia_ray.core.admission import kv_need_tokens
from justitia_ray.core.entities import Application, Inference, Replica
from justitia_ray.core.fair_share import Account, FairShare
from justitia_ray.core.invariants import RULES, InvariantViolation
from justitia_ray.core.tenant_share import TenantShare
from justitia_ray.core.virtual_clock import Session
from justitia_ray.errors import EngineError
from justitia_ray.protocol.examination import (
    MOST_ENTRIES,
    ApplicationSeen,
    HeldSeen,
    InferenceSeen,
    IngressSeen,
    LeaseSeen,
    Limits,
    ReplicaOwn,
    ReplicaSeen,
    SchedulerSeen,
    StoreSeen,
)
from justitia_ray.serve.engine import Engine, EngineCapacity
from justitia_ray.serve.lease_desk import LeaseDesk
from justitia_ray.serve.line import Line
from justitia_ray.serve.mail_room import MailRoom
from justitia_ray.serve.puller import Puller
from justitia_ray.serve.state_keeper import StateKeeper
from justitia_ray.serve.stores import store_kind
from justitia_ray.units import ClientId, Seconds, VirtualTime

_MOST_CHECKED = 20_000
"""Inferences up to which the rules are looked at: the scheduler stands still meanwhile."""

T = TypeVar("T")


class Examiner:
    """Looks at a scheduler, once a second at most: it walks over all there is."""

    def __init__(self, config: AppConfig, long_poll_s: Seconds) -> None:
        """Take note of what silence means.

        Args:
            config: Of the application.
            long_poll_s: How long an ingress may be silent while nothing is wrong.
        """
        section = config.scheduler
        self._limits = Limits(
            lease_s=section.lease_timeout_s,
            replica_s=section.replica_timeout_s,
            heartbeat_s=config.replica.heartbeat_s,
            ingress_s=section.ingress_timeout_s,
            long_poll_s=long_poll_s,
            application_s=section.application_idle_s,
        )
        self._store_kind = store_kind(config)
        self._save_interval_s = config.store.save_interval_s
        self._last: tuple[Seconds, SchedulerSeen] | None = None

    def look(
        self,
        core: SchedulerCore,
        mail: MailRoom,
        keeper: StateKeeper,
        now: Seconds,
        **office: Any,
    ) -> dict[str, Any]:
        """Return a `SchedulerSeen` as a dict.

        Args:
            core: What is looked at.
            mail: The lines to its ingresses and replicas.
            keeper: Of its durable state.
            now: The core's instant.
            office: `ready`, `degraded`, `epoch`, `held_back`: fields of `SchedulerSeen`.
        """
        if self._last is None or now - self._last[0] >= 1.0:
            saved_at = keeper.saved_at
            store = StoreSeen(
                kind=self._store_kind,
                trouble=keeper.trouble,
                saves=keeper.saves,
                saved_s_ago=None if saved_at is None else _loop_now() - saved_at,
                save_interval_s=self._save_interval_s,
            )
            self._last = (now, _seen(core, mail, now, office, self._limits, store))
        return self._last[1].model_dump(mode="json")


def examine_replica(
    puller: Puller, desk: LeaseDesk, engine: Engine, capacity: EngineCapacity
) -> dict[str, Any]:
    """Return a `ReplicaOwn` as a dict."""
    try:
        engine.check()
    except EngineError as error:
        trouble: str | None = str(error)
    else:
        trouble = None
    return ReplicaOwn(
        epoch=puller.epoch,
        draining=puller.draining,
        engine=trouble,
        kv_tokens=capacity.kv_tokens,
        free_kv_tokens=engine.free_kv_tokens(),
        held={
            lease_id: HeldSeen(
                state=lease.state.value, age_s=_loop_now() - lease.armed_at, aborted=lease.aborted
            )
            for lease_id, lease in desk.leases().items()
        },
        unconfirmed=tuple(desk.unconfirmed()),
    ).model_dump(mode="json")


def _seen(
    core: SchedulerCore,
    mail: MailRoom,
    now: Seconds,
    office: Mapping[str, Any],
    limits: Limits,
    store: StoreSeen,
) -> SchedulerSeen:
    state, fair_share = core.state, core.order.fair_share
    accounts, sessions = fair_share.accounts, fair_share.sessions()
    virtual_time, clocks = fair_share.clock.virtual_time, _tenant_clocks(fair_share)
    ended = [name for name in sessions if name not in state.applications]
    waiting = sum(application.waiting_count for application in state.applications.values())
    first = core.order.queue.first()
    next_up = None if first is None else first.waiting.first
    tables = {
        "applications": len(state.applications),
        "ended": len(ended),
        "inferences": len(state.inferences),
        "leases": len(state.leases),
    }
    checkable = len(state.inferences) <= _MOST_CHECKED
    return SchedulerSeen(
        **office,
        virtual_time=virtual_time,
        recovering=core.recovery.holding,
        waiting=waiting,
        first=None if next_up is None else next_up.request_id,
        limits=limits,
        store=store,
        applications={
            name: _application(
                application,
                accounts[name],
                sessions[name],
                clocks.get(application.tenant, virtual_time),
                now,
            )
            for name, application in _some(state.applications.items())
            if name in accounts and name in sessions  # else a rule is broken, and says so
        },
        ended=tuple(_some(ended)),
        inferences={
            name: InferenceSeen(
                application_id=inference.application_id,
                ingress_id=inference.ingress_id,
                state=inference.state.value,
            )
            for name, inference in _some(state.inferences.items())
        },
        leases={
            name: LeaseSeen(
                request_id=lease.request_id,
                replica_id=lease.replica_id,
                state=lease.state.value,
                age_s=now - lease.granted_at,
            )
            for name, lease in _some(state.leases.items())
        },
        replicas={
            name: _replica(core, replica, mail.lines_to_replicas().get(name), next_up, now)
            for name, replica in state.replicas.items()
        },
        ingresses={
            name: IngressSeen(silent_s=now - heard_at, unread=_unread(mail, name))
            for name, heard_at in state.ingresses.items()
        },
        broken_rules=tuple(_broken_rules(core)) if checkable else (),
        unchecked_rules=(
            None
            if checkable
            else f"{len(state.inferences)} inferences; they are looked at up to {_MOST_CHECKED}"
        ),
        left_out={
            name: there - MOST_ENTRIES for name, there in tables.items() if there > MOST_ENTRIES
        },
    )


def _application(
    application: Application,
    account: Account,
    session: Session,
    clock: VirtualTime,
    now: Seconds,
) -> ApplicationSeen:
    since = application.idle_since
    return ApplicationSeen(
        state=application.state.value,
        ingress_id=application.ingress_id,
        finish=session.finish,
        clock=clock,
        active=session.active,
        withdrawn=account.withdrawn,
        charged=account.charged,
        attained=account.attained,
        age_s=now - application.arrived_at,
        idle_s=now - since if application.is_idle and since is not None else None,
        waiting=application.waiting_count,
        in_flight=len(application.in_flight),
    )


def _tenant_clocks(fair_share: FairShare) -> dict[ClientId, VirtualTime]:
    """Return V inside each tenant; nothing if applications are not shared by tenant."""
    if not isinstance(fair_share, TenantShare):
        return {}
    return {name: tenant.gps.virtual_time for name, tenant in fair_share.tenants().items()}


def _replica(
    core: SchedulerCore, replica: Replica, line: Line | None, first: Inference | None, now: Seconds
) -> ReplicaSeen:
    pull = None if line is None else line.last_pull
    named = () if pull is None else tuple(progress.lease_id for progress in pull.progress)
    unread = [] if line is None else line.unread(0)
    since = replica.drains_since
    return ReplicaSeen(
        named=named,
        unclaimed=tuple(lease_id for lease_id in named if core.recovery.knows(lease_id)),
        silent_s=now - replica.heard_at,
        draining_s=now - since if replica.draining and since is not None else None,
        kv_tokens=replica.capacity.kv_tokens,
        block_size=replica.capacity.block_size,
        unexplained_kv_tokens=replica.unaccounted_tokens,
        leases=len(replica.leases),
        unread=len(unread),
        next_unread=unread[0][0] if unread else None,
        free_for_first=first is not None and not replica.draining and _is_free(replica, first),
    )


def _is_free(replica: Replica, inference: Inference) -> bool:
    capacity = replica.capacity
    return (
        not replica.leases
        and kv_need_tokens(inference, capacity.block_size) <= capacity.kv_tokens
        and inference.choices <= capacity.max_num_seqs
    )


def _unread(mail: MailRoom, ingress_id: str) -> int:
    line = mail.lines_to_ingresses().get(ingress_id)
    return 0 if line is None else len(line)


def _broken_rules(core: SchedulerCore) -> Iterable[str]:
    for rule in RULES:
        try:
            rule(core)
        except InvariantViolation as violation:
            yield str(violation)
        except Exception as error:  # a state that no rule could be looked at in
            yield f"{rule.__name__}: {type(error).__name__}: {error}"


def _loop_now() -> Seconds:
    return asyncio.get_running_loop().time()


def _some(entries: Iterable[T]) -> Iterator[T]:
    """Yield as many as a table holds: the oldest, which are there for longest already."""
    return islice(entries, MOST_ENTRIES)
