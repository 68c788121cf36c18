"""Base of every section of the configuration file, and the types of its values."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from justitia_ray.access.identity import MAX_WEIGHT, MIN_WEIGHT
from justitia_ray.errors import ConfigError, shown_short

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=MIN_WEIGHT, le=MAX_WEIGHT, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
ModelName = Annotated[str, Field(min_length=1, max_length=200)]
HeaderName = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$"), AfterValidator(lambda name: name.lower())
]
LabelCount = Annotated[int, Field(gt=0, le=1_000)]


class Section(BaseModel):
    """Base class of configuration sections, which are frozen and reject unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @classmethod
    def parse(cls, values: Mapping[str, Any], where: str = "") -> Self:
        """Return the section with these values.

        Args:
            values: Keys and values from the file.
            where: Prefix of error messages.

        Raises:
            ConfigError: If a key is unknown or a value is not allowed; the message names all such
                keys.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise ConfigError(f"{where}{describe(error)}") from error


def describe(error: ValidationError, allowed: Iterable[str] = ()) -> str:
    """Return one sentence for each validation error, with its key, value and allowed values.

    Args:
        error: The errors.
        allowed: Keys that are allowed at the top, for errors about unknown keys.
    """
    names = ", ".join(allowed)
    lines = []
    for item in error.errors(include_url=False):
        key = ".".join(str(part) for part in item["loc"]) or "configuration"
        if names and item["type"] == "extra_forbidden" and len(item["loc"]) == 1:
            lines.append(f"{key} is unknown: {names} are allowed")
            continue
        value = "" if isinstance(item["input"], dict) else f" (got {shown_short(item['input'])})"
        reason = str(item["msg"]).removeprefix("Value error, ")
        lines.append(f"{key}: {reason}{value}")
    return "; ".join(lines)
