"""Resubmissions by ingresses to a new scheduler."""

from collections.abc import Iterable

from justitia_ray.core import events as ev
from justitia_ray.core.entities import Application
from justitia_ray.core.state import State
from justitia_ray.units import ApplicationId, IngressId


class Resubmissions:
    """Tracks which ingresses have resubmitted all inferences that earlier schedulers had.

    An application awaits the ingresses that had it open under an earlier scheduler and have not
    completed their resubmissions: it does not end before they have, or are lost.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._complete: set[IngressId] = set()
        """Ingresses that have resubmitted all their inferences, or are lost."""
        self._applications: set[ApplicationId] = set()
        """Resubmitted applications, including ended ones."""

    def note(self, application_id: ApplicationId) -> None:
        """Record that an ingress has resubmitted an application."""
        self._applications.add(application_id)

    def is_counted(self, event: ev.ApplicationArrived) -> bool:
        """Return whether an ended application was opened and counted before.

        It has ended under an earlier scheduler, or under this scheduler before the ingress
        resubmitted; the ingress does not know this, or resubmits missing inferences of it. If the
        ingress has already resubmitted all its inferences, the arrival is a new application with
        the same id.
        """
        if event.is_counted:
            return True
        if not event.resubmitted or not event.keeps_ends or event.ingress_id in self._complete:
            return False
        name = event.application_id
        return name in self._applications or self._state.ends.ended_under_predecessor(name)

    def expect(self, application: Application, ingress_ids: Iterable[IngressId]) -> None:
        """Let an application wait for its ingresses that have not resubmitted yet."""
        for ingress_id in ingress_ids:
            if ingress_id not in self._complete:
                application.opener(ingress_id).is_awaited = True

    def complete(self, ingress_id: IngressId) -> list[Application]:
        """Wait no longer for an ingress; return the applications concerned. O(applications)."""
        self._complete.add(ingress_id)
        awaiting = []
        for application in self._state.applications.values():
            opener = application.ingresses.get(ingress_id)
            if opener is not None and opener.is_awaited:
                opener.is_awaited = False
                awaiting.append(application)
        return awaiting
