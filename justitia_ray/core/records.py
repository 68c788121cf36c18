"""Records in the form of JSON, and checks of records read from a store or a file."""

from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any, NoReturn, TypeAlias, TypeGuard, TypeVar

Record: TypeAlias = dict[str, Any]
Entry = TypeVar("Entry")
Fields: TypeAlias = Mapping[str, Callable[["RecordReader", str], Any]]
"""Fields of a record, each with the function that reads it, for instance a method of
`RecordReader`.
"""


class RecordReader:
    """Reads a JSON object field by field; refuses missing, unknown and wrong fields by name.

    Every method raises a `ValueError` that names the field and says what is allowed.
    """

    def __init__(
        self,
        record: object,
        required: Iterable[str],
        optional: Iterable[str] | None = (),
        *,
        where: str = "",
    ) -> None:
        """Check that a JSON object has the expected fields.

        Args:
            record: The decoded JSON object.
            required: Fields that the object must have.
            optional: Fields that the object may have; None: any others, which are ignored.
            where: Name of the record, which error messages begin with.

        Raises:
            ValueError: If the record is not an object, or a field is missing or unknown.
        """
        self._prefix = f"{where}: " if where else ""
        if not isinstance(record, Mapping):
            raise ValueError(f"{self._prefix}must be an object")
        known = record.keys() - set(required) if optional is None else set(optional)
        if wrong := sorted(set(required) ^ (record.keys() - known)):
            raise ValueError(f"{self._prefix}fields missing or unknown: {', '.join(wrong)}")
        self._record = record

    def value(self, name: str) -> Any:
        """Return a field without a check; None if the field is optional and missing."""
        return self._record.get(name)

    def flag(self, name: str) -> bool:
        value = self.value(name)
        return value if type(value) is bool else self._refuse_value(name, "true or false")

    def integer(self, name: str) -> int:
        """Return a field that is a whole number of at least 0."""
        value = self.value(name)
        return value if _is_count(value) else self._refuse_value(name, "an integer >= 0")

    def integer_or_none(self, name: str) -> int | None:
        """Return a field that is null, or a whole number of at least 0."""
        return None if self.value(name) is None else self.integer(name)

    def number(self, name: str) -> float:
        """Return a field that is a finite number."""
        value: float = self.value(name)
        if type(value) not in (int, float) or not isfinite(value):
            self._refuse_value(name, "a finite number")
        return value

    def number_or_none(self, name: str) -> float | None:
        return None if self.value(name) is None else self.number(name)

    def positive(self, name: str) -> float:
        value = self.number(name)
        return value if value > 0 else self._refuse_value(name, "a finite number > 0")

    def not_negative(self, name: str) -> float:
        value = self.number(name)
        return value if value >= 0 else self._refuse_value(name, "a finite number >= 0")

    def text(self, name: str) -> str:
        value = self.value(name)
        return value if isinstance(value, str) else self._refuse_value(name, "a text")

    def text_or_none(self, name: str) -> str | None:
        return None if self.value(name) is None else self.text(name)

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.value(name)
        return value if isinstance(value, dict) else self._refuse_value(name, "an object")

    def table(self, name: str, read: Callable[["RecordReader", str], Entry]) -> dict[str, Entry]:
        """Return a field that is an object, each entry read by `read`."""
        reads = dict.fromkeys(self.mapping(name), read)
        return read_fields(self.value(name), reads, where=f"{self._prefix}{name}")

    def record(self, name: str, reads: Fields) -> Record:
        """Return the named fields of a field that is an object."""
        return read_fields(self.value(name), reads, where=f"{self._prefix}{name}")

    def items(self, name: str) -> list[Any]:
        value = self.value(name)
        return value if isinstance(value, list) else self._refuse_value(name, "a list")

    def integers(self, name: str) -> tuple[int, ...]:
        """Return a field that is a list of whole numbers of at least 0."""
        value = self.items(name)
        if not all(map(_is_count, value)):
            self._refuse_value(name, "a list of integers >= 0")
        return tuple(value)

    def _refuse_value(self, name: str, allowed: str) -> NoReturn:
        shown = repr(self.value(name))
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        raise ValueError(f"{self._prefix}{name} is {shown}: {allowed} is allowed")


def read_fields(record: object, reads: Fields, *, where: str = "") -> Record:
    """Return the named fields of a record that may have others, each read by its function.

    Raises:
        ValueError: If the record is not an object, or a field is missing or wrong; the message
            names it.
    """
    reader = RecordReader(record, reads, None, where=where)
    return {name: read(reader, name) for name, read in reads.items()}


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and value >= 0  # in Python a bool is an int, but it is never a count
