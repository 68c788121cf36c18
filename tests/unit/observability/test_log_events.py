"""The log line of each ended application, with structured fields."""

import io
import json
import logging
import logging.handlers
import threading

import pytest

from justitia_ray.observability.log_events import (
    JsonBatches,
    JsonLines,
    application_ended,
    log_event,
)
from tests.unit.observability.recording_backend import ENDED


class LoggedLines:
    """Logger that keeps the lines it has written."""

    def __init__(self, formatter: logging.Formatter) -> None:
        self.logger = logging.Logger("made.for.a.test", logging.INFO)
        self._stream = io.StringIO()
        handler = logging.StreamHandler(self._stream)
        handler.setFormatter(formatter)
        self.logger.addHandler(handler)

    def written(self) -> str:
        return self._stream.getvalue()


@pytest.fixture
def lines() -> LoggedLines:
    return LoggedLines(JsonLines())


def test_log_attributes_of_libraries_are_not_written_as_fields(lines: LoggedLines) -> None:
    """Ray adds fields to every record, depending on the order of imports."""
    lines.logger.info("it.happened", extra={"_library_ns": 1, "seen": 2})

    assert {"asctime", "levelname", "message", "logger", "seen"} == set(json.loads(lines.written()))


def test_end_of_an_application_is_logged_as_one_line_of_json(lines: LoggedLines) -> None:
    application_ended(lines.logger, ENDED, "llama", 7)
    (line,) = lines.written().splitlines()
    fields = json.loads(line)

    assert fields.pop("asctime")
    assert {
        "levelname": "INFO",
        "message": "application.ended",
        "logger": "made.for.a.test",
        "application_id": "a",
        "application_class": "vote",
        "recognized_by": "metadata",
        "tenant": "t",
        "model": "llama",
        "epoch": 7,
        "outcome": "finished",
        "predicted_kv_token_time": 100,
        "kv_token_time": 50,
        "virtual_finish_time": 1_000.0,
        "waited_s": 1.0,
        "completion_s": 4.5,
        "inferences": 1,
        "failed": 0,
        "prompt_tokens": 0,
        "cached_tokens": 0,
        "output_tokens": 4,
        "settlements": 0,
        "gps_lag_kv_token_time": 90,
        "gps_lag_s": -2.0,
        "gps_lag_bound_kv_token_time": 100,
        "gps_lag_bound_s": 5.0,
    } == fields


def test_buffered_log_records_are_formatted_by_the_target_handler() -> None:
    """Serve's memory handler buffers log records, and only its target has the formatter."""
    logger, stream = logging.Logger("gathers", logging.INFO), io.StringIO()
    target = logging.StreamHandler(stream)
    target.setFormatter(JsonLines())
    handler = logging.handlers.MemoryHandler(10, target=target)
    logger.addHandler(handler)
    log_event(logger, logging.INFO, "e", reason="none")
    handler.flush()

    assert ("e", "none") == tuple(
        json.loads(stream.getvalue())[key] for key in ("message", "reason")
    )


class FlushedText(io.StringIO):
    """Text stream that counts its flushes."""

    def __init__(self) -> None:
        super().__init__()
        self.flushes = 0
        self.flushed = threading.Event()

    def flush(self) -> None:
        self.flushes += 1
        self.flushed.set()


def _batching_logger(batch_s: float) -> tuple[logging.Logger, FlushedText]:
    stream = FlushedText()
    logger = logging.Logger("scheduler", logging.INFO)
    logger.addHandler(JsonBatches(stream, batch_s))
    return logger, stream


def test_several_buffered_log_lines_are_written_at_once() -> None:
    """Writing each application's line separately would take a seventh of the scheduler's time."""
    logger, stream = _batching_logger(3600.0)
    for number in range(49):
        log_event(logger, logging.INFO, "e", number=number, error=ValueError("bad"))
    held_back = stream.getvalue()
    log_event(logger, logging.INFO, "e", number=49)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]

    assert ("", 1, list(range(50))) == (held_back, stream.flushes, [x["number"] for x in lines])
    assert ("e", "scheduler", "bad") == tuple(lines[0][k] for k in ("message", "logger", "error"))


def test_warning_flushes_the_buffered_log_lines_at_once() -> None:
    """The process may be about to end, and the buffered lines explain the warning."""
    logger, stream = _batching_logger(3600.0)
    log_event(logger, logging.INFO, "first")
    logger.warning("then")

    assert ["first", "then"] == [json.loads(x)["message"] for x in stream.getvalue().splitlines()]


def test_last_log_line_of_an_idle_scheduler_is_written_soon() -> None:
    logger, stream = _batching_logger(0.01)
    log_event(logger, logging.INFO, "alone")

    assert stream.flushed.wait(60.0)
    assert "alone" == json.loads(stream.getvalue())["message"]


def test_text_log_line_has_its_fields_after_the_event_name() -> None:
    lines = LoggedLines(logging.Formatter("%(levelname)s %(message)s"))
    log_event(lines.logger, logging.WARNING, "store.unreachable", reason="away", tries=2)

    assert 'WARNING store.unreachable {"reason": "away", "tries": 2}\n' == lines.written()


def test_log_field_of_any_type_is_written(lines: LoggedLines) -> None:
    log_event(lines.logger, logging.INFO, "e", error=ValueError("bad"))

    assert "bad" == json.loads(lines.written())["error"]


def test_logged_error_keeps_its_traceback(lines: LoggedLines) -> None:
    try:
        raise ValueError("bad")
    except ValueError:
        lines.logger.exception("failed")

    assert "ValueError: bad" in json.loads(lines.written())["exc_text"]
