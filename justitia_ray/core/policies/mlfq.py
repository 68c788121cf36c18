"""A multi-level feedback queue between clients (FastServe, arXiv:2305.05920, Sec. 4.1).

The quantum of a level is twice that of the one before: q0, 2·q0, 4·q0, …, so a client that has
attained a is in level floor(log2(1 + a/q0)). Differs from the source: what is demoted is a client
and not one inference; it is not preempted, and comes back at the place of its submission and not at
the tail; nobody joins below level 0 for a long prompt (which is charged for instead), and nobody is
promoted, so that a client of much service may starve.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from justitia_ray.core.entities import Application
from justitia_ray.core.lazy_heap import Key
from justitia_ray.core.policies.base import PolicyContext
from justitia_ray.core.policies.client_policy import checked_table
from justitia_ray.core.policies.metered_policy import MeteredPolicy
from justitia_ray.core.policies.options import UNIT, Option, number
from justitia_ray.core.records import checked_number
from justitia_ray.units import ClientId, KvTokenTime


class MlfqPolicy(MeteredPolicy):
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
        self._attained: dict[ClientId, KvTokenTime] = {}

    def level(self, client: ClientId) -> int:
        """Return floor(log2(1 + attained/q0)), without the rounding of a logarithm."""
        return (int(self._attained.get(client, 0) // self._quantum) + 1).bit_length() - 1

    def key(self, client: ClientId, application: Application) -> Key:
        """Return (level, submission order of the client's first inference)."""
        return (self.level(client), *application.waiting.first.order)

    def forget_client(self, client: ClientId) -> None:
        """Forget what a client has attained."""
        self._attained.pop(client, None)

    def counted(self) -> dict[str, Any]:
        """Return what clients have attained, too."""
        return super().counted() | {"attained": dict(self._attained)}

    def take_over(self, counted: Mapping[str, Any]) -> None:
        """Take over what clients have attained, too."""
        self._attained = checked_table(counted["attained"], checked_number)
        super().take_over(counted)

    def charge(self, application: Application, amount: KvTokenTime) -> None:
        """Add to what the client has attained."""
        client = self.client(application)
        self._attained[client] = self._attained.get(client, 0) + amount
