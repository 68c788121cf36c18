"""Applications beyond the quota of open applications; their inferences are refused, too."""

from justitia_ray.core import events as ev
from justitia_ray.core.actions import RefuseApplication
from justitia_ray.core.state import State
from justitia_ray.units import ApplicationId

_KEPT = 10_000
"""Number of stored rejections, of which the oldest are dropped."""


class Rejections:
    """Recent rejections of applications, by application."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._rejected: dict[ApplicationId, RefuseApplication] = {}

    def get(self, application_id: ApplicationId) -> RefuseApplication | None:
        return self._rejected.get(application_id)

    def admits(self, event: ev.ApplicationArrived) -> bool:
        """Return whether an application may open; if not, answer its ingress.

        An application that was open under an earlier scheduler may always open.
        """
        name, state = event.application_id, self._state
        is_retry = True if name in self._rejected else event.is_retry
        quota = state.open_applications
        if event.resubmitted or quota.admits(event.tenant, state.now, is_retry=is_retry):
            self._rejected.pop(name, None)
            return True
        self._reject_application(event, is_again=is_retry is True)
        return False

    def _reject_application(self, event: ev.ApplicationArrived, *, is_again: bool) -> None:
        state, name = self._state, event.application_id
        state.counters.rejected_applications += self._rejected.pop(name, None) is None
        wait_s = state.open_applications.next_slot(event.tenant, state.now, is_again=is_again)
        self._rejected[name] = RefuseApplication(name, event.ingress_id, retry_after_s=wait_s)
        if len(self._rejected) > _KEPT:
            del self._rejected[next(iter(self._rejected))]
        state.actions.append(self._rejected[name])
