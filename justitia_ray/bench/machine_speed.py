"""How fast the machine is while something is measured on it, by a fixed computation.

The same load costs a shared machine's cores up to half as much CPU time again as minutes before:
what runs beside it, on other cores or on other guests, takes caches and clock. Plays that follow
each other are compared, and predicted, at the speed that each had.
"""

import asyncio
import json
import statistics
import time
import zlib
from collections.abc import Callable

from justitia_ray.units import Seconds

_EVERY_S: Seconds = 0.5
_DOCUMENT = {f"key{number}": [number, str(number), {"value": number / 7}] for number in range(300)}


def fixed_computation() -> None:
    """Do some of what a service does: objects and text; about 5 ms."""
    for _ in range(4):
        zlib.crc32(json.dumps(json.loads(json.dumps(_DOCUMENT))).encode())


class MachineSpeed:
    """Times the computation, in CPU time, twice a second: one per cent of a core.

    CPU time, not time: what waits for a core is no slower for it.
    """

    def __init__(
        self,
        compute: Callable[[], None] = fixed_computation,
        cpu_time: Callable[[], Seconds] = time.thread_time,
    ) -> None:
        self._compute = compute
        self._cpu_time = cpu_time
        self._took_s: list[Seconds] = []

    async def watch(self) -> None:
        """Take samples until this is cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            self.sample()

    def sample(self) -> None:
        """Do the computation once."""
        started = self._cpu_time()
        self._compute()
        self._took_s.append(self._cpu_time() - started)

    @property
    def computation_s(self) -> Seconds:
        """CPU time of the computation, in the mean over the samples.

        Without the tenth that took longest, in which something else was counted.
        """
        if not self._took_s:
            self.sample()
        kept = sorted(self._took_s)[: max(1, round(0.9 * len(self._took_s)))]
        return statistics.fmean(kept)
