"""Order: who is next. Observer: what a policy counts. Durable: what of it outlives a scheduler.

A *client* is what a policy compares: an application, or a tenant with all its applications. The
queue takes the client with the smallest key, then the first of its applications, then the first of
that one's inferences. A policy knows nothing of memory or replicas: whether an inference fits is
asked of the queue, and virtual time of the fair share.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from justitia_ray.core.clock.fair_share import ServedShare
from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies.options import Option, PolicyOptions
from justitia_ray.core.queue import Key, LazyHeap, Queue
from justitia_ray.cost import CostFunction, choices_cost
from justitia_ray.units import ApplicationId, ClientId, KvTokenTime, RequestId, Seconds, Tokens


class Delivery(NamedTuple):
    """Service that one inference received since the last report; a tuple, as every report is one.

    A frozen data class takes three times as long to make, and a pull brings hundreds.
    """

    application_id: ApplicationId
    request_id: RequestId
    prompt_tokens: Tokens
    tokens_before: Tokens
    tokens_after: Tokens
    amount: KvTokenTime
    """KV token-time, without the part that an earlier scheduler has booked."""
    choices: int = 1
    unbooked: float = 1.0
    """Share of the service that no earlier scheduler has booked."""

    def worth(self, h: CostFunction) -> KvTokenTime:
        """Return h(p, after): all that the inference has received."""
        return choices_cost(h, self.prompt_tokens, self.tokens_after, self.choices)

    def cost(self, h: CostFunction) -> KvTokenTime:
        """Return h(p, after) − h(p, before), as far as it is not booked yet."""
        before = choices_cost(h, self.prompt_tokens, self.tokens_before, self.choices)
        return self.unbooked * (self.worth(h) - before)


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """The accounts, options and queries that a policy is made with."""

    fair_share: ServedShare
    """The accounts, which are kept whatever the policy."""
    options: PolicyOptions
    application: Callable[[ApplicationId], Application]
    """Returns a live application."""
    now: Callable[[], Seconds]
    """Returns the instant of the event being handled."""
    clients: Queue
    """Tells which client comes first, and which have something waiting."""
    kv_tokens: Callable[[], Tokens]
    """Returns the KV memory of all replicas together."""


class Order(ABC):
    """Says which client is next, and in what order its work goes. Only `key` has to be said.

    By default clients are applications, each FIFO inside. A key may change where a hook of an
    `Observer` says so, and with the tag of its application.
    """

    OPTIONS: ClassVar[tuple[Option, ...]] = ()
    """Options beside those that every policy takes."""
    CLOCKS: ClassVar[tuple[str, ...]] = ("served", "nominal", "unsettled")
    """The clocks under which it works."""
    DEFAULT_COST: ClassVar[str] = "kv_token_time"
    """The cost function, unless the option `cost` names another."""
    ACCOUNTS_IN_COST: ClassVar[bool] = False
    """Whether the accounts are kept in that cost too, and not in KV token-time."""
    GOES_ON_FROM: ClassVar[tuple[str, ...]] = ()
    """Other policies whose stored state it takes over."""
    INVARIANTS: ClassVar[tuple[Callable[[Any], Any], ...]] = ()
    """Rules of its own for a core's state, of the form of those in `core.invariants`."""
    BY_TAG: ClassVar[bool] = False
    """Whether applications go by their tags, so that the bound on their lag holds."""
    holds_back: ClassVar[bool] = False
    """Whether `eligible_at` may be after now."""
    by_leaf: bool = False
    """Whether clients are above the leaves of the accounts, between which `move` moves.

    Otherwise the client of an application never changes.
    """
    keeps_place_in_flight: bool = False
    """Whether what runs stays where its grant put it, by `engine_priority`.

    Otherwise it moves with the keys, in queries and in the simulator: no engine does that.
    """
    moves_with_service: bool = False
    """Whether service alone, as it is reported, may put another client first."""
    lets_pass: bool = False
    """Whether another than that of the least key may be first; `INVARIANTS` then say which."""

    def __init__(self, context: PolicyContext) -> None:
        self.context = context
        self.fair_share = context.fair_share
        self.options = context.options

    def client(self, application: Application) -> ClientId:
        """Return the client that an application belongs to; see `by_leaf`."""
        return application.application_id

    @abstractmethod
    def key(self, client: ClientId, application: Application) -> Key:
        """Return the place of a client whose first application is this one; it has work waiting."""

    def order(self) -> LazyHeap:
        """Return an empty order of clients; called once, when the policy comes into force.

        By default the smallest key is first.
        """
        return LazyHeap()

    def members_order(self, client: ClientId) -> LazyHeap:
        """Return an order of a client's applications, empty; called when its first one waits.

        By default the smallest `application_key` is first. The client stands where the application
        of the smallest key does, whichever is first inside.
        """
        return LazyHeap()

    def application_key(self, application: Application) -> Key:
        """Return the place of an application, with work waiting, among those of its client."""
        return application.waiting.first.order

    def inference_key(self, inference: Inference) -> Key:
        """Return the place of an inference in its application; fixed while it waits."""
        return inference.order

    def eligible_at(self, client: ClientId) -> Seconds:
        """Return when the client may be granted again; an instant not after now means at once."""
        return 0.0

    def engine_priority(
        self, application: Application, inference: Inference, grant_sequence: int
    ) -> int:
        """Return the priority of a grant for the engine, lower first; fixed at admission.

        By default the engine serves in the order of the grants.
        """
        return grant_sequence


class Observer:
    """Counts what happens to inferences. Each hook returns the clients whose key it changed.

    Hooks are called for every policy in the same order, so that what they count depends on the
    events alone. An order that is no `Observer` is not called.
    """

    def submitted(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Note that an inference is about to wait, again if it is re-queued.

        It is not in the queue yet. `inference.attempts` is 0 the first time.
        """
        return ()

    def dispatched(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Charge for an inference that was leased, and has left the queue."""
        return ()

    def adopted(self, application: Application, inference: Inference) -> None:
        """Note an inference that holds a lease of an earlier scheduler: it has been charged for."""

    def served(self, deliveries: Sequence[Delivery]) -> Sequence[ClientId]:
        """Charge for the service that a replica reported; every delivery is above 0."""
        return ()

    def left(self, client: ClientId) -> None:
        """Note that nothing of a client waits any more."""

    def ended(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Note that an inference reached its end, from whatever state."""
        return ()

    def application_ended(self, application: Application) -> None:
        """Note that an application reached its end; nothing of it is left."""


class Durable:
    """Has counts that outlive the scheduler, as JSON."""

    def state(self) -> dict[str, Any]:
        """Return the counts of the whole policy; {} if there are none."""
        return {}

    def application_state(self, application_id: ApplicationId) -> dict[str, Any] | None:
        """Return the counts of one live application; None if there are none.

        They are saved with the application when that has changed, and may be some changes behind.
        """
        return None

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the `state` of an earlier scheduler's policy, before any hook is called.

        Raises:
            KeyError, TypeError, ValueError: If it is not of that form.
        """

    def restore_application(self, application: Application, state: Mapping[str, Any]) -> None:
        """Restore the `application_state` of an earlier scheduler's policy, after `restore`.

        Raises:
            KeyError, TypeError, ValueError: If it is not of that form.
        """


class Policy(Order, Observer, Durable):
    """An order that counts, and whose counts outlive the scheduler; for policies with charges."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "served" in cls.__dict__ and "moves_with_service" not in cls.__dict__:
            cls.moves_with_service = True
