"""Write-through admission: hold submissions back until their application is stored.

Normally a submission reaches the core at once; under `durability: strict` only after its
application's tag is stored. Submissions to an unstored application are held back, in order, and
passed to the core after a save that started after the application's arrival has succeeded. So
before that no tag, grant or end of the application leaves the scheduler. Other applications
continue meanwhile, even while the store is unreachable; an application that waits too long for the
store is refused and forgotten.
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
    """An application that waits to be stored, with the submissions held back until then."""

    def __init__(self, deadline: asyncio.TimerHandle) -> None:
        self.deadline = deadline
        self.held: list[Submission] = []
        self.stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()


class WriteThroughAdmission:
    """Holds back submissions to applications that are not stored yet.

    Args:
        timeout_s: Maximum wait of an application to be stored; None: no application waits, and tags
            may be sent before they are stored.
        driver: Driver of the core.
        save_soon: Requests a save.
    """

    def __init__(
        self,
        timeout_s: Seconds | None,
        driver: CoreDriver,
        save_soon: Callable[[], None],
    ) -> None:
        self._timeout_s = timeout_s
        self.driver = driver
        self._save_soon = save_soon
        self._waiting: dict[ApplicationId, _WaitingApplication] = {}
        self._held: dict[RequestId, ApplicationId] = {}

    def admit_submission(self, item: Submission, quiet: Outbox | None = None) -> None:
        """Pass a submission to the core, or hold it back; `quiet` as for `CoreDriver.apply`."""
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
        if not was_open and name in known:  # The core has admitted the application.
            loop = asyncio.get_running_loop()
            deadline = loop.call_later(self._timeout_s, self._expire_opening, name)
            self._waiting[name] = _WaitingApplication(deadline)
            self._save_soon()

    def unstored(self) -> tuple[ApplicationId, ...]:
        """Return the applications that are not stored yet, in the order of their arrival."""
        return tuple(self._waiting)

    def holds_inference(self, request_id: RequestId) -> bool:
        """Return whether an inference is held back until its application is stored."""
        return request_id in self._held

    async def is_stored(self, application_id: ApplicationId) -> bool:
        """Wait until an application is stored, or given up; return whether it was stored."""
        waiting = self._waiting.get(application_id)
        return True if waiting is None else await asyncio.shield(waiting.stored)

    def note_stored(self, names: Iterable[ApplicationId]) -> None:
        """Pass held submissions of applications that are now stored to the core."""
        for name in names:
            for item in self._release_held(name, stored=True):
                self.driver.apply(item)

    def cancel_application(self, application_id: ApplicationId) -> None:
        """Pass a cancelled application's held submissions to the core, which refuses them."""
        for item in self._release_held(application_id, stored=False):
            self.driver.apply(item)

    def close(self) -> None:
        """Give up all waiting applications: nothing is stored after this call."""
        for name in self.unstored():
            self._release_held(name, stored=False)

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

    def _expire_opening(self, name: ApplicationId) -> None:
        """Refuse an application that was not stored in time, and forget it."""
        held = self._release_held(name, stored=False)
        cancelled = {i.request_id for i in held if isinstance(i, ev.InferenceCancelled)}
        refusals = [
            Refuse(item.request_id, item.ingress_id, Refusal.NOT_STORED)
            for item in held
            if isinstance(item, ev.InferenceSubmitted) and item.request_id not in cancelled
        ]
        self.driver.outboxes.deliver(refusals, self.driver.core.state, None)
        self.driver.apply(ev.ApplicationCancelled(name), unstored=name)

    def _release_held(self, name: ApplicationId, *, stored: bool) -> list[Submission]:
        waiting = self._waiting.pop(name, None)
        if waiting is None:
            return []
        waiting.deadline.cancel()
        waiting.stored.set_result(stored)
        for item in waiting.held:
            if isinstance(item, ev.InferenceSubmitted):
                self._held.pop(item.request_id, None)
        return waiting.held
