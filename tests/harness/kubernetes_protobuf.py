"""Decoder of Namespaces and Secrets in protobuf, which kubectl and Helm send in place of JSON."""

import base64
from collections.abc import Iterator
from typing import Any

_MAGIC = b"k8s\x00"
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
"""Length in bytes of protobuf fields with a fixed-length wire type."""


def decode_object(body: bytes) -> dict[str, Any] | None:
    """Return the Kubernetes object in a protobuf body; None for a body in another format.

    Raises:
        ValueError: If its kind is not supported.
    """
    if not body.startswith(_MAGIC):
        return None
    unknown = dict(_read_fields(body.removeprefix(_MAGIC)))
    kind = _decode_strings(unknown[1])[2]
    fields = list(_read_fields(unknown[2]))
    found: dict[str, Any] = {"kind": kind, "metadata": _decode_metadata(dict(fields)[1])}
    if kind == "Secret":
        data = (dict(_read_fields(value)) for number, value in fields if number == 2)
        found["data"] = {
            entry[1].decode(): base64.b64encode(entry.get(2, b"")).decode() for entry in data
        }
        found["type"] = dict(fields).get(3, b"Opaque").decode() or "Opaque"
    elif kind != "Namespace":
        raise ValueError(f"{kind} in protobuf is not supported")
    return found


def _decode_metadata(message: bytes) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for number, value in _read_fields(message):
        if number == 1:
            metadata["name"] = value.decode()
        elif number in (11, 12):
            entry = _decode_strings(value)
            key = "labels" if number == 11 else "annotations"
            metadata.setdefault(key, {})[entry[1]] = entry.get(2, "")
    return metadata


def _decode_strings(message: bytes) -> dict[int, str]:
    return {number: value.decode() for number, value in _read_fields(message)}


def _read_fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield (number, value) of each field of a protobuf message."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _read_varint(message, at)
            yield number, value
            continue
        length, at = _read_varint(message, at) if wire == _BYTES else (_FIXED[wire], at)
        yield number, message[at : at + length]
        at += length


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
