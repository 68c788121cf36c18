"""How fast the machine is, from moment to moment: the CPU time of a small piece of work.

A machine that others share moves by 40 % within minutes. CPU time of a fixed work tells it from
waiting for a core, whatever else runs here.
"""

import random
import threading
import time
from collections.abc import Callable

from justitia_ray.units import Seconds

INTERVAL_S: Seconds = 0.25
"""Between two readings; each takes some milliseconds of one core."""
_NUMBERS = 6_000
"""To sort: branches, and more memory than the first cache holds."""
_SEED = 1


class Speedometer:
    """Takes readings in a thread of its own while it is entered.

    Args:
        clock: Tells the instants of readings, in seconds.
        interval_s: Between two of them.
    """

    def __init__(
        self, clock: Callable[[], Seconds] = time.monotonic, interval_s: Seconds = INTERVAL_S
    ) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._numbers = random.Random(_SEED).sample(range(10 * _NUMBERS), _NUMBERS)
        self._readings: list[tuple[Seconds, Seconds]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name="speedometer", daemon=True)

    def __enter__(self) -> "Speedometer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def readings(self) -> tuple[tuple[Seconds, Seconds], ...]:
        """When each was taken, and what CPU time the work took."""
        return tuple(self._readings)

    def _read(self) -> None:
        while True:
            began_s = time.thread_time()
            sorted(self._numbers)
            self._readings.append((self._clock(), time.thread_time() - began_s))
            if self._stop.wait(self._interval_s):
                return
