"""Comments in waiting streams that show each application's position in the queue.

Clients of server-sent events ignore comments. A client that keeps them, or an operator who watches
the connection, sees how long the wait will be.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from justitia_ray.errors import JustitiaError
from justitia_ray.units import ApplicationId, Seconds

KEEPALIVE = b": waiting\n\n"
"""Keepalive comment for a waiting stream if nothing is known about its application."""
MOST_ASKED = 256
"""Maximum number of applications in one request for predicted starts; further ones are in the next
request.
"""
ANSWER_S: Seconds = 0.5
"""Maximum seconds until the scheduler answers with predicted starts, because a keepalive is due."""

_MOST_EARLY_S: Seconds = 1.0
_EARLY = 0.2


def silence_s(keepalive_s: Seconds) -> Seconds:
    """Return the silence after which a keepalive is prepared, to be sent after `keepalive_s`.

    The remaining time is for the scheduler's answer and for a busy event loop.
    """
    return keepalive_s - min(_MOST_EARLY_S, _EARLY * keepalive_s)


Ask = Callable[[tuple[ApplicationId, ...]], Awaitable[Mapping[str, Any]]]
"""Coroutine function that returns the predicted starts of applications, as JSON of `core.outlook`.
"""


class Wait(Protocol):
    """Interface of one stream that waits for leases, in one or several periods."""

    def begin(self) -> None:
        """Note that the stream waits from now on."""

    def end(self) -> None:
        """Note that the stream no longer waits; a second call has no effect."""

    async def comment(self) -> bytes:
        """Return the keepalive comment to send now."""


class PlainWait:
    """Waiting stream whose keepalives do not describe the queue."""

    def begin(self) -> None: ...

    def end(self) -> None: ...

    async def comment(self) -> bytes:
        return KEEPALIVE


class StreamWait:
    """Waiting stream whose application may be known only after its submission."""

    def __init__(self, outlooks: "StreamOutlooks", application_id: ApplicationId | None) -> None:
        self.application_id = application_id
        self._outlooks = outlooks
        self._waits = False

    def note_application(self, application_id: ApplicationId) -> None:
        """Set the application of the stream's inference."""
        was_waiting = self._waits
        self.end()
        self.application_id = application_id
        if was_waiting:
            self.begin()

    def begin(self) -> None:
        if not self._waits and self.application_id is not None:
            self._outlooks.add(self.application_id)
        self._waits = True

    def end(self) -> None:
        if self._waits and self.application_id is not None:
            self._outlooks.remove(self.application_id)
        self._waits = False

    async def comment(self) -> bytes:
        """Return a keepalive comment, if possible with the application's predicted start."""
        if self.application_id is None:
            return KEEPALIVE
        return await self._outlooks.comment(self.application_id)


class StreamOutlooks:
    """Predicted starts of applications whose streams wait at this ingress, for one model.

    The scheduler is queried at most once in an interval, for all these applications together.

    Args:
        ask: Queries the scheduler.
        interval_s: Minimum time between two queries.
    """

    def __init__(self, ask: Ask, interval_s: Seconds) -> None:
        self._ask = ask
        self._interval_s = interval_s
        self._waiting: dict[ApplicationId, int] = {}
        """Number of waiting streams by application; applications that were looked up longest ago
        come first.
        """
        self._known: Mapping[str, Any] = {}
        self._asked_at: Seconds | None = None
        self._asking: asyncio.Task[None] | None = None

    def wait(self, application_id: ApplicationId | None) -> StreamWait:
        """Return the `Wait` of a stream; `application_id` is None if it is not known yet."""
        return StreamWait(self, application_id)

    def add(self, application_id: ApplicationId) -> None:
        """Count another waiting stream of an application."""
        self._waiting[application_id] = self._waiting.get(application_id, 0) + 1

    def remove(self, application_id: ApplicationId) -> None:
        """Count a waiting stream of an application as ended."""
        self._waiting[application_id] -= 1
        if not self._waiting[application_id]:
            del self._waiting[application_id]

    async def comment(self, application_id: ApplicationId) -> bytes:
        """Return the comment for an application's stream; plain if the scheduler is too late."""
        now = asyncio.get_running_loop().time()
        if self._asked_at is None or now - self._asked_at >= self._interval_s:
            self._asked_at = now
            self._asking = asyncio.create_task(self._request_outlooks())
        if self._asking is not None:
            await asyncio.wait({self._asking}, timeout=ANSWER_S)
        outlook = self._known.get(application_id)
        return KEEPALIVE if outlook is None else comment_of(outlook, now - self._asked_at)

    async def _request_outlooks(self) -> None:
        names = tuple(self._waiting)[:MOST_ASKED]
        for name in names:
            self._waiting[name] = self._waiting.pop(name)
        self._known = {}
        try:
            self._known = await asyncio.wait_for(self._ask(names), max(self._interval_s, ANSWER_S))
        except (TimeoutError, JustitiaError):
            return  # Keepalive comments are plain while the scheduler restarts.


def comment_of(outlook: Mapping[str, Any], age_s: Seconds) -> bytes:
    """Format an application's predicted start as a comment of server-sent events.

    Args:
        outlook: Outlook as JSON of `core.outlook`.
        age_s: Time since the outlook was made.
    """
    said = ["justitia"]
    if outlook["position"] is not None:
        said.append(f"position={outlook['position']}{'+' * bool(outlook['position_is_least'])}")
    start = outlook["expected_start_s"]
    if start is not None:
        said.append(f"start_s={_time_left(start['p10'], age_s)}..{_time_left(start['p90'], age_s)}")
    said.append(f"reason={outlook['reason']}")
    if outlook["guaranteed_by_s"] is not None:
        said.append(f"guaranteed_by_s={_time_left(outlook['guaranteed_by_s'], age_s)}")
    if outlook.get("context_full_s") is not None:
        said.append(f"context_full_s={_time_left(outlook['context_full_s'], age_s)}")
    if outlook.get("missing_kv_tokens") is not None:
        said.append(f"missing_kv_tokens={outlook['missing_kv_tokens']}")
    return f": {' '.join(said)}\n\n".encode()


def _time_left(seconds: Seconds, age_s: Seconds) -> str:
    left = max(0.0, seconds - age_s)
    return f"{left:.1f}" if left < 10 else f"{left:.0f}"
