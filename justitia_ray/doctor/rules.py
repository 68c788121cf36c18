"""All checks, and what of their facts holds."""

from collections.abc import Callable, Iterator, Sequence
from functools import wraps

from justitia_ray.doctor import (
    application_checks,
    lease_checks,
    office_checks,
    replica_checks,
    store_checks,
)
from justitia_ray.doctor.finding import Fact, Finding, Severity
from justitia_ray.doctor.look import Look, OfficeLook

Check = Callable[[Look], Iterator[Fact]]
OfficeCheck = Callable[[OfficeLook], Iterator[Fact]]
PairCheck = Callable[[Look, Look], Iterator[Fact]]


def _in_office(*checks: OfficeCheck) -> Iterator[Check]:
    """Yield these checks so that they find nothing where no scheduler is in office."""
    for check in checks:
        yield _skipped_out_of_office(check)


def _skipped_out_of_office(check: OfficeCheck) -> Check:
    @wraps(check)
    def find_in_office(look: Look) -> Iterator[Fact]:
        office = look.of_office()
        if office is not None:
            yield from check(office)

    return find_in_office


SERVICE_CHECKS: tuple[Check, ...] = (
    office_checks.scheduler_that_gives_no_answer,
    office_checks.scheduler_out_of_office,
    *_in_office(
        office_checks.scheduler_that_breaks_its_rules,
        office_checks.scheduler_that_recovers,
        office_checks.ingress_of_another_epoch,
        office_checks.ingress_that_is_silent,
        office_checks.ingress_the_scheduler_does_not_hear,
    ),
    office_checks.serve_that_gives_no_answer,
    *_in_office(
        office_checks.tables_not_seen_whole,
        replica_checks.no_replica,
        replica_checks.replica_that_is_silent,
    ),
    replica_checks.replica_that_gives_no_answer,
    *_in_office(
        replica_checks.replica_the_scheduler_does_not_hear,
        replica_checks.replica_of_another_epoch,
        replica_checks.replica_that_drains_for_long,
    ),
    replica_checks.engine_in_trouble,
    *_in_office(
        replica_checks.kv_that_no_lease_explains,
        replica_checks.mail_that_is_not_read,
        lease_checks.lease_its_replica_does_not_hold,
        lease_checks.held_lease_the_scheduler_does_not_know,
        lease_checks.lease_that_should_have_lapsed,
        lease_checks.inference_the_scheduler_has_lost,
        lease_checks.inference_nobody_waits_for,
        lease_checks.inference_of_a_lost_ingress,
        lease_checks.queue_that_stands_still,
        application_checks.tag_behind_the_clock,
        application_checks.application_that_should_have_ended,
        application_checks.application_nobody_speaks_for,
    ),
    office_checks.predictor_that_gives_no_answer,
    office_checks.predictor_that_does_not_learn,
    store_checks.store_in_trouble,
    store_checks.save_that_is_late,
    store_checks.nothing_is_kept,
    store_checks.embedded_redis_on_many_nodes,
)
"""Of what the service says of itself."""

REDIS_CHECKS: tuple[Check, ...] = (
    store_checks.redis_that_cannot_be_reached,
    store_checks.redis_that_cannot_be_read,
    *_in_office(
        store_checks.another_scheduler_in_office,
        store_checks.epoch_that_was_set_back,
        store_checks.virtual_time_ahead_in_redis,
        store_checks.application_only_in_redis,
        store_checks.application_missing_in_redis,
    ),
)
"""Of what is in Redis; without it they find nothing."""

PAIR_CHECKS: tuple[PairCheck, ...] = (store_checks.tag_that_differs_in_redis,)
"""Of what is in Redis, and need both looks at once."""

_ORDER = {severity: rank for rank, severity in enumerate(Severity)}


def find(first: Look, second: Look) -> list[Finding]:
    """Return what is wrong in both looks, the worst first, then in the order of the checks.

    If another scheduler took office between the looks, what was said of the two is not compared:
    only what the second says of itself, and no rule of two looks.
    """
    before = {(finding.rule, finding.subject) for finding in _facts(first)}
    found = [finding for finding in _facts(second) if (finding.rule, finding.subject) in before]
    if _epoch(first) == _epoch(second):
        for pair_check in PAIR_CHECKS:
            found += [_finding(pair_check.__name__, fact) for fact in pair_check(first, second)]
    return sorted(found, key=lambda finding: _ORDER[finding.severity])


def is_wrong(findings: Sequence[Finding]) -> bool:
    """Return whether an operator has something to do."""
    return any(finding.severity is not Severity.NOTE for finding in findings)


def _facts(look: Look) -> Iterator[Finding]:
    for check in (*SERVICE_CHECKS, *REDIS_CHECKS):
        for fact in check(look):
            yield _finding(check.__name__, fact)


def _finding(rule: str, fact: Fact) -> Finding:
    return Finding(rule, fact.severity, fact.subject, fact.what, fact.do)


def _epoch(look: Look) -> int | None:
    return None if look.office is None else look.office.epoch
