"""Namespaces and Secrets in protobuf, which kubectl and Helm send in place of JSON."""

import base64
from collections.abc import Iterator
from typing import Any

_MAGIC = b"k8s\x00"
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
"""Lengths of fields of the other wire types, in bytes."""


def decoded(body: bytes) -> dict[str, Any] | None:
    """Return the object of a protobuf body; None for a body in another format.

    Raises:
        ValueError: If its kind is not supported.
    """
    if not body.startswith(_MAGIC):
        return None
    unknown = dict(_fields(body.removeprefix(_MAGIC)))
    kind = _texts(unknown[1])[2]
    fields = list(_fields(unknown[2]))
    found: dict[str, Any] = {"kind": kind, "metadata": _metadata(dict(fields)[1])}
    if kind == "Secret":
        data = (dict(_fields(value)) for number, value in fields if number == 2)
        found["data"] = {
            entry[1].decode(): base64.b64encode(entry.get(2, b"")).decode() for entry in data
        }
        found["type"] = dict(fields).get(3, b"Opaque").decode() or "Opaque"
    elif kind != "Namespace":
        raise ValueError(f"{kind} in protobuf is not supported")
    return found


def _metadata(message: bytes) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for number, value in _fields(message):
        if number == 1:
            metadata["name"] = value.decode()
        elif number in (11, 12):
            entry = _texts(value)
            key = "labels" if number == 11 else "annotations"
            metadata.setdefault(key, {})[entry[1]] = entry.get(2, "")
    return metadata


def _texts(message: bytes) -> dict[int, str]:
    return {number: value.decode() for number, value in _fields(message)}


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field of a message."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        length, at = _varint(message, at) if wire == _BYTES else (_FIXED[wire], at)
        yield number, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
