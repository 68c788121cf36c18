"""Rules of a running service: scheduler, ingresses, replicas, leases, applications, predictor.

Each rule compares two processes' reports of the same thing, or an age or a silence with its limit.
"""

from collections import Counter
from collections.abc import Iterator

from justitia_ray.doctor.rule import (
    RESTART_SCHEDULER,
    Breach,
    LeaderSnapshot,
    Rule,
    Severity,
    Snapshot,
    breach,
    breach_if,
    for_leader,
)
from justitia_ray.protocol.inspection import ApplicationFacts, Inspection, ReplicaFacts
from justitia_ray.units import ReplicaId, Seconds, Tokens

_LATE_S: Seconds = 5.0
"""Tolerance in seconds for limits that a busy machine exceeds."""
_TIMER_S: Seconds = 1.0
"""Seconds for which an expired lease may still be reported, because a timer ends the lease and only
the next report shows that.
"""
_UNUSED_DRAIN_S: Seconds = 30.0
"""Longest normal drain of an unused replica, in seconds; Serve stops the replica soon after its
last call.
"""
_LONGEST_DRAIN_S: Seconds = 600.0
"""Longest normal drain of a busy replica, in seconds; Serve's graceful shutdown takes no longer."""
_UNEXPLAINED_SHARE = 0.05
"""Share of the KV memory by which the engine's gauge and the leases may differ, because leases are
reported later.
"""


def _silent_ingresses(look: LeaderSnapshot) -> Iterator[Breach]:
    limit_s = min(look.limits.long_poll_s + _LATE_S, look.limits.ingress_s)
    for ingress_id, ingress in look.leader.ingresses.items():
        if ingress.silent_s > limit_s:
            yield breach(ingress_id, ingress=ingress, limits=look.limits)


def _ingresses_unknown_to_scheduler(look: LeaderSnapshot) -> Iterator[Breach]:
    if look.seen.serve is not None:
        runs, heard = look.seen.serve.ingresses, len(look.leader.ingresses)
        yield from breach_if(heard < runs, "ingresses", runs=runs, heard=heard)


def _parts_left_out(look: LeaderSnapshot) -> Iterator[Breach]:
    for name, missing in look.leader.left_out.items():
        yield breach(
            name,
            what=f"{missing:,} of the {name} were not looked at: there are too many",
            do="what needs all of them was not checked; examine again when there are fewer",
        )
    if look.leader.unchecked_rules is not None:
        yield breach(
            "rules",
            what="the scheduler's own rules were not looked at, which takes seconds with"
            f" {look.leader.unchecked_rules}",
            do="examine again when there are fewer",
        )


def _no_replica(look: LeaderSnapshot) -> Iterator[Breach]:
    scaling = look.leader.scaling
    if scaling is None or scaling.wanted:
        yield from breach_if(not look.leader.replicas, "replicas", waiting=look.leader.waiting)


def _silent_replicas(look: LeaderSnapshot) -> Iterator[Breach]:
    limit_s = max(look.limits.replica_s / 2, look.limits.heartbeat_s + 1.0)
    for replica_id, replica in look.leader.replicas.items():
        if replica.silent_s > limit_s:
            where = _location(look.seen, replica_id)
            yield breach(replica_id, replica=replica, where=where, limits=look.limits)


def _long_drains(look: LeaderSnapshot) -> Iterator[Breach]:
    for replica_id, replica in look.leader.replicas.items():
        limit_s = _LONGEST_DRAIN_S if replica.leases else _UNUSED_DRAIN_S
        if replica.draining_s is not None and replica.draining_s > limit_s:
            yield breach(replica_id, replica=replica, where=_location(look.seen, replica_id))


def _unexplained_kv(look: LeaderSnapshot) -> Iterator[Breach]:
    for replica_id, replica in look.leader.replicas.items():
        own = look.seen.replicas.get(replica_id)
        unused = not replica.leases and own is not None and not own.held
        used = replica.unexplained_kv_tokens
        if used > _tolerated_kv_tokens(replica, unused=unused):
            yield breach(replica_id, replica=replica, used=used, share=used / replica.kv_tokens)


def _tolerated_kv_tokens(replica: ReplicaFacts, *, unused: bool) -> Tokens:
    blocks = 2 * replica.block_size
    return blocks if unused else max(blocks, round(_UNEXPLAINED_SHARE * replica.kv_tokens))


def _leases_not_held(look: LeaderSnapshot) -> Iterator[Breach]:
    for lease_id, lease in look.leader.leases.items():
        replica = look.seen.replicas.get(lease.replica_id)
        if replica is None or lease_id in replica.held or lease_id in replica.unconfirmed:
            continue
        if lease.state == "running" or lease.age_s > look.limits.lease_s + _TIMER_S:
            yield breach(lease_id, lease=lease)


def _unknown_leases(look: LeaderSnapshot) -> Iterator[Breach]:
    if "leases" in look.leader.left_out:
        return
    for replica_id, replica in look.seen.replicas.items():
        known = look.leader.replicas.get(replica_id)
        unclaimed = () if known is None else known.unclaimed
        for lease_id, held in replica.held.items():
            if lease_id not in look.leader.leases and lease_id not in unclaimed:
                yield breach(
                    f"{replica_id} {lease_id}",
                    replica_id=replica_id,
                    lease_id=lease_id,
                    held=held,
                    told="was told to stop it and still runs" if held.aborted else "holds",
                )


def _overdue_leases(look: LeaderSnapshot) -> Iterator[Breach]:
    for lease_id, lease in look.leader.leases.items():
        replica = look.seen.replicas.get(lease.replica_id)
        armed = replica is not None and lease_id in replica.held
        if armed and lease.state == "granted" and lease.age_s > look.limits.lease_s + _TIMER_S:
            yield breach(lease_id, lease=lease, limits=look.limits)


def _lost_inferences(look: LeaderSnapshot) -> Iterator[Breach]:
    leader, ingress = look.leader, look.seen.ingress
    if "inferences" in leader.left_out or leader.held_back or ingress.epoch != leader.epoch:
        return
    for request_id, waits in ingress.tickets.items():
        if waits and request_id not in leader.inferences:
            yield breach(request_id, ingress=ingress)


def _unawaited_inferences(look: LeaderSnapshot) -> Iterator[Breach]:
    leader, ingress = look.leader, look.seen.ingress
    if ingress.left_out or ingress.epoch != leader.epoch:
        return
    for request_id, inference in leader.inferences.items():
        if inference.ingress_id == ingress.ingress_id and request_id not in ingress.tickets:
            yield breach(request_id, inference=inference)


def _inferences_of_lost_ingresses(look: LeaderSnapshot) -> Iterator[Breach]:
    owners = Counter(inference.ingress_id for inference in look.leader.inferences.values())
    for ingress_id, count in owners.items():
        if ingress_id not in look.leader.ingresses:
            yield breach(ingress_id, count=count)


def _idle_seats(look: LeaderSnapshot) -> Iterator[Breach]:
    leader = look.leader
    if leader.first is None or leader.recovering:
        return
    for replica_id, replica in leader.replicas.items():
        if replica.free_for_first:
            yield breach(f"{replica_id} {leader.first}", leader=leader, replica_id=replica_id)


def _unclaimed_applications(look: LeaderSnapshot) -> Iterator[Breach]:
    for application_id, application in look.leader.applications.items():
        if application.ingress_id not in look.leader.ingresses:
            rest = ""
            if application.idle_s is not None:
                left_s = max(0.0, _idle_limit_s(look, application) - application.idle_s)
                rest = f"; it ends by itself in {left_s:.0f} s"
            yield breach(application_id, rest=rest)


def _idle_too_long(look: LeaderSnapshot) -> Iterator[Breach]:
    for application_id, application in look.leader.applications.items():
        limit_s = _idle_limit_s(look, application)
        if (application.idle_s or 0.0) > limit_s + _LATE_S:
            own = application.idle_limit_s is not None
            source = "its own idle time" if own else "scheduler.application_idle_s"
            yield breach(application_id, application=application, limit_s=limit_s, source=source)


def _idle_limit_s(look: LeaderSnapshot, application: ApplicationFacts) -> Seconds:
    """Return the seconds for which an application may be idle before it ends."""
    own = application.idle_limit_s
    return look.limits.application_s if own is None else own


def _lone_predictor_without_learning(look: Snapshot) -> Iterator[Breach]:
    serve, store = look.seen.serve, look.store
    if serve is None or store is None or store.kind == "none" or serve.predictors != 1:
        return
    yield from breach_if(look.predictor_trouble is None and not look.predictor_learns, "predictor")


def _location(seen: Inspection, replica_id: ReplicaId) -> str:
    """Return process and node of a replica as text, as far as Serve knows them."""
    serve = seen.serve
    replica = None if serve is None else serve.replicas.get(replica_id)
    if replica is None:
        return "process not known to Serve"
    return f"process {replica.pid} on node {replica.node_ip}"


SERVICE_RULES: tuple[Rule[[Snapshot]], ...] = (
    Rule(
        "scheduler_that_gives_no_answer",
        Severity.WRONG,
        "The scheduler answers.",
        lambda look: breach_if(
            "scheduler" in look.seen.silent, "scheduler", reason=look.seen.silent.get("scheduler")
        ),
        "the scheduler gives no answer: {reason}",
        "Ray starts it again within seconds; if it does not, see `ray list actors` for why,"
        " whether a node has the CPUs it asks for (scheduler.num_cpus), and its log",
    ),
    Rule(
        "scheduler_out_of_office",
        Severity.WRONG,
        "The scheduler is the leader: it has its epoch from the store, and grants.",
        lambda look: (
            breach("scheduler", reason=scheduler.degraded or "it has not said why")
            for scheduler in [look.seen.scheduler]
            if scheduler is not None and not scheduler.ready
        ),
        "the scheduler is not in office: {reason}",
        "nothing is granted meanwhile; do what it says. One that starts waits for Redis: see"
        " that it runs and can be reached from the scheduler's node",
    ),
    Rule(
        "scheduler_that_breaks_its_rules",
        Severity.WRONG,
        "The scheduler's state agrees with itself.",
        for_leader(
            lambda look: (
                breach(broken.partition(":")[0], broken=broken)
                for broken in look.leader.broken_rules
            )
        ),
        "the scheduler's state breaks a rule of its own: {broken}",
        f"this is a bug: report it with --json; {RESTART_SCHEDULER}",
    ),
    Rule(
        "scheduler_that_recovers",
        Severity.NOTE,
        "Grants do not wait for the reports that follow a scheduler's restart.",
        for_leader(lambda look: breach_if(look.leader.recovering, "scheduler")),
        "the scheduler has just taken office and waits for its replicas to report; nothing is"
        " granted meanwhile",
        "wait for scheduler.recovery_s, and examine again",
    ),
    Rule(
        "ingress_of_another_epoch",
        Severity.WRONG,
        "All ingresses follow the leader.",
        for_leader(
            lambda look: breach_if(
                look.seen.ingress.epoch != look.leader.epoch,
                look.seen.ingress.ingress_id,
                ingress=look.seen.ingress,
                leader=look.leader,
            )
        ),
        "ingress {subject} follows epoch {ingress.epoch}, the scheduler is of epoch"
        " {leader.epoch}: what is sent to that ingress waits",
        "a higher epoch says that another scheduler of the same name is or was in office: see"
        " which Redis each uses; if it stays so, restart that ingress",
    ),
    Rule(
        "ingress_that_is_silent",
        Severity.RISK,
        "An ingress polls for its grants without a pause.",
        for_leader(_silent_ingresses),
        "ingress {subject} has been silent for {ingress.silent_s:.1f} s and has {ingress.unread}"
        " messages to read; its inferences end after {limits.ingress_s:g} s",
        "one that was replaced is gone soon; if it is none of those, see whether its process"
        " hangs, and kill it",
    ),
    Rule(
        "ingress_the_scheduler_does_not_hear",
        Severity.WRONG,
        "As many ingresses call the scheduler as Serve runs.",
        for_leader(_ingresses_unknown_to_scheduler),
        "Serve runs {runs} ingresses, and the scheduler hears of {heard}: what is sent to the"
        " others waits for ever",
        "see the logs of deployment Ingress for scheduler.call_failed; one that follows another"
        " epoch, or hangs, is to be killed",
    ),
    Rule(
        "serve_that_gives_no_answer",
        Severity.RISK,
        "Serve's controller answers.",
        lambda look: breach_if(
            "serve" in look.seen.silent, "serve", reason=look.seen.silent.get("serve")
        ),
        "Ray Serve gives no answer: {reason}; what runs goes on, and nothing that dies is started"
        " again",
        "see `serve status` and `ray status`: the head node or its GCS may be away",
    ),
    Rule(
        "tables_not_seen_whole",
        Severity.NOTE,
        "The scheduler's tables and rules are inspected whole.",
        for_leader(_parts_left_out),
        "{what}",
        "{do}",
    ),
    Rule(
        "no_replica",
        Severity.WRONG,
        "At least one replica pulls work, unless none is wanted.",
        for_leader(_no_replica),
        "no replica pulls; {waiting} inferences wait",
        "engines may be loading: see `serve status`, and the logs of deployment Replica",
    ),
    Rule(
        "replica_that_is_silent",
        Severity.WRONG,
        "A replica calls at every heartbeat.",
        for_leader(_silent_replicas),
        "replica {subject} ({where}) has been silent for {replica.silent_s:.1f} s; it is given up"
        " after {limits.replica_s:g} s, if it has a connection with that, and its inferences run"
        " elsewhere then",
        "see whether its process is stopped or busy (`py-spy dump --pid`), and its node starved of"
        " CPU; it keeps its leases for `transport.standstill_s`. If it hangs, kill it and Serve"
        " starts another",
    ),
    Rule(
        "replica_that_gives_no_answer",
        Severity.WRONG,
        "A replica answers calls.",
        lambda look: (
            breach(name, where=_location(look.seen, name), reason=reason)
            for name, reason in look.seen.silent.items()
            if name not in ("scheduler", "serve")
        ),
        "replica {subject} ({where}) gives no answer: {reason}",
        "see whether its process lives; if it hangs, kill it and Serve starts another",
    ),
    Rule(
        "replica_the_scheduler_does_not_hear",
        Severity.WRONG,
        "A replica that Serve counts as running pulls work.",
        for_leader(
            lambda look: (
                breach(replica_id, where=_location(look.seen, replica_id))
                for replica_id, replica in (
                    {} if look.seen.serve is None else look.seen.serve.replicas
                ).items()
                if replica.state == "RUNNING" and replica_id not in look.leader.replicas
            )
        ),
        "Serve runs replica {subject} ({where}), and the scheduler does not hear of it: it is"
        " given no work",
        "if it hangs, kill its process and Serve starts another; if it lives, see its log for"
        " scheduler.call_failed",
    ),
    Rule(
        "replica_of_another_epoch",
        Severity.WRONG,
        "All replicas follow the leader.",
        for_leader(
            lambda look: (
                breach(replica_id, replica=replica, leader=look.leader)
                for replica_id, replica in look.seen.replicas.items()
                if replica.epoch not in (0, look.leader.epoch)
            )
        ),
        "replica {subject} follows epoch {replica.epoch}, the scheduler is of epoch {leader.epoch}",
        "a higher epoch says that another scheduler of the same name is or was in office: see"
        " which Redis each uses; a replica behind for long is to be killed",
    ),
    Rule(
        "replica_that_drains_for_long",
        Severity.RISK,
        "A draining replica leaves soon after its last lease.",
        for_leader(_long_drains),
        "replica {subject} ({where}) has taken no new lease for {replica.draining_s:.0f} s and"
        " holds {replica.leases}",
        "it is neither used nor ended: see `serve status`; kill its process if Serve does not end"
        " it",
    ),
    Rule(
        "stalled_replica",
        Severity.WRONG,
        "An engine that has work makes steps.",
        for_leader(
            lambda look: (
                breach(replica_id, where=_location(look.seen, replica_id), replica=replica)
                for replica_id, replica in look.leader.replicas.items()
                if replica.stalled_s is not None
            )
        ),
        "replica {subject} ({where}) has been stalled for {replica.stalled_s:.0f} s: its engine is"
        " alive, has work and makes no steps; its leases go on elsewhere, and it gets no new ones",
        "after `replica.stall_replace_s` it is killed and Serve starts another; its log says in"
        " `replica.stalled` whether a process of the engine is stopped (`kill -CONT` lets it go"
        " on). If its steps do take that long, raise `replica.stall_allowance_s`",
    ),
    Rule(
        "engine_in_trouble",
        Severity.WRONG,
        "An engine that cannot go on takes its process with it.",
        lambda look: (
            breach(replica_id, where=_location(look.seen, replica_id), replica=replica)
            for replica_id, replica in look.seen.replicas.items()
            if replica.engine is not None
        ),
        "the engine of replica {subject} ({where}) cannot go on: {replica.engine}",
        "Serve starts another when the process has left, which takes seconds; if it stays, kill"
        " it, and see its log for the cause",
    ),
    Rule(
        "kv_that_no_lease_explains",
        Severity.WRONG,
        "KV memory in use belongs to a lease.",
        for_leader(_unexplained_kv),
        "replica {subject} uses {used:,} tokens of KV memory ({share:.0%}) that none of its"
        " {replica.leases} leases explains",
        "it has less room than it could have: if it stays so, drain it or kill its process;"
        " report it with the engine's version",
    ),
    Rule(
        "mail_that_is_not_read",
        Severity.WRONG,
        "A replica reads the scheduler's messages with its next pull.",
        for_leader(
            lambda look: (
                breach(f"{name} {replica.next_unread}", replica_id=name, replica=replica)
                for name, replica in look.leader.replicas.items()
                if replica.next_unread is not None
            )
        ),
        "replica {replica_id} has not read {replica.unread} messages of the scheduler",
        "leases in them lapse and are granted again: see its log for scheduler.call_failed; if it"
        " hangs, kill its process",
    ),
    Rule(
        "lease_its_replica_does_not_hold",
        Severity.WRONG,
        "A lease is held by the replica that it names, or its payload is yet to come.",
        for_leader(_leases_not_held),
        "the scheduler counts lease {subject} (inference {lease.request_id}) as {lease.state} on"
        " replica {lease.replica_id} since {lease.age_s:.1f} s, and the replica does not hold it",
        "its caller waits for nothing: restart that replica, and the inference runs again"
        " elsewhere; report it with --json",
    ),
    Rule(
        "held_lease_the_scheduler_does_not_know",
        Severity.WRONG,
        "A replica runs nothing that the scheduler has not leased to it.",
        for_leader(_unknown_leases),
        "replica {replica_id} {told} lease {lease_id} ({held.state}, {held.age_s:.1f} s old),"
        " which the scheduler does not know",
        "its KV memory is used for nobody: if it stays, restart that replica; report it with"
        " --json",
    ),
    Rule(
        "lease_that_should_have_lapsed",
        Severity.WRONG,
        "A lease whose payload never comes expires.",
        for_leader(_overdue_leases),
        "lease {subject} on replica {lease.replica_id} was granted {lease.age_s:.1f} s ago and its"
        " payload has not come; it should have lapsed after {limits.lease_s:g} s"
        " (scheduler.lease_timeout_s)",
        f"the scheduler's timers do not run: report it with --json; {RESTART_SCHEDULER}",
    ),
    Rule(
        "inference_the_scheduler_has_lost",
        Severity.WRONG,
        "An inference that an ingress waits for is in the scheduler's queue.",
        for_leader(_lost_inferences),
        "ingress {ingress.ingress_id} waits for a lease of inference {subject}, which the"
        " scheduler does not know",
        f"its caller would wait for ever: report it with --json; {RESTART_SCHEDULER}",
    ),
    Rule(
        "inference_nobody_waits_for",
        Severity.WRONG,
        "An ingress waits for each of its inferences that the scheduler holds.",
        for_leader(_unawaited_inferences),
        "the scheduler has inference {subject} of application {inference.application_id}"
        " ({inference.state}), and its ingress {inference.ingress_id} does not wait for it any"
        " more",
        "end its application: DELETE /v1/applications/{inference.application_id}; report it with"
        " --json",
    ),
    Rule(
        "inference_of_a_lost_ingress",
        Severity.WRONG,
        "Inferences end with the ingress that was to have their answers.",
        for_leader(_inferences_of_lost_ingresses),
        "{count} inferences are of ingress {subject}, which the scheduler has given up",
        f"nobody can get their answers: report it with --json; {RESTART_SCHEDULER}",
    ),
    Rule(
        "queue_that_stands_still",
        Severity.WRONG,
        "The first inference in order is leased to a replica that is free for it.",
        for_leader(_idle_seats),
        "{leader.waiting} inferences wait, and replica {replica_id} holds no lease and has room"
        " for the first of them, {leader.first}",
        f"if nothing else is wrong, report it with --json; {RESTART_SCHEDULER}",
    ),
    Rule(
        "tag_behind_the_clock",
        Severity.WRONG,
        "GPS serves an application as long as its tag F is ahead of V, and no longer.",
        for_leader(
            lambda look: (
                breach(
                    application_id,
                    state="still" if application.active else "no longer",
                    application=application,
                )
                for application_id, application in look.leader.applications.items()
                if application.active != (application.finish > application.clock)
            )
        ),
        "application {subject} is {state} served by the fair share's model, with its tag F at"
        " {application.finish:,.0f} and V at {application.clock:,.0f}",
        "its place in the order is not the one that is due: this is a bug, report it with"
        f" --json; {RESTART_SCHEDULER}",
    ),
    Rule(
        "application_that_should_have_ended",
        Severity.WRONG,
        "An idle application ends by itself.",
        for_leader(_idle_too_long),
        "application {subject} has been idle for {application.idle_s:.0f} s, and should have ended"
        " after {limit_s:g} s ({source})",
        "end it: DELETE /v1/applications/{subject}; report it with --json",
    ),
    Rule(
        "application_nobody_speaks_for",
        Severity.NOTE,
        "The ingress of an application is alive; without it, the caller goes on elsewhere.",
        for_leader(_unclaimed_applications),
        "application {subject} was opened at an ingress that is gone, and no other has heard of it"
        " since{rest}",
        "nothing: if its caller goes on, so does it; to end it now: DELETE"
        " /v1/applications/{subject}",
    ),
    Rule(
        "predictor_that_gives_no_answer",
        Severity.RISK,
        "The predictor answers.",
        lambda look: breach_if(
            look.predictor_trouble is not None, "predictor", reason=look.predictor_trouble
        ),
        "the predictor gives no answer: {reason}; ingresses go by their copy of the mean costs of"
        " classes",
        "see `serve status` for deployment Predictor, and its log",
    ),
    Rule(
        "predictor_that_does_not_learn",
        Severity.RISK,
        "One of the predictors learns, and keeps what it learns.",
        _lone_predictor_without_learning,
        "the only predictor does not learn: it cannot reach its store, or the place of the one"
        " that learns is still held by another",
        "see its log for predictor.store_fails; a place whose holder died is free again within a"
        " minute",
    ),
)
"""Rules about the reports of the service's processes."""
