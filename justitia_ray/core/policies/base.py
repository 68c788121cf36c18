"""Interfaces of a policy: `Order` sorts, `Observer` counts events, `Durable` saves the counts.

A policy compares *clients*: applications, or tenants with all their applications. The queue selects
the client with the smallest key, then the first of its applications, then the first inference of
that application. A policy does not deal with memory or replicas: the queue decides whether an
inference fits. Virtual time is kept in the accounts (`clock.fair_share`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from justitia_ray.core.clock.fair_share import ServedShare
from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies.options import Option, PolicyOptions
from justitia_ray.core.prefill import NOTHING_PAID, PrefillPaid
from justitia_ray.core.queue import Key, LazyHeap, Queue
from justitia_ray.cost import CostFunction, choices_cost
from justitia_ray.units import ApplicationId, ClientId, KvTokenTime, RequestId, Seconds, Tokens


class Delivery(NamedTuple):
    """Service that one inference received since the last report of its replica.

    A tuple, because a pull brings hundreds, and creating a frozen data class takes three times as
    long.
    """

    application_id: ApplicationId
    request_id: RequestId
    prompt_tokens: Tokens
    tokens_before: Tokens
    tokens_after: Tokens
    amount: KvTokenTime
    """KV token-time of the delivery, without the part that an earlier scheduler has counted."""
    choices: int = 1
    unbooked: float = 1.0
    """Fraction of the reported service that no scheduler before a restart has counted."""
    prefill: PrefillPaid = NOTHING_PAID
    """Cost of the prompt that was computed since the last report, in addition to `amount`."""

    @property
    def tag_amount(self) -> KvTokenTime:
        """Return the part of the delivered service for which the application's tag pays."""
        return self.amount + self.prefill.paid

    def worth(self, h: CostFunction) -> KvTokenTime:
        """Return the service h(p, d) that the inference has received in total."""
        return choices_cost(h, self.prompt_tokens, self.tokens_after, self.choices)

    def cost(self, h: CostFunction) -> KvTokenTime:
        """Return the cost of the delivery by a cost function, without parts counted earlier."""
        before = choices_cost(h, self.prompt_tokens, self.tokens_before, self.choices)
        return self.unbooked * (self.worth(h) - before)


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """Accounts, options and queries that the constructor of a policy receives."""

    fair_share: ServedShare
    """Accounts of the applications, which are kept under every policy."""
    options: PolicyOptions
    application: Callable[[ApplicationId], Application]
    """Function that returns a live application by its id."""
    now: Callable[[], Seconds]
    """Function that returns the time of the present event."""
    clients: Queue
    """Queue of the core, with the first client and the waiting clients."""
    kv_in_flight: Callable[[], KvTokenTime]
    """Function that returns the KV tokens of all inferences on full replicas, each counted whole;
    see `State.kv_in_flight`.
    """
    kv_per_iteration: Callable[[], KvTokenTime]
    """Function that returns the measured service of all replicas in an iteration while inferences
    wait.
    """


class Order(ABC):
    """Order of clients (applications or tenants) and of their work. Subclasses define `key`.

    By default clients are applications, with their inferences in FIFO order. A key may change when
    a hook of an `Observer` returns its client, and with the tag of its application.
    """

    OPTIONS: ClassVar[tuple[Option, ...]] = ()
    """Options of this policy besides the options of every policy."""
    CLOCKS: ClassVar[tuple[str, ...]] = ("served", "nominal", "unsettled")
    """Clocks (values of the option `clock`) with which the policy works."""
    DEFAULT_COST: ClassVar[str] = "kv_token_time"
    """Cost function of the policy, unless the option `cost` names another."""
    ACCOUNTS_IN_COST: ClassVar[bool] = False
    """Whether the accounts count the policy's own cost instead of KV token-time."""
    GOES_ON_FROM: ClassVar[tuple[str, ...]] = ()
    """Names of other policies whose stored state this policy can restore."""
    INVARIANTS: ClassVar[tuple[Callable[[Any], Any], ...]] = ()
    """Additional invariants of the core's state, written like the ones in `core.invariants`."""
    BY_TAG: ClassVar[bool] = False
    """Whether applications are ordered by their tags, so that the bound on their lag holds."""
    holds_back: ClassVar[bool] = False
    """Whether the policy may hold clients back (`eligible_at`), so that they get no leases for some
    time.
    """
    by_leaf: bool = False
    """Whether a client is a node above leaves of the tenant tree, so that an application may get
    another client (`move`). Otherwise the client of an application never changes.
    """
    keeps_place_in_flight: bool = False
    """Whether a running inference keeps the position that it had when it was leased
    (`engine_priority`). Otherwise its position follows its present key in queries and in the
    simulator; no engine does this.
    """
    moves_with_service: bool = False
    """Whether reported service alone may change which client is first in the order."""
    lets_pass: bool = False
    """Whether an application without the smallest key may be first; `INVARIANTS` then define the
    first.
    """

    def __init__(self, context: PolicyContext) -> None:
        self.context = context
        self.fair_share = context.fair_share
        self.options = context.options

    def client(self, application: Application) -> ClientId:
        """Return the client to which an application belongs: the application or its tenant."""
        return application.application_id

    @abstractmethod
    def key(self, client: ClientId, application: Application) -> Key:
        """Return the key of a waiting client, given its first waiting application."""

    def order(self) -> LazyHeap:
        """Return an empty order of clients; called once, when the policy is selected.

        By default the smallest key is first.
        """
        return LazyHeap()

    def members_order(self, client: ClientId) -> LazyHeap:
        """Return an empty order of a client's applications; called when the first of them waits.

        By default the smallest `application_key` is first. The position of the client is that of
        its application with the smallest key, even if another application is first inside.
        """
        return LazyHeap()

    def application_key(self, application: Application) -> Key:
        """Return the key of a waiting application among the applications of its client."""
        return application.waiting.first.order

    def inference_key(self, inference: Inference) -> Key:
        """Return the key of an inference in its application; constant while the inference waits."""
        return inference.order

    def eligible_at(self, client: ClientId) -> Seconds:
        """Return the time from which a client may be granted leases again; 0: at once."""
        return 0.0

    def engine_priority(
        self, application: Application, inference: Inference, grant_sequence: int
    ) -> int:
        """Return the priority of an inference in the engine, lower first; fixed at admission.

        By default the engine serves in the order of the grants.
        """
        return grant_sequence


class Observer:
    """Receives the events of inferences. Each hook returns the clients whose keys it changed.

    Hooks are called in the same order under every policy, so that their counts depend on the events
    alone. An order that is not an `Observer` is not called.
    """

    def submitted(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Called before an inference joins the queue, and again if the inference is requeued.

        `inference.attempts` is 0 at the first call.
        """
        return ()

    def dispatched(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Charge for a leased inference, which has left the queue."""
        return ()

    def adopted(self, application: Application, inference: Inference) -> None:
        """Called for an inference with a lease of an earlier scheduler, charged before."""

    def served(self, deliveries: Sequence[Delivery]) -> Sequence[ClientId]:
        """Charge for the service that a replica reported.

        The amount of every delivery is above 0.
        """
        return ()

    def left(self, client: ClientId) -> None:
        """Called when a client has no waiting inference left."""

    def ended(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Called when an inference has ended, from any state."""
        return ()

    def application_ended(self, application: Application) -> None:
        """Called when an application has ended, with all its inferences."""


class Durable:
    """Interface of a policy's counts that outlive the scheduler, as JSON."""

    def state(self) -> dict[str, Any]:
        """Return the counts of the whole policy; {} if the policy has no counts."""
        return {}

    def application_state(self, application_id: ApplicationId) -> dict[str, Any] | None:
        """Return the counts of one live application; None if the policy has none.

        They are saved with the application when it has changed, and may lack the latest changes.
        """
        return None

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the `state` of an earlier scheduler's policy, before any hook is called.

        Raises:
            KeyError, TypeError, ValueError: If the state has another form.
        """

    def restore_application(self, application: Application, state: Mapping[str, Any]) -> None:
        """Restore the counts of an application that `application_state` returned, after `restore`.

        Raises:
            KeyError, TypeError, ValueError: If the state has another form.
        """


class Policy(Order, Observer, Durable):
    """An order with counts that outlive the scheduler; base class of policies with charges."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "served" in cls.__dict__ and "moves_with_service" not in cls.__dict__:
            cls.moves_with_service = True
