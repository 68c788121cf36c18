"""One canonical line for each application that is over, with its fields as fields."""

import io
import json
import logging
import logging.handlers
from collections.abc import Callable, Iterator

import pytest

from justitia_ray.observability.json_lines import JsonLines
from justitia_ray.observability.log_events import application_ended, log_event
from tests.unit.observability.taken import ENDED

Written = Callable[[], str]


def _written(formatter: logging.Formatter) -> Iterator[tuple[logging.Logger, Written]]:
    logger = logging.Logger("made.for.a.test", logging.INFO)
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger.addHandler(handler)
    yield logger, stream.getvalue


@pytest.fixture
def json_lines() -> Iterator[tuple[logging.Logger, Written]]:
    """Return a logger that writes JSON lines as the scheduler does, and what it wrote."""
    yield from _written(JsonLines())


@pytest.fixture
def text_lines() -> Iterator[tuple[logging.Logger, Written]]:
    """Return a logger that writes text as Serve does by default, and what it wrote."""
    yield from _written(logging.Formatter("%(levelname)s %(message)s"))


def test_what_a_library_puts_into_every_record_is_no_field(
    json_lines: tuple[logging.Logger, Written],
) -> None:
    """Ray does, and whether the lines have it would depend on the order of imports."""
    logger, written = json_lines
    logger.info("it.happened", extra={"_library_ns": 1, "seen": 2})

    assert {"asctime", "levelname", "message", "logger", "seen"} == set(json.loads(written()))


def test_application_that_is_over_is_one_line_of_json(
    json_lines: tuple[logging.Logger, Written],
) -> None:
    """Whoever collects logs finds an application's class, costs, order, times and outcome."""
    logger, written = json_lines
    application_ended(logger, ENDED, "llama", 7)
    (line,) = written().splitlines()
    fields = json.loads(line)

    assert fields.pop("asctime")
    assert {
        "levelname": "INFO",
        "message": "application.ended",
        "logger": "made.for.a.test",
        "application_id": "a",
        "application_class": "vote",
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
        "output_tokens": 4,
        "settlements": 0,
        "gps_lag_kv_token_time": 90,
        "gps_lag_s": -2.0,
        "gps_lag_bound_kv_token_time": 100,
        "gps_lag_bound_s": 5.0,
    } == fields


def test_handler_that_gathers_is_asked_for_its_target() -> None:
    """Serve's own gathers lines in memory, and its formatter is the file's."""
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


def test_text_has_the_fields_behind_the_name(text_lines: tuple[logging.Logger, Written]) -> None:
    """Serve's text lines drop the fields of a record: without them the line would say nothing."""
    logger, written = text_lines
    log_event(logger, logging.WARNING, "store.unreachable", reason="away", tries=2)

    assert 'WARNING store.unreachable {"reason": "away", "tries": 2}\n' == written()


def test_line_is_written_whatever_a_field_is(json_lines: tuple[logging.Logger, Written]) -> None:
    """A log line must not fail for what it says."""
    logger, written = json_lines
    log_event(logger, logging.INFO, "e", error=ValueError("bad"))

    assert "bad" == json.loads(written())["error"]


def test_error_keeps_its_traceback(json_lines: tuple[logging.Logger, Written]) -> None:
    """A defect of ours is found by it."""
    logger, written = json_lines
    try:
        raise ValueError("bad")
    except ValueError:
        logger.exception("failed")

    assert "ValueError: bad" in json.loads(written())["exc_text"]


def test_silent_logger_is_not_troubled(json_lines: tuple[logging.Logger, Written]) -> None:
    """Nothing is made of fields that nobody reads."""
    logger, written = json_lines
    log_event(logger, logging.DEBUG, "e", reason="none")

    assert "" == written()
