"""Fan-out of console frames: one request a second to each scheduler serves all viewers.

Viewers of one tenant share the frames of that tenant, operators those of all. A viewer that reads
slowly misses frames, and gets a whole frame when it reads again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from justitia_ray.errors import JustitiaError, TooManyViewers
from justitia_ray.observability.log_events import is_logged
from justitia_ray.protocol.console import INTERVAL_S, Bye, Predictor, Trouble
from justitia_ray.units import ClientId, Epoch, Seconds

logger = logging.getLogger("ray.serve")

MOST_VIEWERS = 32
"""Maximum number of viewers of the console at one ingress process."""
MOST_VIEWERS_OF_TENANTS = 16
"""Maximum number of console viewers that are not operators, so that operators can always connect.
"""
MOST_VIEWERS_OF_ONE = 4
"""Maximum number of console viewers of one tenant."""
RETRY_S: Seconds = 15.0
"""Seconds after which a refused console viewer may retry; a console stream lasts four times as
long.
"""
ANSWER_S: Seconds = 4.0
"""Maximum seconds until the scheduler or the predictor answers a request of the console."""
PREDICTOR_EVERY_S: Seconds = 10.0
MOST_LINES = 8
"""Maximum number of unsent lines of one console viewer."""


class FrameSource(Protocol):
    """Source of a model's state for the console, that is, its scheduler."""

    async def console_frame(
        self, tenant: ClientId | None, epoch: Epoch | None, number: int | None
    ) -> tuple[Epoch, int, bytes] | None:
        """Return the model's present state; None if the reader already has this state."""
        ...


class OverviewSource(Protocol):
    """Source of a predictor's overview for the console."""

    async def __call__(self) -> dict[str, Any]:
        """Return the predictor's overview, as `GET /v1/predictor` does."""
        ...


def line_of(message: object) -> bytes:
    """Return a message as a line of JSON for the console's stream."""
    return msgspec.json.encode(message) + b"\n"


class Viewer:
    """Open stream to a viewer of the console, with the lines that are still to be sent.

    Args:
        tenant: Tenant whose applications the viewer shows; None: all.
        models: Names of the models that the viewer shows.
    """

    def __init__(self, tenant: ClientId | None, models: Sequence[str]) -> None:
        self.tenant = tenant
        self.behind = set(models)
        """Models whose whole state the viewer needs, because it has missed changes."""
        self._models = frozenset(models)
        self._lines: deque[bytes] = deque()
        self._news = asyncio.Event()

    def shows(self, model: str) -> bool:
        return model in self._models

    def offer(self, line: bytes) -> None:
        """Queue a line for the viewer; if too many wait, drop all and start with whole states."""
        if len(self._lines) >= MOST_LINES:
            self._lines.clear()
            self.behind |= self._models
            return
        self._lines.append(line)
        self._news.set()

    async def next_line(self) -> bytes:
        """Wait for the next line to send and return it."""
        while not self._lines:
            self._news.clear()
            await self._news.wait()
        return self._lines.popleft()


@dataclass(eq=False)
class _Audience:
    """Console viewers of one tenant, who get the same updates of a model."""

    viewers: list[Viewer] = field(default_factory=list)
    has: tuple[Epoch, int] | None = None
    """Number of the model's state that these viewers have, with its epoch; viewers in `behind` are
    excepted.
    """
    task: asyncio.Task[None] | None = None
    joined: asyncio.Event = field(default_factory=asyncio.Event)


class ModelFeed:
    """Sends one model's state to viewers of the console, and is idle without viewers.

    Args:
        model: Name of the model.
        frames: Calls to its scheduler.
        overview: Returns the overview of its predictor.
    """

    def __init__(self, model: str, frames: FrameSource, overview: OverviewSource) -> None:
        self.model = model
        self._frames = frames
        self._overview = overview
        self._audiences: dict[ClientId | None, _Audience] = {}
        self._asked_predictor_at: Seconds | None = None
        self._predictor: bytes | None = None
        """Line with the predictor's overview that was sent last."""
        self._predicting: asyncio.Task[None] | None = None
        self._failures = 0

    def join(self, viewer: Viewer) -> None:
        """Start to send the model's state to a viewer of the console."""
        audience = self._audiences.setdefault(viewer.tenant, _Audience())
        audience.viewers.append(viewer)
        if viewer.tenant is None and self._predictor is not None:
            viewer.offer(self._predictor)
        audience.joined.set()
        if audience.task is None:
            audience.task = asyncio.create_task(self._serve_audience(viewer.tenant, audience))

    def leave(self, viewer: Viewer) -> None:
        """Stop sending the model's state to a viewer of the console."""
        audience = self._audiences.get(viewer.tenant)
        if audience is None or viewer not in audience.viewers:
            return
        audience.viewers.remove(viewer)
        if not audience.viewers:
            del self._audiences[viewer.tenant]
            if audience.task is not None:
                audience.task.cancel()

    async def _serve_audience(self, tenant: ClientId | None, audience: _Audience) -> None:
        time = asyncio.get_running_loop().time
        answered_at = due_at = time()
        while True:
            audience.joined.clear()
            is_due = time() >= due_at
            try:
                async with asyncio.timeout(ANSWER_S):
                    await self._send_frames(tenant, audience, is_due=is_due)
                answered_at = time()
            except TimeoutError:
                reason = f"the scheduler has not answered within {ANSWER_S:g} s"
                self._send_trouble(audience, reason, time() - answered_at)
            except JustitiaError as error:
                self._send_trouble(audience, str(error), time() - answered_at)
            except Exception:
                self._log_failure()
                self._send_trouble(audience, "an error in this ingress", time() - answered_at)
            if tenant is None:
                self._request_overview_if_due(audience, time())
            if is_due:
                due_at = max(due_at + INTERVAL_S, time())
            try:
                async with asyncio.timeout(due_at - time()):
                    await audience.joined.wait()
            except TimeoutError:
                pass

    async def _send_frames(
        self, tenant: ClientId | None, audience: _Audience, *, is_due: bool
    ) -> None:
        """Send changes to viewers that are up to date, and the whole state to other viewers."""
        up_to_date = [one for one in audience.viewers if self.model not in one.behind]
        if is_due and up_to_date:
            told = await self._frames.console_frame(tenant, *(audience.has or (None, None)))
            if told is not None:
                audience.has = told[:2]
                for viewer in up_to_date:
                    viewer.offer(told[2] + b"\n")
        behind = [one for one in audience.viewers if self.model in one.behind]
        if behind:
            told = await self._frames.console_frame(tenant, None, None)
            if told is not None:
                for viewer in behind:
                    viewer.behind.discard(self.model)
                    viewer.offer(told[2] + b"\n")
                if not up_to_date:
                    audience.has = told[:2]

    def _send_trouble(self, audience: _Audience, reason: str, since_s: Seconds) -> None:
        audience.has = None
        line = line_of(Trouble(model=self.model, reason=reason, since_s=round(since_s, 3)))
        for viewer in audience.viewers:
            viewer.behind.add(self.model)
            viewer.offer(line)

    def _log_failure(self) -> None:
        """Log the exception being handled, but only the 1st, 2nd, 4th, 8th occurrence and so on."""
        self._failures += 1
        if is_logged(self._failures):
            logger.exception("console.failed")

    def _request_overview_if_due(self, audience: _Audience, now: Seconds) -> None:
        asked_at = self._asked_predictor_at
        is_busy = self._predicting is not None and not self._predicting.done()
        if is_busy or (asked_at is not None and now - asked_at < PREDICTOR_EVERY_S):
            return
        self._asked_predictor_at = now
        self._predicting = asyncio.create_task(self._send_overview(audience))

    async def _send_overview(self, audience: _Audience) -> None:
        overview, error = None, None
        try:
            async with asyncio.timeout(ANSWER_S):
                overview = await self._overview()
        except TimeoutError:
            error = f"the predictor has not answered within {ANSWER_S:g} s"
        except JustitiaError as failure:
            error = str(failure)
        except Exception:
            self._log_failure()
            error = "an error in this ingress"
        self._predictor = line_of(Predictor(model=self.model, overview=overview, error=error))
        for viewer in audience.viewers:
            viewer.offer(self._predictor)


class ConsoleHub:
    """Viewers of the console at an ingress process, with the senders of all models.

    Args:
        feeds: Feed of each model.
    """

    def __init__(self, feeds: Mapping[str, ModelFeed]) -> None:
        self._feeds = feeds
        self._viewers: list[Viewer] = []

    def join(self, tenant: ClientId | None, models: Sequence[str]) -> Viewer:
        """Return a new viewer of the console, which the caller must return with `leave`.

        Args:
            tenant: Tenant whose applications the viewer shows; None: all.
            models: Names of the models that the viewer shows.

        Raises:
            TooManyViewers: If the maximum number of viewers, in all or of the tenant, is reached.
        """
        of_tenants = [one.tenant for one in self._viewers if one.tenant is not None]
        limits = [(len(self._viewers), MOST_VIEWERS, "of this process")]
        if tenant is not None:
            limits += [
                (len(of_tenants), MOST_VIEWERS_OF_TENANTS, "of tenants"),
                (of_tenants.count(tenant), MOST_VIEWERS_OF_ONE, "of this tenant"),
            ]
        for count, most, whose in limits:
            if count >= most:
                raise TooManyViewers(
                    f"the console has {count} viewers {whose}, as many as allowed; try again when"
                    " one has left",
                    RETRY_S,
                )
        viewer = Viewer(tenant, models)
        self._viewers.append(viewer)
        for name in models:
            self._feeds[name].join(viewer)
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Remove a viewer of the console from all models."""
        self._viewers.remove(viewer)
        for feed in self._feeds.values():
            if viewer.shows(feed.model):
                feed.leave(viewer)


def last_line_of_stream(reason: str, code: str, retry_after_s: Seconds | None) -> bytes:
    """Return the line that ends a console stream when the service ends it."""
    return line_of(Bye(reason=reason, code=code, retry_after_s=retry_after_s))
