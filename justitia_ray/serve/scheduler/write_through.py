"""Write-through admission: when a submission reaches the core.

At once, or, under `durability: strict`, not before its application's tag is stored. Submissions to
an application whose tag is not in the store yet are held back, in order, and go into the core once
a save that was begun after the application's arrival has succeeded. So nothing of the application
leaves the scheduler before: no tag, no grant, no end. All others go on meanwhile, also while the
store is away; an application that waited too long for the store is refused and forgotten.
"""

import asyncio
from collections.abc import Callable, Iterable

from justitia_ray.core import events as ev
from justitia_ray.core.actions import Refusal, Refuse
from justitia_ray.protocol.messages import Submission
from justitia_ray.serve.scheduler.core_driver import CoreDriver
from justitia_ray.serve.scheduler.outboxes import Outbox
from justitia_ray.units import ApplicationId, RequestId, Seconds


class _WaitingApplication:
    """An application until it is stored."""

    def __init__(self, deadline: asyncio.TimerHandle) -> None:
        self.deadline = deadline
        self.held: list[Submission] = []
        self.stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()


class WriteThroughAdmission:
    """Holds back submissions to applications that are not stored."""

    def __init__(
        self,
        timeout_s: Seconds | None,
        driver: CoreDriver,
        save_soon: Callable[[], None],
    ) -> None:
        """Begin empty.

        Args:
            timeout_s: How long an application may wait to be stored; None: nothing waits, and tags
                may be given out before they are stored.
            driver: The core.
            save_soon: Asks for a save.
        """
        self._timeout_s = timeout_s
        self.driver = driver
        self._save_soon = save_soon
        self._waiting: dict[ApplicationId, _WaitingApplication] = {}
        self._held: dict[RequestId, ApplicationId] = {}

    def admit_submission(self, item: Submission, quiet: Outbox | None = None) -> None:
        """Hand an item to the core, or hold it back; `quiet` as for `CoreDriver.apply`."""
        if self._timeout_s is None:
            self.driver.apply(item, quiet)
            return
        if self._holds_back(item):
            return
        if not isinstance(item, ev.ApplicationArrived):
            self.driver.apply(item, quiet)
            return
        name, known = item.application_id, self.driver.core.state.applications
        was_open = name in known
        self.driver.apply(item, quiet)
        if not was_open and name in known:  # the quota admitted it
            loop = asyncio.get_running_loop()
            deadline = loop.call_later(self._timeout_s, self._expire, name)
            self._waiting[name] = _WaitingApplication(deadline)
            self._save_soon()

    def unstored(self) -> tuple[ApplicationId, ...]:
        """Return the applications that are not stored, in the order of their arrival."""
        return tuple(self._waiting)

    def holds_inference(self, request_id: RequestId) -> bool:
        """Return whether an inference is held back until its application is stored."""
        return request_id in self._held

    async def is_stored(self, application_id: ApplicationId) -> bool:
        """Wait until an application is stored, or given up; return which."""
        waiting = self._waiting.get(application_id)
        return True if waiting is None else await asyncio.shield(waiting.stored)

    def note_stored(self, names: Iterable[ApplicationId]) -> None:
        """Hand the held submissions of applications that are stored now to the core."""
        for name in names:
            for item in self._release(name, stored=True):
                self.driver.apply(item)

    def cancel_application(self, application_id: ApplicationId) -> None:
        """Hand the held submissions of a cancelled application to the core, which refuses them."""
        for item in self._release(application_id, stored=False):
            self.driver.apply(item)

    def close(self) -> None:
        """Give up all waiting applications: nothing will be stored any more."""
        for name in self.unstored():
            self._release(name, stored=False)

    def _holds_back(self, item: Submission) -> bool:
        name: ApplicationId | None
        if isinstance(item, ev.InferenceCancelled):
            name = self._held.get(item.request_id)
        elif isinstance(item, ev.Resubmitted):
            return False
        else:
            name = item.application_id
        waiting = None if name is None else self._waiting.get(name)
        if name is None or waiting is None:
            return False
        if isinstance(item, ev.InferenceSubmitted):
            self._held[item.request_id] = name
        waiting.held.append(item)
        return True

    def _expire(self, name: ApplicationId) -> None:
        """Treat an application that could not be stored as if it had not been opened."""
        held = self._release(name, stored=False)
        cancelled = {i.request_id for i in held if isinstance(i, ev.InferenceCancelled)}
        refusals = [
            Refuse(item.request_id, item.ingress_id, Refusal.NOT_STORED)
            for item in held
            if isinstance(item, ev.InferenceSubmitted) and item.request_id not in cancelled
        ]
        self.driver.outboxes.deliver(refusals, self.driver.core.state, None)
        self.driver.apply(ev.ApplicationCancelled(name), unstored=name)

    def _release(self, name: ApplicationId, *, stored: bool) -> list[Submission]:
        waiting = self._waiting.pop(name, None)
        if waiting is None:
            return []
        waiting.deadline.cancel()
        waiting.stored.set_result(stored)
        for item in waiting.held:
            if isinstance(item, ev.InferenceSubmitted):
                self._held.pop(item.request_id, None)
        return waiting.held
