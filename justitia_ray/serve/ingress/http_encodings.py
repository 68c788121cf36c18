"""Content codings of request bodies, decoded in small steps while the body arrives.

A few bytes may decode to gigabytes, so a step yields about 256 KiB, and the reader of the body
counts the output of each coding. The codings are defined in RFC 9110 (8.4), RFC 8878 and RFC 7932.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from justitia_ray.errors import RequestError, UnsupportedEncoding, shown_short
from justitia_ray.protocol.errors import ACCEPTED_ENCODINGS

HEADER = "content-encoding"

_STEP_BYTES = 2**18
"""Maximum decoded bytes of a request body in one step, which takes a millisecond."""
_MOST_CODINGS = 4
_MOST_MEMBERS = 1_024
"""Maximum number of gzip members or zstd frames in a request body. An empty member of 20 bytes
takes as long as decoding 10 kB.
"""
_ZSTD_PIECE_BYTES = 512
"""Bytes given to the zstd decoder at once. Every 4 bytes may decode to a block of 128 KiB, so 512
bytes may decode to 16 MiB.
"""


class Decoder(Protocol):
    """Decoder of one content coding, such as gzip."""

    @property
    def window_bytes(self) -> int:
        """Maximum bytes of decoded output that the decoder keeps in memory."""

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Yield the decoded output of the next piece of a body, in steps that may be empty.

        Raises:
            RequestError: If the piece is malformed.
        """

    def is_at_end(self) -> bool:
        """Return whether the body may end here: no gzip member or zstd frame is incomplete."""


def decoders_of(values: Sequence[str], most_bytes: int) -> list[Decoder]:
    """Return the decoders of a body's content codings, for the last one applied first.

    Args:
        values: Values of the header `content-encoding`.
        most_bytes: Maximum bytes of a body; no decoder keeps more.

    Raises:
        UnsupportedEncoding: If a coding is unknown, or there are too many.
    """
    names = [name.strip().lower() for value in values for name in value.split(",")]
    codings = [name for name in names if name not in ("", "identity")]
    if len(codings) > _MOST_CODINGS or not all(name in _CODINGS for name in codings):
        raise UnsupportedEncoding(
            f"{HEADER} is {shown_short(', '.join(values))}: {ACCEPTED_ENCODINGS}, identity, or up"
            f" to {_MOST_CODINGS} of them are allowed"
        )
    return [_CODINGS[name](most_bytes) for name in reversed(codings)]


class _Zlib:
    """Decoder of deflate, in the zlib format (the standard's) or raw, as some clients send it."""

    _name = "deflate"
    window_bytes = 2**15

    def __init__(self) -> None:
        self._decoder: Any = None
        self._begun = False

    def decode(self, data: bytes) -> Iterator[bytes]:
        is_more = False
        while data or is_more:
            if self._decoder is None:
                self._decoder = self._next_decoder(data)
            try:
                step = self._decoder.decompress(data, _STEP_BYTES)
            except zlib.error as error:
                raise _malformed_error(self._name, str(error)) from None
            yield step
            data = self._decoder.unconsumed_tail
            # A decoder may still have output although all input is consumed.
            is_more = len(step) == _STEP_BYTES and not self._decoder.eof
            if self._decoder.eof:
                data, self._decoder = self._decoder.unused_data, None

    def is_at_end(self) -> bool:
        return self._decoder is None and self._begun

    def _next_decoder(self, data: bytes) -> Any:
        if self._begun:
            raise _trailing_error(self._name)
        self._begun = True
        # The zlib format starts with compression method 8, unlike raw deflate.
        return zlib.decompressobj(15 if data[0] & 0x8F == 0x08 else -15)


class _Gzip(_Zlib):
    """Decoder of gzip bodies with one or several members."""

    _name = "gzip"

    def __init__(self) -> None:
        super().__init__()
        self._members = 0

    def _next_decoder(self, data: bytes) -> Any:
        if self._begun and data[0] != 0x1F:
            raise _trailing_error(self._name)
        self._begun = True
        self._members += 1
        _check_members(self._name, self._members)
        return zlib.decompressobj(31)


class _Zstd:
    """Decoder of Zstandard bodies with one or several frames."""

    def __init__(self, most_bytes: int) -> None:
        import zstandard  # The import is only needed for bodies in this coding.

        # RFC 9659 limits windows to 8 MiB, but a body compressed in one call declares its length.
        self.window_bytes = max(2**23, 1 << (most_bytes - 1).bit_length())
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=self.window_bytes)
        self._error = zstandard.ZstdError
        self._decoder: Any = None
        self._frames = 0

    def decode(self, data: bytes) -> Iterator[bytes]:
        made: list[bytes] = []
        size = stepped = begin = 0
        while begin < len(data):
            if self._decoder is None:
                self._frames += 1
                _check_members("zstd", self._frames)
                self._decoder = self._decompressor.decompressobj()
            piece = data[begin : begin + _ZSTD_PIECE_BYTES]
            begin += len(piece)
            try:
                made.append(self._decoder.decompress(piece))
            except self._error as error:
                raise _malformed_error("zstd", str(error)) from None
            size += len(made[-1])
            if self._decoder.eof:
                begin -= len(self._decoder.unused_data)
                self._decoder = None
            if max(size, begin - stepped) >= _STEP_BYTES:
                yield b"".join(made)
                made, size, stepped = [], 0, begin
        yield b"".join(made)

    def is_at_end(self) -> bool:
        return self._decoder is None and self._frames > 0


class _Brotli:
    window_bytes = 2**24

    def __init__(self) -> None:
        import brotli  # The import is only needed for bodies in this coding.

        self._decoder = brotli.Decompressor()
        self._error = brotli.error

    def decode(self, data: bytes) -> Iterator[bytes]:
        while True:
            try:
                step = self._decoder.process(data, output_buffer_limit=_STEP_BYTES)
            except self._error:
                raise _malformed_error("br", "it is no brotli, or goes on after its end") from None
            yield step
            data = b""
            if self._decoder.is_finished():
                return
            # A decoder may still have output after a full step.
            if len(step) < _STEP_BYTES and self._decoder.can_accept_more_data():
                return

    def is_at_end(self) -> bool:
        return bool(self._decoder.is_finished())


_CODINGS: dict[str, Callable[[int], Decoder]] = {
    "gzip": lambda most_bytes: _Gzip(),
    "x-gzip": lambda most_bytes: _Gzip(),
    "deflate": lambda most_bytes: _Zlib(),
    "zstd": _Zstd,
    "br": lambda most_bytes: _Brotli(),
}


def _check_members(name: str, members: int) -> None:
    if members > _MOST_MEMBERS:
        raise _malformed_error(name, f"it has more than {_MOST_MEMBERS:,} members")


def _trailing_error(name: str) -> RequestError:
    return _malformed_error(name, "something follows its end")


def _malformed_error(name: str, reason: str) -> RequestError:
    return RequestError(f"the body is not valid {name}, as its {HEADER} says: {reason}")
