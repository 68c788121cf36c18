"""Log lines as JSON objects, with the names that Serve's own JSON lines use."""

import json
import logging

_OF_EVERY_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """Writes when, how bad, what, and the fields that the event has."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
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
            # Ray puts one of its own into every record once it is imported: `_ray_timestamp_ns`.
            if key not in _OF_EVERY_RECORD and not key.startswith("_")
        }
        return json.dumps(line | own, default=str)


def write_json_lines() -> None:
    """Let this process write what it logs as JSON lines, to its standard error.

    If it logs somewhere already, it goes on to do so.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("justitia_ray").setLevel(logging.INFO)
