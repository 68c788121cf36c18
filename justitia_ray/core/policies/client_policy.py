"""Bases of the policies that compare clients: unit, metering, and durable counts.

A client is an application, or a top node of the tree of tenants with all applications below it
(option `unit`). The counts of an application end with it; those of a tenant are kept.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies.base import Delivery, Policy, PolicyContext
from justitia_ray.core.policies.options import UNIT, Option
from justitia_ray.core.records import RecordReader
from justitia_ray.core.tenants import SEPARATOR
from justitia_ray.units import ApplicationId, ClientId, KvTokenTime, RequestId


class ClientPolicy(Policy):
    """Base class of policies that count service by client. Subclasses define the counts."""

    OPTIONS: ClassVar[tuple[Option, ...]] = (UNIT,)

    def client(self, application: Application) -> ClientId:
        """Return the application, or the topmost node of its tenant.

        All tenants below one top node are one client: a caller that names more tenants gains
        nothing.
        """
        if self.options.own["unit"] == "tenant":
            return application.tenant.partition(SEPARATOR)[0]
        return application.application_id

    def application_ended(self, application: Application) -> None:
        """Drop the counts of an application, and of its client if clients are applications."""
        self.forget_application(application.application_id)
        if self.options.own["unit"] == "application":
            self.forget_client(application.application_id)

    @abstractmethod
    def forget_client(self, client: ClientId) -> None:
        """Drop the counts of a client that will not return; the client may be unknown."""

    @abstractmethod
    def forget_application(self, application_id: ApplicationId) -> None: ...

    @abstractmethod
    def counted(self) -> dict[str, Any]: ...

    @abstractmethod
    def take_over(self, counted: Mapping[str, Any]) -> None:
        """Restore the result of `counted`.

        Raises:
            KeyError, TypeError, ValueError: If they have another form.
        """

    def state(self) -> dict[str, Any]:
        """Return the counts of the policy, and the options under which they were made."""
        return {"options": self._counted_under(), "counted": self.counted()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore counts that were made under the same options; drop other counts.

        Counts by application cannot be converted to tenants, nor those of one cost function to
        another.

        Raises:
            KeyError, TypeError, ValueError: If the record has another form than `state` returns.
        """
        counted = state["counted"]
        if state["options"] == self._counted_under():
            self.take_over(counted)

    def _counted_under(self) -> dict[str, Any]:
        return {"cost": self.options.cost, **self.options.own}


class MeteredPolicy(ClientPolicy):
    """Policy that charges a prompt at admission and tokens as reported, each inference only once.

    An inference may be granted several times, report tokens that it has produced before, or return
    to another scheduler; its charges still sum to h(p, g). With a single scheduler `Delivery.cost`
    would suffice. A new scheduler knows the booked service of each application in KV token-time,
    but not the charge of each inference in the unit of h.

    Subclasses define the effect of a charge.
    """

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._cost = self.options.cost_function
        self._charged: dict[ApplicationId, dict[RequestId, KvTokenTime]] = {}
        """Charges of inferences that have not ended."""

    @abstractmethod
    def charge(self, application: Application, amount: KvTokenTime) -> None:
        """Add service to the count of a client (application or tenant)."""

    def dispatched(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Charge the prompt, h(p, 0), when an inference is leased for the first time."""
        charged = self._charged.setdefault(application.application_id, {})
        if inference.request_id in charged:
            self.charge(application, 0)
        else:
            # Tokens that were produced under an earlier policy are not charged.
            charged[inference.request_id] = self._cost_so_far(inference)
            self.charge(application, inference.cost(self._cost, 0))
        return (self.client(application),)

    def served(self, deliveries: Sequence[Delivery]) -> Sequence[ClientId]:
        """Charge the reported tokens, without the earlier charges of the inference."""
        changed: dict[ClientId, None] = {}
        for delivery in deliveries:
            application = self.context.application(delivery.application_id)
            charged = self._charged.setdefault(delivery.application_id, {})
            worth = delivery.worth(self._cost)
            before = charged.get(delivery.request_id)
            if before is None:  # leased under another policy
                before = worth - delivery.cost(self._cost)
            charged[delivery.request_id] = max(before, worth)
            self.charge(application, max(0, worth - before))
            changed[self.client(application)] = None
        return list(changed)

    def ended(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Charge the uncharged service of an ended inference, and drop the inference.

        The remaining charge is above 0 only after a restart, if an earlier report was wrongly
        assumed to be booked.
        """
        charged = self._charged.get(application.application_id, {})
        before = charged.pop(inference.request_id, None)
        due = 0 if before is None else max(0, self._cost_so_far(inference) - before)
        self.charge(application, due)
        return (self.client(application),)

    def forget_application(self, application_id: ApplicationId) -> None:
        self._charged.pop(application_id, None)

    def counted(self) -> dict[str, Any]:
        return {"charged": {name: dict(charged) for name, charged in self._charged.items()}}

    def take_over(self, counted: Mapping[str, Any]) -> None:
        """Restore the result of `counted`.

        Raises:
            ValueError: If they have another form.
        """
        self._charged = RecordReader(counted, ("charged",), None).table("charged", number_table)

    def _cost_so_far(self, inference: Inference) -> KvTokenTime:
        return inference.cost(self._cost, inference.output_tokens)


def number_table(reader: RecordReader, name: str) -> dict[str, float]:
    """Return a field of a record that must be a JSON object of finite numbers."""
    return reader.table(name, RecordReader.number)
