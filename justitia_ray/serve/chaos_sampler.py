"""Notes ten times a second what the scheduler says of itself."""

import asyncio
import time

from justitia_ray.chaos.notes import Notes, Sample
from justitia_ray.serve.chaos_target import ChaosTarget
from justitia_ray.units import Seconds

_EVERY_S: Seconds = 0.1


async def keep_sampling(target: ChaosTarget, notes: Notes) -> None:
    """Do so until cancelled; while there is no scheduler there is no sample."""
    while True:
        status = await target.ask_scheduler("status")
        notes.samples.append(
            Sample(
                time.monotonic(),
                status["epoch"],
                bool(status["ready"]),
                status["degraded"] is not None,
                status.get("saves", 0),
                {name: one["leases"] for name, one in status.get("replicas", {}).items()},
            )
        )
        await asyncio.sleep(_EVERY_S)
