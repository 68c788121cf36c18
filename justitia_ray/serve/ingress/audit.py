"""The audit: a line of JSON for each act of an operator."""

import logging
from typing import Any

from justitia_ray.access.identity import Identity
from justitia_ray.observability.log_events import log_event

logger = logging.getLogger("ray.serve")


def audit_act(
    identity: Identity, act: str, before: object = None, after: object = None, **what: Any
) -> None:
    """Write down an act.

    Args:
        identity: Who did it.
        act: Its name, e.g. `predictor.rollback`.
        before: What was so far, as JSON.
        after: What is from now on.
        **what: To what it was done.
    """
    who = {"credential": identity.credential, "user": identity.user, "tenant": identity.tenant}
    log_event(logger, logging.INFO, f"audit.{act}", who=who, **what, before=before, after=after)
