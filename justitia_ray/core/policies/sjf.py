"""Shortest job first between inferences, by their predicted length (vLLM-SJF).

Source: Shahout et al., "Don't stop me now" (ICLR 2025), as Justitia takes it for a baseline
(arXiv:2510.17015v1, Sec. V-A). Differs from the source: it does not preempt, and the length is that
of this project's predictor.
"""

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.lazy_heap import Key
from justitia_ray.core.policies.base import Policy
from justitia_ray.units import ClientId


class SjfPolicy(Policy):
    """Least predicted output first, over all sequences of an inference; long ones may starve."""

    def key(self, client: ClientId, application: Application) -> Key:
        """Return (predicted output tokens of its shortest inference, arrival sequence)."""
        return (application.waiting.first.predicted_output_tokens, application.sequence)

    def inference_key(self, inference: Inference) -> Key:
        """Return (predicted output tokens, submission order)."""
        return (inference.predicted_output_tokens, *inference.order)

    def engine_priority(
        self, application: Application, inference: Inference, grant_sequence: int
    ) -> int:
        """Return the predicted output tokens, so that the engine's own order is ours."""
        return inference.predicted_output_tokens
