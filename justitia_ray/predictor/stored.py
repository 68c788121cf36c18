"""Base of dataclasses that are sent or stored as JSON, and validated when read."""

from dataclasses import Field as DataclassField
from functools import cache
from typing import Annotated, Any, ClassVar, Self, TypeAlias

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from justitia_ray.core.records import RecordReader
from justitia_ray.errors import shown_short

Count: TypeAlias = Annotated[int, Field(ge=0, strict=True)]
AtLeastOne: TypeAlias = Annotated[int, Field(ge=1, strict=True)]
Finite: TypeAlias = Annotated[float, Field(strict=True)]
NotNegative: TypeAlias = Annotated[float, Field(ge=0, strict=True)]
Positive: TypeAlias = Annotated[float, Field(gt=0, strict=True)]


class Stored:
    """Base class of dataclasses with a JSON form; annotations define the allowed values.

    Objects created in the program are not validated. JSON must have every field except those whose
    default is None.
    """

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)
    __dataclass_fields__: ClassVar[dict[str, DataclassField[Any]]]

    def to_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = self._adapter_of().dump_python(self, mode="json")
        return values

    @classmethod
    def from_dict(cls, values: object, where: str = "") -> Self:
        """Return the object from the JSON of `to_dict`.

        Args:
            values: Fields as JSON.
            where: Prefix of error messages.

        Raises:
            ValueError: If a field is missing, unknown or wrong; the message names it.
        """
        fields = cls.__dataclass_fields__.values()
        required = [field.name for field in fields if field.default is not None]
        optional = [field.name for field in fields if field.default is None]
        RecordReader(values, required, optional, where=where)
        try:
            read: Self = cls._adapter_of().validate_python(values)
        except ValidationError as error:
            raise ValueError(f"{where}: " * bool(where) + _error_message(error)) from error
        return read

    @classmethod
    @cache
    def _adapter_of(cls) -> TypeAdapter[Any]:
        return TypeAdapter(cls)


def _error_message(error: ValidationError) -> str:
    """Return a message about the first invalid field."""
    first = error.errors(include_url=False)[0]
    place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"]).lstrip(".")
    if first["type"] == "value_error":
        return f"{place}: {first['ctx']['error']}".removeprefix(": ")
    if first["type"] == "missing":
        return f"{place} is missing"
    return f"{place} is {shown_short(first['input'])}: {first['msg']}"
