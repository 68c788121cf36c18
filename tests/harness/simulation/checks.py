"""Rules that a simulation must keep, checked periodically or at the end; one function each.

The rules that hold at every step are in `recorder`.
"""

from collections import Counter
from collections.abc import Iterator

from justitia_ray.core.tenants import OnExhausted
from justitia_ray.units import LeaseId, Seconds
from tests.harness.answers import describe_difference
from tests.harness.simulation.callers import CallRecord, Verdict
from tests.harness.simulation.parts import ReplicaHost
from tests.harness.simulation.quota_checks import remaining_claims
from tests.harness.simulation.world import World

_STRAY_S: Seconds = 5.0
"""Longest time in seconds that a payload may run after the scheduler took its lease back, while all
processes are connected.
"""
_MOST_DEATHS = 3
_SILENT_S: Seconds = 8.0
"""Seconds until a silent connection is certainly given up."""


class StrayWatch:
    """Checks that replicas run only leases of the leading scheduler.

    Two replicas may run one inference at once if the first was believed lost. The scheduler holds
    one lease of it, so the other run is a stray, and stops as soon as its replica can be informed.
    A lease of an earlier scheduler that no ingress claims may run as long as an ingress may be
    silent.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._since: dict[tuple[str, LeaseId], Seconds] = {}

    def look(self) -> None:
        """Check all replicas; called about once a second."""
        world = self._world
        now, scheduler = world.recorder.now, world.scheduler
        strays: dict[tuple[str, LeaseId], Seconds] = {}
        calm = world.network.conditions.loses_no_message and scheduler.in_charge
        if calm and not scheduler.answers.core.recovery.holding:
            for replica in world.seats:
                if self._is_connected(replica):
                    for lease_id in self._is_unknown_to_scheduler(replica):
                        name = (replica.replica_id, lease_id)
                        strays[name] = self._since.get(name, now)
        self._since = strays
        for (replica_id, lease_id), since in strays.items():
            own = f"{scheduler.answers.office}-"
            ingress_s = world.config.scheduler.ingress_timeout_s
            most_s = _STRAY_S + (0.0 if lease_id.startswith(own) else ingress_s)
            if now - since > most_s:
                world.recorder.add_failure(
                    "replicas_run_what_they_are_leased",
                    f"{replica_id} has run {lease_id} for {now - since:.1f} s, which is not its",
                )

    def _is_connected(self, replica: ReplicaHost) -> bool:
        world = self._world
        if not replica.is_pulling or not hasattr(replica.answers, "puller"):
            return False
        joined = world.connections.joins(replica.process, world.scheduler.process)
        return joined and replica.answers.puller.epoch == world.scheduler.answers.office

    def _is_unknown_to_scheduler(self, replica: ReplicaHost) -> Iterator[LeaseId]:
        leases = self._world.scheduler.answers.core.state.leases
        for lease_id in replica.answers.leases.running:
            lease = leases.get(lease_id)
            if lease is None or lease.replica_id != replica.replica_id:
                yield lease_id


class OrphanWatch:
    """Checks that no payload runs long after its ingress has died or lost the connection."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._since: dict[tuple[str, LeaseId], Seconds] = {}

    def look(self) -> None:
        """Check all replicas; called about once a second."""
        now = self._world.recorder.now
        orphans: dict[tuple[str, LeaseId], Seconds] = {}
        for replica in self._world.seats:
            for lease_id, is_known in self._orphaned_payloads(replica):
                name = (replica.replica_id, lease_id)
                orphans[name] = self._since.get(name, now)
                for_s = now - orphans[name]
                if for_s > (0.0 if is_known else _SILENT_S):
                    self._world.recorder.add_failure(
                        "payloads_end_with_their_callers",
                        f"{replica.replica_id} has run {lease_id} for nobody for {for_s:.1f} s",
                    )
        self._since = orphans

    def _orphaned_payloads(self, replica: ReplicaHost) -> Iterator[tuple[LeaseId, bool]]:
        """Yield (payload without a caller, whether the replica has noticed)."""
        if not replica.is_pulling or not hasattr(replica.answers, "leases"):
            return
        there = {host.name for host in self._world.ingresses if host.process.alive}
        for lease_id in replica.answers.leases.running:
            caller = replica.answers.callers[lease_id]
            if caller.is_lost or caller.peer.name not in there:
                yield lease_id, caller.is_lost


def every_call_has_its_answer(world: World) -> None:
    """Check that each call whose client stayed was answered once, with the correct text.

    A stream may be cut where the protocol does not allow it to continue. A call may be refused if
    the application was cancelled, for a deadline, for a quota, or if engines die of it. A call or
    stream may be given up that has used as many leases as `ingress.attempts`, all at unreachable
    replicas.
    """
    for record in world.callers.records:
        wrong = _describe_wrong_answer(world, record)
        if wrong:
            name = f"{record.planned.name} of {record.application_id}"
            world.recorder.add_failure("every_call_has_its_answer", f"{name}: {wrong}")


def _describe_wrong_answer(world: World, record: CallRecord) -> str:
    if record.verdict is Verdict.OPEN:
        return f"has no answer after {record.tries} tries"
    if record.verdict is Verdict.LEFT:
        return ""
    if record.killed or record.planned.kills_engine:
        is_right = record.killed and record.planned.kills_engine
        may_be_limited = record.limited and _may_exceed_quota(world, record)
        return "" if is_right or may_be_limited else f"{record.verdict}: {record.detail}"
    if record.verdict is Verdict.REFUSED:
        may_be_refused = record.cancelled or (record.missed and record.planned.deadline_s)
        may_be_refused = may_be_refused or (record.limited and _may_exceed_quota(world, record))
        may_be_refused = may_be_refused or (
            record.gave_up and _may_run_out_of_leases(world, record)
        )
        return "" if may_be_refused else f"was refused: {record.detail}"
    if record.verdict is Verdict.CUT:
        may_be_cut = record.cancelled or record.planned.choices > 1 or record.limited
        may_be_cut = may_be_cut or (record.gave_up and _may_run_out_of_leases(world, record))
        return "" if may_be_cut else f"was cut: {record.detail}"
    if record.detail or record.answer is None:
        return record.detail or "was answered with nothing"
    expected = record.planned.fake_answer(world.model, world.plan.kv_tokens)
    return describe_difference(expected, record.answer)


def killers_take_few_engines(world: World) -> None:
    """Check that a call that kills engines kills at most two, or three if its runs differ.

    With other faults its client may have to repeat the call, or the count may be lost.
    """
    for record in world.callers.records:
        deaths = world.recorder.killed[record.planned.name]
        most = _MOST_DEATHS * (record.tries + len(world.plan.faults))
        if deaths > most:
            detail = f"{deaths} engines died of {record.planned.name}, at most {most} may"
            world.recorder.add_failure("killers_take_few_engines", detail)


def _may_run_out_of_leases(world: World, record: CallRecord) -> bool:
    """Return whether a call may have used all its leases on unreachable replicas."""
    is_cut_off = all(lease.is_cut_off for lease in record.unusable)
    return is_cut_off and len(record.unusable) == world.config.ingress.attempts


def _may_exceed_quota(world: World, record: CallRecord) -> bool:
    """Return whether the quota named in a refusal exists and rejects calls.

    No quota is named if the accounts did not answer in time, which requires a fault of theirs or of
    this model.
    """
    if record.limited_by is None:
        accounts = world.accounts
        return accounts is not None and (accounts.are_struck or not world.plan.fault_free)
    quotas = world.plan.tenants.get(record.limited_by, {}).get("quotas", ())
    return any(quota["on_exhausted"] == OnExhausted.REJECT for quota in quotas)


def leftovers(world: World) -> list[str]:
    """Return the leases, KV tokens and tasks that remain after all clients are done."""
    left = []
    scheduler = world.scheduler
    if not scheduler.in_charge:
        return ["no scheduler is in office"]
    state = scheduler.answers.core.state
    left += [f"lease {lease_id}" for lease_id in state.leases]
    left += [f"inference {request_id}" for request_id in state.inferences]
    left += [f"application {name}" for name in state.applications]
    for replica in world.seats:
        if not replica.is_pulling:
            left.append(f"{replica.process.name} is away")
            continue
        leases = replica.answers.leases
        left += [f"{replica.replica_id} holds {lease_id}" for lease_id in leases.held_leases]
        left += [f"{replica.replica_id} has to tell of {one}" for one in leases.unconfirmed]
        used = world.plan.kv_tokens - replica.engine.free_kv_tokens()
        if used:
            left.append(f"{replica.replica_id} has {used} KV tokens in use")
        held = replica.engine.kept_kv().held_contexts
        if held:
            left.append(f"{replica.replica_id} holds {held} contexts")
        if leases.parked:
            left.append(f"{replica.replica_id} has {len(leases.parked)} parked payloads")
    for ingress in world.ingresses:
        pending = ingress.answers.client.pending
        left += [f"{ingress.process.name} has {one} pending" for one in pending.inferences]
        if pending.applications:
            left.append(f"{ingress.process.name} has {len(pending.applications)} open")
    holds = scheduler.answers.term.driver.holds
    if holds is not None:
        left += [f"holds of application {name}" for name in holds._replicas]
    mail = scheduler.answers.mail
    for lines in (mail.ingresses, mail.replicas):
        left += [f"{len(line)} messages to {name}" for name, line in lines.items() if line]
    return left + remaining_claims(world)


def nothing_is_left_over(world: World, left: list[str]) -> None:
    """Check that no lease, ticket, application, message or KV token remains at the end."""
    if left:
        world.recorder.add_failure("nothing_is_left_over", "; ".join(left[:8]))


def nothing_fails_unseen(world: World, uncaught_errors: list[str]) -> None:
    """Check that no task and no timer has ended with an uncaught error."""
    for error in uncaught_errors[:3]:
        world.recorder.add_failure("nothing_fails_unseen", error)


def tasks_end(world: World, tasks: dict[str, list[str]]) -> None:
    """Check that stopped parts and dead processes have no task left."""
    for name, left in tasks.items():
        if left:
            world.recorder.add_failure("tasks_end", f"{name}: {', '.join(left[:3])}")


def state_at_risk_is_bounded(world: World) -> None:
    """Check that a scheduler's death would lose at most one second of state."""
    redis, limit_s = world.redis, world.config.store.save_interval_s + 1.0
    if redis.saved_at is None or not world.scheduler.in_charge:
        return
    late_s = world.network.now - redis.saved_at
    if late_s > limit_s:
        world.recorder.add_failure(
            "state_at_risk_is_bounded", f"nothing was saved for {late_s:.1f} s"
        )


def all_happens_once(world: World) -> None:
    """Check that without faults each application ends once and each inference runs once."""
    if not world.plan.fault_free or world.plan.has_killer:
        return
    for name, times in world.recorder.ended.items():
        if times != 1:
            world.recorder.add_failure("all_happens_once", f"{name} ended {times} times")
    leased = Counter(lease.request_id for lease in world.recorder.leases.values())
    for request_id, times in leased.items():
        if times != 1:
            world.recorder.add_failure("all_happens_once", f"{request_id} was leased {times} times")
