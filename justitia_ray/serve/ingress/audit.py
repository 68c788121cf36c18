"""Audit log: a JSON line for each action of an operator."""

import logging
from typing import Any

from justitia_ray.access.identity import Identity
from justitia_ray.observability.log_events import log_event

logger = logging.getLogger("ray.serve")


def audit_act(
    identity: Identity, act: str, before: object = None, after: object = None, **what: Any
) -> None:
    """Log an operator's action with the operator's identity.

    Args:
        identity: Identity of the operator.
        act: Name of the action, e.g. `predictor.rollback`.
        before: State before the action, as JSON.
        after: State after the action, as JSON.
        **what: Further fields: the objects of the action.
    """
    who = {"credential": identity.credential, "user": identity.user, "tenant": identity.tenant}
    log_event(logger, logging.INFO, f"audit.{act}", who=who, **what, before=before, after=after)
