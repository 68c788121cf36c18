"""Reading the JSON lines of a data directory, with errors that name file, line and field."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from justitia_ray.errors import ConfigError


class Record:
    """One line of a JSON lines file.

    Args:
        where: File and line, for messages.
        fields: The line's JSON object.
    """

    def __init__(self, where: str, fields: dict[str, Any]) -> None:
        self._where = where
        self._fields = fields

    def text(self, name: str) -> str:
        """Return a field that must be a text with something in it.

        Raises:
            ConfigError: If it is not.
        """
        value = self._fields.get(name)
        if not isinstance(value, str) or not value.strip():
            raise self.error(name, "a text that is not blank", value)
        return value

    def value(self, name: str) -> Any:
        """Return a field of any kind, None if it is missing."""
        return self._fields.get(name)

    def error(self, name: str, allowed: str, value: object) -> ConfigError:
        """Return the error that says what a field should have been."""
        return ConfigError(f"{self._where}: {name} must be {allowed}, got {value!r:.80}")


def read_records(path: Path) -> Iterator[Record]:
    """Yield the records of a file, blank lines left out.

    Raises:
        ConfigError: If the file cannot be read, or a line is not a JSON object.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            fields = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{where}: not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise ConfigError(f"{where}: must be a JSON object, got {line[:40]!r}")
        yield Record(where, fields)
