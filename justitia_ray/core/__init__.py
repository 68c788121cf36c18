"""The scheduling core: pure, synchronous, without Ray, vLLM, asyncio or a clock.

README.md has the algorithm, its rules, the bound that holds and one worked example.
"""

from justitia_ray.core.scheduler import SchedulerCore
from justitia_ray.core.state import Timeouts

__all__ = ["SchedulerCore", "Timeouts"]
