"""Pending inferences and applications of an ingress, to be submitted again to a new scheduler."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from justitia_ray.core.actions import EndsStored, Grant, Refuse
from justitia_ray.core.drain import Drain
from justitia_ray.core.entities import Outcome
from justitia_ray.core.events import ApplicationArrived, ApplicationClosed, InferenceSubmitted
from justitia_ray.core.stages import StagePosition
from justitia_ray.protocol.messages import Submission
from justitia_ray.serve.ingress.unstored_ends import UnstoredEnds
from justitia_ray.units import ApplicationId, IngressId, LeaseId, RequestId, Seconds

_REMEMBERED_S: Seconds = 10.0
"""Seconds for which an ingress remembers ended applications, in case a new scheduler has not loaded
their ends.
"""


@dataclass(slots=True)
class PendingInference:
    """Submitted inference whose end the scheduler has not reported."""

    item: InferenceSubmitted
    submitted_at: Seconds
    opening: ApplicationArrived | None = None
    """Application that this inference's submission opens; None: it is already open."""
    is_last: bool = False
    """Whether the application must be closed after this inference."""
    application: ApplicationArrived | None = None
    """The inference's application as it was opened here. It may end before the inference's answer
    arrives.
    """
    answers: deque[Grant | Refuse] = field(default_factory=deque)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    lease_id: LeaseId | None = None
    """Lease under which a replica runs the inference; None while the inference waits."""
    on_grant: Callable[[Grant], None] | None = None
    """Function called with a new lease while a replica still runs an earlier lease of the
    inference.
    """
    position: int | None = None
    """Number of applications ahead of the inference's application when it was submitted; None:
    unknown.
    """

    def held_lease(self) -> LeaseId | None:
        """Return the newest lease of the inference if it is unused, else the lease in use."""
        unused = [answer.lease_id for answer in self.answers if isinstance(answer, Grant)]
        return unused[-1] if unused else self.lease_id


class PendingInferences:
    """Inferences and applications of an ingress whose end the scheduler has not reported."""

    def __init__(self) -> None:
        self.inferences: dict[RequestId, PendingInference] = {}
        self.applications: dict[ApplicationId, ApplicationArrived] = {}
        """Applications that were opened at this ingress, without a reported end so far."""
        self._closed: set[ApplicationId] = set()
        """Applications that have not ended, but accept no more inferences."""
        self._positions: dict[ApplicationId, StagePosition] = {}
        """Current stage of each open application that has submitted an inference."""
        self._drain = Drain()
        """Rate at which inferences end at this ingress; it determines the Retry-After of refused
        calls.
        """
        self.unstored = UnstoredEnds()
        """Ended inferences and applications whose end may not be stored yet; a new leader gets
        them.
        """
        self._ended: deque[tuple[Seconds, ApplicationId]] = deque()
        """Recently ended applications, which a new leader may restore from an earlier checkpoint.
        """

    def next_stage(self, application_id: ApplicationId) -> tuple[int, int]:
        """Return the stage of an application's next inference, and its inferences so far."""
        position = self._positions.get(application_id)
        return (0, 1) if position is None else position.next()

    def note_submitted(self, item: InferenceSubmitted) -> None:
        """Count a submitted inference in its application's current stage."""
        if item.application_id in self.applications:
            position = self._positions.setdefault(item.application_id, StagePosition())
            position.submit(item.stage or 0)

    def note_positions(self, positions: Mapping[RequestId, int]) -> None:
        """Store how many applications were ahead of inferences when they were submitted."""
        for request_id, position in positions.items():
            inference = self.inferences.get(request_id)
            if inference is not None:
                inference.position = position

    def note_answered(self, inference: PendingInference) -> None:
        """Drop an answered inference, and count the application's next one in a later stage."""
        if self.remove(inference):
            self.remember_ended_lease(inference, Outcome.FINISHED)
        position = self._positions.get(inference.item.application_id)
        if position is not None and inference.item.stage is not None:
            position.finish(inference.item.stage)

    def remove(self, inference: PendingInference) -> bool:
        """Drop an inference that was answered or cancelled; return whether it was pending."""
        known = self.inferences.pop(inference.item.request_id, None)
        if known is not None:
            self._drain.depart(asyncio.get_running_loop().time(), len(self.inferences))
        return known is not None

    def remember_ended_lease(self, inference: PendingInference, outcome: Outcome) -> None:
        """Remember that an inference with a lease has ended, until the scheduler stores it."""
        if inference.lease_id is not None:
            now = asyncio.get_running_loop().time()
            self.unstored.add_inference(inference.item, inference.lease_id, outcome, now)

    def note_stored(self, told: EndsStored) -> None:
        """Forget the ended inferences and applications that the scheduler has stored.

        An application whose end is unknown here has ended under an earlier scheduler.
        """
        for application_id in told.application_ids:
            if not self.unstored.has_application(application_id):
                self._drop_ended(application_id)
        self.unstored.drop_stored(told)
        for request_id in told.request_ids:
            inference = self.inferences.get(request_id)
            if inference is not None:
                inference.item = replace(inference.item, is_counted=True)

    def _drop_ended(self, application_id: ApplicationId) -> None:
        """Drop an ended application, unless answers to its inferences may have been lost."""
        arrival = self.applications.get(application_id)
        waiting = [
            inference
            for inference in self.inferences.values()
            if inference.item.application_id == application_id
        ]
        if arrival is None or not waiting:
            self.forget_application(application_id)
            return
        arrival = self.applications[application_id] = replace(arrival, is_counted=True)
        for inference in waiting:
            inference.application = arrival
            if inference.opening is not None:
                inference.opening = arrival

    def next_slot(self, tenant: str) -> Seconds:
        """Return the seconds after which a tenant should repeat a refused call."""
        return self._drain.retry_after(tenant, asyncio.get_running_loop().time(), is_whole=True)

    def note_opened(self, arrival: ApplicationArrived) -> None:
        """Add an application that a call has opened, even if it was closed before."""
        self.applications[arrival.application_id] = arrival
        self._closed.discard(arrival.application_id)

    def note_closed(self, application_id: ApplicationId) -> None:
        """Record the close of an application, to repeat it to a new leader."""
        if application_id in self.applications:
            self._closed.add(application_id)

    def note_ended(self, application_id: ApplicationId) -> None:
        """Drop an ended application, but remember it: the next leader may not know its end."""
        self.note_ended_elsewhere(application_id)
        self._ended.append((asyncio.get_running_loop().time(), application_id))
        self._drop_long_ended()

    def note_ended_elsewhere(self, application_id: ApplicationId) -> None:
        """Drop an application whose end the scheduler has reported to another ingress."""
        arrival = self.applications.get(application_id)
        if arrival is not None:
            self.unstored.add_application(arrival, asyncio.get_running_loop().time())
        self.forget_application(application_id)

    def forget_application(self, application_id: ApplicationId) -> None:
        """Drop an application that has ended, or was never opened."""
        self.applications.pop(application_id, None)
        self._closed.discard(application_id)
        self._positions.pop(application_id, None)

    def change_ingress_id(self, ingress_id: IngressId) -> None:
        """Move all pending inferences to another ingress id, without leases of the old id.

        Unstored ends are dropped: the scheduler has expired the old id.
        """
        self.unstored.clear()
        for inference in self.inferences.values():
            # A call that runs under a dropped lease fails, and then takes the next lease.
            inference.lease_id = None
            inference.answers = deque(a for a in inference.answers if isinstance(a, Refuse))
            inference.item = replace(inference.item, ingress_id=ingress_id)
            if inference.opening is not None:
                inference.opening = replace(inference.opening, ingress_id=ingress_id)
        for name, arrival in self.applications.items():
            self.applications[name] = replace(arrival, ingress_id=ingress_id)

    def all_submissions(
        self, unsent: Iterable[Submission], *, resubmitted: bool
    ) -> list[Submission]:
        """Return everything pending, in the order in which a scheduler must receive it.

        Each pending inference is updated like its returned submission: lease, age, and whether it
        is submitted again.

        Args:
            unsent: Submissions not sent yet; all except closings are pending here anyway.
            resubmitted: Whether another scheduler has received the submissions before.
        """
        now = asyncio.get_running_loop().time()
        closings = self.closings_elsewhere(unsent)
        closings += [ApplicationClosed(name) for name in self.applications if name in self._closed]
        self._drop_long_ended()
        over = [
            a for a in self.unstored.applications() if a.application_id not in self.applications
        ]
        names = dict.fromkeys([*(a.application_id for a in over), *(n for _, n in self._ended)])
        closings += [ApplicationClosed(name) for name in names if name not in self.applications]
        everything: list[Submission] = [
            replace(arrival, resubmitted=resubmitted) for arrival in self.applications.values()
        ]
        everything += over
        for inference in self.inferences.values():
            inference.item = replace(
                inference.item,
                resubmitted=resubmitted,
                age_s=now - inference.submitted_at,
                lease_id=inference.held_lease(),
            )
            everything.append(inference.item)
        known = self.applications.keys() | {arrival.application_id for arrival in over}
        everything += [i for i in self.unstored.inferences() if i.application_id in known]
        return everything + closings

    def current(self, submissions: Iterable[Submission]) -> list[Submission]:
        """Return a batch of submissions with their present contents, without ends stored by now.

        The scheduler forgets an end once this ingress has read that it is stored.
        """
        return [now for sent in submissions if (now := self._current_form(sent)) is not None]

    def _current_form(self, sent: Submission) -> Submission | None:
        if isinstance(sent, InferenceSubmitted):
            if sent.outcome is not None:
                return sent if self.unstored.has_inference(sent.request_id) else None
            inference = self.inferences.get(sent.request_id)
            if inference is not None and inference.item.is_counted:
                return replace(sent, is_counted=True)
        elif isinstance(sent, ApplicationArrived) and sent.resubmitted:
            name = sent.application_id
            opened = self.applications.get(name)
            if opened is not None:
                return replace(sent, is_counted=opened.is_counted)
            return sent if self.unstored.has_application(name) else None
        return sent

    def closings_elsewhere(self, submissions: Iterable[Submission]) -> list[Submission]:
        """Return the closings in a batch for applications that another ingress has opened."""
        return [
            sent
            for sent in submissions
            if isinstance(sent, ApplicationClosed) and sent.application_id not in self._closed
        ]

    def _drop_long_ended(self) -> None:
        since = asyncio.get_running_loop().time() - _REMEMBERED_S
        while self._ended and self._ended[0][0] < since:
            self._ended.popleft()
