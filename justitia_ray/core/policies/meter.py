"""Charges what an inference receives, once, whatever becomes of it.

An inference may be granted several times, report tokens that it has made before, or come back to
another scheduler; its charges add up to h(p, g) all the same. `Delivery.cost` alone would do as
long as the scheduler does not change: after that it knows what is booked in KV token-time, and by
application, and not what this inference was charged in the unit of h.
"""

from collections.abc import Mapping
from typing import Any

from justitia_ray.core.entities import Inference
from justitia_ray.core.policies.base import Delivery
from justitia_ray.core.policies.client_policy import checked_table
from justitia_ray.core.records import checked_number
from justitia_ray.cost import CostFunction
from justitia_ray.units import ApplicationId, KvTokenTime, RequestId


class Meter:
    """What each inference has been charged, in the unit of a cost function h, until it ends."""

    def __init__(self, cost: CostFunction) -> None:
        self._cost = cost
        self._charged: dict[ApplicationId, dict[RequestId, KvTokenTime]] = {}

    def admitted(self, inference: Inference) -> KvTokenTime:
        """Return the charge of a grant: h(p, 0) the first time, then nothing."""
        charged = self._charged.setdefault(inference.application_id, {})
        if inference.request_id in charged:
            return 0
        charged[inference.request_id] = self._worth(inference)  # made under another policy
        return inference.cost(self._cost, 0)

    def delivered(self, delivery: Delivery) -> KvTokenTime:
        """Return the charge of reported tokens: h(p, after) less what has been charged."""
        charged = self._charged.setdefault(delivery.application_id, {})
        worth = delivery.worth(self._cost)
        before = charged.get(delivery.request_id)
        if before is None:  # granted under another policy
            before = worth - delivery.cost(self._cost)
        charged[delivery.request_id] = max(before, worth)
        return max(0, worth - before)

    def ended(self, inference: Inference) -> KvTokenTime:
        """Forget an inference; return what it has not been charged for.

        That is nothing, but after a restart: then a report may have been taken for booked before.
        """
        charged = self._charged.get(inference.application_id, {})
        before = charged.pop(inference.request_id, None)
        return 0 if before is None else max(0, self._worth(inference) - before)

    def forget_application(self, application_id: ApplicationId) -> None:
        """Take in that an application has ended."""
        self._charged.pop(application_id, None)

    def state(self) -> dict[str, Any]:
        """Return what inferences have been charged that have not ended, as JSON."""
        return {application_id: dict(paid) for application_id, paid in self._charged.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned.

        Raises:
            TypeError, ValueError: If it is not of that form.
        """
        self._charged = checked_table(state, lambda paid: checked_table(paid, checked_number))

    def _worth(self, inference: Inference) -> KvTokenTime:
        return inference.cost(self._cost, inference.output_tokens)
