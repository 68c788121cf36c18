"""`Idempotency-Key`: a client's retry joins the running attempt, or reads its stored answer.

Only a complete answer that a retry would get again is kept. A failed attempt is dropped, so that a
retry runs again. An attempt has failed if it raised an error, as a cut stream does, or if another
try may succeed after its status.

An attempt with a key runs in a separate task. The task outlives its connection for some seconds,
because a retry follows a disconnect; then it is cancelled. Attempts are stored in one ingress
process only.
"""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable

from justitia_ray.core.drain import Drain
from justitia_ray.errors import EngineError, QueueFull, RequestError
from justitia_ray.serve.ingress.replica_calls import StreamItem, in_fresh_context
from justitia_ray.units import Seconds

_MOST = 4_096
"""Maximum number of attempts with idempotency keys that an ingress keeps."""
_MAY_PASS = frozenset({408, 409, 425, 429})
"""HTTP statuses below 500 after which another try may succeed."""
_ITEM_BYTES = 100
"""Memory in bytes that a kept chunk takes besides its payload."""


class IdempotentAttempt:
    """Run of a request with an idempotency key, whose answer several callers can read."""

    def __init__(
        self,
        fingerprint: bytes,
        items: AsyncGenerator[StreamItem],
        linger_s: Seconds,
        on_growth: Callable[[int], None],
    ) -> None:
        self.fingerprint = fingerprint
        self.kept_bytes = 0
        """Memory in bytes of the answer that has arrived so far."""
        self.readers = 0
        self._items: list[StreamItem] = []
        self._more = asyncio.Event()
        self._linger_s = linger_s
        self._on_growth = on_growth
        self._farewell: asyncio.TimerHandle | None = None
        self.task = in_fresh_context(self._keep_items(items))

    @property
    def failed(self) -> bool:
        """Whether the attempt has ended with an answer that is not kept for retries."""
        task = self.task
        if not task.done():
            return False
        if task.cancelled() or task.exception() is not None or not self._items:
            return True
        head = self._items[0]
        return isinstance(head, bytes) or head[0] >= 500 or head[0] in _MAY_PASS

    async def read(self) -> AsyncGenerator[StreamItem]:
        """Yield the whole answer from its start, while it arrives.

        Raises:
            JustitiaError: If the attempt raised this error.
        """
        self.readers += 1
        if self._farewell is not None:
            self._farewell.cancel()
            self._farewell = None
        position = 0
        try:
            while True:
                more = self._more
                while position < len(self._items):
                    position += 1
                    yield self._items[position - 1]
                if self.task.cancelled():
                    raise EngineError("the attempt was given up; try again")
                if self.task.done():
                    self.task.result()
                    return
                await more.wait()
        finally:
            self.readers -= 1
            if self.readers == 0 and not self.task.done():
                loop = asyncio.get_running_loop()
                self._farewell = loop.call_later(self._linger_s, self.task.cancel)

    async def _keep_items(self, items: AsyncGenerator[StreamItem]) -> None:
        try:
            async for item in items:
                self._items.append(item)
                grown = _ITEM_BYTES + (len(item) if isinstance(item, bytes) else 0)
                self.kept_bytes += grown
                self._on_growth(grown)
                self._wake_readers()
        finally:
            await items.aclose()
            asyncio.get_running_loop().call_soon(self._wake_readers)  # runs once the task is done

    def _wake_readers(self) -> None:
        self._more.set()
        self._more = asyncio.Event()


class IdempotentAttempts:
    """Attempts of an ingress process, by idempotency key.

    Args:
        linger_s: Time for which an attempt continues without a reader.
        kept_s: Time for which the answer of a successful attempt can be read again.
        max_bytes: Maximum memory of all answers. Beyond it, the oldest answers without readers are
            dropped; if that is not enough, new attempts are refused.
    """

    def __init__(self, linger_s: Seconds, kept_s: Seconds, max_bytes: int) -> None:
        self._linger_s = linger_s
        self._kept_s = kept_s
        self._max_bytes = max_bytes
        self._attempts: dict[str, IdempotentAttempt] = {}
        self._bytes = 0
        """Memory in bytes of all kept answers."""
        self._drain = Drain()
        """Rate at which attempts are dropped, which determines the Retry-After of refused calls."""

    def join_attempt(
        self, key: str, request: bytes, start: Callable[[], AsyncGenerator[StreamItem]]
    ) -> AsyncGenerator[StreamItem]:
        """Return the answer to a request, from an earlier attempt with its key or from a new one.

        Args:
            key: The caller's key, made unique to the caller.
            request: The request; the same bytes for every retry.
            start: Starts to answer the request.

        Raises:
            RequestError: If the key was used for another request.
            QueueFull: If too many attempts, or too many bytes of answers, are kept.
        """
        fingerprint = hashlib.sha256(request).digest()
        known = self._attempts.get(key)
        if known is not None and not known.failed:
            if known.fingerprint != fingerprint:
                raise RequestError("Idempotency-Key: it was used with another request body")
            return known.read()
        if len(self._attempts) >= _MOST:
            raise QueueFull(
                f"{_MOST} requests with an Idempotency-Key are kept", self._retry_after()
            )
        if self._bytes > self._max_bytes:
            raise QueueFull(
                f"the answers to requests with an Idempotency-Key take more than"
                f" {self._max_bytes} bytes (ingress.retry_kept_bytes)",
                self._retry_after(),
            )
        attempt = IdempotentAttempt(fingerprint, start(), self._linger_s, self._drop_beyond_limit)
        self._attempts[key] = attempt
        attempt.task.add_done_callback(lambda _: self._note_attempt_ended(key, attempt))
        return attempt.read()

    def _drop_beyond_limit(self, more_bytes: int) -> None:
        """Drop the oldest answers without readers while all answers exceed the maximum memory."""
        self._bytes += more_bytes
        if self._bytes <= self._max_bytes:
            return
        for key, attempt in list(self._attempts.items()):
            if self._bytes <= self._max_bytes:
                return
            if attempt.task.done() and not attempt.readers:
                self._forget_attempt(key, attempt)

    def _note_attempt_ended(self, key: str, attempt: IdempotentAttempt) -> None:
        if attempt.failed:
            self._forget_attempt(key, attempt)  # A retry then runs the request again.
        else:
            asyncio.get_running_loop().call_later(self._kept_s, self._forget_attempt, key, attempt)

    def _forget_attempt(self, key: str, attempt: IdempotentAttempt) -> None:
        self._bytes -= attempt.kept_bytes
        attempt.kept_bytes = 0
        if self._attempts.get(key) is attempt:
            del self._attempts[key]
            self._drain.depart(asyncio.get_running_loop().time(), len(self._attempts))

    def _retry_after(self) -> Seconds:
        return self._drain.retry_after("", asyncio.get_running_loop().time(), is_whole=True)
