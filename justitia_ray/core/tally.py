"""What happened since this scheduler began, and how much is in the queue.

Nothing here decides anything in the core, and nothing of it is stored: it is for people, and what
the queue holds is told to replicas, by which they are scaled. Counts only grow, so that a reader
takes the difference of two readings.
"""

from dataclasses import dataclass, field

from justitia_ray.core.entities import Inference, Outcome
from justitia_ray.cost import choices_kv_token_time
from justitia_ray.units import KvTokenTime, Tokens

OTHER = "other"
"""The tenant under which those are counted that come when the table is full."""
_MOST_TENANTS = 1_024
"""Tenants are made by callers; whoever reads this keeps far fewer apart."""


@dataclass(slots=True)
class Tally:
    """Counts, and sums over what is in the queue. O(1) an event."""

    waiting_kv_tokens: Tokens = 0
    """KV that everything in the queue would need at once."""
    waiting_kv_token_time: KvTokenTime = 0
    """What all of it is predicted to cost still."""
    leases_expired: int = 0
    """Their payload did not reach the replica in time."""
    leases_refused: int = 0
    """Their ingress could not use them."""
    outran: int = 0
    """How often rule 1 doubled a charge."""
    expected: int = 0
    """How often rule 7 raised one."""
    turned_away: int = 0
    """Applications for which there was no room; one that tries again lately counts once."""
    ended: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    """Inferences by their end; what an earlier scheduler has counted is not among them."""
    served: dict[str, KvTokenTime] = field(default_factory=dict)
    """Service booked, by tenant."""

    def waits(self, inference: Inference, kv_tokens: Tokens) -> None:
        """An inference has joined the queue, which would need so much KV."""
        self.waiting_kv_tokens += kv_tokens
        self.waiting_kv_token_time += _still_to_come(inference)

    def waits_no_more(self, inference: Inference, kv_tokens: Tokens) -> None:
        """It has left the queue; its sizes have not changed meanwhile."""
        self.waiting_kv_tokens -= kv_tokens
        self.waiting_kv_token_time -= _still_to_come(inference)

    def serve(self, tenant: str, amount: KvTokenTime) -> None:
        """So much service was booked for an application of a tenant."""
        if tenant not in self.served and len(self.served) >= _MOST_TENANTS:
            tenant = OTHER
        self.served[tenant] = self.served.get(tenant, 0) + amount


def _still_to_come(inference: Inference) -> KvTokenTime:
    whole = choices_kv_token_time(
        inference.prompt_tokens, inference.predicted_output_tokens, inference.choices
    )
    return max(0, whole - inference.attained)
