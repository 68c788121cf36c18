"""Request bodies over HTTP: bounded in length, and read into the models that describe them."""

from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from justitia_ray.config import describe
from justitia_ray.errors import BodyTooLarge, RequestError
from justitia_ray.serve.asgi import Receive

_Body = TypeVar("_Body", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class BodyReader:
    """Reads bodies up to a length, whatever their content type says."""

    max_bytes: int
    """Maximum length of a body."""

    async def read_body(self, declared: str, receive: Receive) -> bytes:
        """Return a request's body.

        Args:
            declared: The request's `content-length`; empty if it has none.
            receive: The request's messages.

        Raises:
            BodyTooLarge: If the body is too long; before any of it is read, if its length is
                declared.
            RequestError: If the connection ends before the body does.
        """
        if declared.isdecimal():
            self._check_size(int(declared[:20]))
        body: bytes | bytearray = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise RequestError("the connection ended before the body did")
            piece: bytes = message.get("body", b"")
            self._check_size(len(body) + len(piece))
            if not message.get("more_body", False):
                return bytes(body + piece) if body else piece
            if not body:
                body = bytearray()
            body += piece

    def _check_size(self, size_bytes: int) -> None:
        most = self.max_bytes
        if size_bytes > most:
            raise BodyTooLarge(f"the body is longer than {most} bytes (ingress.max_body_bytes)")

    async def read_model(self, request: Request, kind: type[_Body], empty: bytes = b"") -> _Body:
        """Return a request's JSON body as a model.

        Args:
            request: The request.
            kind: Model of the body.
            empty: JSON that an empty body stands for.

        Raises:
            BodyTooLarge: If the body is too long.
            RequestError: If a field is malformed; `param` names it.
        """
        declared = request.headers.get("content-length", "")
        raw = await self.read_body(declared, request.receive) or empty
        try:
            return kind.model_validate_json(raw)
        except ValidationError as error:
            first = error.errors()[0]["loc"]
            raise RequestError(describe(error), str(first[0]) if first else None) from None
