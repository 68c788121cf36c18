"""Tables as plain text, for what commands print."""

from collections.abc import Sequence


def text_table(rows: Sequence[Sequence[str]], *, numbers_from: int | None = None) -> str:
    """Return rows as lines, columns as wide as their widest cell and two spaces apart.

    Args:
        rows: The first is the heads; all as long.
        numbers_from: The first column that is flush right, and so are those after it; None: none.
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
    """Return a value in this format, a dash if there is none."""
    return "–" if value is None else format(value, form)
