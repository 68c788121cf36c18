"""VTC: the client that has received the least service comes first (OSDI 2024, Alg. 2 and 4).

A client's counter rises by h(p, 0)/w when an inference of p prompt tokens is admitted and by
(h(p, g) − h(p, g−1))/w for its g-th token (Sec. 4.2 and 4.3). A client that did not wait and now
submits is lifted to the level of those that wait: an idle client gathers no credit. The variants
charge predicted output on admission (Sec. 4.4, Alg. 3): the worst case stays that of VTC (Theorem
4.8); counters that know what is coming keep clients closer together on average (Table 5).

Differs from the paper: replicas fail, so an inference may be admitted again, and is charged once
and lifts once in all; tokens recomputed are not service. The prompt is charged as the replica
counts it, once that is known.
"""

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies.base import Delivery, PolicyContext
from justitia_ray.core.policies.client_policy import ClientPolicy
from justitia_ray.core.policies.options import Option, whole
from justitia_ray.core.queue import Key
from justitia_ray.core.records import Fields, RecordReader, read_fields
from justitia_ray.units import ApplicationId, ClientId, KvTokenTime, RequestId, Tokens


@dataclass(slots=True)
class ClientCounter:
    """The counter of one client."""

    value: KvTokenTime
    """Service received by weight, in the unit of the policy's cost; lifts included."""
    first_seen: int
    """Sequence number of the application by which the client was first seen; breaks ties."""
    weight: float
    opened: int
    """Sequence number of the application that the weight is from."""


_COUNTER: Fields = {
    "value": RecordReader.number,
    "first_seen": RecordReader.integer,
    "weight": RecordReader.positive,
    "opened": RecordReader.integer,
}


class ClientCounters:
    """The counters of all clients, and which client was the last to leave the queue."""

    def __init__(self) -> None:
        self._counters: dict[ClientId, ClientCounter] = {}
        self._last_left: ClientId | None = None
        self._level_left: KvTokenTime = 0
        """The counter of the last client that left, where it is forgotten."""

    def see(self, client: ClientId, application: Application) -> ClientCounter:
        """Return the counter of a client, new at 0, with the weight of this application.

        The applications of a tenant should have one weight. If they have not, that of the one
        opened last counts, once it has submitted; also after its end, until the next.
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
        """Return the counter of a client; 0 if it is not known."""
        counter = self._counters.get(client)
        return 0 if counter is None else counter.value

    def leave(self, client: ClientId) -> None:
        """Note that nothing of a client waits any more."""
        self._last_left = client

    def level_left(self) -> KvTokenTime:
        """Return the counter, as it is now, of the last client that left the queue; 0 if none."""
        if self._last_left is None:
            return self._level_left
        return self.level(self._last_left)

    def forget(self, client: ClientId) -> None:
        """Forget a client that will not come back; an unknown one changes nothing."""
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
            ValueError: If it is not of that form.
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
    """The charge of an inference that was admitted and has not ended."""

    charged: KvTokenTime
    """The charge in the unit of h, before it is divided by a weight."""
    predicted_tokens: Tokens
    """d̂: output charged on admission, over all its sequences."""
    output_tokens: Tokens
    """Output so far, a high-water mark that outlives the scheduler."""
    weight: float
    """Weight of its client on admission: a refund is at the weight of the charge."""


_BILL: Fields = {
    "charged": RecordReader.number,
    "predicted_tokens": RecordReader.integer,
    "output_tokens": RecordReader.integer,
    "weight": RecordReader.positive,
}


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
        """Clients that waited before a restart, back or not; empty after the first grant."""

    def key(self, client: ClientId, application: Application) -> Key:
        """Return (counter, first seen)."""
        counter = self.counters[client]
        return (counter.value, counter.first_seen)

    def predicted_tokens(self, application: Application, inference: Inference) -> Tokens:
        """Return d̂, the output to charge on admission, over all sequences of an inference."""
        return 0

    def produced(self, client: ClientId, output_tokens: Tokens, choices: int) -> None:
        """Note the output of an inference of a client that has ended; it is above 0."""

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
        reader = RecordReader(counted, ("clients", "bills", "waiting"), None)
        bills = reader.table("bills", lambda of_one, name: of_one.table(name, _read_bill))
        self.counters.restore(reader.mapping("clients"))
        self._returning = dict.fromkeys(reader.items("waiting"))
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


def _read_bill(bills: RecordReader, request_id: str) -> Bill:
    bill = dict(zip(_BILL, bills.items(request_id), strict=True))
    return Bill(**read_fields(bill, _BILL))


_REMEMBERED = 5
"""Number of last outputs that a prediction is the mean of: VTC, Sec. 5.1."""


class VtcPredictPolicy(VtcPolicy):
    """d̂ is the mean of the client's last five outputs; 0 as long as there is none.

    The policy is not told how an inference ended: one that was cancelled midway counts with what it
    had made. The mean is over sequences, so that a lease of several is predicted their number of
    times, and rounded to whole tokens.
    """

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._outputs: dict[ClientId, deque[tuple[Tokens, int]]] = {}
        """(output tokens, sequences) of each client's last inferences."""

    def predicted_tokens(self, application: Application, inference: Inference) -> Tokens:
        """Return the mean of the last outputs."""
        outputs = self._outputs.get(self.client(application))
        if outputs is None:
            return 0
        tokens = sum(output_tokens for output_tokens, _ in outputs)
        return round(inference.choices * tokens / sum(choices for _, choices in outputs))

    def produced(self, client: ClientId, output_tokens: Tokens, choices: int) -> None:
        """Remember the output as one of the client's last."""
        outputs = self._outputs.setdefault(client, deque(maxlen=_REMEMBERED))
        outputs.append((output_tokens, choices))

    def forget_client(self, client: ClientId) -> None:
        """Forget its outputs too."""
        super().forget_client(client)
        self._outputs.pop(client, None)

    def counted(self) -> dict[str, Any]:
        """Return the last outputs too."""
        outputs = {client: [list(one) for one in last] for client, last in self._outputs.items()}
        return super().counted() | {"outputs": outputs}

    def take_over(self, counted: Mapping[str, Any]) -> None:
        """Restore the last outputs, too."""
        outputs = RecordReader(counted, ("outputs",), None).table("outputs", _read_outputs)
        super().take_over(counted)
        self._outputs = outputs


class VtcOraclePolicy(VtcPolicy):
    """d̂ is the true length; the predicted one where the truth is not known, as in service."""

    def predicted_tokens(self, application: Application, inference: Inference) -> Tokens:
        """Return the truth, or the prediction that the inference came with."""
        if inference.true_output_tokens is None:
            return inference.predicted_output_tokens
        return inference.true_output_tokens


class VtcNoisyPolicy(VtcOraclePolicy):
    """d̂ is drawn evenly from the whole numbers of [0.5 d, 1.5 d], d as `vtc-oracle` has it."""

    OPTIONS: ClassVar[tuple[Option, ...]] = (*VtcOraclePolicy.OPTIONS, Option("seed", 0, whole(0)))

    def predicted_tokens(self, application: Application, inference: Inference) -> Tokens:
        """Draw once for each inference, the same in every run with this seed."""
        length = super().predicted_tokens(application, inference)
        # An inference's own id is unique in its application only.
        name = repr((self.options.own["seed"], inference.application_id, inference.inference_id))
        drawn = int.from_bytes(hashlib.sha256(name.encode()).digest())
        least, most = (length + 1) // 2, 3 * length // 2
        return least + drawn % (most - least + 1)


def _read_outputs(outputs: RecordReader, client: str) -> deque[tuple[Tokens, int]]:
    last: deque[tuple[Tokens, int]] = deque(maxlen=_REMEMBERED)
    for item in outputs.items(client):
        output_tokens, choices = RecordReader({client: item}, (client,)).integers(client)
        if not choices:
            raise ValueError(f"{item!r} has no sequence")
        last.append((output_tokens, choices))
    return last
