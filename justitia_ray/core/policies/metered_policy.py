"""What the policies have in common that charge clients for service as it is received."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies.base import Delivery, PolicyContext
from justitia_ray.core.policies.client_policy import ClientPolicy
from justitia_ray.core.policies.meter import Meter
from justitia_ray.units import ApplicationId, ClientId, KvTokenTime


class MeteredPolicy(ClientPolicy):
    """Charges h(p, 0) on admission and tokens as they are reported; each inference once (`Meter`).

    Subclasses say what a charge does.
    """

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._meter = Meter(self.options.cost_function)

    @abstractmethod
    def charge(self, application: Application, amount: KvTokenTime) -> None:
        """Charge the client of an application; 0 is charged too."""

    def dispatched(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Charge the prompt, h(p, 0)."""
        self.charge(application, self._meter.admitted(inference))
        return (self.client(application),)

    def served(self, deliveries: Sequence[Delivery]) -> Sequence[ClientId]:
        """Charge the tokens reported."""
        changed: dict[ClientId, None] = {}
        for delivery in deliveries:
            application = self.context.application(delivery.application_id)
            self.charge(application, self._meter.delivered(delivery))
            changed[self.client(application)] = None
        return list(changed)

    def ended(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Settle what the inference was charged."""
        self.charge(application, self._meter.ended(inference))
        return (self.client(application),)

    def forget_application(self, application_id: ApplicationId) -> None:
        """Forget what its inferences were charged."""
        self._meter.forget_application(application_id)

    def counted(self) -> dict[str, Any]:
        """Return what inferences were charged."""
        return {"charged": self._meter.state()}

    def take_over(self, counted: Mapping[str, Any]) -> None:
        """Take over what `counted` returned.

        Raises:
            KeyError, TypeError, ValueError: If it is not of that form.
        """
        self._meter.restore(counted["charged"])
