"""What ingresses submit again to a new scheduler, and what they may yet submit."""

from collections.abc import Iterable

from justitia_ray.core import events as ev
from justitia_ray.core.entities import Application
from justitia_ray.core.state import State
from justitia_ray.units import ApplicationId, IngressId


class Resubmissions:
    """Ingresses that have submitted again all that they had of earlier schedulers, and the rest.

    An application awaits the ingresses that had it open under an earlier scheduler and have not
    come again: it is not over before they have, or are lost.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._complete: set[IngressId] = set()
        """Ingresses that have submitted all again, or are lost."""
        self._applications: set[ApplicationId] = set()
        """Applications that were submitted again, ended ones too."""

    def note(self, application_id: ApplicationId) -> None:
        """Note an application that is submitted again."""
        self._applications.add(application_id)

    def is_counted(self, event: ev.ApplicationArrived) -> bool:
        """Return whether an application that is not live was opened before, and is counted.

        Its ingress does not know that it is over, or brings what may be missing of its end: under
        an earlier scheduler it was, or under this one, before that ingress came. An ingress that
        has submitted again what it had brings another application of that name.
        """
        if event.is_counted:
            return True
        if not event.resubmitted or not event.keeps_ends or event.ingress_id in self._complete:
            return False
        name = event.application_id
        return name in self._applications or self._state.ends.is_inherited(name)

    def expect(self, application: Application, ingress_ids: Iterable[IngressId]) -> None:
        """Let an application await ingresses that had it open, as far as they have not come."""
        for ingress_id in ingress_ids:
            if ingress_id not in self._complete:
                application.opener(ingress_id).is_awaited = True

    def complete(self, ingress_id: IngressId) -> list[Application]:
        """Await an ingress no more; return the applications that awaited it. O(N)."""
        self._complete.add(ingress_id)
        awaiting = []
        for application in self._state.applications.values():
            opener = application.ingresses.get(ingress_id)
            if opener is not None and opener.is_awaited:
                opener.is_awaited = False
                awaiting.append(application)
        return awaiting
