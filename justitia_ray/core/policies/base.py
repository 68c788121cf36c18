"""What a policy is: an order of applications, and the events it may charge on.

A policy knows nothing of memory or replicas: whether an inference fits is asked of the queue, and
virtual time of the fair share.
"""

from dataclasses import dataclass
from typing import Protocol

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.fair_share import FairShare
from justitia_ray.units import ApplicationId, KvTokenTime, Tokens

Key = tuple[float, ...]
"""Place in the order, smallest first; ends in a sequence number so that no two are equal."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """Service that one inference received since the last report."""

    application_id: ApplicationId
    request_id: str
    prompt_tokens: Tokens
    tokens_before: Tokens
    tokens_after: Tokens
    amount: KvTokenTime
    """h(p, after) − h(p, before), token·iterations."""


class Policy(Protocol):
    """An order. Each hook returns the applications whose key it changed."""

    def key(self, application: Application, head: Inference) -> Key:
        """Return the place of an application whose first waiting inference is `head`."""

    def engine_priority(self, application: Application, grant_sequence: int) -> int:
        """Return the priority of a grant for the engine, lower first; fixed at admission."""

    def submitted(self, application: Application, inference: Inference) -> list[ApplicationId]:
        """An inference began to wait."""

    def dispatched(self, application: Application, inference: Inference) -> list[ApplicationId]:
        """An inference was leased to a replica."""

    def served(self, deliveries: list[Delivery]) -> list[ApplicationId]:
        """A replica reported service."""

    def ended(self, application: Application, inference: Inference) -> list[ApplicationId]:
        """An inference reached its end."""


class PolicyBase:
    """Hooks of a policy that charges on nothing."""

    def __init__(self, fair_share: FairShare) -> None:
        self.fair_share = fair_share

    def submitted(self, application: Application, inference: Inference) -> list[ApplicationId]:
        """Change no key."""
        return []

    def dispatched(self, application: Application, inference: Inference) -> list[ApplicationId]:
        """Change no key."""
        return []

    def served(self, deliveries: list[Delivery]) -> list[ApplicationId]:
        """Change no key."""
        return []

    def ended(self, application: Application, inference: Inference) -> list[ApplicationId]:
        """Change no key."""
        return []
