"""What is wrong with values that were given, in sentences."""

from pydantic import ValidationError

from justitia_ray.errors import shown_short


def describe(error: ValidationError) -> str:
    """Return one line for each thing that is wrong: key, value, what is allowed."""
    lines = []
    for item in error.errors(include_url=False):
        key = ".".join(str(part) for part in item["loc"]) or "configuration"
        value = "" if isinstance(item["input"], dict) else f" (got {shown_short(item['input'])})"
        lines.append(f"{key}: {item['msg']}{value}")
    return "; ".join(lines)
