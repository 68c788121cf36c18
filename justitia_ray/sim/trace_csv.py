"""A trace of requests as CSV: `arrival_s,input_tokens,output_tokens`, and what else a user has.

`client` names on whose behalf a request runs, `application_id` which requests belong together,
`application_class` of what kind they are. Columns may stand in any order; others are left alone.
"""

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from justitia_ray.errors import ConfigError
from justitia_ray.units import Seconds, Tokens
from justitia_ray.workloads.json_lines import numbered_lines

_BYTE_ORDER_MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"
_NEEDS = ("arrival_s", "input_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request; None where the file has no such column, or nothing in it."""

    where: str
    """File and line, for messages."""
    arrival_s: Seconds
    input_tokens: Tokens
    output_tokens: Tokens
    client: str | None
    application_id: str | None
    application_class: str | None


def read_trace(path: Path) -> Iterator[TraceRow]:
    """Yield the requests of a CSV file, or a `.gz` of one, as it is read, in its order.

    Raises:
        ConfigError: If the file cannot be read, has no header with the three columns, or a field is
            wrong; file, line, field, value and what is allowed are named.
    """
    header: list[str] | None = None
    for where, fields in _lines(path):
        if header is None:
            header = _header(where, fields)
        elif len(fields) != len(header):
            raise ConfigError(f"{where}: must have {len(header)} fields, got {len(fields)}")
        else:
            yield _row(where, dict(zip(header, fields, strict=True)))
    if header is None:
        raise ConfigError(f"{path}: must begin with a header, is empty")


def _lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield where each line is that has something in it, and its fields.

    A spreadsheet's byte order mark is left out. A field cannot go over several lines.
    """
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        try:
            rows = list(csv.reader([line.removeprefix(_BYTE_ORDER_MARK)], strict=True))
        except csv.Error as error:
            raise ConfigError(f"{where}: is not CSV: {error}") from error
        if rows and any(field.strip() for field in rows[0]):
            yield where, rows[0]


def _header(where: str, fields: list[str]) -> list[str]:
    names = [field.strip() for field in fields]
    for name in _NEEDS:
        if names.count(name) != 1:
            raise ConfigError(
                f"{where}: the header must name {', '.join(_NEEDS)}, each once, got "
                f"{','.join(names)!r:.80}"
            )
    return names


def _row(where: str, fields: Mapping[str, str]) -> TraceRow:
    arrival = fields["arrival_s"]
    try:
        arrival_s = float(arrival)
    except ValueError:
        arrival_s = math.nan
    if not 0 <= arrival_s < math.inf:
        raise ConfigError(f"{where}: arrival_s must be a number >= 0, got {arrival!r:.80}")
    return TraceRow(
        where=where,
        arrival_s=arrival_s,
        input_tokens=_count(where, "input_tokens", fields, least=1),
        output_tokens=_count(where, "output_tokens", fields, least=0),
        client=_text(fields, "client"),
        application_id=_text(fields, "application_id"),
        application_class=_text(fields, "application_class"),
    )


def _count(where: str, name: str, fields: Mapping[str, str], *, least: int) -> Tokens:
    text = fields[name].strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 12 and int(text) >= least):
        raise ConfigError(f"{where}: {name} must be a whole number >= {least}, got {text!r:.80}")
    return int(text)


def _text(fields: Mapping[str, str], name: str) -> str | None:
    return fields.get(name, "").strip() or None
