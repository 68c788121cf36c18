"""Request bodies over HTTP: bounded in length, decoded, and parsed into their models."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from justitia_ray.config import describe
from justitia_ray.errors import BodyTooLarge, RequestError
from justitia_ray.serve.asgi import Receive
from justitia_ray.serve.ingress.body_room import BodyRoom, HeldBody
from justitia_ray.serve.ingress.door import context_of
from justitia_ray.serve.ingress.http_encodings import HEADER, Decoder, decoders_of
from justitia_ray.serve.ingress.model_fields import read_fields

_Body = TypeVar("_Body", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class BodyReader:
    """Reads request bodies up to a maximum length, of any content type."""

    max_bytes: int
    """Maximum bytes of a request body after decoding."""
    room: BodyRoom
    """Limit on the memory of all large bodies that an ingress process holds."""

    async def read_body(
        self, held: HeldBody, declared: str, receive: Receive, encodings: Sequence[str] = ()
    ) -> bytes:
        """Return the body of a request, with its content codings decoded.

        Args:
            held: Counts the body's memory.
            declared: The request's `content-length`; empty if it has none.
            receive: The request's messages.
            encodings: Values of the request's `content-encoding`.

        Raises:
            BodyTooLarge: If the body is too long, as sent or decoded; this is raised before reading
                if the declared length is too long.
            QueueFull: If the part that has arrived exceeds the memory limit.
            UnsupportedEncoding: If a content coding is not supported.
            RequestError: If the connection ends before the body does, or the body does not match
                its `content-encoding`.
        """
        if declared.isdecimal():
            self._check_size(int(declared[:20]))
        if encodings:
            decoders = decoders_of(encodings, self.max_bytes)
            return await self._read_decoded(held, receive, decoders)
        body: bytes | bytearray = b""
        async for piece, is_last in _received_pieces(receive):
            size_bytes = len(body) + len(piece)
            self._check_size(size_bytes)
            held.note_size(size_bytes)
            if is_last and not body:
                return piece
            if not body:
                body = bytearray()
            body += piece
            if is_last:
                return bytes(body)
        raise AssertionError("the last piece ends the body")

    async def _read_decoded(
        self, held: HeldBody, receive: Receive, decoders: list[Decoder]
    ) -> bytes:
        body = bytearray()
        read = 0
        made = [0] * len(decoders)
        async for piece, _ in _received_pieces(receive):
            read += len(piece)
            self._check_size(read)
            for step in self._decode_piece(piece, decoders, made):
                body += step
                held.note_size(len(body) + _kept_bytes(decoders, made))
                # Other tasks run between the steps, because decoding 16 MiB takes 0.1 s.
                await asyncio.sleep(0)
        if read and not all(decoder.is_at_end() for decoder in decoders):
            raise RequestError(f"the body ends before what its {HEADER} says does")
        held.note_size(len(body))
        return bytes(body)

    def _decode_piece(
        self, data: bytes, decoders: Sequence[Decoder], made: list[int]
    ) -> Iterator[bytes]:
        """Decode a piece of a request body with all content codings, in small steps.

        Args:
            data: The piece.
            decoders: Decoders still to apply, the last coding first.
            made: Number of bytes that each decoder of the body has yielded; the last entries belong
                to `decoders`.
        """
        if not decoders:
            yield data
            return
        decoder, *others = decoders
        for step in decoder.decode(data):
            made[-len(decoders)] += len(step)
            self._check_size(made[-len(decoders)])
            yield from self._decode_piece(step, others, made)

    def _check_size(self, size_bytes: int) -> None:
        most = self.max_bytes
        if size_bytes > most:
            raise BodyTooLarge(f"the body is longer than {most} bytes (ingress.max_body_bytes)")

    async def read_model(self, request: Request, kind: type[_Body], empty: bytes = b"") -> _Body:
        """Return the JSON body of a request as a pydantic model.

        Args:
            request: The request.
            kind: Model of the body.
            empty: JSON that replaces an empty body.

        Raises:
            BodyTooLarge: If the body is too long.
            QueueFull: As `read_body`.
            UnsupportedEncoding: As `read_body`.
            RequestError: As `read_body`; or if a field is malformed: `param` names it.
        """
        declared = request.headers.get("content-length", "")
        encodings = request.headers.getlist(HEADER)
        with self.room.hold(context_of(request.scope).body_holder) as held:
            raw = await self.read_body(held, declared, request.receive, encodings) or empty
            try:
                return await read_fields(kind, raw)
            except ValidationError as error:
                first = error.errors()[0]["loc"]
                raise RequestError(
                    describe(error, kind.model_fields), str(first[0]) if first else None
                ) from None


def _kept_bytes(decoders: Sequence[Decoder], made: Sequence[int]) -> int:
    """Return the bytes of output that the decoders of a body keep in memory."""
    return sum(min(d.window_bytes, size) for d, size in zip(decoders, made, strict=True))


async def _received_pieces(receive: Receive) -> AsyncIterator[tuple[bytes, bool]]:
    """Yield the pieces of a request body as they arrive, and whether each is the last."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestError("the connection ended before the body did")
        more = message.get("more_body", False)
        yield message.get("body", b""), not more
