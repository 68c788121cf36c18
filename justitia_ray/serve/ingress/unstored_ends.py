"""Ends that an ingress keeps until the scheduler says that they are counted and stored.

A scheduler may die before it has stored what ended, or before it has heard of it: what was answered
while no scheduler led was heard of by none. Its successor is told of all that is kept.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

from justitia_ray.core.actions import EndsStored
from justitia_ray.core.entities import Outcome
from justitia_ray.core.events import ApplicationArrived, InferenceSubmitted
from justitia_ray.units import ApplicationId, LeaseId, RequestId, Seconds

_KEPT_S: Seconds = 60.0
"""Longest time that a scheduler that answers may leave an end unstored. Replicas tell a new leader
of what ended so lately, too; without their word the tokens of an inference are not known."""
_MOST = 20_000
"""Kept inferences, and applications; the oldest go first."""


_Item = TypeVar("_Item", InferenceSubmitted, ApplicationArrived)


class _End(NamedTuple, Generic[_Item]):
    at: Seconds
    of: _Item


class UnstoredEnds:
    """Inferences and applications that are over, and not known to be stored as that."""

    def __init__(self) -> None:
        self._inferences: OrderedDict[RequestId, _End[InferenceSubmitted]] = OrderedDict()
        self._applications: OrderedDict[ApplicationId, _End[ApplicationArrived]] = OrderedDict()

    def add_inference(
        self, item: InferenceSubmitted, lease_id: LeaseId, outcome: Outcome, now: Seconds
    ) -> None:
        """Keep the end of an inference, unless it is known to be counted.

        Args:
            item: The inference as it was submitted.
            lease_id: The lease under which it ran last.
            outcome: How it ended.
            now: Instant of the loop.
        """
        if not item.is_counted:
            ended = replace(item, lease_id=lease_id, outcome=outcome, resubmitted=True)
            _keep(self._inferences, item.request_id, _End(now, ended))

    def add_application(self, arrival: ApplicationArrived, now: Seconds) -> None:
        """Keep the end of an application."""
        ended = replace(arrival, resubmitted=True)
        _keep(self._applications, arrival.application_id, _End(now, ended))

    def drop_stored(self, told: EndsStored) -> None:
        """Drop ends that are stored."""
        for request_id in told.request_ids:
            self._inferences.pop(request_id, None)
        for application_id in told.application_ids:
            self._applications.pop(application_id, None)

    def drop_old(self, now: Seconds) -> None:
        """Drop what has been kept for too long. Call when a scheduler answers."""
        _drop_old(self._inferences, now)
        _drop_old(self._applications, now)

    def clear(self) -> None:
        """Drop all."""
        self._inferences.clear()
        self._applications.clear()

    def has_inference(self, request_id: RequestId) -> bool:
        """Return whether the end of an inference is kept."""
        return request_id in self._inferences

    def has_application(self, application_id: ApplicationId) -> bool:
        """Return whether the end of an application is kept."""
        return application_id in self._applications

    def applications(self) -> Iterator[ApplicationArrived]:
        """Yield the applications that are over, as a successor has to open them again."""
        return (end.of for end in self._applications.values())

    def inferences(self) -> Iterator[InferenceSubmitted]:
        """Yield the inferences that are over, as a successor has to be told of them."""
        return (end.of for end in self._inferences.values())


def _keep(ends: OrderedDict[str, _End[_Item]], name: str, end: _End[_Item]) -> None:
    ends[name] = end
    if len(ends) > _MOST:
        ends.popitem(last=False)


def _drop_old(ends: OrderedDict[str, _End[_Item]], now: Seconds) -> None:
    while ends and next(iter(ends.values())).at < now - _KEPT_S:
        ends.popitem(last=False)
