"""VTC: the client that has received the least service comes first (OSDI 2024, Alg. 2 and 4).

A client's counter rises by h(p, 0)/w when an inference of p prompt tokens is admitted and by
(h(p, g) − h(p, g−1))/w for its g-th token (Sec. 4.2 and 4.3). A client that did not wait and now
submits is lifted to the level of those that wait: an idle client gathers no credit.

Differs from the paper: replicas fail, so an inference may be admitted again, and is charged once
and lifts once in all; tokens recomputed are not service. The prompt is charged as the replica
counts it, once that is known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.lazy_heap import Key
from justitia_ray.core.policies.base import Delivery, PolicyContext
from justitia_ray.core.policies.client_counters import ClientCounters
from justitia_ray.core.policies.client_policy import ClientPolicy, checked_table
from justitia_ray.core.records import (
    checked_count,
    checked_mapping,
    checked_number,
    checked_weight,
)
from justitia_ray.units import ApplicationId, ClientId, KvTokenTime, RequestId, Tokens


@dataclass(slots=True)
class Bill:
    """What an inference that was admitted, and has not ended, is charged for."""

    charged: KvTokenTime
    """In the unit of h, before it is divided by a weight."""
    predicted_tokens: Tokens
    """d̂: output charged on admission, over all its sequences."""
    output_tokens: Tokens
    """Output so far, a high-water mark that outlives the scheduler."""
    weight: float
    """Of its client on admission: a refund is at the weight of the charge."""


class VtcPolicy(ClientPolicy):
    """Smallest (counter, first seen) first; FIFO inside a client.

    This is Alg. 3 with a prediction of 0 for every inference, which is Alg. 2.
    """

    DEFAULT_COST: ClassVar[str] = "compute"
    LIFTS: ClassVar[bool] = True
    """Whether a client that starts to wait is lifted to the level of those that wait."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self.counters = ClientCounters()
        self._cost = self.options.cost_function
        self._bills: dict[ApplicationId, dict[RequestId, Bill]] = {}
        self._returning: dict[ClientId, None] = {}
        """Until the first grant after a restart: who waited before it, back or not."""

    def key(self, client: ClientId, application: Application) -> Key:
        """Return (counter, first seen)."""
        counter = self.counters[client]
        return (counter.value, counter.first_seen)

    def predicted_tokens(self, application: Application, inference: Inference) -> Tokens:
        """Return d̂, the output to charge on admission, over all sequences of an inference."""
        return 0

    def produced(self, client: ClientId, output_tokens: Tokens, choices: int) -> None:
        """Take in how much output an inference of a client had made when it ended; above 0."""

    def submitted(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Lift the counter of a client of which nothing waits (Alg. 2, lines 8 to 14)."""
        client = self.client(application)
        counter = self.counters.see(client, application)
        if (
            not self.LIFTS
            or client in self._returning
            or inference.request_id in self._bills.get(application.application_id, {})
            or self.context.clients.client_waits(client)
        ):
            return ()
        least = self._least_waiting()
        counter.value = max(counter.value, self.counters.level_left() if least is None else least)
        return (client,)

    def dispatched(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Charge h(p, d̂), unless it was charged when it was admitted before (Alg. 3, line 25)."""
        self._returning.clear()
        bills = self._bills.setdefault(application.application_id, {})
        if inference.request_id in bills:
            return ()
        client = self.client(application)
        made = inference.output_tokens
        bill = Bill(
            self._worth(inference, made) - self._worth(inference, 0),  # made under another policy
            self.predicted_tokens(application, inference),
            made,
            self.counters.see(client, application).weight,
        )
        bills[inference.request_id] = bill
        self._charge(application, bill, self._worth(inference, max(made, bill.predicted_tokens)))
        return (client,)

    def served(self, deliveries: Sequence[Delivery]) -> Sequence[ClientId]:
        """Charge the tokens beyond what is charged already (Alg. 2, line 31; Alg. 3, line 36)."""
        changed: dict[ClientId, None] = {}
        for delivery in deliveries:
            application = self.context.application(delivery.application_id)
            bills = self._bills.setdefault(delivery.application_id, {})
            g, worth = delivery.tokens_after, delivery.worth(self._cost)
            bill = bills.get(delivery.request_id)
            if bill is None:
                # Admitted by another policy, or by a scheduler that died before it was noted.
                charged = worth - delivery.cost(self._cost)
                weight = self.counters.see(self.client(application), application).weight
                bill = bills[delivery.request_id] = Bill(charged, 0, g, weight)
            bill.output_tokens = max(bill.output_tokens, g)
            self._charge(application, bill, worth)
            changed[self.client(application)] = None
        return list(changed)

    def left(self, client: ClientId) -> None:
        """Note who left the queue last (Alg. 2, line 10)."""
        self.counters.leave(client)

    def ended(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Refund h(p, d̂) − h(p, d) if it made fewer tokens than predicted (Alg. 3, line 38)."""
        bills = self._bills.get(application.application_id, {})
        bill = bills.pop(inference.request_id, None)
        if bill is None:
            return ()
        client = self.client(application)
        made = max(bill.output_tokens, inference.output_tokens)
        if made < bill.predicted_tokens:
            refund = bill.charged - self._worth(inference, made)
            self.counters.see(client, application).value -= refund / bill.weight
        else:
            # Zero, but after a restart: then a last report may have been taken for booked before.
            self._charge(application, bill, self._worth(inference, made))
        if made:
            self.produced(client, made, inference.choices)
        return (client,)

    def forget_application(self, application_id: ApplicationId) -> None:
        """Forget the bills of inferences that a dead scheduler had, and that never came back."""
        self._bills.pop(application_id, None)

    def forget_client(self, client: ClientId) -> None:
        """Forget its counter."""
        self.counters.forget(client)
        self._returning.pop(client, None)

    def counted(self) -> dict[str, Any]:
        """Return counters, bills, and who waits."""
        return {
            "clients": self.counters.state(),
            "bills": {
                application_id: {
                    name: [bill.charged, bill.predicted_tokens, bill.output_tokens, bill.weight]
                    for name, bill in bills.items()
                }
                for application_id, bills in self._bills.items()
                if bills
            },
            "waiting": [
                client
                for client in self.counters
                if client in self._returning or self.context.clients.client_waits(client)
            ],
        }

    def take_over(self, counted: Mapping[str, Any]) -> None:
        """Go on counting. What waited is submitted again, in any order, and lifts nobody."""
        bills = checked_table(counted["bills"], lambda of_one: checked_table(of_one, _checked_bill))
        self.counters.restore(checked_mapping(counted["clients"]))
        self._returning = dict.fromkeys(counted["waiting"])
        for client in self._returning:
            if client not in self.counters:
                raise ValueError(f"waiting: {client!r} has no counter")
        self._bills = bills

    def _least_waiting(self) -> KvTokenTime | None:
        """Return the least counter among the clients that wait, None if none does."""
        waiting = list(self._returning)  # none, but for a few seconds after a restart
        # The queue is in the order of the counters. Only while it changes over to this policy can
        # it name a client that is not known; all counters are 0 then.
        first = self.context.clients.first_client()
        if first is not None:
            waiting.append(first)
        return min(map(self.counters.level, waiting), default=None)

    def _worth(self, inference: Inference, output_tokens: Tokens) -> KvTokenTime:
        return inference.cost(self._cost, output_tokens)

    def _charge(self, application: Application, bill: Bill, worth: KvTokenTime) -> None:
        """Charge what the bill lacks of h = `worth`; a counter falls by refunds only."""
        due = worth - bill.charged
        if due > 0:
            counter = self.counters.see(self.client(application), application)
            counter.value += due / counter.weight
            bill.charged = worth


def _checked_bill(fields: Any) -> Bill:
    charged, predicted_tokens, output_tokens, weight = fields
    return Bill(
        checked_number(charged),
        checked_count(predicted_tokens),
        checked_count(output_tokens),
        checked_weight(weight),
    )
