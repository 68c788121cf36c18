"""Shortest remaining job first between applications, by predicted cost.

Source: the baseline SRJF of Justitia (arXiv:2510.17015v1, Sec. V-A; its starvation in Fig. 11).
What runs is not preempted, and does not count as done before it ends.
"""

from collections.abc import Sequence

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.lazy_heap import Key
from justitia_ray.core.policies.base import Policy
from justitia_ray.core.policies.justitia import rank_preserving_integer
from justitia_ray.units import ClientId, KvTokenTime


class SrjfPolicy(Policy):
    """Least remaining predicted KV token-time first; large applications may starve."""

    def key(self, client: ClientId, application: Application) -> Key:
        """Return (remaining cost, arrival sequence)."""
        return (remaining_cost(application), application.sequence)

    def ended(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Take in that less remains of the application."""
        return [application.application_id]

    def engine_priority(
        self, application: Application, inference: Inference, grant_sequence: int
    ) -> int:
        """Return the remaining cost as an integer of the same rank."""
        return rank_preserving_integer(remaining_cost(application))


def remaining_cost(application: Application) -> KvTokenTime:
    """Return its predicted cost less that of its ended inferences, in token·iterations, at least 0.

    An application that was predicted too small comes first from then on.
    """
    done = application.kv_token_time - application.unfinished_kv_token_time
    return max(0, application.predicted_kv_token_time - done)
