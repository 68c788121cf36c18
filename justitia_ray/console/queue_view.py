"""The queue as the console shows it: rows with reasons in words, ages, counts."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice

from justitia_ray.application_key import split_key
from justitia_ray.core import SchedulerCore
from justitia_ray.core.entities import Application
from justitia_ray.core.outlook import WALK_KEPT_S, Outlook, Reason
from justitia_ray.protocol.console import QUEUE_ROWS, Ages, Queue, QueueRow
from justitia_ray.protocol.status import Counts
from justitia_ray.units import ApplicationId, Seconds

WHY: Mapping[Reason, str] = {
    Reason.RUNNING: "it is running",
    Reason.TURN: "other applications come first",
    Reason.HEADROOM: "it is first, and no replica has enough free KV memory now",
    Reason.CONTEXT: "its context lies on a replica that is full for a short time",
    Reason.WORKING_SET: "it does not fit beside the contexts of started applications yet",
    Reason.REPLICA: "no replica takes work now",
    Reason.QUOTA: "a quota has nothing left",
    Reason.TIER: "the free memory is kept for other service tiers",
    Reason.TOOL: "its caller is at work: nothing is asked of the model",
    Reason.RECOVERY: "the scheduler waits for reports of replicas or of its ingress",
    Reason.STORE: "it is not stored yet",
}
"""Sentence for each reason for which an application waits."""


def why(reason: str) -> str:
    """Return a sentence that says why an application waits."""
    kind, _, node = reason.partition(":")
    return f"{WHY[Reason(kind)]}: {node}" if node else WHY[Reason(kind)]


def queue_listing(
    core: SchedulerCore,
    applications: Mapping[ApplicationId, Application],
    now: Seconds,
    most: int = QUEUE_ROWS,
) -> Queue:
    """Return the console's list of waiting and running applications.

    Args:
        core: The core.
        applications: All live applications, or those of a tenant.
        now: The core's time.
        most: Maximum number of rows.
    """
    in_order = core.outlooks.queue_profile(WALK_KEPT_S).names
    waiting = [one for one in applications.values() if one.waiting_count or one.held_back]
    apart = (one.application_id for one in waiting if one.application_id not in in_order)
    names = (name for name in chain(in_order, apart) if name in applications)
    asked = core.outlooks.ask(list(islice(names, most)), WALK_KEPT_S, now, calibrates=False)
    reasons = core.outlooks.count_reasons(applications.values())
    return Queue(
        rows=tuple(
            queue_row(core, applications[name], outlook, now) for name, outlook in asked.items()
        ),
        waiting=len(waiting),
        by_reason={reason.value: count for reason, count in reasons.items()},
    )


def queue_row(
    core: SchedulerCore, application: Application, outlook: Outlook, now: Seconds
) -> QueueRow:
    """Return the row of an application in the console's list."""
    name = application.application_id
    tenant, plain = split_key(name)
    return QueueRow(
        position=outlook.position,
        application=name,
        tenant=tenant or application.tenant,
        application_id=plain,
        application_class=application.application_class,
        tier=application.tier,
        weight=application.weight,
        reason=outlook.reason,
        why=why(outlook.reason),
        what_would_help=outlook.what_would_help,
        waiting=application.waiting_count,
        running=len(application.in_flight),
        age_s=now - application.arrived_at,
        waited_s=waited_s(application, now) or 0.0,
        predicted_kv_token_time=application.predicted_kv_token_time,
        kv_token_time=core.ledger.fair_share.accounts[name].attained,
        virtual_finish_time=core.tag(name),
        ahead_kv_token_time=outlook.ahead_kv_token_time,
        expected_start_s=outlook.expected_start_s,
        expected_finish_s=outlook.expected_finish_s,
        guaranteed_by_s=outlook.guaranteed_by_s,
    )


def waited_s(application: Application, now: Seconds) -> Seconds | None:
    """Return the seconds that an application's first waiting inference has waited, or None."""
    if application.waiting:
        return max(0.0, now - application.waiting.first.submitted_at)
    if application.held_back:
        return max(0.0, now - min(one.submitted_at for one in application.held_back.values()))
    return None


def waiting_time_quantiles(applications: Iterable[Application], now: Seconds) -> Ages | None:
    """Return quantiles of the waiting times of applications; None if no application waits."""
    waited = sorted(
        age for application in applications if (age := waited_s(application, now)) is not None
    )
    if not waited:
        return None
    return Ages(_quantile(waited, 0.5), _quantile(waited, 0.95), waited[-1])


def count_inferences(applications: Iterable[Application]) -> Counts:
    """Return the number of applications, and of their waiting and running inferences."""
    found = waiting = running = 0
    for application in applications:
        found += 1
        waiting += application.waiting_count
        running += len(application.in_flight)
    return Counts(found, waiting, running)


def _quantile(ordered: Sequence[Seconds], part: float) -> Seconds:
    """Return the smallest value that at least a fraction `part` of the values does not exceed."""
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
