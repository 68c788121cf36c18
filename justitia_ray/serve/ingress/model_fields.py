"""Parse a large JSON body into its pydantic model in small steps, between which other tasks run.

Parsing in one step holds the interpreter: a body of 16 MiB took 40 to 105 ms if it was one text,
0.9 s with a list in place of a number, and 17 s if all its fields were unknown. A list of empty
objects took twenty times the body's memory. Here the fields are located first, at 0.3 to 1 ns a
byte; then texts are decoded in pieces, and lists element by element, once their length is known to
be allowed.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from functools import cache
from typing import TypeVar, get_args, get_origin

import msgspec
from pydantic import BaseModel

from justitia_ray.errors import RequestError
from justitia_ray.protocol.inference_body import read_object

_Model = TypeVar("_Model", bound=BaseModel)

_SMALL_BYTES = 65_536
"""Maximum bytes of request bodies that are parsed in one step (at most 20 ms)."""
_PIECE_BYTES = 2**20
"""Maximum bytes of text that one step decodes, and of one element of a list; both take about 3 ms.
"""
_SCALAR_BYTES = 4_096
"""Maximum bytes of a request field that is neither a text nor a list."""
_MOST_CONTAINERS = 200_000
"""Maximum number of objects and lists within one list of a request, because 16 MiB of empty lists
would take 0.4 GB.
"""
_LONGEST_ESCAPE_BYTES = 12
"""Bytes of the longest JSON escape of one character, a pair of surrogates."""
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB]")
_LATER_BYTES, _FIRST_OF_MANY_BYTES = 0x80, 0xC0
"""Smallest UTF-8 continuation byte, and smallest first byte of a UTF-8 character of several bytes.
"""
_PLACE = re.compile(r"\(byte (\d+)\)")
_CONSTANT = re.compile(rb"NaN|-?Infinity")
_ABSENT = msgspec.Raw(b"")


async def read_fields(kind: type[_Model], raw: bytes) -> _Model:
    """Return a request body as its pydantic model.

    Small bodies are read as strictly as those of inferences. In large bodies a name that is given
    twice is not found, because no parser in steps tells of it.

    Raises:
        ValidationError: If a field is unknown or malformed.
        RequestError: If the body is not JSON, or a list has too many or too large elements.
    """
    if len(raw) <= _SMALL_BYTES:
        return kind.model_validate(read_object(raw))
    try:
        body = _field_reader(kind).decode(raw)
    except msgspec.ValidationError as error:
        return kind.model_validate(_refused_fields(str(error)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _json_error(_json_flaw(raw, error)) from None
    await asyncio.sleep(0)
    values = {}
    for name in kind.model_fields:
        value = memoryview(getattr(body, name))
        if value:
            try:
                values[name] = await _field_value(kind, name, value)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                reason = str(error).partition(" (byte ")[0]  # without the position in the field
                raise RequestError(f"{name} is not valid JSON: {reason}", name) from None
    return kind.model_validate(values)


@cache
def _field_reader(kind: type[BaseModel]) -> msgspec.json.Decoder[msgspec.Struct]:
    fields = [(name, msgspec.Raw, _ABSENT) for name in kind.model_fields]
    return msgspec.json.Decoder(
        msgspec.defstruct(kind.__name__, fields, forbid_unknown_fields=True)
    )


def _json_error(reason: str) -> RequestError:
    return RequestError(f"the body is not valid JSON: {reason}")


def _json_flaw(raw: bytes, error: Exception) -> str:
    """Return why a body is not JSON; names NaN and Infinity, which Python's JSON writers emit."""
    if isinstance(error, RecursionError):
        return "it nests too deep"
    place = _PLACE.search(str(error))
    if place is not None:
        at = int(place[1])
        found = _CONSTANT.match(raw, max(0, at - 1)) or _CONSTANT.match(raw, at)
        if found is not None:
            return f"{found[0].decode()} (byte {found.start()}) is no JSON number"
    return str(error)


def _refused_fields(reason: str) -> dict[str, int]:
    """Return fields that the pydantic model refuses for the same `reason`.

    Raises:
        RequestError: If the body is no object.
    """
    _, found, name = reason.rpartition("unknown field `")
    if found:
        return {name.rstrip("`"): 0}
    kind = "list" if reason.endswith("`array`") else "str"  # nothing else is as long
    raise RequestError(f"the body must be a JSON object, not {kind}")


async def _field_value(kind: type[BaseModel], name: str, value: memoryview) -> object:
    """Return a request field's value; a too long scalar becomes [], which is refused later."""
    if value[0] == ord('"'):
        return "".join([piece async for piece in _in_steps(text_pieces(value))])
    if value[0] == ord("[") and _takes_lists(kind.model_fields[name].annotation):
        elements = _list_elements(kind, name, value)
        return [element async for element in _in_steps(elements)]
    return msgspec.json.decode(value) if len(value) <= _SCALAR_BYTES else []


_Item = TypeVar("_Item")


async def _in_steps(items: Iterator[tuple[_Item, int]]) -> AsyncIterator[_Item]:
    """Yield the items of (item, bytes) pairs; other tasks of the event loop run after each MiB."""
    bytes_since = 0
    for item, size_bytes in items:
        yield item
        bytes_since += size_bytes
        if bytes_since >= _PIECE_BYTES:
            bytes_since = 0
            await asyncio.sleep(0)


# --- texts


def text_pieces(value: memoryview, size_bytes: int = _PIECE_BYTES) -> Iterator[tuple[str, int]]:
    """Yield the decoded pieces of a JSON string, each with its number of bytes.

    Args:
        value: The JSON text with its quotes.
        size_bytes: Maximum bytes of a part, at least some dozens.

    Raises:
        DecodeError, UnicodeDecodeError: If a part is not valid text.
    """
    at, end = 1, len(value) - 1
    while at < end:
        piece = bytes(value[at : min(at + size_bytes, end)])
        if at + len(piece) < end:
            piece = piece[: _whole_bytes(piece)]
        yield msgspec.json.decode(b'"%b"' % piece, type=str), len(piece)
        at += len(piece)


def _whole_bytes(piece: bytes) -> int:
    """Return the bytes of the longest prefix that ends between characters and JSON escapes."""
    last = piece.rfind(b"\\")
    if last < len(piece) - _LONGEST_ESCAPE_BYTES:
        return _whole_utf8_bytes(piece)
    begin = _start_of_backslashes(piece, last)
    if begin == 0:
        return last // 2 * 2  # All characters are backslashes, two for each one in the text.
    high = begin - _LONGEST_ESCAPE_BYTES // 2
    if high > 0 and _HIGH_SURROGATE.match(piece, high):
        is_escape = (high - _start_of_backslashes(piece, high)) % 2 == 0
        return high if is_escape else begin
    return begin


def _start_of_backslashes(piece: bytes, last: int) -> int:
    """Return the index of the first backslash of the run that ends at `last`."""
    return len(piece[: last + 1].rstrip(b"\\"))


def _whole_utf8_bytes(piece: bytes) -> int:
    for back in range(1, min(4, len(piece)) + 1):
        if piece[-back] >= _FIRST_OF_MANY_BYTES:
            return len(piece) - back  # The last character may continue in the next piece.
        if piece[-back] < _LATER_BYTES:
            break
    return len(piece)


# --- lists


def _list_elements(
    kind: type[BaseModel], name: str, value: memoryview
) -> Iterator[tuple[object, int]]:
    """Yield the elements of a JSON list, each with its number of bytes.

    Raises:
        RequestError: If there are too many elements, or one is too large.
    """
    most = _most_elements(kind, name)
    try:
        found = _list_reader(most).decode(value)
    except msgspec.ValidationError:
        reason = f"{name} has more than {most} elements: at most {most} are allowed"
        raise RequestError(reason, name) from None
    containers = 0
    for number in range(most):
        element = bytes(getattr(found, _element_name(number)))
        if not element:
            return
        if len(element) > _PIECE_BYTES:
            raise RequestError(
                f"{name}[{number}] takes {len(element)} bytes: at most {_PIECE_BYTES} are allowed",
                name,
            )
        containers += element.count(b"{") + element.count(b"[")
        if containers > _MOST_CONTAINERS:
            raise RequestError(
                f"{name} has {containers} objects and lists in its first {number + 1} elements:"
                f" at most {_MOST_CONTAINERS} are allowed",
                name,
            )
        yield msgspec.json.decode(element), len(element)


def _most_elements(kind: type[BaseModel], name: str) -> int:
    limits = kind.model_fields[name].metadata
    return min(int(limit.max_length) for limit in limits if hasattr(limit, "max_length"))


@cache
def _list_reader(most: int) -> msgspec.json.Decoder[msgspec.Struct]:
    """Return a decoder that locates the elements of a list, and fails beyond `most` elements."""
    fields = [(_element_name(number), msgspec.Raw, _ABSENT) for number in range(most)]
    return msgspec.json.Decoder(
        msgspec.defstruct("List", fields, array_like=True, forbid_unknown_fields=True)
    )


def _element_name(number: int) -> str:
    return f"element_{number}"


def _takes_lists(annotation: object) -> bool:
    if get_origin(annotation) is list:
        return True
    return any(_takes_lists(part) for part in get_args(annotation))
