"""The versions of one class's model: which there are, which one serves, which may go.

Pure: the same rules hold for models in a directory and in Redis. Version 0 is no model at all: the
class mean serves.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from justitia_ray.errors import RequestError

KEPT_VERSIONS = 5
"""Enough to go back over a bad day; a model takes some hundred kilobytes."""

NO_MODEL = 0


@dataclass(frozen=True, slots=True)
class Version:
    """One model that has served, or does."""

    number: int
    """From 1, in the order in which they took over; never given twice."""
    sha256: str
    """Of the model's bytes, in hexadecimal."""
    size_bytes: int
    record: dict[str, Any]
    """What is known of its training, as JSON: `kind`, `samples`, `error`, `reason`, `trained_at`,
    …; each may be missing."""

    def holds(self, data: bytes) -> bool:
        """Return whether these bytes are the model's, whole."""
        return len(data) == self.size_bytes and _digest(data) == self.sha256


@dataclass(frozen=True, slots=True)
class VersionIndex:
    """The versions of one class; every change makes a new index."""

    versions: tuple[Version, ...] = ()
    """Ascending; at most KEPT_VERSIONS."""
    active: int = NO_MODEL
    """The one that serves; 0 if none does."""
    pinned: bool = False
    """Somebody rolled back: no training replaces the active one until it is released."""
    last_number: int = 0
    """The greatest number ever given."""
    last_training: dict[str, Any] | None = field(default=None)
    """Outcome of the last training, also of one that did not take over."""
    imported: str | None = None
    """SHA-256 of the last model that was brought from elsewhere, so that it is brought once."""

    def published(self, data: bytes, record: Mapping[str, Any]) -> Self:
        """Add a version and let it serve; the oldest go, and a pin is taken off."""
        number = self.last_number + 1
        added = Version(number, _digest(data), len(data), dict(record))
        return replace(
            self,
            versions=(*self.versions, added)[-KEPT_VERSIONS:],
            active=number,
            pinned=False,
            last_number=number,
        )

    def brought(self, data: bytes, record: Mapping[str, Any]) -> Self:
        """Publish a model that was trained elsewhere."""
        published = self.published(data, record)
        return replace(published, imported=published.versions[-1].sha256)

    def trained(self, outcome: Mapping[str, Any]) -> Self:
        """Note how the last training ended."""
        return replace(self, last_training=dict(outcome))

    def activated(self, number: int, *, pinned: bool) -> Self:
        """Let a version serve that is there, or none (0).

        Raises:
            RequestError: If that version is not kept.
        """
        known = [version.number for version in self.versions]
        if number != NO_MODEL and number not in known:
            there = ", ".join(map(str, [NO_MODEL, *known]))
            raise RequestError(f"version is {number}: one of {there} is allowed", param="version")
        return replace(self, active=number, pinned=pinned)

    def rolled_back(self) -> Self:
        """Let the version before the active one serve, and pin it.

        Raises:
            RequestError: If none serves, or there is none before it.
        """
        earlier = [v.number for v in self.versions if v.number < self.active]
        if not earlier:
            serving = f"version {self.active}" if self.active else "no model"
            raise RequestError(
                f"{serving} serves, and no earlier version is kept; version 0 is the class mean"
            )
        return self.activated(earlier[-1], pinned=True)

    def released(self) -> Self:
        """Take the pin off: the next training may replace the active version."""
        return replace(self, pinned=False)

    def candidates(self) -> tuple[Version, ...]:
        """Return the versions that may serve: the active one, then earlier ones, latest first.

        What was rolled back from is not among them.
        """
        return tuple(v for v in reversed(self.versions) if v.number <= self.active)

    def find(self, number: int) -> Version | None:
        """Return a version that is kept."""
        return next((v for v in self.versions if v.number == number), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the index as JSON can say it."""
        return {
            "active": self.active,
            "pinned": self.pinned,
            "last_number": self.last_number,
            "last_training": self.last_training,
            "imported": self.imported,
            "versions": [
                {
                    "number": version.number,
                    "sha256": version.sha256,
                    "size_bytes": version.size_bytes,
                    "record": version.record,
                }
                for version in self.versions
            ],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the index that `to_dict` was called on.

        Raises:
            ValueError: If a field is missing, unknown or wrong; the message names it.
        """
        _check_names(values, [field.name for field in fields(cls)])
        listed, last_training = values["versions"], values["last_training"]
        if not isinstance(listed, list) or len(listed) > KEPT_VERSIONS:
            raise ValueError(f"versions must be a list of at most {KEPT_VERSIONS}")
        if type(values["pinned"]) is not bool:
            raise ValueError(f"pinned is {values['pinned']!r}: true or false is allowed")
        if last_training is not None and not isinstance(last_training, dict):
            raise ValueError("last_training must be an object or null")
        imported = values["imported"]
        if imported is not None and not isinstance(imported, str):
            raise ValueError("imported must be a text or null")
        index = cls(
            imported=imported,
            versions=tuple(_version(f"versions[{i}]", item) for i, item in enumerate(listed)),
            active=_count("active", values["active"], least=NO_MODEL),
            pinned=values["pinned"],
            last_number=_count("last_number", values["last_number"], least=0),
            last_training=last_training,
        )
        numbers = [version.number for version in index.versions]
        if numbers != sorted(set(numbers)) or numbers[-1:] > [index.last_number]:
            raise ValueError(
                f"versions are numbered {numbers}: ascending up to last_number is allowed"
            )
        if index.active not in (NO_MODEL, *numbers):
            raise ValueError(f"active is {index.active}: one of {[NO_MODEL, *numbers]} is allowed")
        return index


def encode_index(index: VersionIndex) -> bytes:
    """Return the index as JSON with a checksum of its own.

    The models have theirs in the index; a damaged index must not pass for a rollback.
    """
    content = index.to_dict()
    return json.dumps({"index": content, "sha256": _digest(_canonical(content))}).encode()


def decode_index(data: bytes | str) -> VersionIndex:
    """Return the index that `encode_index` was called on.

    Raises:
        ValueError: If it is damaged or has another form; the message says how.
    """
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError("must be a JSON object")
    _check_names(values, ("index", "sha256"))
    if not isinstance(values["index"], dict):
        raise ValueError("index must be an object")
    if values["sha256"] != _digest(_canonical(values["index"])):
        raise ValueError("sha256 is another than that of the index: it is damaged")
    return VersionIndex.from_dict(values["index"])


def _version(where: str, values: object) -> Version:
    if not isinstance(values, dict):
        raise ValueError(f"{where} must be an object")
    try:
        _check_names(values, ("number", "sha256", "size_bytes", "record"))
        digest, record = values["sha256"], values["record"]
        if not isinstance(digest, str) or len(digest) != 2 * hashlib.sha256().digest_size:
            raise ValueError("sha256 must be 64 hexadecimal digits")
        if not isinstance(record, dict):
            raise ValueError("record must be an object")
        return Version(
            _count("number", values["number"], least=1),
            digest,
            _count("size_bytes", values["size_bytes"], least=0),
            record,
        )
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _check_names(values: Mapping[str, Any], names: Sequence[str]) -> None:
    if wrong := sorted(set(names) ^ set(values)):
        raise ValueError(f"fields missing or unknown: {', '.join(wrong)}")


def _count(name: str, value: object, *, least: int) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"{name} is {value!r}: an integer >= {least} is allowed")
    return value


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
