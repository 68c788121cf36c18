"""What is wrong with values that were given, in sentences."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from justitia_ray.errors import ConfigError, shown_short

Schema = TypeVar("Schema", bound=BaseModel)


def checked(schema: type[Schema], values: Mapping[str, Any], where: str = "") -> Schema:
    """Return values as a schema has them.

    Args:
        schema: What is allowed.
        values: As they were given.
        where: Put before what is wrong.

    Raises:
        ConfigError: If a key is unknown or a value is not allowed; names every one of them.
    """
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{where}{describe(error)}") from error


def describe(error: ValidationError) -> str:
    """Return one line for each thing that is wrong: key, value, what is allowed."""
    lines = []
    for item in error.errors(include_url=False):
        key = ".".join(str(part) for part in item["loc"]) or "configuration"
        value = "" if isinstance(item["input"], dict) else f" (got {shown_short(item['input'])})"
        lines.append(f"{key}: {item['msg']}{value}")
    return "; ".join(lines)
