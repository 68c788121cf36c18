"""What an ingress has outstanding: enough to tell it again to a scheduler that knows nothing."""

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from justitia_ray.core.actions import Grant, Refuse
from justitia_ray.core.events import ApplicationArrived, ApplicationClosed, InferenceSubmitted
from justitia_ray.core.stages import StagePosition
from justitia_ray.protocol.messages import Submission
from justitia_ray.units import ApplicationId, IngressId, LeaseId, RequestId, Seconds

_REMEMBERED_S: Seconds = 10.0
"""More than a scheduler can lose of what it heard: what it had not saved when it died."""


@dataclass(slots=True)
class Ticket:
    """An inference that is outstanding: submitted, and not ended."""

    item: InferenceSubmitted
    submitted_at: Seconds
    opening: ApplicationArrived | None = None
    """Its application, if it was opened for it."""
    is_last: bool = False
    """Its application takes no more inferences."""
    known: ApplicationArrived | None = None
    """Its application as it was opened here, whose end may be heard of before this answer."""
    answers: deque[Grant | Refuse] = field(default_factory=deque)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    lease_id: LeaseId | None = None
    """The lease in use."""

    def held_lease(self) -> LeaseId | None:
        """Return the lease in use, or the last one granted and not used yet."""
        unused = [answer.lease_id for answer in self.answers if isinstance(answer, Grant)]
        return unused[-1] if unused else self.lease_id


class Outstanding:
    """Inferences and applications whose end has not been heard of."""

    def __init__(self) -> None:
        self.tickets: dict[RequestId, Ticket] = {}
        self.open: dict[ApplicationId, ApplicationArrived] = {}
        self._closed: set[ApplicationId] = set()
        """Of those in `open`."""
        self._positions: dict[ApplicationId, StagePosition] = {}
        """Of those in `open` that have submitted something."""
        self._ended: deque[tuple[Seconds, ApplicationId]] = deque()
        """Lately, and when: a scheduler that takes office may know them from an earlier save."""

    def next_stage(self, application_id: ApplicationId) -> tuple[int, int]:
        """Return the stage of what an application submits next, and how many are at it then."""
        position = self._positions.get(application_id)
        return (0, 1) if position is None else position.next()

    def submitted(self, item: InferenceSubmitted) -> None:
        """Take in the submission of an inference."""
        if item.application_id in self.open:
            position = self._positions.setdefault(item.application_id, StagePosition())
            position.submit(item.stage or 0)

    def answered(self, ticket: Ticket) -> None:
        """An inference has its answer: what its application submits now is of a later stage."""
        self.tickets.pop(ticket.item.request_id, None)
        position = self._positions.get(ticket.item.application_id)
        if position is not None and ticket.item.stage is not None:
            position.finish(ticket.item.stage)

    def note_closed(self, application_id: ApplicationId) -> None:
        """It takes no more inferences."""
        if application_id in self.open:
            self._closed.add(application_id)

    def ended(self, application_id: ApplicationId) -> None:
        """It has ended; the next scheduler may not know."""
        self.forget(application_id)
        self._ended.append((asyncio.get_running_loop().time(), application_id))
        self._drop_long_ended()

    def forget(self, application_id: ApplicationId) -> None:
        """It has ended, or was never begun."""
        self.open.pop(application_id, None)
        self._closed.discard(application_id)
        self._positions.pop(application_id, None)

    def rename(self, ingress_id: IngressId) -> None:
        """Let all of it belong to another name, without the leases of the old one."""
        for ticket in self.tickets.values():
            # Calls that run under these leases fail, and take the next grant.
            ticket.lease_id = None
            ticket.answers = deque(a for a in ticket.answers if isinstance(a, Refuse))
            ticket.item = replace(ticket.item, ingress_id=ingress_id)
            if ticket.opening is not None:
                ticket.opening = replace(ticket.opening, ingress_id=ingress_id)
        for name, arrival in self.open.items():
            self.open[name] = replace(arrival, ingress_id=ingress_id)

    def submissions(self, unsent: Iterable[Submission], *, again: bool) -> list[Submission]:
        """Return all of it, in the order in which a scheduler has to learn of it.

        Args:
            unsent: What was to be sent next; all but closings is known here anyway.
            again: Another scheduler has been told before.
        """
        now = asyncio.get_running_loop().time()
        closings = self.closings_elsewhere(unsent)
        closings += [ApplicationClosed(name) for name in self.open if name in self._closed]
        self._drop_long_ended()
        closings += [ApplicationClosed(name) for _, name in self._ended if name not in self.open]
        everything: list[Submission] = [replace(one, again=again) for one in self.open.values()]
        for ticket in self.tickets.values():
            age_s = now - ticket.submitted_at
            ticket.item = replace(
                ticket.item, again=again, age_s=age_s, lease_id=ticket.held_lease()
            )
            everything.append(ticket.item)
        return everything + closings

    def _drop_long_ended(self) -> None:
        since = asyncio.get_running_loop().time() - _REMEMBERED_S
        while self._ended and self._ended[0][0] < since:
            self._ended.popleft()

    def closings_elsewhere(self, submissions: Iterable[Submission]) -> list[Submission]:
        """Return the closings of applications that another ingress has opened."""
        return [
            sent
            for sent in submissions
            if isinstance(sent, ApplicationClosed) and sent.application_id not in self._closed
        ]
