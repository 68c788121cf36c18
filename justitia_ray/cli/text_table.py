"""Plain-text tables for the output of commands."""

from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[str]], *, numbers_from: int | None = None) -> str:
    """Return rows as lines, columns as wide as their widest cell and two spaces apart.

    Args:
        rows: Rows of equal length; the first holds the heads.
        numbers_from: First of the right-aligned columns at the end; None: there are none.
    """
    if not rows:
        return ""
    lefts = len(rows[0]) if numbers_from is None else numbers_from
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if number < lefts else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def cell(value: object, form: str = "") -> str:
    """Return a value in a format, a dash for None."""
    return "–" if value is None else format(value, form)
