"""Parts of the scheduler's status (`protocol.status`), from the core, its store and the quotas.

Readiness probes request the status, so its cost grows only with the running inferences and the
number of described applications.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain, islice
from math import isfinite
from types import MappingProxyType
from typing import Any

from justitia_ray.accounts.messages import NodeStanding
from justitia_ray.config import AppConfig
from justitia_ray.core import SchedulerCore
from justitia_ray.core.entities import Application, ReplicaCapacity
from justitia_ray.core.states import LeaseState
from justitia_ray.protocol.engine import KeptKv
from justitia_ray.protocol.inspection import StoreFacts
from justitia_ray.protocol.messages import Pull
from justitia_ray.protocol.status import (
    ApplicationView,
    HeadView,
    KeptKvView,
    KvTotals,
    PrefillCostView,
    ReplicaView,
    SchedulerStatus,
    StoreView,
    WorkingSetView,
)
from justitia_ray.serve.scheduler.checkpointer import Checkpointer
from justitia_ray.serve.stores import store_kind
from justitia_ray.units import ClientId, ReplicaId, Seconds, Tokens


class KvMeter:
    """KV usage by the replicas' reports: the latest values, and sums over time.

    The usage in a period is the difference of two readings of an integral.
    """

    def __init__(self) -> None:
        self._last: dict[ReplicaId, tuple[Seconds, Tokens, Tokens, int]] = {}
        """Last report of each replica on its KV: time, used KV, KV capacity and preemptions."""
        self.kept: dict[ReplicaId, KeptKv] = {}
        """Cached contexts and use of host memory in the last report of each replica that has any.
        """
        self._used_token_s = 0.0
        self._capacity_token_s = 0.0
        self._preemptions = 0

    def record_pull(self, pull: Pull, now: Seconds) -> None:
        """Record the KV usage in a replica's report; the earlier usage counts until `now`."""
        if pull.replica_id in self._last:
            at, used, capacity, preemptions = self._last[pull.replica_id]
            self._used_token_s += used * (now - at)
            self._capacity_token_s += capacity * (now - at)
            self._preemptions += pull.preemptions - preemptions
        capacity = pull.capacity.kv_tokens
        used = capacity - pull.free_kv_tokens
        self._last[pull.replica_id] = (now, used, capacity, pull.preemptions)
        if pull.kept is not None:
            self.kept[pull.replica_id] = pull.kept

    def forget(self, replica_id: ReplicaId) -> None:
        """Drop the KV usage of a lost replica; if it returns, it counts from its next report."""
        self._last.pop(replica_id, None)
        self.kept.pop(replica_id, None)

    def used_tokens(self, replica_id: ReplicaId) -> Tokens | None:
        """Return the KV tokens used at a replica's last report; None without a report."""
        return self._last[replica_id][1] if replica_id in self._last else None

    def totals(self) -> KvTotals:
        """Return used KV and KV capacity in token·seconds, and preemptions, since the start."""
        return KvTotals(self._used_token_s, self._capacity_token_s, self._preemptions)


def application_view(
    core: SchedulerCore, application: Application, now: Seconds
) -> ApplicationView:
    """Return a live application: predicted cost, service received, tag, counts."""
    application_id, prefill = application.application_id, application.prefill_token_time
    return ApplicationView(
        application_id=application_id,
        application_class=application.application_class,
        recognized_by=application.recognized_by,
        tenant=application.tenant,
        weight=application.weight,
        state=application.state.public_name,
        predicted_kv_token_time=application.predicted_kv_token_time,
        kv_token_time=core.ledger.fair_share.accounts[application_id].attained - prefill,
        prefill_token_time=prefill,
        virtual_finish_time=core.tag(application_id),
        age_s=now - application.arrived_at,
        waiting=application.waiting_count,
        running=len(application.in_flight),
        ended=application.inferences,
        prompt_tokens=application.prompt_tokens,
        cached_prompt_tokens=application.cached_tokens,
        gps_lag=core.lag(application_id),
    )


def core_view(
    core: SchedulerCore,
    now: Seconds,
    used_kv_tokens: Callable[[ReplicaId], Tokens | None] = lambda replica_id: None,
    kept: Mapping[ReplicaId, KeptKv] = MappingProxyType({}),
) -> SchedulerStatus:
    """Return the part of the status that describes the scheduler core.

    Args:
        core: The core.
        now: The core's current time, used for the silence of replicas.
        used_kv_tokens: Returns the KV that a replica uses by its own gauge; None if unknown.
        kept: Held contexts and use of host memory by replica.
    """
    state = core.state
    eligible_at = core.ledger.queue.next_eligible()
    return SchedulerStatus(
        policy=core.ledger.policy_name,
        virtual_time=core.ledger.fair_share.clock.virtual_time,
        applications=len(state.applications),
        waiting=state.waiting,
        kept_out=core.ingresses.suspended,
        held_back_s=None if eligible_at is None else max(0.0, eligible_at - now),
        in_flight=len(state.leases),
        backlog_kv_tokens=state.counters.waiting_kv_tokens,
        grants=state.grants,
        prompt_tokens=sum(state.counters.prompt_tokens.values()),
        cached_prompt_tokens=sum(state.counters.cached_tokens.values()),
        prefill_cost=prefill_cost_view(core),
        prefill_token_time=state.counters.prefill,
        forgiven_token_time=state.counters.forgiven,
        late_reports=state.late_reports,
        engine_failures={
            cause.value: count for cause, count in state.counters.engine_failures.items()
        },
        suspects=core.suspects.open_count,
        recovering=core.recovery.holding,
        ingresses=len(state.ingresses),
        replicas={
            replica_id: ReplicaView(
                kv_tokens=replica.capacity.kv_tokens,
                leases=len(replica.leases),
                running=sum(
                    state.leases[name].state is LeaseState.RUNNING for name in replica.leases
                ),
                sequences=replica.leases.sequences,
                max_num_seqs=replica.capacity.max_num_seqs,
                draining=replica.draining,
                state=replica.shown_state,
                silent_s=round(now - replica.last_seen_at, 3),
                used_kv_tokens=used_kv_tokens(replica_id),
                kept=(
                    kept_kv_view(kept[replica_id], replica.capacity) if replica_id in kept else None
                ),
            )
            for replica_id, replica in state.replicas.items()
        },
        head=head_view(core, now),
    )


def kept_kv_view(kept: KeptKv, capacity: ReplicaCapacity) -> KeptKvView:
    """Return the cached contexts and the use of host memory of a replica."""
    return KeptKvView(
        held_contexts=kept.held_contexts,
        held_kv_tokens=kept.held_kv_tokens,
        host_kv_tokens=kept.host_kv_tokens,
        host_kv_capacity_tokens=capacity.host_kv_tokens or None,
    )


def prefill_cost_view(core: SchedulerCore) -> PrefillCostView | None:
    """Return the scheduler's cost of computing prompts; None if prompts cost nothing."""
    state = core.state
    cost, measured = state.prefill_cost, state.measured_prefill
    if cost is None:
        return PrefillCostView(source="measured") if state.measures_prefill else None
    if not state.measures_prefill or measured is None:
        return PrefillCostView(
            source="configured", per_token=cost.per_token, per_pair=cost.per_pair
        )
    return PrefillCostView(
        source="measured",
        per_token=cost.per_token,
        per_pair=cost.per_pair,
        release=measured.release,
    )


def quotas_view(
    nodes: Mapping[ClientId, Sequence[NodeStanding]],
) -> dict[ClientId, list[dict[str, Any]]]:
    """Return the quotas of each tenant in the accounts' last answer, over all models."""
    return {path: [_quota_view(one) for one in standings] for path, standings in nodes.items()}


def _quota_view(standing: NodeStanding) -> dict[str, Any]:
    view = asdict(standing)
    del view["period_s"]  # The field `per` names the period.
    return view


def store_facts(config: AppConfig, checkpointer: Checkpointer) -> StoreFacts:
    """Return the state of the scheduler's store for an inspection."""
    saved_at = checkpointer.saved_at
    saved_s_ago = None if saved_at is None else asyncio.get_running_loop().time() - saved_at
    return StoreFacts(
        kind=store_kind(config),
        trouble=checkpointer.trouble,
        saves=checkpointer.saves,
        saved_s_ago=saved_s_ago,
        save_interval_s=config.store.save_interval_s,
    )


def store_view(config: AppConfig, checkpointer: Checkpointer, core: SchedulerCore) -> StoreView:
    """Return the state of the scheduler's store, and how much is not saved yet.

    Args:
        config: The application's arguments.
        checkpointer: Saves the core's durable state.
        core: The state to save.
    """
    facts = store_facts(config, checkpointer)
    about = StoreView(kind=facts.kind, durability=config.store.durability, trouble=facts.trouble)
    if config.store.durability == "none":
        return about
    # Usually only few applications have changed, but after a failed save it may be all of them.
    changed = sum(name not in checkpointer.unsaved for name in core.state.changed)
    return replace(
        about,
        connected=facts.trouble is None,
        saved_s_ago=facts.saved_s_ago,
        save_interval_s=facts.save_interval_s,
        unsaved_applications=len(checkpointer.unsaved) + changed,
    )


def head_view(core: SchedulerCore, now: Seconds) -> HeadView | None:
    """Return the next inference to grant and why it waits; None if none may be granted."""
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
    elif core.ledger.gate is not None and core.ledger.gate.has_refused(inference):
        waits_for = "working_set"
    else:
        waits_for = "room"
    return HeadView(
        application_id=application.application_id,
        application_class=application.application_class,
        tenant=application.tenant,
        client=client,
        key=tuple(part for part in policy.key(client, application) if isfinite(part)),
        virtual_finish_time=core.tag(application.application_id),
        prompt_tokens=inference.prompt_tokens,
        predicted_output_tokens=inference.predicted_output_tokens,
        waited_s=now - inference.submitted_at,
        waits_for=waits_for,
    )


def working_set_view(core: SchedulerCore) -> WorkingSetView | None:
    """Return the state of the policy's working set; None without one. O(idle contexts)."""
    gate = core.ledger.gate
    if gate is None:
        return None
    started, waiting = gate.started_and_waiting(core.ledger.queue)
    return WorkingSetView(
        started=started,
        waiting=waiting,
        context_tokens=gate.context_tokens(),
        room_tokens=gate.room,
        found=core.state.counters.contexts_found,
        missed=core.state.counters.contexts_missed,
    )


def first_applications(core: SchedulerCore, now: Seconds, most: int) -> tuple[ApplicationView, ...]:
    """Return the first live applications, in the order of the policy.

    Applications with a waiting inference come first, in the order of grants if nothing changes;
    then those that only run, by F; then the others (idle, held back, suspended) by arrival. The
    cost grows with `most` and with what runs, not with the number of applications.
    """
    return tuple(application_view(core, one, now) for one in islice(in_order(core), most))


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
