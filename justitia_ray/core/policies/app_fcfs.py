"""First come, first served between applications (Parrot, OSDI 2024).

Source: Justitia (arXiv:2510.17015v1), Sec. V-A, takes Parrot for "FCFS at the application level":
the inferences of one application are not interleaved with those of another. While the first one
waits for its tools, later ones are served.
"""

from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.lazy_heap import Key
from justitia_ray.core.policies.base import Policy
from justitia_ray.units import ClientId


class AppFcfsPolicy(Policy):
    """Earliest opened application first, FIFO inside."""

    def key(self, client: ClientId, application: Application) -> Key:
        """Return the arrival sequence of the application."""
        return (application.sequence,)

    def engine_priority(
        self, application: Application, inference: Inference, grant_sequence: int
    ) -> int:
        """Return the arrival sequence, so that the engine's own order is ours."""
        return application.sequence
