"""Determine the identity of a caller from the headers of its call, or refuse the call.

Only the headers of a call are read, and a refusal reveals nothing of their contents.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

from justitia_ray.access.credentials import find_credential
from justitia_ray.access.failure_delays import FailureDelays
from justitia_ray.access.identity import Identity
from justitia_ray.access.keys import KeyTable, find_identity, public_id
from justitia_ray.errors import TooManyFailures, Unauthenticated
from justitia_ray.units import Seconds

_MOST_WAITING = 1_000
"""Maximum number of answers to wrong credentials that are delayed at a time; beyond it, calls are
refused unchecked.
"""


class IdentifiesToken(Protocol):
    """Interface of a verifier of JSON Web Tokens."""

    async def identify(self, token: str) -> Identity:
        """Return the identity that a JSON Web Token proves."""
        ...


class Gate:
    """Identifies callers by their API keys or tokens; use it from one event loop.

    Args:
        tables: Functions that each return the current keys of one source.
        tokens: Verifies JSON Web Tokens; None: tokens are not accepted.
        anonymous: Identity of calls without a credential; None: they are refused as
            unauthenticated.
        on_failure: Called on each failure with the id of the key that was sent, or `token`.
        clock: Monotonic clock (seconds).
        calendar: Returns seconds since 1970, for expiry.
        sleep: Waits before a delayed answer; replaced in tests.
    """

    def __init__(
        self,
        tables: Sequence[Callable[[], KeyTable]],
        tokens: IdentifiesToken | None,
        anonymous: Identity | None,
        *,
        on_failure: Callable[[str], None] = lambda public_id: None,
        clock: Callable[[], Seconds] = time.monotonic,
        calendar: Callable[[], Seconds] = time.time,
        sleep: Callable[[Seconds], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._tables = tables
        self._tokens = tokens
        self._anonymous = anonymous
        self._on_failure = on_failure
        self._clock = clock
        self._calendar = calendar
        self._sleep = sleep
        self._delays = FailureDelays()
        self._waiting = 0

    async def identify(self, headers: Iterable[tuple[bytes, bytes]]) -> Identity:
        """Return the identity of a caller from the HTTP headers of its call.

        Args:
            headers: Headers of the call: names in lower case, and values.

        Raises:
            Unauthenticated: If the credential is missing or wrong; delayed after many failures.
            Forbidden: If a token is valid, but names no tenant.
            TooManyFailures: If too many calls are being delayed.
            AdmissionError: If an issuer's public keys are not available now.
        """
        credential = find_credential(headers)
        if credential is None:
            if self._anonymous is None:
                raise Unauthenticated(
                    "a credential is required: Authorization: Bearer KEY, or x-api-key: KEY"
                )
            return self._anonymous
        if self._tokens is not None and credential.count(".") == 2:
            try:
                return await self._tokens.identify(credential)
            except Unauthenticated:
                await self._delay_failure("token")
                raise
        try:
            tables = (table() for table in self._tables)
            return find_identity(tables, credential, self._calendar())
        except Unauthenticated:
            await self._delay_failure(public_id(credential))
            raise

    async def _delay_failure(self, shown: str) -> None:
        delay_s = self._delays.note_failure(shown, self._clock())
        self._on_failure(shown)
        if delay_s <= 0:
            return
        if self._waiting >= _MOST_WAITING:
            raise TooManyFailures("too many calls with wrong credentials wait for their answers")
        self._waiting += 1
        try:
            await self._sleep(delay_s)
        finally:
            self._waiting -= 1
