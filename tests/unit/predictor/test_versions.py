"""Versions of a model: the serving one, the deleted ones, and errors of a damaged index."""

import json
from dataclasses import replace
from typing import Any

import pytest

from justitia_ray.errors import RequestError
from justitia_ray.predictor.versions import KEPT_VERSIONS, VersionIndex, decode_index, encode_index


def index_of(count: int) -> VersionIndex:
    """Return an index after this many publications."""
    index = VersionIndex()
    for number in range(1, count + 1):
        index = index.published(b"model %d" % number, {"samples": number})
    return index


def version_numbers(index: VersionIndex) -> list[int]:
    return [version.number for version in index.versions]


def test_new_model_version_serves_and_the_oldest_is_dropped() -> None:
    """A few old versions are kept for a rollback."""
    index = index_of(KEPT_VERSIONS + 2)

    assert (7, [3, 4, 5, 6, 7]) == (index.active, version_numbers(index))


def test_version_numbers_are_never_reused() -> None:
    """The name `version 3` in a log must mean one model, even after a rollback."""
    index = index_of(3).rolled_back().published(b"new", {})

    assert (4, [1, 2, 3, 4]) == (index.active, version_numbers(index))


def test_rollback_serves_and_pins_the_previous_version() -> None:
    """The next training must not undo an operator's rollback."""
    once = index_of(3).rolled_back()
    twice = once.rolled_back()

    assert [(2, True), (1, True)] == [(i.active, i.pinned) for i in (once, twice)]


def test_rollback_from_the_first_version_is_refused() -> None:
    """The error names the class mean as the alternative."""
    with pytest.raises(RequestError, match="version 0 is the class mean"):
        index_of(1).rolled_back()


def test_unknown_version_is_refused_with_a_list_of_versions() -> None:
    with pytest.raises(RequestError, match="version is 9: one of 0, 1, 2 is allowed"):
        index_of(2).activated(9, pinned=True)


def test_only_the_active_and_earlier_model_versions_may_serve() -> None:
    """A version that was rolled back must not return if the serving one is damaged."""
    index = index_of(4).activated(3, pinned=True)

    assert [3, 2, 1] == [version.number for version in index.candidates()]


def test_imported_model_is_recognised_after_a_restart() -> None:
    """A restart must not publish the model of the same directory again."""
    index = VersionIndex().with_imported(b"m", {})

    assert index.imported == index.versions[0].sha256
    assert index.imported == index.published(b"n", {}).imported


def test_index_of_model_versions_survives_json() -> None:
    """The index is stored as JSON in a file or in Redis."""
    index = replace(index_of(3).rolled_back(), last_training={"took_over": False})

    assert index == decode_index(encode_index(index))


def damaged_index(**changes: Any) -> bytes:
    """Return an index with changed content and a valid checksum."""
    fields = index_of(2).to_dict() | changes
    whole = json.loads(encode_index(index_of(2)))
    from justitia_ray.predictor.versions import _canonical_json, _sha256

    return json.dumps(
        whole | {"index": fields, "sha256": _sha256(_canonical_json(fields))}
    ).encode()


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "not JSON"),
        (b"[]", "must be an object"),
        (b'{"index": {}}', "fields missing or unknown: sha256"),
        (encode_index(index_of(2)).replace(b'"active": 2', b'"active": 1'), "damaged"),
        (damaged_index(active=7), "active is 7"),
        (damaged_index(active=True), "active is true"),
        (damaged_index(last_number=1), "versions are numbered"),
        (damaged_index(versions={}), "versions is {}: "),
        (damaged_index(versions=[{}]), r"versions\[0\].number is missing"),
        (damaged_index(pinned=1), "pinned is 1"),
        (damaged_index(extra=1), "fields missing or unknown: extra"),
    ],
)
def test_error_of_a_damaged_index_names_the_field(data: bytes, complaint: str) -> None:
    """A flipped bit must not look like a rollback."""
    with pytest.raises(ValueError, match=complaint):
        decode_index(data)
