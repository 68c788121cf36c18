"""Applications that were rejected, as there were too many: their inferences are refused, too."""

from justitia_ray.core import events as ev
from justitia_ray.core.actions import RefuseApplication
from justitia_ray.core.state import State
from justitia_ray.units import ApplicationId

_MOST = 10_000
"""Rejected applications that are remembered; the oldest go first."""


class Rejections:
    """The last applications that the quota of open applications rejected."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._rejected: dict[ApplicationId, RefuseApplication] = {}

    def get(self, application_id: ApplicationId) -> RefuseApplication | None:
        """Return how an application was rejected lately, None if it was not."""
        return self._rejected.get(application_id)

    def admits(self, event: ev.ApplicationArrived) -> bool:
        """Return whether an application may be opened; if not, tell its ingress.

        One that was open under an earlier scheduler always may.
        """
        name = event.application_id
        is_retry = True if name in self._rejected else event.is_retry
        if event.resubmitted or self._state.admits_application(event.tenant, is_retry=is_retry):
            self._rejected.pop(name, None)
            return True
        self._reject(event, is_again=is_retry is True)
        return False

    def _reject(self, event: ev.ApplicationArrived, *, is_again: bool) -> None:
        state, name = self._state, event.application_id
        state.counters.rejected_applications += self._rejected.pop(name, None) is None
        wait_s = state.application_slot(event.tenant, is_again=is_again)
        self._rejected[name] = RefuseApplication(name, event.ingress_id, retry_after_s=wait_s)
        if len(self._rejected) > _MOST:
            del self._rejected[next(iter(self._rejected))]
        state.actions.append(self._rejected[name])
