"""A refused body cut down to a small one that is refused too, so that its explanation stays cheap.

What is cut away is valid without the rest, and the rest without it: items of lists, names that no
schema requires, ends of long texts. So a failure of the small body is one of the whole body.
"""

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

Place = tuple[str | int, ...]
"""Names and numbers from a body to a value in it."""

_DEEPEST = 8
"""Levels of a body that are cut down; what lies deeper stays whole."""
_LONGEST_TEXT = 64
"""Characters of a text that stay."""


class ReducedBody(NamedTuple):
    """A small body, and where its items stand in the whole one."""

    value: Any
    positions: dict[Place, list[int]]
    """Positions in the whole body of a list's items, by the list's place in the small body."""

    def whole_place(self, place: Place) -> Place:
        """Return the place in the whole body of a place in the small one."""
        return tuple(
            self.positions[place[:depth]][part]
            if isinstance(part, int) and place[:depth] in self.positions
            else part
            for depth, part in enumerate(place)
        )

    def is_small(self, levels: int, characters: int) -> bool:
        """Return whether the small body has at most these levels, and characters as JSON."""
        return _has_at_most(self.value, levels) and len(json.dumps(self.value)) <= characters


def reduce_body(
    body: Any, is_refused: Callable[[Any], bool], needed: Collection[str]
) -> ReducedBody:
    """Cut a refused body down.

    The first of several bad items of a type is kept. A list of n items costs the judgement of some
    2 n items;
    one whose items are refused together only, up to n log n.

    Args:
        body: The body.
        is_refused: Judges a body.
        needed: Names that stay in each object: the required ones, and those that tell forms apart.
    """
    positions: dict[Place, list[int]] = {}

    def reduce(value: Any, place: Place, is_refused: Callable[[Any], bool]) -> Any:
        small = _shortened(value, needed)
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
            chosen = sorted(_necessary(candidates, are_refused))
            positions[place] = chosen
            kept: Any = [items[i] for i in chosen]
            parts: Sequence[Any] = range(len(kept))
        else:
            names = _necessary(list(value), lambda some: is_refused(_mixed(small, value, some)))
            kept = _mixed(small, value, names)
            parts = names
        for part in parts:
            whole = kept[part]

            def is_refused_with(changed: Any, part: Any = part) -> bool:
                kept[part] = changed
                return is_refused(kept)

            kept[part] = reduce(whole, (*place, part), is_refused_with)
        return kept

    return ReducedBody(reduce(body, (), is_refused), positions)


def _has_at_most(value: Any, levels: int) -> bool:
    if not isinstance(value, list | dict):
        return True
    parts = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_has_at_most(part, levels - 1) for part in parts)


def _mixed(small: dict[str, Any], whole: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return small | {name: whole[name] for name in names}


def _first_of_types(items: list[Any]) -> list[int]:
    """Return the positions of each type's first item: token ids with a text among them."""
    first: dict[type, int] = {}
    for position, item in enumerate(items):
        first.setdefault(type(item), position)
    return list(first.values())


def _necessary(
    parts: Sequence[T], is_refused: Callable[[Sequence[T]], bool], beside: Sequence[T] = ()
) -> Sequence[T]:
    """Return few parts that are refused, together with those beside them, if all parts are."""
    if len(parts) <= 1:
        return parts
    first, second = parts[: len(parts) // 2], parts[len(parts) // 2 :]
    for half in (first, second):
        if is_refused([*beside, *half]):
            return _necessary(half, is_refused, beside)
    of_second = _necessary(second, is_refused, [*beside, *first])
    return [*_necessary(first, is_refused, [*beside, *of_second]), *of_second]


def _shortened(value: Any, needed: Collection[str], depth: int = 0) -> Any:
    """Return a value with the first items of its lists and the needed names of its objects."""
    if isinstance(value, str):
        return value.strip()[:_LONGEST_TEXT] if len(value) > _LONGEST_TEXT else value
    if depth > _DEEPEST:
        return value
    if isinstance(value, list):
        return [_shortened(item, needed, depth + 1) for item in value[:1]]
    if isinstance(value, dict):
        return {
            name: _shortened(value[name], needed, depth + 1) for name in value if name in needed
        }
    return value
