"""Read JSON lines, plain or gzipped, with errors that name file, line and field."""

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from justitia_ray.errors import ConfigError

MAX_LINE_BYTES = 64 * 1024**2
"""Maximum bytes of a line, enough for the record of an application with half a million inferences.
"""
MAX_FILE_BYTES = 1024**3
"""Maximum bytes of an unpacked file, enough for a million applications without texts."""

_Bytes: TypeAlias = BinaryIO | gzip.GzipFile


class JsonRecord:
    """Parsed line of a JSON lines file.

    Args:
        where: File and line, for messages.
        fields: The line's JSON object.
    """

    def __init__(self, where: str, fields: dict[str, Any]) -> None:
        self.where = where
        self.fields = fields

    def text(self, name: str) -> str:
        """Return a field of the JSON record that must be a text, and not blank.

        Raises:
            ConfigError: If the field is missing, not a text, or blank.
        """
        value = self.fields.get(name)
        if not isinstance(value, str) or not value.strip():
            raise self.error(name, "a text that is not blank", value)
        return value

    def value(self, name: str) -> Any:
        """Return a field of the JSON record, of any type; None if it is missing."""
        return self.fields.get(name)

    def error(self, name: str, allowed: str, value: object) -> ConfigError:
        """Return an error that names a field, its value and the allowed values."""
        return ConfigError(f"{self.where}: {name} must be {allowed}, got {value!r:.80}")


def read_records(path: Path) -> Iterator[JsonRecord]:
    """Yield the records of a JSON lines file lazily; a `.gz` file is unpacked.

    Raises:
        ConfigError: If the file cannot be read or is larger than MAX_FILE_BYTES, or a line is not a
            JSON object in UTF-8 of at most MAX_LINE_BYTES.
    """
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where}: not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise ConfigError(f"{where}: must be a JSON object, got {line.strip()[:40]!r}")
        yield JsonRecord(where, fields)


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line numbers, from 1, and lines of a text file; a `.gz` file is unpacked.

    Raises:
        ConfigError: As `read_records`, except for the content of the lines.
    """
    try:
        with _open_text(path) as file:
            yield from _limited_lines(path, file)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def _open_text(path: Path) -> _Bytes:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise _too_large_error(path)
    return path.open("rb")


def _limited_lines(path: Path, file: _Bytes) -> Iterator[tuple[int, str]]:
    number, size = 0, 0
    while raw := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        size += len(raw)
        if len(raw) > MAX_LINE_BYTES:
            raise ConfigError(
                f"{path}:{number}: a line must be at most {MAX_LINE_BYTES // 1024**2} MiB long"
            )
        if size > MAX_FILE_BYTES:
            raise _too_large_error(path)
        try:
            yield number, raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}:{number}: cannot be read: not UTF-8: {error}") from error


def _too_large_error(path: Path) -> ConfigError:
    return ConfigError(f"{path}: must be at most {MAX_FILE_BYTES // 1024**3} GiB, unpacked")
