"""First come, first served: inferences in the order of their arrival, as vLLM does."""

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.policies.base import Key, PolicyBase


class FcfsPolicy(PolicyBase):
    """Earliest submission first, whatever application it belongs to."""

    def key(self, application: Application, head: Inference) -> Key:
        """Return the submission order of the first waiting inference."""
        return head.order

    def engine_priority(self, application: Application, grant_sequence: int) -> int:
        """Return the grant sequence: the engine serves in the order of the grants."""
        return grant_sequence
