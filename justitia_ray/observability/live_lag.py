"""Which live application lags most behind GPS now: a starving one, before it ends."""

from collections.abc import Callable
from itertools import islice

from justitia_ray.core import SchedulerCore
from justitia_ray.units import Seconds

_SHARE = 0.01
"""Of the time that may be spent on it."""
MOST_LOOKED_AT = 2_000
"""Applications: the scheduler stands still meanwhile."""


class LiveLag:
    """Measures again as soon as the last time it did took 1 % of the time since."""

    def __init__(self, clock: Callable[[], Seconds]) -> None:
        """Start with nothing known.

        Args:
            clock: Never goes back; precise.
        """
        self._clock = clock
        self._due_at: Seconds = 0.0
        self._greatest_s: Seconds = 0.0

    def greatest_s(self, core: SchedulerCore) -> Seconds:
        """Return the greatest lag of an application that waits, in seconds; 0 if none is behind.

        As if it started now. Of more than `MOST_LOOKED_AT` live applications those are looked at
        that arrived first, and the one that is first in order: they have waited longest, unless
        they were idle.
        """
        began_at = self._clock()
        if began_at < self._due_at:
            return self._greatest_s
        self._greatest_s = _greatest_s(core)
        now = self._clock()
        self._due_at = now + (now - began_at) / _SHARE
        return self._greatest_s


def _greatest_s(core: SchedulerCore) -> Seconds:
    """Return the lag of that which GPS finished first: it has waited longest since."""
    meter, first = core.order.lag, core.order.queue.first()
    if meter is None:
        return 0.0
    looked_at = list(islice(core.state.applications.values(), MOST_LOOKED_AT))
    if first is not None:
        looked_at.append(first)
    tags = ((meter.tag(a.application_id), a.sequence, a) for a in looked_at if a.waiting)
    # Below that nothing is known: late before this scheduler took office.
    late = min((known for known in tags if meter.history.knows(known[0])), default=None)
    lag = None if late is None else core.lag(late[2].application_id)
    return 0.0 if lag is None else max(0.0, float(lag.seconds))
