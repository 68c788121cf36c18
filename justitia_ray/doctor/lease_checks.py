"""Inferences and leases: who waits for what, and whether the other side knows of it."""

from collections.abc import Iterator

from justitia_ray.doctor.finding import RESTART_SCHEDULER, Fact, Severity
from justitia_ray.doctor.look import OfficeLook
from justitia_ray.units import Seconds

_MORE_S: Seconds = 1.0
"""Beyond a limit: what is due is carried out by a timer, and reported a moment later."""


def lease_its_replica_does_not_hold(look: OfficeLook) -> Iterator[Fact]:
    """A lease is in the hands of the replica that it names, or its payload is yet to come."""
    for lease_id, lease in look.office.leases.items():
        replica = look.seen.replicas.get(lease.replica_id)
        if replica is None or lease_id in replica.held or lease_id in replica.unconfirmed:
            continue
        if lease.state == "running" or lease.age_s > look.limits.lease_s + _MORE_S:
            yield Fact(
                Severity.WRONG,
                lease_id,
                f"the scheduler counts lease {lease_id} (inference {lease.request_id}) as"
                f" {lease.state} on replica {lease.replica_id} since {lease.age_s:.1f} s, and the"
                " replica does not hold it",
                "its caller waits for nothing: restart that replica, and the inference runs again"
                " elsewhere; report it with --json",
            )


def held_lease_the_scheduler_does_not_know(look: OfficeLook) -> Iterator[Fact]:
    """A replica runs nothing that the scheduler has not leased to it."""
    if "leases" in look.office.left_out:
        return
    for replica_id, replica in look.seen.replicas.items():
        known = look.office.replicas.get(replica_id)
        unclaimed = () if known is None else known.unclaimed
        for lease_id, held in replica.held.items():
            if lease_id in look.office.leases or lease_id in unclaimed:
                continue
            told = "was told to stop it and still runs" if held.aborted else "holds"
            yield Fact(
                Severity.WRONG,
                f"{replica_id} {lease_id}",
                f"replica {replica_id} {told} lease {lease_id} ({held.state}, {held.age_s:.1f} s"
                " old), which the scheduler does not know",
                "its KV memory is used for nobody: if it stays, restart that replica; report it"
                " with --json",
            )


def lease_that_should_have_lapsed(look: OfficeLook) -> Iterator[Fact]:
    """A lease whose payload never comes is taken back."""
    for lease_id, lease in look.office.leases.items():
        replica = look.seen.replicas.get(lease.replica_id)
        armed = replica is not None and lease_id in replica.held
        if armed and lease.state == "granted" and lease.age_s > look.limits.lease_s + _MORE_S:
            yield Fact(
                Severity.WRONG,
                lease_id,
                f"lease {lease_id} on replica {lease.replica_id} was granted {lease.age_s:.1f} s"
                f" ago and its payload has not come; it should have lapsed after"
                f" {look.limits.lease_s:g} s (scheduler.lease_timeout_s)",
                f"the scheduler's timers do not run: report it with --json; {RESTART_SCHEDULER}",
            )


def inference_the_scheduler_has_lost(look: OfficeLook) -> Iterator[Fact]:
    """What an ingress waits for is in the scheduler's queue."""
    office, ingress = look.office, look.seen.ingress
    if "inferences" in office.left_out or ingress.epoch != office.epoch:
        return
    if office.held_back:
        return
    for request_id, waits in ingress.tickets.items():
        if waits and request_id not in office.inferences:
            yield Fact(
                Severity.WRONG,
                request_id,
                f"ingress {ingress.ingress_id} waits for a lease of inference {request_id}, which"
                " the scheduler does not know",
                f"its caller would wait for ever: report it with --json; {RESTART_SCHEDULER}",
            )


def inference_nobody_waits_for(look: OfficeLook) -> Iterator[Fact]:
    """What the scheduler holds for an ingress, that ingress waits for."""
    office, ingress = look.office, look.seen.ingress
    if ingress.left_out or ingress.epoch != office.epoch:
        return
    for request_id, inference in office.inferences.items():
        if inference.ingress_id == ingress.ingress_id and request_id not in ingress.tickets:
            yield Fact(
                Severity.WRONG,
                request_id,
                f"the scheduler has inference {request_id} of application"
                f" {inference.application_id} ({inference.state}), and its ingress"
                f" {ingress.ingress_id} does not wait for it any more",
                f"end its application: DELETE /v1/applications/{inference.application_id}; report"
                " it with --json",
            )


def inference_of_a_lost_ingress(look: OfficeLook) -> Iterator[Fact]:
    """Inferences end with the ingress that was to have their answers."""
    lost: dict[str, int] = {}
    for inference in look.office.inferences.values():
        if inference.ingress_id not in look.office.ingresses:
            lost[inference.ingress_id] = lost.get(inference.ingress_id, 0) + 1
    for ingress_id, count in lost.items():
        yield Fact(
            Severity.WRONG,
            ingress_id,
            f"{count} inferences are of ingress {ingress_id}, which the scheduler has given up",
            f"nobody can get their answers: report it with --json; {RESTART_SCHEDULER}",
        )


def queue_that_stands_still(look: OfficeLook) -> Iterator[Fact]:
    """What comes first is leased to a replica that is free for it."""
    office = look.office
    if office.first is None or office.recovering:
        return
    for replica_id, replica in office.replicas.items():
        if replica.free_for_first:
            yield Fact(
                Severity.WRONG,
                f"{replica_id} {office.first}",
                f"{office.waiting} inferences wait, and replica {replica_id} holds no lease and"
                f" has room for the first of them, {office.first}",
                f"if nothing else is wrong, report it with --json; {RESTART_SCHEDULER}",
            )
