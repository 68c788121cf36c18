"""Log lines as an event name and fields, in JSON; never a prompt, never a completion.

Where a logger writes JSON lines, the fields are fields of the line, beside those that Serve adds
(`request_id`, `replica`, …). Where it writes text, they are a JSON object behind the name.
"""

import json
import logging
from collections.abc import Iterator
from typing import Any

from justitia_ray.core.actions import EndApplication
from justitia_ray.units import Epoch


def log_event(logger: logging.Logger, level: int, event: str, **fields: Any) -> None:
    """Log one event.

    Args:
        logger: Where to.
        level: Of `logging`.
        event: Its name, e.g. `application.ended`.
        fields: What JSON can say; anything else is written as text.
    """
    if not logger.isEnabledFor(level):
        return
    text = json.dumps(fields, default=str)
    if any(_writes_fields(handler) for handler in _handlers(logger)):
        logger.log(level, event, extra=json.loads(text), stacklevel=2)
    else:
        logger.log(level, "%s %s", event, text, stacklevel=2)


def application_ended(
    logger: logging.Logger, ended: EndApplication, model: str, epoch: Epoch
) -> None:
    """Log the one canonical line of an application that is over.

    Args:
        logger: Where to.
        ended: The application.
        model: Whose queue it was in.
        epoch: Of the scheduler that saw its end.
    """
    started, lag = ended.first_dispatched_at, ended.lag
    log_event(
        logger,
        logging.INFO,
        "application.ended",
        application_id=ended.application_id,
        application_class=ended.application_class,
        tenant=ended.tenant,
        model=model,
        epoch=epoch,
        outcome=ended.outcome.value,
        predicted_kv_token_time=ended.predicted_kv_token_time,
        kv_token_time=ended.kv_token_time,
        virtual_finish_time=ended.virtual_finish_time,
        waited_s=None if started is None else round(started - ended.arrived_at, 4),
        completion_s=round(ended.ended_at - ended.arrived_at, 4),
        inferences=ended.inferences,
        failed=ended.failed,
        output_tokens=ended.output_tokens,
        settlements=ended.settlements,
        gps_lag_kv_token_time=None if lag is None else lag.kv_token_time,
        gps_lag_s=None if lag is None else round(lag.seconds, 4),
        gps_lag_bound_kv_token_time=None if lag is None else lag.bound_kv_token_time,
        gps_lag_bound_s=None if lag is None or lag.bound_s is None else round(lag.bound_s, 4),
    )


def _handlers(logger: logging.Logger) -> Iterator[logging.Handler]:
    """Yield the handlers that a record of this logger comes to."""
    at: logging.Logger | None = logger
    while at is not None:
        yield from at.handlers
        at = at.parent if at.propagate else None


def _writes_fields(handler: logging.Handler) -> bool:
    """Return whether a handler writes a record's own fields: ours, Ray's and others' for JSON.

    Serve's gathers records for another one, which has the formatter.
    """
    target = getattr(handler, "target", None)
    if target is not None:
        return _writes_fields(target)
    return "json" in type(handler.formatter).__name__.lower()
