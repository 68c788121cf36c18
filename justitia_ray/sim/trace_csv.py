"""Traces of requests as CSV: `arrival_s,input_tokens,output_tokens`, and optional columns.

`client` names the tenant of a request, `application_id` groups requests, `application_class` is
their class. Columns may be in any order; unknown ones are ignored.
"""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from justitia_ray.errors import ConfigError
from justitia_ray.json_lines import numbered_lines
from justitia_ray.units import Seconds, Tokens

_BYTE_ORDER_MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"
_NEEDS = ("arrival_s", "input_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class TraceRow:
    """Request of a trace; fields are None for missing columns and empty fields."""

    where: str
    """File and line of the request, for messages."""
    arrival_s: Seconds
    input_tokens: Tokens
    output_tokens: Tokens
    client: str | None
    application_id: str | None
    application_class: str | None


def read_trace(path: Path) -> Iterator[TraceRow]:
    """Yield the requests of a CSV file, which may be compressed (`.gz`), in order.

    Raises:
        ConfigError: If the file cannot be read, has no header with the three columns, or a field is
            wrong; the message names file, line, field, value and allowed values.
    """
    for where, fields in csv_rows(path, _NEEDS):
        yield TraceRow(
            where=where,
            arrival_s=seconds_of(where, fields, "arrival_s"),
            input_tokens=tokens_of(where, fields, "input_tokens", least=1),
            output_tokens=tokens_of(where, fields, "output_tokens", least=0),
            client=_text_field(fields, "client"),
            application_id=_text_field(fields, "application_id"),
            application_class=_text_field(fields, "application_class"),
        )


def csv_rows(
    path: Path, needs: Sequence[str], *, others_allowed: bool = True
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield file and line of each row of a CSV file, and its fields by column.

    A byte order mark is ignored. A field cannot span several lines.

    Args:
        path: The file, or a `.gz` of one.
        needs: Columns that the header must name, each once.
        others_allowed: Whether the header may also name other columns.

    Raises:
        ConfigError: If the file cannot be read, has no such header, or a row has more or fewer
            fields.
    """
    header: list[str] | None = None
    for number, line in numbered_lines(path):
        where = f"{path}:{number}"
        try:
            fields = next(csv.reader([line.removeprefix(_BYTE_ORDER_MARK)], strict=True), [])
        except csv.Error as error:
            raise ConfigError(f"{where}: is not CSV: {error}") from error
        if not any(field.strip() for field in fields):
            continue
        if header is None:
            header = _check_header(where, fields, needs, others_allowed=others_allowed)
        elif len(fields) != len(header):
            raise ConfigError(f"{where}: must have {len(header)} fields, got {len(fields)}")
        else:
            yield where, dict(zip(header, fields, strict=True))
    if header is None:
        raise ConfigError(f"{path}: must begin with a header, is empty")


def seconds_of(where: str, fields: Mapping[str, str], name: str) -> Seconds:
    """Return a field that must be a number of seconds >= 0.

    Raises:
        ConfigError: If the field is not such a number.
    """
    try:
        value = float(fields[name])
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ConfigError(f"{where}: {name} must be a number >= 0, got {fields[name]!r:.80}")
    return value


def tokens_of(where: str, fields: Mapping[str, str], name: str, *, least: int) -> Tokens:
    """Return a field that must be a count of tokens.

    Raises:
        ConfigError: If the field is not a whole number, or below `least`.
    """
    text = fields[name].strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 12 and int(text) >= least):
        raise ConfigError(f"{where}: {name} must be a whole number >= {least}, got {text!r:.80}")
    return int(text)


def _check_header(
    where: str, fields: Sequence[str], needs: Sequence[str], *, others_allowed: bool
) -> list[str]:
    names = [field.strip() for field in fields]
    if any(names.count(name) != 1 for name in needs) or (
        len(names) > len(needs) and not others_allowed
    ):
        raise ConfigError(
            f"{where}: the header must name {', '.join(needs)}, each once, got "
            f"{','.join(names)!r:.80}"
        )
    return names


def _text_field(fields: Mapping[str, str], name: str) -> str | None:
    return fields.get(name, "").strip() or None
