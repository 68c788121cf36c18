"""Log lines as an event name and fields, in JSON; never a prompt, never a completion."""

import json
import logging
from dataclasses import asdict
from typing import Any

from justitia_ray.core.actions import EndApplication


def log_event(logger: logging.Logger, level: int, event: str, **fields: Any) -> None:
    """Log one event: its name, then its fields as a JSON object."""
    if logger.isEnabledFor(level):
        logger.log(level, "%s %s", event, json.dumps(fields, default=str))


def application_ended(logger: logging.Logger, ended: EndApplication) -> None:
    """Log the one canonical line of an application that is over."""
    started = ended.first_dispatched_at
    log_event(
        logger,
        logging.INFO,
        "application.ended",
        application_id=ended.application_id,
        application_class=ended.application_class,
        tenant=ended.tenant,
        outcome=ended.outcome,
        predicted_kv_token_time=ended.predicted_kv_token_time,
        kv_token_time=ended.kv_token_time,
        virtual_finish_time=ended.virtual_finish_time,
        waited_s=None if started is None else round(started - ended.arrived_at, 4),
        jct_s=round(ended.ended_at - ended.arrived_at, 4),
        inferences=ended.inferences,
        failed=ended.failed,
        output_tokens=ended.output_tokens,
        settlements=ended.settlements,
        gps_lag=None if ended.lag is None else asdict(ended.lag),
    )
