"""Tables as plain text."""

import pytest

from justitia_ray.text_table import text_table


def test_numbers_stand_under_each_other() -> None:
    """Digits of one place in one column: so sizes are compared at a glance."""
    rows = [["policy", "mean", "p90"], ["vtc", "12.5", "9.0"], ["justitia", "7.5", "111.0"]]

    assert ("policy    mean    p90\nvtc       12.5    9.0\njustitia   7.5  111.0") == text_table(
        rows, numbers_from=1
    )


def test_texts_begin_at_one_place_and_nothing_follows_them() -> None:
    """Blanks at the end of a line would wrap on a narrow terminal, and differ in a saved log."""
    assert "a     b\nlong  c" == text_table([["a", "b"], ["long", "c"]])
    assert "a\nlong  c" == text_table([["a", ""], ["long", "c"]])


def test_no_rows_are_no_lines() -> None:
    """A command with nothing to list prints nothing."""
    assert "" == text_table([])


def test_row_of_another_length_is_a_bug() -> None:
    """A cell in the wrong column would be read as another figure."""
    with pytest.raises(ValueError, match="zip"):
        text_table([["a", "b"], ["c"]])
