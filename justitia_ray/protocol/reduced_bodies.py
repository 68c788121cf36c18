"""Reduce a refused body to a small body that is refused too, so that errors are cheap to explain.

Only parts whose removal keeps a valid body valid are removed: items of lists, names that no schema
requires, ends of long texts. So an error in the small body is also an error in the whole body.
"""

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

Place = tuple[str | int, ...]
"""Path of field names and list positions to a value in a JSON body."""

_DEEPEST = 8
"""Number of levels of a refused body that are reduced; deeper values stay whole."""
_LONGEST_TEXT = 64
"""Maximum length of a text in a reduced body, in characters."""


class ReducedBody(NamedTuple):
    """Small copy of a refused body, with the positions of its list items in the original."""

    value: Any
    positions: dict[Place, list[int]]
    """Positions in the original body of the items of each list in the reduced body, by path."""

    def whole_place(self, place: Place) -> Place:
        """Return the path in the original body that corresponds to a path in the reduced body."""
        return tuple(
            self.positions[place[:depth]][part]
            if isinstance(part, int) and place[:depth] in self.positions
            else part
            for depth, part in enumerate(place)
        )

    def is_small(self, levels: int, characters: int) -> bool:
        """Return whether a body has at most the given levels and characters of JSON."""
        return _has_at_most(self.value, levels) and len(json.dumps(self.value)) <= characters


def reduce_body(
    body: Any, is_refused: Callable[[Any], bool], needed: Collection[str]
) -> ReducedBody:
    """Reduce a refused body to a small body that is still refused.

    Of several bad items of one type the first is kept. A list of n items takes about 2 n checks, or
    up to n log n if the items are refused only together.

    Args:
        body: The body.
        is_refused: Returns whether a body is refused.
        needed: Names kept in each object: required names, and names that identify the object's
            form.
    """
    positions: dict[Place, list[int]] = {}

    def reduce_value(value: Any, place: Place, is_refused: Callable[[Any], bool]) -> Any:
        small = _first_items(value, needed)
        if is_refused(small):
            return small
        if len(place) >= _DEEPEST or not isinstance(value, list | dict):
            return value
        if isinstance(value, list):
            items = value

            def are_refused(some: Sequence[int]) -> bool:
                return is_refused([items[position] for position in some])

            candidates: Sequence[int] = _first_of_types(items)
            if not are_refused(candidates):
                candidates = range(len(items))
            chosen = sorted(_refused_subset(candidates, are_refused))
            positions[place] = chosen
            kept: Any = [items[i] for i in chosen]
            parts: Sequence[Any] = range(len(kept))
        else:
            names = _refused_subset(
                list(value), lambda some: is_refused(_merge_fields(small, value, some))
            )
            kept = _merge_fields(small, value, names)
            parts = names
        for part in parts:
            whole = kept[part]

            def is_refused_with(changed: Any, part: Any = part) -> bool:
                kept[part] = changed
                return is_refused(kept)

            kept[part] = reduce_value(whole, (*place, part), is_refused_with)
        return kept

    return ReducedBody(reduce_value(body, (), is_refused), positions)


def _has_at_most(value: Any, levels: int) -> bool:
    if not isinstance(value, list | dict):
        return True
    parts = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_has_at_most(part, levels - 1) for part in parts)


def _merge_fields(
    small: dict[str, Any], whole: dict[str, Any], names: Sequence[str]
) -> dict[str, Any]:
    return small | {name: whole[name] for name in names}


def _first_of_types(items: list[Any]) -> list[int]:
    """Return the position of the first item of each type; lists may mix texts and token ids."""
    first: dict[type, int] = {}
    for position, item in enumerate(items):
        first.setdefault(type(item), position)
    return list(first.values())


def _refused_subset(
    parts: Sequence[T], is_refused: Callable[[Sequence[T]], bool], beside: Sequence[T] = ()
) -> Sequence[T]:
    """Return a small subset of a body's parts that is refused together with the part `beside`."""
    if len(parts) <= 1:
        return parts
    first, second = parts[: len(parts) // 2], parts[len(parts) // 2 :]
    for half in (first, second):
        if is_refused([*beside, *half]):
            return _refused_subset(half, is_refused, beside)
    of_second = _refused_subset(second, is_refused, [*beside, *first])
    return [*_refused_subset(first, is_refused, [*beside, *of_second]), *of_second]


def _first_items(value: Any, needed: Collection[str], depth: int = 0) -> Any:
    """Reduce a JSON value: the first item of each list, and the needed names of each object."""
    if isinstance(value, str):
        return value.strip()[:_LONGEST_TEXT] if len(value) > _LONGEST_TEXT else value
    if depth > _DEEPEST:
        return value
    if isinstance(value, list):
        return [_first_items(item, needed, depth + 1) for item in value[:1]]
    if isinstance(value, dict):
        return {
            name: _first_items(value[name], needed, depth + 1) for name in value if name in needed
        }
    return value
