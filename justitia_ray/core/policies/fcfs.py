"""First come, first served: inferences in the order of their arrival, as vLLM does."""

from justitia_ray.core.entities import Application
from justitia_ray.core.lazy_heap import Key
from justitia_ray.core.policies.base import Policy
from justitia_ray.units import ClientId


class FcfsPolicy(Policy):
    """Earliest submission first, whatever application it belongs to."""

    def key(self, client: ClientId, application: Application) -> Key:
        """Return the submission order of the first waiting inference."""
        return application.waiting.first.order
