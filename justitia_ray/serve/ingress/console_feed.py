"""Fan-out of the console's frames: each scheduler is asked once a second for all viewers.

Viewers of one tenant share the frames of that tenant, operators those of all. A viewer that reads
slowly misses frames, and gets a whole one when it reads again.
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
"""Maximum number of viewers of one ingress process."""
MOST_VIEWERS_OF_TENANTS = 16
"""Maximum number of viewers that are no operators, so that these always have places."""
MOST_VIEWERS_OF_ONE = 4
"""Maximum number of viewers of one tenant."""
RETRY_S: Seconds = 15.0
"""When a refused viewer may come again: streams last four times as long."""
ANSWER_S: Seconds = 4.0
"""Longest wait for a scheduler's frame."""
PREDICTOR_EVERY_S: Seconds = 10.0
MOST_LINES = 8
"""Maximum number of lines that wait for one viewer."""


class FrameSource(Protocol):
    """A model's scheduler and predictor, as the feed asks them."""

    async def console_frame(
        self, tenant: ClientId | None, epoch: Epoch | None, number: int | None
    ) -> tuple[Epoch, int, bytes] | None:
        """Return the present frame; None: the reader has it already."""
        ...


class OverviewSource(Protocol):
    """Source of the predictor's overview of a model."""

    async def __call__(self) -> dict[str, Any]:
        """Return the overview as `GET /v1/predictor` does."""
        ...


def line_of(message: object) -> bytes:
    """Return a message as a line of the stream."""
    return msgspec.json.encode(message) + b"\n"


class Viewer:
    """An open stream: the lines that it has to send.

    Args:
        tenant: Tenant whose applications it shows; None: all.
        models: Names of the models that it shows.
    """

    def __init__(self, tenant: ClientId | None, models: Sequence[str]) -> None:
        self.tenant = tenant
        self.behind = set(models)
        """Models of which it needs a whole frame."""
        self._models = frozenset(models)
        self._lines: deque[bytes] = deque()
        self._news = asyncio.Event()

    def shows(self, model: str) -> bool:
        """Return whether it shows a model."""
        return model in self._models

    def offer(self, line: bytes) -> None:
        """Send a line; if too many wait, drop all of them, and begin with whole frames again."""
        if len(self._lines) >= MOST_LINES:
            self._lines.clear()
            self.behind |= self._models
            return
        self._lines.append(line)
        self._news.set()

    async def next_line(self) -> bytes:
        """Return the next line to send, waiting for one."""
        while not self._lines:
            self._news.clear()
            await self._news.wait()
        return self._lines.popleft()


@dataclass(eq=False)
class _Audience:
    """Viewers of one model who see the same."""

    viewers: list[Viewer] = field(default_factory=list)
    has: tuple[Epoch, int] | None = None
    """Epoch and number of the last frame that all viewers have that are not behind."""
    task: asyncio.Task[None] | None = None
    joined: asyncio.Event = field(default_factory=asyncio.Event)


class ModelFeed:
    """Frames of one model for its viewers; it asks nothing without a viewer.

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
        """Last line about the predictor."""
        self._predicting: asyncio.Task[None] | None = None
        self._failures = 0

    def join(self, viewer: Viewer) -> None:
        """Send frames to a viewer from now on."""
        audience = self._audiences.setdefault(viewer.tenant, _Audience())
        audience.viewers.append(viewer)
        if viewer.tenant is None and self._predictor is not None:
            viewer.offer(self._predictor)
        audience.joined.set()
        if audience.task is None:
            audience.task = asyncio.create_task(self._serve_audience(viewer.tenant, audience))

    def leave(self, viewer: Viewer) -> None:
        """Send a viewer nothing more."""
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
                self._tell_trouble(audience, reason, time() - answered_at)
            except JustitiaError as error:
                self._tell_trouble(audience, str(error), time() - answered_at)
            except Exception:
                self._log_failure()
                self._tell_trouble(audience, "an error in this ingress", time() - answered_at)
            if tenant is None:
                self._ask_predictor(audience, time())
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
        """Send what is new to the viewers that are up to date, and whole frames to the others."""
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

    def _tell_trouble(self, audience: _Audience, reason: str, since_s: Seconds) -> None:
        audience.has = None
        line = line_of(Trouble(model=self.model, reason=reason, since_s=round(since_s, 3)))
        for viewer in audience.viewers:
            viewer.behind.add(self.model)
            viewer.offer(line)

    def _log_failure(self) -> None:
        """Log the present exception, but only the 1st, 2nd, 4th time and so on."""
        self._failures += 1
        if is_logged(self._failures):
            logger.exception("console.failed")

    def _ask_predictor(self, audience: _Audience, now: Seconds) -> None:
        asked_at = self._asked_predictor_at
        is_busy = self._predicting is not None and not self._predicting.done()
        if is_busy or (asked_at is not None and now - asked_at < PREDICTOR_EVERY_S):
            return
        self._asked_predictor_at = now
        self._predicting = asyncio.create_task(self._tell_predictor(audience))

    async def _tell_predictor(self, audience: _Audience) -> None:
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
    """The viewers of an ingress process.

    Args:
        feeds: Feed of each model.
    """

    def __init__(self, feeds: Mapping[str, ModelFeed]) -> None:
        self._feeds = feeds
        self._viewers: list[Viewer] = []

    def join(self, tenant: ClientId | None, models: Sequence[str]) -> Viewer:
        """Return another viewer, to be given back to `leave`.

        Args:
            tenant: Tenant whose applications it shows; None: all.
            models: Names of the models that it shows.

        Raises:
            TooManyViewers: If as many watch as allowed, in all or of the tenant.
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
        """Forget a viewer."""
        self._viewers.remove(viewer)
        for feed in self._feeds.values():
            if viewer.shows(feed.model):
                feed.leave(viewer)


def farewell(reason: str, code: str, retry_after_s: Seconds | None) -> bytes:
    """Return the last line of a stream that the service ends."""
    return line_of(Bye(reason=reason, code=code, retry_after_s=retry_after_s))
