"""Ended inferences and applications, kept until the scheduler has counted and stored them.

A scheduler may die before it has stored an end, or even received it, and while no scheduler leads
none receives it. So all kept ends are sent to the next scheduler.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

from justitia_ray.core.actions import EndsStored
from justitia_ray.core.entities import Outcome
from justitia_ray.core.events import ApplicationArrived, InferenceSubmitted
from justitia_ray.units import ApplicationId, LeaseId, RequestId, Seconds

_KEPT_S: Seconds = 60.0
"""Seconds for which an answering scheduler may leave the end of an inference unstored. Replicas
also report these inferences to a new leader, because only replicas know their tokens.
"""
_MOST = 20_000
"""Maximum number of ended inferences, and of ended applications, that are kept; the oldest are
dropped first.
"""


_Item = TypeVar("_Item", InferenceSubmitted, ApplicationArrived)


class _KeptEnd(NamedTuple, Generic[_Item]):
    at: Seconds
    of: _Item


class UnstoredEnds:
    """Ended inferences and applications whose end the scheduler may not have stored."""

    def __init__(self) -> None:
        self._inferences: OrderedDict[RequestId, _KeptEnd[InferenceSubmitted]] = OrderedDict()
        self._applications: OrderedDict[ApplicationId, _KeptEnd[ApplicationArrived]] = OrderedDict()

    def add_inference(
        self, item: InferenceSubmitted, lease_id: LeaseId, outcome: Outcome, now: Seconds
    ) -> None:
        """Keep an ended inference, unless the scheduler has already counted its end.

        Args:
            item: The inference as it was submitted.
            lease_id: The lease under which it ran last.
            outcome: How it ended.
            now: Current time (loop clock, seconds).
        """
        if not item.is_counted:
            ended = replace(item, lease_id=lease_id, outcome=outcome, resubmitted=True)
            _keep_newest(self._inferences, item.request_id, _KeptEnd(now, ended))

    def add_application(self, arrival: ApplicationArrived, now: Seconds) -> None:
        ended = replace(arrival, resubmitted=True)
        _keep_newest(self._applications, arrival.application_id, _KeptEnd(now, ended))

    def drop_stored(self, told: EndsStored) -> None:
        """Drop the ends of inferences and applications that the scheduler has stored."""
        for request_id in told.request_ids:
            self._inferences.pop(request_id, None)
        for application_id in told.application_ids:
            self._applications.pop(application_id, None)

    def drop_old(self, now: Seconds) -> None:
        """Forget ended inferences and applications that were kept for the maximum time."""
        ends: OrderedDict[str, _KeptEnd[Any]]
        for ends in (self._inferences, self._applications):
            while ends and next(iter(ends.values())).at < now - _KEPT_S:
                ends.popitem(last=False)

    def clear(self) -> None:
        self._inferences.clear()
        self._applications.clear()

    def has_inference(self, request_id: RequestId) -> bool:
        """Return whether an ended inference is still kept because its end may not be stored."""
        return request_id in self._inferences

    def has_application(self, application_id: ApplicationId) -> bool:
        """Return whether an ended application is still kept because its end may not be stored."""
        return application_id in self._applications

    def applications(self) -> Iterator[ApplicationArrived]:
        """Yield the ended applications, as the next scheduler must receive them."""
        return (end.of for end in self._applications.values())

    def inferences(self) -> Iterator[InferenceSubmitted]:
        """Yield the ended inferences, as the next scheduler must receive them."""
        return (end.of for end in self._inferences.values())


def _keep_newest(ends: OrderedDict[str, _KeptEnd[_Item]], name: str, end: _KeptEnd[_Item]) -> None:
    ends[name] = end
    if len(ends) > _MOST:
        ends.popitem(last=False)
