"""A refused body is reduced to a few refused values at little more than the cost of reading it."""

from collections.abc import Callable
from typing import Any

import pytest

from justitia_ray.protocol.reduced_bodies import ReducedBody, reduce_body

_NEEDED = ("role",)


class CountingValidator:
    """JSON-schema validator of a test that counts the list items it has read."""

    def __init__(self, is_refused: Callable[[Any], bool]) -> None:
        self._is_refused = is_refused
        self.judged_items = 0

    def __call__(self, body: Any) -> bool:
        self.judged_items += len(body["items"])
        return self._is_refused(body)


def has_text_item(body: dict[str, Any]) -> bool:
    return any(isinstance(item, str) for item in body["items"])


def has_items_of_two_types(body: dict[str, Any]) -> bool:
    return len({type(item) for item in body["items"]}) > 1


def has_negative_item(body: dict[str, Any]) -> bool:
    return any(item < 0 for item in body["items"])


@pytest.mark.parametrize("position", [0, 1, 511, 512, 998, 999])
@pytest.mark.parametrize(
    ("bad", "is_refused"),
    [("x", has_text_item), ("x", has_items_of_two_types), (-1, has_negative_item)],
)
def test_invalid_list_item_is_found_in_two_validations(
    position: int, bad: Any, is_refused: Callable[[Any], bool]
) -> None:
    items = [bad if number == position else number for number in range(1_000)]
    judge = CountingValidator(is_refused)

    reduced = reduce_body({"items": items}, judge, ("items",))

    assert bad in reduced.value["items"]
    assert len(reduced.value["items"]) <= 2
    here = reduced.value["items"].index(bad)
    assert ("items", position) == reduced.whole_place(("items", here))
    assert judge.judged_items <= 2 * len(items) + 10


def test_reduced_body_keeps_items_that_are_only_invalid_together() -> None:
    """The test's validator refuses the sum of two items and accepts each alone."""
    items = [1] * 500 + [2] * 500
    judge = CountingValidator(lambda body: {1, 2} <= set(body["items"]))

    reduced = reduce_body({"items": items}, judge, ("items",))

    assert [1, 2] == reduced.value["items"]
    assert judge.judged_items <= 10 * len(items)


def test_reduced_body_keeps_the_first_of_several_invalid_items() -> None:
    reduced = reduce_body(
        {"items": [0, -1, 0, -2, -3]}, CountingValidator(has_negative_item), ("items",)
    )

    assert [-1] == reduced.value["items"]
    assert ("items", 1, "a") == reduced.whole_place(("items", 0, "a"))


def test_reduced_body_keeps_required_fields_and_cuts_long_texts() -> None:
    """A message without its role would be refused for another reason."""
    body = {"role": "u" * 1_000, "tools": [1, 2], "bad": {"role": [3, 4], "bad": 5, "good": 6}}

    def is_bad_message(some: dict[str, Any]) -> bool:
        return "role" in some and some.get("bad", {}).get("bad") == 5

    assert ReducedBody({"role": "u" * 64, "bad": {"role": [3], "bad": 5}}, {}) == reduce_body(
        body, is_bad_message, _NEEDED
    )


def test_deep_or_long_values_do_not_count_as_small() -> None:
    assert ReducedBody([[5]], {}).is_small(2, 5)
    assert not ReducedBody([[5]], {}).is_small(1, 5)
    assert not ReducedBody([[5]], {}).is_small(2, 4)
