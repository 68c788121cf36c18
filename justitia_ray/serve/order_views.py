"""What a scheduler tells people of its order: who is next, and why. Changes nothing."""

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, Literal

from justitia_ray.core import SchedulerCore
from justitia_ray.core.entities import Application
from justitia_ray.serve.scheduler_views import application_view
from justitia_ray.units import Seconds

MOST_APPLICATIONS = 1_000
"""In one answer: a tenth of a second of the scheduler's time, most of it for their lags."""


def head_view(core: SchedulerCore, now: Seconds) -> dict[str, Any] | None:
    """Return the inference that would be granted next, and what it waits for; None if none may be.

    Args:
        core: The core.
        now: The instant, for how long it has waited.
    """
    application = core.order.queue.first()
    if application is None:
        return None
    policy = core.order.policy
    client = policy.client(application)
    inference = application.waiting.first
    return {
        "application_id": application.application_id,
        "application_class": application.application_class,
        "tenant": application.tenant,
        "client": client,
        "key": list(policy.key(client, application)),
        "virtual_finish_time": core.tag(application.application_id),
        "prompt_tokens": inference.prompt_tokens,
        "predicted_output_tokens": inference.predicted_output_tokens,
        "waited_s": now - inference.submitted_at,
        "waits_for": _waits_for(core),
    }


def first_applications(core: SchedulerCore, now: Seconds, most: int) -> list[dict[str, Any]]:
    """Return what is known of the first live applications, in the order of the policy.

    First those of which an inference waits, as they would be granted if nothing changed; then those
    that only run, by F; then the rest (idle, held back, kept out) as they arrived. What it takes
    grows with `most` and with what runs, not with how many there are.

    Args:
        core: The core.
        now: The instant, for their ages.
        most: How many.
    """
    views = (application_view(core, a.application_id, now) for a in islice(_ordered(core), most))
    return [view for view in views if view is not None]


def _ordered(core: SchedulerCore) -> Iterator[Application]:
    """Yield every live application once."""
    applications, inferences = core.state.applications, core.state.inferences
    seen: set[str] = set()
    running = {inferences[lease.request_id].application_id for lease in core.state.leases.values()}
    by_tag = sorted(running, key=lambda name: (core.tag(name), applications[name].sequence))
    for application in chain(
        core.order.queue.in_order(),
        (applications[name] for name in by_tag),
        applications.values(),
    ):
        if application.application_id not in seen:
            seen.add(application.application_id)
            yield application


def _waits_for(core: SchedulerCore) -> Literal["recovery", "replica", "room"]:
    """Return why the first in order is not granted at once."""
    if core.recovery.holding:
        return "recovery"
    if all(replica.draining for replica in core.state.replicas.values()):
        return "replica"
    return "room"
