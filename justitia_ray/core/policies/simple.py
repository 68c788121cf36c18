"""Baselines with an order that needs no accounts: FCFS, application FCFS, SJF and SRJF."""

from collections.abc import Sequence

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies.base import Order, Policy
from justitia_ray.core.policies.justitia import rank_preserving_integer
from justitia_ray.core.queue import Key
from justitia_ray.units import ClientId, KvTokenTime


class FcfsPolicy(Order):
    """First come, first served: inferences in order of arrival, as in vLLM."""

    def key(self, client: ClientId, application: Application) -> Key:
        """Return the submission order of the first waiting inference."""
        return application.waiting.first.order


class AppFcfsPolicy(Order):
    """Earliest opened application first, with FIFO order inside an application (Parrot, OSDI 2024).

    Source: Justitia (arXiv:2510.17015v1), Sec. V-A, describes Parrot as "FCFS at the application
    level": the inferences of one application are not interleaved with those of another. While the
    first application waits for its tools, later applications are served.
    """

    def key(self, client: ClientId, application: Application) -> Key:
        """Return the arrival sequence of the application."""
        return (application.sequence,)

    def engine_priority(
        self, application: Application, inference: Inference, grant_sequence: int
    ) -> int:
        """Return the arrival sequence, so that the engine keeps the scheduler's order."""
        return application.sequence


class SjfPolicy(Order):
    """Inference with the least predicted output first; long inferences may starve.

    Source: Shahout et al., "Don't stop me now" (ICLR 2025), a baseline of Justitia
    (arXiv:2510.17015v1, Sec. V-A). Differs from the source: no inference is preempted, and this
    project's predictor estimates the length.
    """

    def key(self, client: ClientId, application: Application) -> Key:
        """Return (predicted output tokens of the shortest inference, arrival sequence)."""
        return (application.waiting.first.predicted_output_tokens, application.sequence)

    def inference_key(self, inference: Inference) -> Key:
        """Return (predicted output tokens, submission order)."""
        return (inference.predicted_output_tokens, *inference.order)

    def engine_priority(
        self, application: Application, inference: Inference, grant_sequence: int
    ) -> int:
        """Return the predicted output tokens, so that the engine keeps the scheduler's order."""
        return inference.predicted_output_tokens


class SrjfPolicy(Policy):
    """Application with the least remaining predicted KV token-time first; large ones may starve.

    Source: the baseline SRJF of Justitia (arXiv:2510.17015v1, Sec. V-A; its starvation in Fig. 11).
    Running inferences are not preempted, and count as remaining until they end.
    """

    def key(self, client: ClientId, application: Application) -> Key:
        """Return (remaining cost, arrival sequence)."""
        return (remaining_cost(application), application.sequence)

    def ended(self, application: Application, inference: Inference) -> Sequence[ClientId]:
        """Return the application of an ended inference, because its remaining cost has fallen."""
        return [application.application_id]

    def engine_priority(
        self, application: Application, inference: Inference, grant_sequence: int
    ) -> int:
        """Return the remaining cost as an integer that keeps the order of costs."""
        return rank_preserving_integer(remaining_cost(application))


def remaining_cost(application: Application) -> KvTokenTime:
    """Return an application's predicted cost less the cost of its ended inferences, at least 0.

    Unit: token·iterations. An application that cost more than predicted reaches 0 and is then
    first.
    """
    done = application.kv_token_time - application.unfinished_kv_token_time
    return max(0, application.predicted_kv_token_time - done)
