"""The scheduler, and who speaks to it."""

from collections.abc import Iterator

from justitia_ray.doctor.finding import RESTART_SCHEDULER, Fact, Severity
from justitia_ray.doctor.look import Look, OfficeLook
from justitia_ray.units import Seconds

_LATE_S: Seconds = 5.0
"""Beyond a limit, on machines that are busy."""


def scheduler_that_gives_no_answer(look: Look) -> Iterator[Fact]:
    """The scheduler answers."""
    reason = look.seen.silent.get("scheduler")
    if reason is not None:
        yield Fact(
            Severity.WRONG,
            "scheduler",
            f"the scheduler gives no answer: {reason}",
            "Ray starts it again within seconds; if it does not, see `ray list actors` for why,"
            " whether a node has the CPUs it asks for (scheduler.num_cpus), and its log",
        )


def scheduler_out_of_office(look: Look) -> Iterator[Fact]:
    """The scheduler is in office: it has its epoch from the store, and grants."""
    scheduler = look.seen.scheduler
    if scheduler is not None and not scheduler.ready:
        yield Fact(
            Severity.WRONG,
            "scheduler",
            f"the scheduler is not in office: {scheduler.degraded or 'it has not said why'}",
            "nothing is granted meanwhile; do what it says. One that starts waits for Redis: see"
            " that it runs and can be reached from the scheduler's node",
        )


def scheduler_that_breaks_its_rules(look: OfficeLook) -> Iterator[Fact]:
    """The scheduler's state agrees with itself."""
    for broken in look.office.broken_rules:
        yield Fact(
            Severity.WRONG,
            broken.partition(":")[0],
            f"the scheduler's state breaks a rule of its own: {broken}",
            f"this is a bug: report it with --json; {RESTART_SCHEDULER}",
        )


def scheduler_that_recovers(look: OfficeLook) -> Iterator[Fact]:
    """After a restart, grants wait until the replicas have reported."""
    if look.office.recovering:
        yield Fact(
            Severity.NOTE,
            "scheduler",
            "the scheduler has just taken office and waits for its replicas to report; nothing is"
            " granted meanwhile",
            "wait for scheduler.recovery_s, and examine again",
        )


def ingress_of_another_epoch(look: OfficeLook) -> Iterator[Fact]:
    """All ingresses follow the scheduler in office."""
    ingress = look.seen.ingress
    if ingress.epoch != look.office.epoch:
        yield Fact(
            Severity.WRONG,
            ingress.ingress_id,
            f"ingress {ingress.ingress_id} follows epoch {ingress.epoch}, the scheduler is of"
            f" epoch {look.office.epoch}: what is sent to that ingress waits",
            "a higher epoch says that another scheduler of the same name is or was in office: see"
            " which Redis each uses; if it stays so, restart that ingress",
        )


def ingress_that_is_silent(look: OfficeLook) -> Iterator[Fact]:
    """An ingress asks for its grants again and again."""
    limit_s = min(look.limits.long_poll_s + _LATE_S, look.limits.ingress_s)
    for ingress_id, ingress in look.office.ingresses.items():
        if ingress.silent_s > limit_s:
            yield Fact(
                Severity.RISK,
                ingress_id,
                f"ingress {ingress_id} has been silent for {ingress.silent_s:.1f} s and has"
                f" {ingress.unread} messages to read; its inferences end after"
                f" {look.limits.ingress_s:g} s",
                "one that was replaced is gone soon; if it is none of those, see whether its"
                " process hangs, and kill it",
            )


def ingress_the_scheduler_does_not_hear(look: OfficeLook) -> Iterator[Fact]:
    """As many ingresses speak to the scheduler as Serve runs."""
    if look.seen.serve is None:
        return
    runs, heard = look.seen.serve.ingresses, len(look.office.ingresses)
    if heard < runs:
        yield Fact(
            Severity.WRONG,
            "ingresses",
            f"Serve runs {runs} ingresses, and the scheduler hears of {heard}: what is sent to the"
            " others waits for ever",
            "see the logs of deployment Ingress for scheduler.call_failed; one that follows"
            " another epoch, or hangs, is to be killed",
        )


def serve_that_gives_no_answer(look: Look) -> Iterator[Fact]:
    """Serve's controller answers."""
    reason = look.seen.silent.get("serve")
    if reason is not None:
        yield Fact(
            Severity.RISK,
            "serve",
            f"Ray Serve gives no answer: {reason}; what runs goes on, and nothing that dies is"
            " started again",
            "see `serve status` and `ray status`: the head node or its GCS may be away",
        )


def tables_not_seen_whole(look: OfficeLook) -> Iterator[Fact]:
    """What there is too much of is looked at in part."""
    for name, missing in look.office.left_out.items():
        yield Fact(
            Severity.NOTE,
            name,
            f"{missing:,} of the {name} were not looked at: there are too many",
            "what needs all of them was not checked; examine again when there are fewer",
        )
    if look.office.unchecked_rules is not None:
        yield Fact(
            Severity.NOTE,
            "rules",
            "the scheduler's own rules were not looked at, which takes seconds with"
            f" {look.office.unchecked_rules}",
            "examine again when there are fewer",
        )


def predictor_that_gives_no_answer(look: Look) -> Iterator[Fact]:
    """The predictor answers."""
    if look.predictor_trouble is not None:
        yield Fact(
            Severity.RISK,
            "predictor",
            f"the predictor gives no answer: {look.predictor_trouble}; ingresses go by their copy"
            " of the class means",
            "see `serve status` for deployment Predictor, and its log",
        )


def predictor_that_does_not_learn(look: Look) -> Iterator[Fact]:
    """One of the predictors learns, and keeps what it learns."""
    serve, store = look.seen.serve, look.store
    if serve is None or store is None or store.kind == "none" or serve.predictors != 1:
        return
    if look.predictor_trouble is None and not look.predictor_learns:
        yield Fact(
            Severity.RISK,
            "predictor",
            "the only predictor does not learn: it cannot reach its store, or the place of the one"
            " that learns is still held by another",
            "see its log for predictor.store_fails; a place whose holder died is free again within"
            " a minute",
        )
