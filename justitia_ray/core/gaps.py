"""Tool gaps of application classes, and the time for which contexts are kept through a gap.

Classes are separate for each tenant: applications of another tenant under the same name have no
effect.

Memory that is kept through a gap of g seconds is idle for this time; an evicted context is computed
again, which takes the whole replica. For a context of c tokens keeping costs c·g token·seconds,
computing again M·c·b (M: KV tokens of the replica, b: seconds to compute a prompt token). Both are
equal at the *break-even* gap g = M·b, whatever the length of the context.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from justitia_ray.units import ClientId, Seconds

_SAMPLES = 128
_LEAST_SAMPLES = 8
_MOST_CLASSES = 1_024

GapClass: TypeAlias = tuple[ClientId, str]
"""Tenant and application class; the length of tool calls is learned for each pair."""


class _ToolGap(NamedTuple):
    length_s: Seconds
    has_returned: bool
    """Whether the application submitted again after the tool call; otherwise it ended."""


class Gaps:
    """Lengths of the last tool calls (gaps) of each application class."""

    def __init__(self) -> None:
        self._of: dict[GapClass, deque[_ToolGap]] = {}
        """Tool gaps by class; the class with the latest new gap is last."""
        self._kept: dict[GapClass, tuple[Seconds, Seconds]] = {}
        """Last result of each class, with the break-even tool gap of keeping a context; valid until
        a gap is added.
        """
        self.last_kept_s: dict[GapClass, Seconds] = {}
        """Last result of `kept_s` for each class; later gaps may change it."""

    def add(self, application_class: GapClass, length_s: Seconds, *, has_returned: bool) -> None:
        """Record the tool gap of an application that has submitted again or has ended."""
        gaps = self._of.pop(application_class, None)
        if gaps is None:
            gaps = deque(maxlen=_SAMPLES)
            if len(self._of) >= _MOST_CLASSES:
                oldest = next(iter(self._of))
                del self._of[oldest]
                self._kept.pop(oldest, None)
                self.last_kept_s.pop(oldest, None)
        self._of[application_class] = gaps
        gaps.append(_ToolGap(length_s, has_returned))
        self._kept.pop(application_class, None)

    def kept_s(self, application_class: GapClass, break_even_s: Seconds) -> Seconds:
        """Return for how many seconds of a tool gap the contexts of a class are worth their memory.

        This is the time with the least mean cost over the recorded gaps. The memory is idle until
        the application returns or ends, or until that time; in the last case a return costs the
        break-even gap. With few recorded gaps the break-even gap itself is returned, with at most
        twice the cost of the best decision for each gap.
        """
        gaps = self._of.get(application_class)
        if gaps is None or len(gaps) < _LEAST_SAMPLES:
            if gaps is not None:
                self.last_kept_s[application_class] = break_even_s
            return break_even_s
        kept = self._kept.get(application_class)
        if kept is None or kept[0] != break_even_s:
            kept = self._kept[application_class] = (break_even_s, _best_kept_s(gaps, break_even_s))
            self.last_kept_s[application_class] = kept[1]
        return kept[1]


def _best_kept_s(gaps: Iterable[_ToolGap], break_even_s: Seconds) -> Seconds:
    ordered = sorted(gaps)
    returns = sum(gap.has_returned for gap in ordered)
    best_s, least = 0.0, returns * break_even_s
    passed_s = 0.0
    for place, gap in enumerate(ordered):
        passed_s += gap.length_s
        returns -= gap.has_returned
        longer = len(ordered) - place - 1
        cost = passed_s + longer * gap.length_s + returns * break_even_s
        if gap.has_returned and cost < least:
            best_s, least = gap.length_s, cost
    return best_s
