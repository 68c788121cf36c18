"""Plain-text tables for the output of commands."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Columns: TypeAlias = Mapping[str, Callable[[T], str]]


def text_table(rows: Sequence[Sequence[str]], *, numbers_from: int | None = None) -> str:
    """Return rows as lines of text; columns are two spaces apart.

    Args:
        rows: Rows of equal length; the first row holds the headings.
        numbers_from: Index of the first right-aligned column; None: all are left-aligned.
    """
    if not rows:
        return ""
    lefts = len(rows[0]) if numbers_from is None else numbers_from
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            format_cell.ljust(width) if number < lefts else format_cell.rjust(width)
            for number, (format_cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def column_table(columns: Columns[T], rows: Iterable[T], *, numbers_from: str) -> str:
    """Return rows as a table with the given columns; an empty text without rows.

    Args:
        columns: The columns.
        rows: The rows.
        numbers_from: Heading of the first right-aligned column.
    """
    cells = [[text(row) for text in columns.values()] for row in rows]
    if not cells:
        return ""
    return text_table([[*columns], *cells], numbers_from=[*columns].index(numbers_from))


def shortened(text: str, most: int) -> str:
    """Return a text cut to `most` characters, with an ellipsis if it was cut."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def format_cell(value: object, form: str = "") -> str:
    return "–" if value is None else format(value, form)
