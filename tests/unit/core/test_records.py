"""The codec of records: every field is present, known and of its type, or the error names it."""

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest

from justitia_ray.core.records import Fields, RecordReader, read_fields

_NUMBER: Fields = {"n": RecordReader.number}


@pytest.mark.parametrize("record", [{}, {"a": 1, "b": 2}, {"c": 1}], ids=["none", "both", "other"])
def test_missing_and_unknown_record_fields_are_named(record: dict[str, Any]) -> None:
    """An unread field would be lost with the next write."""
    wrong = ", ".join(sorted({"a"} ^ record.keys()))
    with pytest.raises(ValueError, match=f"^clock: fields missing or unknown: {wrong}$"):
        RecordReader(record, ("a",), where="clock")


def test_optional_record_field_may_be_missing() -> None:
    """Records of an earlier release lack later fields."""
    reader = RecordReader({"a": 1}, ("a",), ("b",))

    assert (1, None, None) == (reader.integer("a"), reader.value("b"), reader.text_or_none("b"))


@pytest.mark.parametrize("record", [None, [], "a", 1])
def test_record_that_is_no_object_is_refused(record: object) -> None:
    """JSON of another type is damage, not an empty record."""
    with pytest.raises(ValueError, match="must be an object"):
        RecordReader(record, ())


@pytest.mark.parametrize(
    ("value", "read", "allowed"),
    [
        (True, lambda r: r.integer("f"), "an integer >= 0"),
        (1.0, lambda r: r.integer("f"), "an integer >= 0"),
        (True, lambda r: r.number("f"), "a finite number"),
        (nan, lambda r: r.number("f"), "a finite number"),
        (inf, lambda r: r.number("f"), "a finite number"),
        (0.0, lambda r: r.positive("f"), "a finite number > 0"),
        (1, lambda r: r.flag("f"), "true or false"),
        (1, lambda r: r.text("f"), "a text"),
        (None, lambda r: r.mapping("f"), "an object"),
        (1, lambda r: r.items("f"), "a list"),
        ([1, -1], lambda r: r.integers("f"), "a list of integers >= 0"),
    ],
)
def test_record_value_of_a_wrong_type_is_refused(
    value: object, read: Callable[[RecordReader], object], allowed: str
) -> None:
    """The error has the field, the value and the allowed values."""
    with pytest.raises(ValueError, match=rf"^f is .*: {allowed} is allowed$"):
        read(RecordReader({"f": value}, ("f",)))


def test_values_of_a_stored_record_are_read_unchanged() -> None:
    record = {"i": 3, "n": 0.5, "t": "x", "b": False, "o": {"k": 1}, "l": [1, 2], "z": None}
    reader = RecordReader(record, record)

    assert (3, 0.5, 3) == (reader.integer("i"), reader.number("n"), reader.number("i"))
    assert ("x", False, {"k": 1}) == (reader.text("t"), reader.flag("b"), reader.mapping("o"))
    assert ((1, 2), [1, 2]) == (reader.integers("l"), reader.items("l"))
    assert (None, None) == (reader.integer_or_none("z"), reader.number_or_none("z"))


def test_stored_record_may_have_unread_fields() -> None:
    """A record of a newer scheduler has more fields."""
    record: dict[str, Any] = {"t": {"a": {"n": 1, "more": 2}, "b": {"n": "x"}}, "other": 1}
    reads = {"t": lambda r, name: r.table(name, lambda t, key: t.record(key, _NUMBER))}

    with pytest.raises(ValueError, match=r"^t: b: n is 'x': a finite number is allowed$"):
        read_fields(record, reads)
    del record["t"]["b"]
    assert {"t": {"a": {"n": 1}}} == read_fields(record, reads)
