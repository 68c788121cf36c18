"""When V reached which value: the ends of applications under GPS."""

from bisect import bisect_left

from justitia_ray.units import Seconds, VirtualTime


class GpsHistory:
    """V over time, linear between two reports; it rests while nothing runs."""

    def __init__(self) -> None:
        self._reached: list[VirtualTime] = []
        self._rose: list[tuple[VirtualTime, Seconds, Seconds]] = []
        """From which value, from when, until when."""
        self._last: tuple[VirtualTime, Seconds] = (0.0, 0.0)

    def note(self, virtual_time: VirtualTime, now: Seconds) -> None:
        """Take V as it is now."""
        before, since = self._last
        if virtual_time > before:
            self._reached.append(virtual_time)
            self._rose.append((before, since, now))
        self._last = (virtual_time, now)

    def reached_at(self, tag: VirtualTime, end_at: Seconds) -> Seconds:
        """Return when V reached a tag; `end_at` if rounding keeps it below to the end."""
        index = bisect_left(self._reached, tag)
        if index == len(self._reached):
            return end_at
        before, since, until = self._rose[index]
        share = (tag - before) / (self._reached[index] - before)
        return since + max(0.0, share) * (until - since)
