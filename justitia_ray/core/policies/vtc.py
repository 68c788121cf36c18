"""VTC: the client that has received the least service is first (OSDI 2024, Alg. 2 and 4).

A client's counter rises by h(p, 0)/w when an inference of p prompt tokens is admitted and by (h(p,
g) − h(p, g−1))/w for its g-th token (Sec. 4.2 and 4.3). The counter of a client that did not wait
and now submits is lifted to the level of the waiting clients: an idle client gathers no credit. A
subclass may charge predicted output on admission (Sec. 4.4, Alg. 3), as those of
`lab/policies/predicted_vtc` do.

Differs from the paper: replicas fail, so an inference may be admitted again. It is charged once,
and lifts its client's counter once; recomputed tokens are not service. The prompt is charged with
the replica's count of tokens as soon as it is known.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies.base import Delivery, PolicyContext
from justitia_ray.core.policies.client_policy import ClientPolicy
from justitia_ray.core.queue import Key
from justitia_ray.core.records import Fields, RecordReader, read_fields
from justitia_ray.units import ApplicationId, ClientId, KvTokenTime, RequestId, Tokens


@dataclass(slots=True)
class ClientCounter:
    """Counter of the service that one client received."""

    value: KvTokenTime
    """Service received divided by weight, in the unit of the policy's cost; includes lifts."""
    first_seen: int
    """Sequence number of the application with which the client first appeared; breaks ties."""
    weight: float
    opened: int
    """Sequence number of the application that set the client's weight."""


_COUNTER: Fields = {
    "value": RecordReader.number,
    "first_seen": RecordReader.integer,
    "weight": RecordReader.positive,
    "opened": RecordReader.integer,
}


class ClientCounters:
    """Counters of all clients, and the client that left the queue last."""

    def __init__(self) -> None:
        self._counters: dict[ClientId, ClientCounter] = {}
        self._last_left: ClientId | None = None
        self._level_left: KvTokenTime = 0
        """Last counter of the client that left the queue last, if this client was dropped."""

    def counter_of(self, client: ClientId, application: Application) -> ClientCounter:
        """Return the counter of a client (application or tenant), 0 if it is new.

        The applications of a tenant should have the same weight. If they differ, the weight of the
        application opened last counts from its first submission on, even after the application has
        ended, until a newer application submits.
        """
        counter = self._counters.get(client)
        if counter is None:
            sequence = application.sequence
            counter = ClientCounter(0, sequence, application.share_weight, sequence)
            self._counters[client] = counter
        elif application.sequence >= counter.opened:
            counter.weight, counter.opened = application.share_weight, application.sequence
        return counter

    def __getitem__(self, client: ClientId) -> ClientCounter:
        return self._counters[client]

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._counters)

    def level(self, client: ClientId) -> KvTokenTime:
        """Return the counter of a client (application or tenant); 0 if the client is unknown."""
        counter = self._counters.get(client)
        return 0 if counter is None else counter.value

    def leave(self, client: ClientId) -> None:
        """Record that a client has no waiting inference left."""
        self._last_left = client

    def level_of_last_leaver(self) -> KvTokenTime:
        """Return the counter of the last client that left the queue; 0 if no client has left."""
        if self._last_left is None:
            return self._level_left
        return self.level(self._last_left)

    def forget(self, client: ClientId) -> None:
        """Drop a client that will not return; an unknown client is ignored."""
        if client == self._last_left:
            self._last_left, self._level_left = None, self.level(client)
        self._counters.pop(client, None)

    def state(self) -> dict[str, Any]:
        """Return the counters and the last client that left, as JSON."""
        return {
            "counters": {client: asdict(counter) for client, counter in self._counters.items()},
            "last_left": self._last_left,
            "level_left": self._level_left,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the counters that `state` returned.

        Raises:
            ValueError: If the state has another form.
        """
        reader = RecordReader(state, ("counters", "last_left", "level_left"), None)
        counters = reader.table(
            "counters", lambda of_all, client: ClientCounter(**of_all.record(client, _COUNTER))
        )
        last_left = reader.text_or_none("last_left")
        if last_left is not None and last_left not in counters:
            raise ValueError(f"last_left: {last_left!r} has no counter")
        self._level_left = reader.number("level_left")
        self._counters, self._last_left = counters, last_left


@dataclass(slots=True)
class Bill:
    """Charge for an admitted inference that has not ended."""

    charged: KvTokenTime
    """Charge in the unit of the cost function h, before the division by the weight."""
    predicted_tokens: Tokens
    """Output tokens d̂ charged on admission, over all sequences of the inference."""
    output_tokens: Tokens
    """Output tokens so far, over all attempts and schedulers."""
    weight: float
    """Weight of the client on admission. A refund uses the weight of the charge."""


_BILL: Fields = {
    "charged": RecordReader.number,
    "predicted_tokens": RecordReader.integer,
    "output_tokens": RecordReader.integer,
    "weight": RecordReader.positive,
}


class VtcPolicy(ClientPolicy):
    """Policy VTC (OSDI 2024): the client with the smallest counter first; FIFO inside a client.

    This is Alg. 3 of the paper with a prediction of 0 for every inference, which is Alg. 2.
    """

    DEFAULT_COST: ClassVar[str] = "compute"
    LIFTS: ClassVar[bool] = True
    """Whether a client that starts to wait gets at least the counter of the waiting clients."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self.counters = ClientCounters()
        self._cost = self.options.cost_function
        self._bills: dict[ApplicationId, dict[RequestId, Bill]] = {}
        self._returning: dict[ClientId, None] = {}
        """Clients that waited before a restart and may not have submitted again; empty after the
        first lease.
        """

    def key(self, client: ClientId, application: Application) -> Key:
        """Return the sort key (counter, first seen) of a client."""
        counter = self.counters[client]
        return (counter.value, counter.first_seen)

    def predicted_tokens(self, application: Application, inference: Inference) -> Tokens:
        """Return d̂, the output tokens charged on admission, over an inference's sequences."""
        return 0

    def produced(self, client: ClientId, output_tokens: Tokens, choices: int) -> None:
        """Called with the output tokens, above 0, of a client's inference that has ended."""

    def submitted(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Lift the counter of a client that had no waiting inference (VTC, Alg. 2).

        2, lines 8 to 14).
        """
        client = self.client(application)
        counter = self.counters.counter_of(client, application)
        if (
            not self.LIFTS
            or client in self._returning
            or inference.request_id in self._bills.get(application.application_id, {})
            or self.context.clients.client_waits(client)
        ):
            return ()
        least = self._least_waiting()
        counter.value = max(
            counter.value, self.counters.level_of_last_leaver() if least is None else least
        )
        return (client,)

    def dispatched(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Charge h(p, d̂), unless an earlier admission was charged (VTC, Alg. 3, line 25)."""
        self._returning.clear()
        bills = self._bills.setdefault(application.application_id, {})
        if inference.request_id in bills:
            return ()
        client = self.client(application)
        made = inference.output_tokens
        bill = Bill(
            # tokens produced under an earlier policy are not charged
            self._cost_so_far(inference, made) - self._cost_so_far(inference, 0),
            self.predicted_tokens(application, inference),
            made,
            self.counters.counter_of(client, application).weight,
        )
        bills[inference.request_id] = bill
        self._charge_up_to(
            application, bill, self._cost_so_far(inference, max(made, bill.predicted_tokens))
        )
        return (client,)

    def served(self, deliveries: Sequence[Delivery]) -> Sequence[ClientId]:
        """Charge reported tokens that are not charged yet (Alg. 2, line 31; Alg. 3, line 36)."""
        changed: dict[ClientId, None] = {}
        for delivery in deliveries:
            application = self.context.application(delivery.application_id)
            bills = self._bills.setdefault(delivery.application_id, {})
            g, worth = delivery.tokens_after, delivery.worth(self._cost)
            bill = bills.get(delivery.request_id)
            if bill is None:
                # The inference was admitted under another policy, or its charge was not saved.
                charged = worth - delivery.cost(self._cost)
                weight = self.counters.counter_of(self.client(application), application).weight
                bill = bills[delivery.request_id] = Bill(charged, 0, g, weight)
            bill.output_tokens = max(bill.output_tokens, g)
            self._charge_up_to(application, bill, worth)
            changed[self.client(application)] = None
        return list(changed)

    def left(self, client: ClientId) -> None:
        """Record the client that left the queue last (VTC, Alg. 2, line 10)."""
        self.counters.leave(client)

    def ended(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Refund h(p, d̂) − h(p, d) if the output was shorter than d̂ (VTC, Alg. 3, line 38)."""
        bills = self._bills.get(application.application_id, {})
        bill = bills.pop(inference.request_id, None)
        if bill is None:
            return ()
        client = self.client(application)
        made = max(bill.output_tokens, inference.output_tokens)
        if made < bill.predicted_tokens:
            refund = bill.charged - self._cost_so_far(inference, made)
            self.counters.counter_of(client, application).value -= refund / bill.weight
        else:
            # An earlier scheduler may have ended before it booked the inference's last report.
            self._charge_up_to(application, bill, self._cost_so_far(inference, made))
        if made:
            self.produced(client, made, inference.choices)
        return (client,)

    def forget_application(self, application_id: ApplicationId) -> None:
        """Drop the charges of an application's inferences, even of inferences lost in a restart."""
        self._bills.pop(application_id, None)

    def forget_client(self, client: ClientId) -> None:
        self.counters.forget(client)
        self._returning.pop(client, None)

    def counted(self) -> dict[str, Any]:
        """Return the counters, the charges of inferences, and the waiting clients."""
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
        """Restore the counters, the charges of inferences, and the waiting clients.

        Waiting inferences are submitted again in any order, and lift no counters.
        """
        reader = RecordReader(counted, ("clients", "bills", "waiting"), None)
        bills = reader.table("bills", lambda of_one, name: of_one.table(name, _read_bill))
        self.counters.restore(reader.mapping("clients"))
        self._returning = dict.fromkeys(reader.items("waiting"))
        for client in self._returning:
            if client not in self.counters:
                raise ValueError(f"waiting: {client!r} has no counter")
        self._bills = bills

    def _least_waiting(self) -> KvTokenTime | None:
        """Return the least counter of the waiting clients, or None."""
        waiting = list(self._returning)
        # While the policy changes, the queue may return an unknown client; all counters are 0 then.
        first = self.context.clients.first_client()
        if first is not None:
            waiting.append(first)
        return min(map(self.counters.level, waiting), default=None)

    def _cost_so_far(self, inference: Inference, output_tokens: Tokens) -> KvTokenTime:
        return inference.cost(self._cost, output_tokens)

    def _charge_up_to(self, application: Application, bill: Bill, worth: KvTokenTime) -> None:
        """Charge an inference until its charges sum to `worth`. A counter falls only by refunds."""
        due = worth - bill.charged
        if due > 0:
            counter = self.counters.counter_of(self.client(application), application)
            counter.value += due / counter.weight
            bill.charged = worth


def _read_bill(bills: RecordReader, request_id: str) -> Bill:
    bill = dict(zip(_BILL, bills.items(request_id), strict=True))
    return Bill(**read_fields(bill, _BILL))
