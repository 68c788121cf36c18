"""What a scheduler tells people of its state: one application, or all of it. Changes nothing."""

from dataclasses import asdict
from typing import Any

from justitia_ray.core import SchedulerCore
from justitia_ray.units import ApplicationId, Seconds, Tokens


class Backlog:
    """KV that all that waits would need, counted at most once a second: it walks over it."""

    def __init__(self) -> None:
        self._counted_at: Seconds = 0.0
        self._kv_tokens: Tokens = 0

    def kv_tokens(self, core: SchedulerCore, now: Seconds) -> Tokens:
        """Return it as it was at `now`, or up to a second before."""
        if now - self._counted_at >= 1.0:
            self._kv_tokens = core.backlog_kv_tokens()
            self._counted_at = now
        return self._kv_tokens


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


def core_view(core: SchedulerCore, now: Seconds, backlog_kv_tokens: Tokens) -> dict[str, Any]:
    """Return how much there is of everything in a core.

    Args:
        core: The core.
        now: The instant, for how long replicas have been silent.
        backlog_kv_tokens: Its backlog, which is counted now and then only.
    """
    state = core.state
    return {
        "policy": core.order.policy_name,
        "virtual_time": core.order.fair_share.clock.virtual_time,
        "applications": len(state.applications),
        "waiting": sum(a.waiting_count for a in state.applications.values()),
        "kept_out": sum(len(a.kept_out) for a in state.applications.values()),
        "in_flight": len(state.leases),
        "backlog_kv_tokens": backlog_kv_tokens,
        "grants": state.grants,
        "late_reports": state.late_reports,
        "recovering": core.recovery.holding,
        "ingresses": len(state.ingresses),
        "replicas": {
            replica_id: {
                "kv_tokens": replica.capacity.kv_tokens,
                "leases": len(replica.leases),
                "draining": replica.draining,
                "silent_s": round(now - replica.heard_at, 3),
            }
            for replica_id, replica in state.replicas.items()
        },
    }
