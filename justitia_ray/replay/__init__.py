"""Playing a workload file against a live service, with the result files of a simulation.

Only the service's HTTP surface is used: it may run anywhere.
"""

from justitia_ray.replay.replay import Replay, replay

__all__ = ["Replay", "replay"]
