"""A multi-level feedback queue between clients (FastServe, arXiv:2305.05920, Sec. 4.1).

The quantum of a level is twice that of the one before: q0, 2·q0, 4·q0, …, so a client that has
attained a is in level floor(log2(1 + a/q0)). Differs from the source: what is demoted is a client
and not one inference; it is not preempted, and comes back at the place of its submission and not at
the tail; nobody joins below level 0 for a long prompt (which is charged for instead), and nobody is
promoted, so that a client of much service may starve.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.lazy_heap import Key
from justitia_ray.core.policies.base import Delivery, PolicyContext
from justitia_ray.core.policies.client_policy import ClientPolicy, checked_table
from justitia_ray.core.policies.meter import Meter
from justitia_ray.core.policies.options import UNIT, Option, number
from justitia_ray.core.records import checked_number
from justitia_ray.units import ApplicationId, ClientId, KvTokenTime


class MlfqPolicy(ClientPolicy):
    """Lowest level first, in the order of submission inside it."""

    OPTIONS: ClassVar[tuple[Option, ...]] = (
        UNIT,
        # In the unit of `cost`. One inference of 256 tokens in and out, the size of VTC's synthetic
        # loads (Sec. 5.2), is 98,432 token·iterations.
        Option("quantum", 100_000, number(least=1e-6)),
    )

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._quantum: float = self.options.own["quantum"]
        self._meter = Meter(self.options.cost_function)
        self._attained: dict[ClientId, KvTokenTime] = {}

    def level(self, client: ClientId) -> int:
        """Return floor(log2(1 + attained/q0)), without the rounding of a logarithm."""
        return (int(self._attained.get(client, 0) // self._quantum) + 1).bit_length() - 1

    def key(self, client: ClientId, application: Application) -> Key:
        """Return (level, submission order of the client's first inference)."""
        return (self.level(client), *application.waiting.first.order)

    def dispatched(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Charge the prompt, h(p, 0): nothing in KV token-time."""
        client = self.client(application)
        self._charge(client, self._meter.admitted(inference))
        return (client,)

    def served(self, deliveries: Sequence[Delivery]) -> Sequence[ClientId]:
        """Charge the tokens reported."""
        changed: dict[ClientId, None] = {}
        for delivery in deliveries:
            client = self.client(self.context.application(delivery.application_id))
            self._charge(client, self._meter.delivered(delivery))
            changed[client] = None
        return list(changed)

    def ended(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Settle what the inference was charged."""
        client = self.client(application)
        self._charge(client, self._meter.ended(inference))
        return (client,)

    def forget_client(self, client: ClientId) -> None:
        """Forget what a client has attained."""
        self._attained.pop(client, None)

    def forget_application(self, application_id: ApplicationId) -> None:
        """Forget what its inferences were charged."""
        self._meter.forget_application(application_id)

    def counted(self) -> dict[str, Any]:
        """Return what clients have attained, and what inferences were charged of it."""
        return {"attained": dict(self._attained), "charged": self._meter.state()}

    def take_over(self, counted: Mapping[str, Any]) -> None:
        """Take over what `counted` returned.

        Raises:
            KeyError, TypeError, ValueError: If it is not of that form.
        """
        self._attained = checked_table(counted["attained"], checked_number)
        self._meter.restore(counted["charged"])

    def _charge(self, client: ClientId, charge: KvTokenTime) -> None:
        self._attained[client] = self._attained.get(client, 0) + charge
