"""JSON bodies that everybody reads alike, and their fields, checked one by one."""

import json
import math
import re
from typing import Any, NoReturn

from justitia_ray.errors import RequestError, shown_short

_MAX_DEPTH = 128
"""Schemas of tools nest some ten deep. What parses JSON or writes it gives up at about a thousand,
each at another depth."""
_MARKS = re.compile(r'\\.|["\[{\]}]', re.DOTALL)
"""What depth is counted by; an escaped character is none of it."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_object(body: bytes) -> dict[str, Any]:
    """Return a JSON object that everybody reads alike: numbers finite, names once, text in UTF-8.

    Raises:
        RequestError: If it is something else.
    """
    try:
        text = body.decode("utf-8")
        _check_depth(text)
        fields = json.loads(
            text,
            object_pairs_hook=_object,
            parse_float=_finite,
            parse_constant=_refuse_constant,
        )
        if _SURROGATE.search(text):  # half a character can be written so, but not be encoded
            json.dumps(fields, ensure_ascii=False).encode()
    except ValueError as error:  # UnicodeError is one
        raise RequestError(f"the body is not valid JSON: {error}") from None
    if not isinstance(fields, dict):
        raise RequestError(f"the body must be a JSON object, not {type(fields).__name__}")
    return fields


def integer(fields: dict[str, Any], name: str, least: int, most: int) -> int | None:
    """Return an integer field; None if it is not there, or null.

    Raises:
        RequestError: If it is something else, or out of range.
    """
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        shown = shown_short(value)
        raise RequestError(f"{name} is {shown}: an integer of {least} to {most} is allowed", name)
    return value


def boolean(fields: dict[str, Any], name: str) -> bool:
    """Return a boolean field; False if it is not there, or null.

    Raises:
        RequestError: If it is something else.
    """
    value = fields.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        shown = shown_short(value)
        raise RequestError(f"{name} is {shown}: true or false is allowed", name)
    return value


def objects(fields: dict[str, Any], name: str, what: str) -> list[dict[str, Any]]:
    """Return a field that is a list of at least one object.

    Args:
        fields: Of a body.
        name: The field.
        what: What each of them is, e.g. `message`.

    Raises:
        RequestError: If it is something else.
    """
    value = fields.get(name)
    if not isinstance(value, list) or not value:
        raise RequestError(f"{name} must be a list of at least one {what}", name)
    if not all(isinstance(item, dict) for item in value):
        raise RequestError(f"every {what} must be an object", name)
    return value


def _check_depth(text: str) -> None:
    """Refuse what nests too deep.

    Raises:
        ValueError: If it does.
    """
    if text.count("[") + text.count("{") <= _MAX_DEPTH:
        return
    depth, in_string = 0, False
    for mark in _MARKS.finditer(text):
        character = mark.group()
        if character == '"':
            in_string = not in_string
        elif in_string or len(character) > 1:
            continue
        elif character in "[{":
            depth += 1
            if depth > _MAX_DEPTH:
                raise ValueError(f"it nests deeper than {_MAX_DEPTH}")
        else:
            depth -= 1


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"it names {shown_short(name)} twice in one object")
            seen.add(name)
    return found


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits[:40]} is too large a number")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
