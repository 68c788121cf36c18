"""Replicas: whether each is heard, listens to the scheduler in office, and frees what it used."""

from collections.abc import Iterator

from justitia_ray.doctor.finding import Fact, Severity
from justitia_ray.doctor.look import Look, OfficeLook
from justitia_ray.protocol.examination import Examination
from justitia_ray.units import ReplicaId, Seconds, Tokens

_UNUSED_DRAIN_S: Seconds = 30.0
"""Serve stops a replica that is to leave within seconds of its last call."""
_LONGEST_DRAIN_S: Seconds = 600.0
"""Serve's graceful shutdown of a replica takes no longer."""
_UNEXPLAINED_SHARE = 0.05
"""Of the KV memory: leases are reported a moment after the gauge moves."""


def no_replica(look: OfficeLook) -> Iterator[Fact]:
    """Somebody pulls work."""
    if not look.office.replicas:
        yield Fact(
            Severity.WRONG,
            "replicas",
            f"no replica pulls; {look.office.waiting} inferences wait",
            "engines may be loading: see `serve status`, and the logs of deployment Replica",
        )


def replica_that_is_silent(look: OfficeLook) -> Iterator[Fact]:
    """A replica calls at every heartbeat."""
    limit_s = max(look.limits.replica_s / 2, look.limits.heartbeat_s + 1.0)
    for replica_id, replica in look.office.replicas.items():
        if replica.silent_s > limit_s:
            yield Fact(
                Severity.WRONG,
                replica_id,
                f"replica {replica_id} ({_where(look.seen, replica_id)}) has been silent for"
                f" {replica.silent_s:.1f} s; it is given up after {look.limits.replica_s:g} s, and"
                " its inferences run elsewhere",
                "see whether its process lives and its node is starved of CPU; if it hangs, kill"
                " it and Serve starts another",
            )


def replica_that_gives_no_answer(look: Look) -> Iterator[Fact]:
    """A replica answers calls."""
    for name, reason in look.seen.silent.items():
        if name in ("scheduler", "serve"):
            continue
        yield Fact(
            Severity.WRONG,
            name,
            f"replica {name} ({_where(look.seen, name)}) gives no answer: {reason}",
            "see whether its process lives; if it hangs, kill it and Serve starts another",
        )


def replica_the_scheduler_does_not_hear(look: OfficeLook) -> Iterator[Fact]:
    """What Serve takes for a running replica pulls work."""
    if look.seen.serve is None:
        return
    for replica_id, replica in look.seen.serve.replicas.items():
        if replica.state == "RUNNING" and replica_id not in look.office.replicas:
            yield Fact(
                Severity.WRONG,
                replica_id,
                f"Serve runs replica {replica_id} ({_where(look.seen, replica_id)}), and the"
                " scheduler does not hear of it: it is given no work",
                "if it hangs, kill its process and Serve starts another; if it lives, see its log"
                " for scheduler.call_failed",
            )


def replica_of_another_epoch(look: OfficeLook) -> Iterator[Fact]:
    """All replicas follow the scheduler in office."""
    for replica_id, replica in look.seen.replicas.items():
        if replica.epoch not in (0, look.office.epoch):
            yield Fact(
                Severity.WRONG,
                replica_id,
                f"replica {replica_id} follows epoch {replica.epoch}, the scheduler is of epoch"
                f" {look.office.epoch}",
                "a higher epoch says that another scheduler of the same name is or was in office:"
                " see which Redis each uses; a replica behind for long is to be killed",
            )


def replica_that_drains_for_long(look: OfficeLook) -> Iterator[Fact]:
    """A replica that takes no more leases leaves soon after its last."""
    for replica_id, replica in look.office.replicas.items():
        limit_s = _LONGEST_DRAIN_S if replica.leases else _UNUSED_DRAIN_S
        if replica.draining_s is not None and replica.draining_s > limit_s:
            yield Fact(
                Severity.RISK,
                replica_id,
                f"replica {replica_id} ({_where(look.seen, replica_id)}) has taken no new lease for"
                f" {replica.draining_s:.0f} s and holds {replica.leases}",
                "it is neither used nor ended: see `serve status`; kill its process if Serve does"
                " not end it",
            )


def engine_in_trouble(look: Look) -> Iterator[Fact]:
    """An engine that cannot go on takes its process with it."""
    for replica_id, replica in look.seen.replicas.items():
        if replica.engine is not None:
            yield Fact(
                Severity.WRONG,
                replica_id,
                f"the engine of replica {replica_id} ({_where(look.seen, replica_id)}) cannot go"
                f" on: {replica.engine}",
                "Serve starts another when the process has left, which takes seconds; if it stays,"
                " kill it, and see its log for the cause",
            )


def kv_that_no_lease_explains(look: OfficeLook) -> Iterator[Fact]:
    """KV memory in use belongs to a lease."""
    for replica_id, replica in look.office.replicas.items():
        own = look.seen.replicas.get(replica_id)
        unused = not replica.leases and own is not None and not own.held
        least = _least_unexplained(replica.kv_tokens, replica.block_size, unused=unused)
        used = replica.unexplained_kv_tokens
        if used > least:
            yield Fact(
                Severity.WRONG,
                replica_id,
                f"replica {replica_id} uses {used:,} tokens of KV memory"
                f" ({used / replica.kv_tokens:.0%}) that none of its {replica.leases} leases"
                " explains",
                "it has less room than it could have: if it stays so, drain it or kill its"
                " process; report it with the engine's version",
            )


def mail_that_is_not_read(look: OfficeLook) -> Iterator[Fact]:
    """A replica reads what it is told with its next pull."""
    for replica_id, replica in look.office.replicas.items():
        if replica.next_unread is not None:
            yield Fact(
                Severity.WRONG,
                f"{replica_id} {replica.next_unread}",
                f"replica {replica_id} has not read {replica.unread} messages of the scheduler",
                "leases in them lapse and are granted again: see its log for"
                " scheduler.call_failed; if it hangs, kill its process",
            )


def _least_unexplained(kv_tokens: Tokens, block_size: Tokens, *, unused: bool) -> Tokens:
    return 2 * block_size if unused else max(2 * block_size, round(_UNEXPLAINED_SHARE * kv_tokens))


def _where(seen: Examination, replica_id: ReplicaId) -> str:
    """Return where a replica's process is, as far as Serve knows."""
    serve = seen.serve
    replica = None if serve is None else serve.replicas.get(replica_id)
    if replica is None:
        return "process not known to Serve"
    return f"process {replica.pid} on node {replica.node_ip}"
