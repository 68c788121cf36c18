"""Tables as plain text."""

from justitia_ray.cli.text_table import text_table


def test_columns_of_a_table_are_aligned() -> None:
    """Numbers are aligned for comparison, and no line ends in spaces that would wrap."""
    rows = [["policy", "mean", "p90"], ["vtc", "12.5", "9.0"], ["justitia", "7.5", ""]]

    assert "policy    mean  p90\nvtc       12.5  9.0\njustitia   7.5" == text_table(
        rows, numbers_from=1
    )
    assert "" == text_table([])
