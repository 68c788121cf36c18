"""Program-level attained service (PLAS; Autellix, arXiv:2502.13965, Sec. 4.2).

The priority of a call is the service that the finished calls of its program had received when it
was submitted, least first. It is fixed then: calls submitted together keep together, whatever of
the program ends meanwhile. Differs from the source: service is counted in the policy's cost and not
in time; priorities are not cut into levels; nothing is preempted, and what waits for long is not
promoted, so that a program of much service may starve.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.lazy_heap import Key
from justitia_ray.core.policies.base import PolicyContext
from justitia_ray.core.policies.client_policy import ClientPolicy, checked_table
from justitia_ray.core.records import checked_count, checked_number
from justitia_ray.units import ApplicationId, ClientId, KvTokenTime, RequestId


class PlasPolicy(ClientPolicy):
    """Least (service of finished calls at submission, client first seen) first."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._first_seen: dict[ClientId, int] = {}
        """Sequence number of the application that each client was first seen by."""
        self._finished: dict[ClientId, KvTokenTime] = {}
        """Service of the finished calls of each client."""
        self._fixed: dict[ApplicationId, dict[RequestId, KvTokenTime]] = {}
        """That of its client at the submission of each inference, until it ends."""

    def key(self, client: ClientId, application: Application) -> Key:
        """Return (service at the submission of its first inference, first seen)."""
        return (self._at_submission(application.waiting.first), self._first_seen[client])

    def application_key(self, application: Application) -> Key:
        """Return the same of an application inside its tenant."""
        return (self._at_submission(application.waiting.first), application.sequence)

    def inference_key(self, inference: Inference) -> Key:
        """Return (service at its submission, submission order)."""
        return (self._at_submission(inference), *inference.order)

    def submitted(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Fix the priority of a new inference; a re-queued one has its own."""
        client = self.client(application)
        self._first_seen.setdefault(client, application.sequence)
        fixed = self._fixed.setdefault(application.application_id, {})
        fixed.setdefault(inference.request_id, self._finished.get(client, 0))
        return ()

    def ended(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Add h(p, d) of an inference that was served."""
        self._fixed.get(application.application_id, {}).pop(inference.request_id, None)
        if inference.output_tokens:
            client = self.client(application)
            received = inference.cost(self.options.cost_function, inference.output_tokens)
            self._finished[client] = self._finished.get(client, 0) + received
        return ()

    def forget_client(self, client: ClientId) -> None:
        """Forget a client's service."""
        self._first_seen.pop(client, None)
        self._finished.pop(client, None)

    def forget_application(self, application_id: ApplicationId) -> None:
        """Forget the priorities of its inferences."""
        self._fixed.pop(application_id, None)

    def counted(self) -> dict[str, Any]:
        """Return what clients have received, and the priority of each inference."""
        return {
            "first_seen": dict(self._first_seen),
            "finished": dict(self._finished),
            "fixed": {name: dict(fixed) for name, fixed in self._fixed.items()},
        }

    def take_over(self, counted: Mapping[str, Any]) -> None:
        """Take over what `counted` returned.

        Raises:
            KeyError, TypeError, ValueError: If it is not of that form.
        """
        self._first_seen = checked_table(counted["first_seen"], checked_count)
        self._finished = checked_table(counted["finished"], checked_number)
        self._fixed = checked_table(
            counted["fixed"], lambda fixed: checked_table(fixed, checked_number)
        )

    def _at_submission(self, inference: Inference) -> KvTokenTime:
        return self._fixed[inference.application_id][inference.request_id]
