"""Versions of a class's model: the kept versions, the serving version, and rollbacks.

The same rules hold for models in a directory and in Redis. Version 0 means that no model serves,
but the class mean.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

from pydantic import Field, StrictBool, model_validator

from justitia_ray.core.records import RecordReader
from justitia_ray.errors import RequestError
from justitia_ray.predictor.stored import AtLeastOne, Count, Stored

KEPT_VERSIONS = 5
"""Number of versions that are kept for rollbacks; a model has some hundred kilobytes."""

NO_MODEL = 0


@dataclass(frozen=True, slots=True)
class Version(Stored):
    """A version of a class's model that serves, or has served."""

    number: AtLeastOne
    """Number of the version in the order of publication, never reused."""
    sha256: Annotated[str, Field(min_length=64, max_length=64)]
    """SHA-256 of the model's bytes, in hexadecimal."""
    size_bytes: Count
    record: dict[str, Any]
    """Record of the model's training as JSON, with `kind`, `samples`, `error`, `reason`,
    `trained_at`.
    """

    def holds(self, data: bytes) -> bool:
        """Return whether bytes are the bytes of this version's model."""
        return len(data) == self.size_bytes and _sha256(data) == self.sha256


@dataclass(frozen=True, slots=True)
class VersionIndex(Stored):
    """The versions of a class's model; immutable, so changes return a new index."""

    active: Count = NO_MODEL
    """Number of the version that serves; 0 if none serves."""
    pinned: StrictBool = False
    """Whether an operator rolled back: trainings then do not replace the active version."""
    last_number: Count = 0
    """Largest version number assigned so far."""
    last_training: dict[str, Any] | None = None
    """Outcome of the last training, even if its model was not used."""
    imported: str | None = None
    """SHA-256 of the last imported model, which is not imported again."""
    versions: Annotated[tuple[Version, ...], Field(max_length=KEPT_VERSIONS)] = ()
    """Versions that are kept, ascending."""

    def published(self, data: bytes, record: Mapping[str, Any]) -> Self:
        """Return the version index after a new model was published, which then serves.

        Its oldest versions and its pin are dropped.
        """
        number = self.last_number + 1
        added = Version(number, _sha256(data), len(data), dict(record))
        return replace(
            self,
            versions=(*self.versions, added)[-KEPT_VERSIONS:],
            active=number,
            pinned=False,
            last_number=number,
        )

    def with_imported(self, data: bytes, record: Mapping[str, Any]) -> Self:
        """Return the version index after a model was imported, which then serves."""
        published = self.published(data, record)
        return replace(published, imported=published.versions[-1].sha256)

    def activated(self, number: int, *, pinned: bool) -> Self:
        """Return the version index with another kept version in use; 0: no version.

        Raises:
            RequestError: If the version is not kept.
        """
        known = [version.number for version in self.versions]
        if number != NO_MODEL and number not in known:
            there = ", ".join(map(str, [NO_MODEL, *known]))
            raise RequestError(f"version is {number}: one of {there} is allowed", param="version")
        return replace(self, active=number, pinned=pinned)

    def rolled_back(self) -> Self:
        """Return the version index after a rollback to the version before the active one.

        That version is then pinned.

        Raises:
            RequestError: If no version is active, or no earlier version is kept.
        """
        earlier = [v.number for v in self.versions if v.number < self.active]
        if not earlier:
            serving = f"version {self.active}" if self.active else "no model"
            raise RequestError(
                f"{serving} serves, and no earlier version is kept; version 0 is the class mean"
            )
        return self.activated(earlier[-1], pinned=True)

    def after_rollback(self, version: int | None, *, release: bool) -> Self:
        """Return the version index after an operator's rollback.

        Args:
            version: Version to return to; None: the version before the active one; 0: the class
                mean.
            release: Remove the pin instead, so that trainings replace the active version again.

        Raises:
            RequestError: If there is no such version.
        """
        if release:
            return replace(self, pinned=False)
        return self.rolled_back() if version is None else self.activated(version, pinned=True)

    def describe(self) -> dict[str, Any]:
        """Return all versions of the model as JSON for operators."""
        return {
            "active": self.active,
            "pinned": self.pinned,
            "last_training": self.last_training,
            "versions": [
                {"version": v.number, "size_bytes": v.size_bytes} | v.record for v in self.versions
            ],
        }

    def candidates(self) -> tuple[Version, ...]:
        """Return the versions that may serve: the active one, then earlier ones, latest first.

        Versions later than the active version, from which an operator rolled back, are not
        included.
        """
        return tuple(v for v in reversed(self.versions) if v.number <= self.active)

    def find(self, number: int) -> Version | None:
        """Return the version of the model with a number; None if it is not kept."""
        return next((v for v in self.versions if v.number == number), None)

    @model_validator(mode="after")
    def _check_numbers(self) -> Self:
        numbers = [version.number for version in self.versions]
        if numbers != sorted(set(numbers)) or numbers[-1:] > [self.last_number]:
            raise ValueError(
                f"versions are numbered {numbers}: ascending up to last_number is allowed"
            )
        if self.active not in (NO_MODEL, *numbers):
            raise ValueError(f"active is {self.active}: one of {[NO_MODEL, *numbers]} is allowed")
        return self


def encode_index(index: VersionIndex) -> bytes:
    """Encode a version index as JSON with a checksum.

    Models have their checksums in the index; a damaged index must not look like a rollback.
    """
    content = index.to_dict()
    return json.dumps({"index": content, "sha256": _sha256(_canonical_json(content))}).encode()


def decode_index(data: bytes | str) -> VersionIndex:
    """Decode a version index from `encode_index`.

    Raises:
        ValueError: If the index is damaged or not valid; the message says how.
    """
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    reader = RecordReader(values, ("index", "sha256"))
    index = reader.mapping("index")
    if reader.value("sha256") != _sha256(_canonical_json(index)):
        raise ValueError("sha256 is another than that of the index: it is damaged")
    return VersionIndex.from_dict(index)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _canonical_json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
