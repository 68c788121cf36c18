"""What a scheduler tells people of its state: one application, or all of it. Changes nothing."""

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from justitia_ray.config import AppConfig
from justitia_ray.core import SchedulerCore
from justitia_ray.core.entities import LeaseState, Replica
from justitia_ray.serve.state_keeper import StateKeeper
from justitia_ray.serve.stores import store_kind
from justitia_ray.units import ApplicationId, ReplicaId, Seconds, Tokens


def application_view(
    core: SchedulerCore, application_id: ApplicationId, now: Seconds
) -> dict[str, Any] | None:
    """Return what is known of a live application, None if there is none of that id."""
    application = core.state.applications.get(application_id)
    if application is None:
        return None
    account = core.order.fair_share.accounts[application_id]
    lag = core.lag(application_id)
    return {
        "application_id": application_id,
        "application_class": application.application_class,
        "tenant": application.tenant,
        "weight": application.weight,
        "state": application.state.value,
        "predicted_kv_token_time": application.predicted_kv_token_time,
        "kv_token_time": account.attained,
        "virtual_finish_time": core.tag(application_id),
        "age_s": now - application.arrived_at,
        "waiting": application.waiting_count,
        "running": len(application.in_flight),
        "ended": application.inferences,
        "gps_lag": None if lag is None else asdict(lag),
    }


def core_view(
    core: SchedulerCore,
    now: Seconds,
    used_kv_tokens: Callable[[ReplicaId], Tokens | None] = lambda replica_id: None,
) -> dict[str, Any]:
    """Return how much there is of everything in a core.

    What it takes grows with what runs, not with what waits: readiness probes ask for it.

    Args:
        core: The core.
        now: The instant, for how long replicas have been silent.
        used_kv_tokens: Returns the KV that a replica holds by its own gauge, None if it told none.
    """
    state = core.state
    eligible_at = core.order.queue.next_eligible()
    return {
        "policy": core.order.policy_name,
        "virtual_time": core.order.fair_share.clock.virtual_time,
        "applications": len(state.applications),
        "waiting": state.waiting,
        "kept_out": core.ingresses.kept_out,
        "held_back_s": None if eligible_at is None else max(0.0, eligible_at - now),
        "in_flight": len(state.leases),
        "backlog_kv_tokens": core.backlog_kv_tokens(),
        "grants": state.grants,
        "late_reports": state.late_reports,
        "recovering": core.recovery.holding,
        "ingresses": len(state.ingresses),
        "replicas": {
            replica_id: _replica_view(core, replica, now)
            | {"used_kv_tokens": used_kv_tokens(replica_id)}
            for replica_id, replica in state.replicas.items()
        },
    }


def _replica_view(core: SchedulerCore, replica: Replica, now: Seconds) -> dict[str, Any]:
    leases = core.state.leases
    return {
        "kv_tokens": replica.capacity.kv_tokens,
        "leases": len(replica.leases),
        "running": sum(leases[name].state is LeaseState.RUNNING for name in replica.leases),
        "sequences": replica.sequences,
        "max_num_seqs": replica.capacity.max_num_seqs,
        "draining": replica.draining,
        "silent_s": round(now - replica.heard_at, 3),
    }


def store_view(config: AppConfig, keeper: StateKeeper, core: SchedulerCore) -> dict[str, Any]:
    """Return where the state is kept, and how far behind what is stored is.

    Args:
        config: Of the application.
        keeper: Of its durable state.
        core: What is kept.
    """
    stores = config.store.durability != "none"
    # What a save that failed left may be all there is; what changed since is little.
    changed = sum(name not in keeper.unsaved for name in core.state.changed)
    saved_at = keeper.saved_at
    now = asyncio.get_running_loop().time()
    return {
        "kind": store_kind(config),
        "durability": config.store.durability,
        "connected": keeper.trouble is None if stores else None,
        "trouble": keeper.trouble,
        "saved_s_ago": None if saved_at is None or not stores else now - saved_at,
        "save_interval_s": config.store.save_interval_s if stores else None,
        "unsaved_applications": len(keeper.unsaved) + changed if stores else None,
    }
