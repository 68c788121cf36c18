"""Log lines: an event name with JSON fields, and never a prompt or a completion.

In a JSON log, the fields of the event are fields of the line, beside those that Serve adds
(`request_id`, `replica`, …). In a text log, they are a JSON object after the event's name.

The scheduler writes its lines in batches, because formatting and writing one line for each
application at once would take a seventh of its time.
"""

import json
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from logging.handlers import MemoryHandler
from typing import Any, TextIO

from justitia_ray.core.actions import EndApplication
from justitia_ray.units import Epoch, Seconds

_BATCH = 50
"""Maximum number of log lines that are formatted at once, which takes a millisecond or two."""
_BATCH_S: Seconds = 0.2
"""Maximum delay of a log line in seconds."""


def log_event(logger: logging.Logger, level: int, event: str, **fields: Any) -> None:
    """Log an event with its fields, for JSON lines and for text.

    Args:
        logger: The logger to write to.
        level: A level of `logging`.
        event: The event's name, e.g. `application.ended`.
        fields: Values that JSON can represent; any other value is written as text.
    """
    if not logger.isEnabledFor(level):
        return
    if all(isinstance(handler, JsonBatches) for handler in _handlers(logger)):
        record = logger.makeRecord(logger.name, level, "", 0, event, (), None)
        record.__dict__.update(fields)
        logger.handle(record)
        return
    text = json.dumps(fields, default=str)
    if any(_writes_fields(handler) for handler in _handlers(logger)):
        logger.log(level, event, extra=json.loads(text), stacklevel=2)
    else:
        logger.log(level, "%s %s", event, text, stacklevel=2)


def is_logged(times: int) -> bool:
    """Return whether a repeated event is logged: its 1st, 2nd, 4th, 8th time and so on."""
    return times.bit_count() == 1


def application_ended(
    logger: logging.Logger, ended: EndApplication, model: str, epoch: Epoch
) -> None:
    """Log the summary of an application that has ended.

    Args:
        logger: The logger to write to.
        ended: The application.
        model: The model that served it.
        epoch: Epoch of the scheduler that ended it.
    """
    started, lag = ended.first_dispatched_at, ended.lag
    log_event(
        logger,
        logging.INFO,
        "application.ended",
        application_id=ended.application_id,
        application_class=ended.application_class,
        recognized_by=ended.recognized_by,
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
        prompt_tokens=ended.prompt_tokens,
        cached_tokens=ended.cached_tokens,
        output_tokens=ended.output_tokens,
        settlements=ended.settlements,
        gps_lag_kv_token_time=None if lag is None else lag.kv_token_time,
        gps_lag_s=None if lag is None else round(lag.seconds, 4),
        gps_lag_bound_kv_token_time=None if lag is None else lag.bound_kv_token_time,
        gps_lag_bound_s=None if lag is None or lag.bound_s is None else round(lag.bound_s, 4),
    )


def _handlers(logger: logging.Logger) -> Iterator[logging.Handler]:
    """Yield the handlers that receive this logger's records."""
    at: logging.Logger | None = logger
    while at is not None:
        yield from at.handlers
        at = at.parent if at.propagate else None


def _writes_fields(handler: logging.Handler) -> bool:
    """Return whether a handler writes a record's extra fields, as JSON formatters do.

    Serve's handler buffers records for a target, which has the formatter.
    """
    target = getattr(handler, "target", None)
    if target is not None:
        return _writes_fields(target)
    return "json" in type(handler.formatter).__name__.lower()


_RECORD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """Formats a log record as a JSON object: time, level, message, and the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "asctime": self.formatTime(record),
            "levelname": record.levelname,
            "message": record.getMessage(),
            "logger": record.name,
        }
        if record.exc_info:
            line["exc_text"] = self.formatException(record.exc_info)
        own = {
            key: value
            for key, value in vars(record).items()
            # Ray, once imported, adds the field `_ray_timestamp_ns` to every record.
            if key not in _RECORD_FIELDS and not key.startswith("_")
        }
        return json.dumps(line | own, default=str)


class JsonBatches(MemoryHandler):
    """Writes JSON log lines in batches; a warning is written at once, after earlier lines.

    Args:
        stream: Output of the lines.
        batch_s: Maximum time for which a line is held back.
    """

    def __init__(self, stream: TextIO, batch_s: Seconds = _BATCH_S) -> None:
        super().__init__(_BATCH, logging.WARNING)
        self.setFormatter(JsonLines())
        self._stream = stream
        self._batch_s = batch_s
        self._has_lines = threading.Event()
        self._flusher: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Add a log record to the batch; a warning writes the batch at once."""
        super().emit(record)
        if self._flusher is None:
            self._flusher = threading.Thread(target=self._keep_flushing, daemon=True)
            self._flusher.start()
        self._has_lines.set()

    def flush(self) -> None:
        with self.lock or nullcontext():
            batch, self.buffer = self.buffer, []
            if batch:
                self._stream.write("".join(f"{self.format(record)}\n" for record in batch))
                self._stream.flush()

    def _keep_flushing(self) -> None:
        """Write batches after their delay, all from one thread."""
        while True:
            self._has_lines.wait()
            time.sleep(self._batch_s)
            self._has_lines.clear()
            self.flush()


def write_json_lines() -> None:
    """Log JSON lines to standard error in this process, beside the output of its other handlers."""
    logging.basicConfig(level=logging.INFO, handlers=[JsonBatches(sys.stderr)])
    logging.getLogger("justitia_ray").setLevel(logging.INFO)


def flush_lines() -> None:
    """Write all delayed log lines, before the process is killed."""
    for handler in logging.getLogger().handlers:
        handler.flush()
