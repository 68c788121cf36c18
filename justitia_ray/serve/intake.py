"""What a scheduler takes in, and when it reaches the core.

At once, or, under `durability: strict`, not before a tag is stored: what is submitted of an
application whose tag is not in the store yet is held back, in order, and goes into the core once a
save that was begun after its arrival has succeeded. So nothing of it leaves the scheduler before:
no tag, no grant, no end. All others go on meanwhile, also while the store is away; an application
that waited too long for it is refused and forgotten.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from justitia_ray.core import events as ev
from justitia_ray.core.actions import Refusal, Refuse
from justitia_ray.protocol.messages import Submission
from justitia_ray.units import ApplicationId, RequestId, Seconds


class Intake(Protocol):
    """Stands before the core."""

    def take(self, item: Submission, apply: Callable[[Submission], None]) -> None:
        """Hand an item to the core by `apply`, or hold it back."""
        ...

    def unstored(self) -> tuple[ApplicationId, ...]:
        """Return the applications that are not stored, in the order of their arrival."""
        ...

    async def is_stored(self, application_id: ApplicationId) -> bool:
        """Wait until an application is stored, or given up; return which."""
        ...

    def stored(self, names: Iterable[ApplicationId]) -> None:
        """These are stored: what was held back of them goes in."""
        ...

    def cancel(self, application_id: ApplicationId) -> None:
        """It was cancelled: the core refuses what was held back of it."""
        ...

    def close(self) -> None:
        """Nothing will be stored any more."""
        ...


class DirectIntake:
    """Holds nothing back: tags may be given out before they are stored."""

    def take(self, item: Submission, apply: Callable[[Submission], None]) -> None:
        """Hand an item to the core by `apply`."""
        apply(item)

    def unstored(self) -> tuple[ApplicationId, ...]:
        """Return none: nobody waits for one to be stored."""
        return ()

    async def is_stored(self, application_id: ApplicationId) -> bool:
        """Return at once that it is as good as stored."""
        return True

    def stored(self, names: Iterable[ApplicationId]) -> None:
        """Nothing was held back."""

    def cancel(self, application_id: ApplicationId) -> None:
        """Nothing was held back."""

    def close(self) -> None:
        """Nobody waits."""


class _Arrival:
    """One application until it is stored."""

    def __init__(self, deadline: asyncio.TimerHandle) -> None:
        self.deadline = deadline
        self.held: list[Submission] = []
        self.stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()


class StrictIntake:
    """Holds back what is submitted of applications that are not stored."""

    def __init__(
        self,
        timeout_s: Seconds,
        is_open: Callable[[ApplicationId], bool],
        apply: Callable[[ev.Event], None],
        give_up: Callable[[ApplicationId, Sequence[Refuse]], None],
        save_soon: Callable[[], None],
    ) -> None:
        """Begin empty.

        Args:
            timeout_s: How long an application may wait to be stored.
            is_open: Whether the core has an application.
            apply: Hands an event to the core, and on what follows.
            give_up: Forgets an application, and tells ingresses that its inferences will not run.
            save_soon: Asks for a save.
        """
        self._timeout_s = timeout_s
        self._is_open = is_open
        self._apply = apply
        self._give_up = give_up
        self._save_soon = save_soon
        self._arrivals: dict[ApplicationId, _Arrival] = {}
        self._holds: dict[RequestId, ApplicationId] = {}

    def take(self, item: Submission, apply: Callable[[Submission], None]) -> None:
        """Hand an item to the core by `apply`, or hold it back."""
        if self._holds_back(item):
            return
        may_be_new = isinstance(item, ev.ApplicationArrived) and not self._is_open(
            item.application_id
        )
        apply(item)
        if may_be_new and isinstance(item, ev.ApplicationArrived):
            self._arrived(item.application_id)

    def unstored(self) -> tuple[ApplicationId, ...]:
        """Return the applications that are not stored, in the order of their arrival."""
        return tuple(self._arrivals)

    async def is_stored(self, application_id: ApplicationId) -> bool:
        """Wait until an application is stored, or given up; return which."""
        arrival = self._arrivals.get(application_id)
        return True if arrival is None else await asyncio.shield(arrival.stored)

    def stored(self, names: Iterable[ApplicationId]) -> None:
        """These are stored: what was held back of them goes in."""
        for name in names:
            for item in self._let_go(name, stored=True):
                self._apply(item)

    def cancel(self, application_id: ApplicationId) -> None:
        """It was cancelled: the core refuses what was held back of it."""
        for item in self._let_go(application_id, stored=False):
            self._apply(item)

    def close(self) -> None:
        """Nothing will be stored any more."""
        for name in self.unstored():
            self._let_go(name, stored=False)

    def _arrived(self, name: ApplicationId) -> None:
        if self._is_open(name):  # there was room for it
            loop = asyncio.get_running_loop()
            self._arrivals[name] = _Arrival(loop.call_later(self._timeout_s, self._lapse, name))
            self._save_soon()

    def _holds_back(self, item: Submission) -> bool:
        if isinstance(item, ev.InferenceCancelled):
            name = self._holds.get(item.request_id)
        else:
            name = item.application_id
        arrival = None if name is None else self._arrivals.get(name)
        if name is None or arrival is None:
            return False
        if isinstance(item, ev.InferenceSubmitted):
            self._holds[item.request_id] = name
        arrival.held.append(item)
        return True

    def _lapse(self, name: ApplicationId) -> None:
        held = self._let_go(name, stored=False)
        cancelled = {i.request_id for i in held if isinstance(i, ev.InferenceCancelled)}
        self._give_up(
            name,
            [
                Refuse(item.request_id, item.ingress_id, Refusal.NOT_STORED)
                for item in held
                if isinstance(item, ev.InferenceSubmitted) and item.request_id not in cancelled
            ],
        )

    def _let_go(self, name: ApplicationId, *, stored: bool) -> list[Submission]:
        arrival = self._arrivals.pop(name, None)
        if arrival is None:
            return []
        arrival.deadline.cancel()
        arrival.stored.set_result(stored)
        for item in arrival.held:
            if isinstance(item, ev.InferenceSubmitted):
                self._holds.pop(item.request_id, None)
        return arrival.held
