"""What must hold of a history now and then, and in the end; a function for each rule.

The rules that hold at every step are in `witness`.
"""

from collections import Counter
from collections.abc import Iterator

from justitia_ray.serve.histories.answers import CallRecord, Verdict, expected_texts
from justitia_ray.serve.histories.hosts import ReplicaHost
from justitia_ray.serve.histories.world import MODEL, World
from justitia_ray.units import LeaseId, Seconds

_STRAY_S: Seconds = 5.0
"""So long may a payload run on after its scheduler has taken the lease back, if all are in touch:
a pull takes its word there, and a lease whose payload never came lapses after 5 s."""


class StrayWatch:
    """A replica runs what the scheduler in office holds it to have, or not for long.

    Two replicas may run one inference at once: where the first was taken for lost. The scheduler
    holds one lease of it, so the other one is a stray, and is to be stopped as soon as its replica
    can be told. A lease of an earlier scheduler that no ingress speaks for may run as long as an
    ingress may be silent.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._since: dict[tuple[str, LeaseId], Seconds] = {}

    def look(self) -> None:
        """Look at all replicas; once a second will do."""
        world = self._world
        now, scheduler = world.witness.now, world.scheduler
        strays: dict[tuple[str, LeaseId], Seconds] = {}
        calm = world.network.weather.calm and scheduler.in_charge
        if calm and not scheduler.answers.core.recovery.holding:
            for replica in world.seats:
                if self._in_touch(replica):
                    for lease_id in self._unknown(replica):
                        name = (replica.replica_id, lease_id)
                        strays[name] = self._since.get(name, now)
        self._since = strays
        own = f"{scheduler.answers.office}-"
        for (replica_id, lease_id), since in strays.items():
            ingress_s = world.config.scheduler.ingress_timeout_s
            most_s = _STRAY_S + (0.0 if lease_id.startswith(own) else ingress_s)
            if now - since > most_s:
                world.witness.fail(
                    "replicas_run_what_they_are_leased",
                    f"{replica_id} has run {lease_id} for {now - since:.1f} s, which is not its",
                )

    def _in_touch(self, replica: ReplicaHost) -> bool:
        world = self._world
        if not replica.pulls or not hasattr(replica.answers, "puller"):
            return False
        joined = world.network.joins(replica.process.name, "scheduler")
        return joined and replica.answers.puller.epoch == world.scheduler.answers.office

    def _unknown(self, replica: ReplicaHost) -> Iterator[LeaseId]:
        leases = self._world.scheduler.answers.core.state.leases
        for lease_id in replica.answers.desk.running:
            lease = leases.get(lease_id)
            if lease is None or lease.replica_id != replica.replica_id:
                yield lease_id


def every_call_has_its_answer(world: World) -> None:
    """Each call of a client that stayed is answered, once, with the right text.

    A stream may be cut where the protocol says that it cannot go on. A call may be refused if the
    application was cancelled.
    """
    for record in world.callers.records:
        wrong = _wrong(world, record)
        if wrong:
            name = f"{record.planned.name} of {record.application_id}"
            world.witness.fail("every_call_has_its_answer", f"{name}: {wrong}")


def _wrong(world: World, record: CallRecord) -> str:
    """Return what is wrong with the answer to a call; nothing if it is right."""
    if record.verdict is Verdict.OPEN:
        return f"has no answer after {record.tries} tries"
    if record.verdict is Verdict.LEFT:
        return ""
    if record.verdict is Verdict.REFUSED:
        return "" if record.cancelled else f"was refused: {record.detail}"
    if record.verdict is Verdict.CUT:
        may_be_cut = record.cancelled or record.planned.choices > 1
        return "" if may_be_cut else f"was cut: {record.detail}"
    if record.detail:
        return record.detail
    expected = expected_texts(record.planned, MODEL, world.plan.kv_tokens)
    if record.texts != expected:
        return f"was answered {record.texts}, {expected} is right"
    return ""


def leftovers(world: World) -> list[str]:
    """Return what is held though nobody wants anything any more; nothing if all is quiet."""
    left = []
    scheduler = world.scheduler
    if not scheduler.in_charge:
        return ["no scheduler is in office"]
    state = scheduler.answers.core.state
    left += [f"lease {lease_id}" for lease_id in state.leases]
    left += [f"inference {request_id}" for request_id in state.inferences]
    left += [f"application {name}" for name in state.applications]
    for replica in world.seats:
        if not replica.pulls:
            left.append(f"{replica.process.name} is away")
            continue
        desk = replica.answers.desk
        left += [f"{replica.replica_id} holds {lease_id}" for lease_id in desk.leases()]
        left += [f"{replica.replica_id} has to tell of {one}" for one in desk.unconfirmed()]
        used = world.plan.kv_tokens - replica.engine.free_kv_tokens()
        if used:
            left.append(f"{replica.replica_id} has {used} KV tokens in use")
        if desk.parked:
            left.append(f"{replica.replica_id} has {desk.parked} parked payloads")
    for ingress in world.ingresses:
        dispatcher = ingress.answers.dispatcher
        left += [f"{ingress.process.name} has ticket {one}" for one in dispatcher.tickets()]
        if dispatcher.open_applications():
            left.append(f"{ingress.process.name} has {dispatcher.open_applications()} open")
    mail = scheduler.answers.mail
    for lines in (mail.lines_to_ingresses(), mail.lines_to_replicas()):
        left += [f"{len(line)} messages to {name}" for name, line in lines.items() if line]
    return left


def nothing_is_left_over(world: World, left: list[str]) -> None:
    """In the end no lease, ticket, application, message or KV is held."""
    if left:
        world.witness.fail("nothing_is_left_over", "; ".join(left[:8]))


def nothing_fails_unseen(world: World, mishaps: list[str]) -> None:
    """No task and no timer has ended with an error that nobody has caught."""
    for mishap in mishaps[:3]:
        world.witness.fail("nothing_fails_unseen", mishap)


def tasks_end(world: World, tasks: dict[str, list[str]]) -> None:
    """Parts that were stopped, and processes that died, have no task left."""
    for name, left in tasks.items():
        if left:
            world.witness.fail("tasks_end", f"{name}: {', '.join(left[:3])}")


def state_at_risk_is_bounded(world: World) -> None:
    """With a store that answers, all but the last second outlives the scheduler."""
    redis, limit_s = world.redis, world.config.store.save_interval_s + 1.0
    if redis.saved_at is None or not world.scheduler.in_charge:
        return
    late_s = world.network.now - redis.saved_at
    if late_s > limit_s:
        world.witness.fail("state_at_risk_is_bounded", f"nothing was saved for {late_s:.1f} s")


def all_happens_once(world: World) -> None:
    """Without faults, an application ends once and an inference is leased once."""
    if not world.plan.fault_free:
        return
    for name, times in world.witness.ended.items():
        if times != 1:
            world.witness.fail("all_happens_once", f"{name} ended {times} times")
    leased = Counter(lease.request_id for lease in world.witness.leases.values())
    for request_id, times in leased.items():
        if times != 1:
            world.witness.fail("all_happens_once", f"{request_id} was leased {times} times")
