"""Policy: an order of clients and of what each of them has waiting, and its charges.

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


class Policy(ABC):
    """An order; to be subclassed. Only `key` has to be said.

    By default clients are applications, each FIFO inside, and nothing is charged. Each hook returns
    the clients whose key it changed. Hooks are called for every policy in the same order, so that
    what they count depends on the events alone.
    """

    OPTIONS: ClassVar[tuple[Option, ...]] = ()
    """Options beside those that every policy takes."""
    DEFAULT_COST: ClassVar[str] = "kv_token_time"
    """The cost function, unless the option `cost` names another."""
    ACCOUNTS_IN_COST: ClassVar[bool] = False
    """Whether the accounts are kept in that cost too, and not in KV token-time."""
    holds_back: ClassVar[bool] = False
    """Whether `eligible_at` may be after now."""

    @classmethod  # noqa: B027 - optional
    def check(cls, options: PolicyOptions) -> None:
        """Refuse options that do not go together.

        Raises:
            ConfigError: If they do not; the message names the option and what it needs.
        """

    def __init__(self, context: PolicyContext) -> None:
        self.context = context
        self.fair_share = context.fair_share
        self.options = context.options

    def client(self, application: Application) -> ClientId:
        """Return the client that an application belongs to; see `by_leaf`."""
        return application.application_id

    @property
    def by_leaf(self) -> bool:
        """Whether clients are above the leaves of the accounts, between which `move` moves.

        Otherwise the client of an application never changes.
        """
        return False

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
        of the smallest key does, whoever is first inside.
        """
        return LazyHeap()

    @property
    def books(self) -> bool:
        """Whether `book` may have anything to do."""
        return False

    def book(self, client: ClientId) -> ApplicationId | None:
        """Return who is first of the first client; None if it was booked in the accounts just now.

        Whoever is to pass inside a client is booked first. The client's key, the only one that may
        change by it, is then asked for again.
        """
        raise NotImplementedError

    def application_key(self, application: Application) -> Key:
        """Return the place of an application, with work waiting, among those of its client."""
        return application.waiting.first.order

    def inference_key(self, inference: Inference) -> Key:
        """Return the place of an inference in its application; fixed while it waits."""
        return inference.order

    def eligible_at(self, client: ClientId) -> Seconds:
        """Return when the client may be granted again; what is not after now means at once."""
        return 0.0

    def engine_priority(
        self, application: Application, inference: Inference, grant_sequence: int
    ) -> int:
        """Return the priority of a grant for the engine, lower first; fixed at admission.

        By default the engine serves in the order of the grants.
        """
        return grant_sequence

    @property
    def keeps_place_in_flight(self) -> bool:
        """Whether what runs stays where its grant put it, by `engine_priority`.

        Otherwise it moves with the keys, in queries and in the simulator: no engine does that.
        """
        return False

    @property
    def moves_with_service(self) -> bool:
        """Whether service alone, as it is reported, may put another client first."""
        return type(self).served is not Policy.served

    def may_precede(self, application: Application, first: Application) -> bool:
        """Return whether an application that has submitted something may come before another.

        The other was first at the last look. Asked where a look at who is first would cost more.
        """
        return True

    def submitted(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Note that an inference is about to wait, again if it is re-queued.

        It is not in the queue yet. `inference.attempts` is 0 the first time.
        """
        return ()

    def dispatched(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Charge for an inference that was leased, and has left the queue."""
        return ()

    def adopted(  # noqa: B027 - optional
        self, application: Application, inference: Inference
    ) -> None:
        """Note an inference that holds a lease of an earlier scheduler: it has been charged for."""

    def served(self, deliveries: Sequence[Delivery]) -> Sequence[ClientId]:
        """Charge for the service that a replica reported; every delivery is above 0."""
        return ()

    def left(self, client: ClientId) -> None:  # noqa: B027 - optional
        """Note that nothing of a client waits any more."""

    def ended(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Note that an inference reached its end, from whatever state."""
        return ()

    def application_ended(self, application: Application) -> None:  # noqa: B027 - optional
        """Note that an application reached its end; nothing of it is left."""

    def state(self) -> dict[str, Any]:
        """Return what must outlive the scheduler, as JSON; {} if nothing."""
        return {}

    def application_state(self, application_id: ApplicationId) -> dict[str, Any] | None:
        """Return what must outlive the scheduler of one live application, as JSON; None: nothing.

        It is saved with the application when that has changed, and may be some changes behind.
        """
        return None

    def restore(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - optional
        """Restore the `state` of an earlier scheduler's policy, before any hook is called.

        Raises:
            KeyError, TypeError, ValueError: If it is not of that form.
        """

    def restore_application(  # noqa: B027 - optional
        self, application: Application, state: Mapping[str, Any]
    ) -> None:
        """Restore the `application_state` of an earlier scheduler's policy, after `restore`.

        Raises:
            KeyError, TypeError, ValueError: If it is not of that form.
        """
