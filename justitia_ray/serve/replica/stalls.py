"""Whether an engine that is alive has stalled: it has work, and makes no steps.

Tokens that do not come prove nothing, for a prefill takes its time. But vLLM records every step of
its loop while it has any request: of a prefill, of requests that wait for memory, for a grammar or
for keys and values from elsewhere.
"""

from collections.abc import Callable

from justitia_ray.config import ReplicaSection
from justitia_ray.protocol.engine import Steps
from justitia_ray.units import Seconds

LOOK_S: Seconds = 0.25
"""Time between two looks at an engine."""
_LONGEST_LOOK_S: Seconds = 1.0
"""Most that the time between two looks counts: an event loop that stood still in between has not
heard of the steps that were made, and shows nothing of the engine."""
_FIRST_STEPS = 16
"""Steps in which kernels are compiled that the engine's start has not compiled."""
_FIRST_ALLOWANCES = 4
"""Allowances that the first steps have: a kernel of each kind may be compiled."""
_KEPT_S: Seconds = 600.0
"""The longest step of this time at least counts, of twice this time at most: one that compiled a
kernel does not excuse every silence from then on."""
_SUSPICIOUS_S: Seconds = 1.0
"""Silence after which it is asked whether the engine's processes are suspended."""


class StallWatch:
    """Finds stalls of one engine from looks at its steps; the time is passed in."""

    def __init__(self, section: ReplicaSection) -> None:
        """Begin with an engine that has made no step."""
        self._section = section
        self._seen_at: Seconds | None = None
        self._made = 0
        self._longest_s: Seconds = 0.0
        self._longest_before_s: Seconds = 0.0
        """The longest step of the time before `_longest_since`."""
        self._longest_since: Seconds = 0.0
        self._is_suspended = False
        self.silent_s: Seconds = 0.0
        """Time since the last step for which the engine has had work."""
        self.stalled_s: Seconds | None = None
        """Time since the stall was found; None: the engine is not stalled."""

    @property
    def is_stalled(self) -> bool:
        """Whether the engine has work and has made no step for longer than `limit_s`."""
        return self.stalled_s is not None

    @property
    def hangs(self) -> bool:
        """Whether the engine is stalled, and not because a signal has suspended it."""
        return self.is_stalled and not self._is_suspended

    @property
    def limit_s(self) -> Seconds:
        """Silence above which the engine is stalled."""
        allowances = _FIRST_ALLOWANCES if self._made < _FIRST_STEPS else 1
        longest_s = max(self._longest_s, self._longest_before_s)
        return allowances * self._section.stall_allowance_s + self._section.stall_factor * longest_s

    @property
    def is_lasting(self) -> bool:
        """Whether the engine has been stalled for so long that it is to be replaced."""
        return self.stalled_s is not None and self.stalled_s >= self._section.stall_replace_s

    def look(self, now: Seconds, steps: Steps, suspended: Callable[[], str]) -> None:
        """Note what the engine has made by now.

        A stall ends with a step: an engine whose work was taken away has not shown that it can
        make one.

        Args:
            now: Instant of a clock that never goes back.
            steps: The engine's.
            suspended: Returns which process of the engine is suspended, empty if none is. That
                costs a look at each, and is asked in silence only.
        """
        passed_s = 0.0 if self._seen_at is None else min(now - self._seen_at, _LONGEST_LOOK_S)
        self._seen_at = now
        if steps.made != self._made:
            self._note_step(now, steps.made)
        elif self.stalled_s is not None:
            self.stalled_s += passed_s
        elif not steps.has_work:
            self.silent_s, self._is_suspended = 0.0, False
        else:
            self.silent_s += passed_s
            if self.silent_s > _SUSPICIOUS_S and not self._is_suspended:
                self._is_suspended = bool(suspended())
            if self.silent_s > self.limit_s:
                self.stalled_s = 0.0

    def _note_step(self, now: Seconds, made: int) -> None:
        """End the silence, and learn how long a step may take, unless the engine was suspended."""
        lasted_s = self.silent_s + (self.stalled_s or 0.0)
        if now - self._longest_since > _KEPT_S:
            self._longest_since = now
            self._longest_before_s, self._longest_s = self._longest_s, 0.0
        if self._made >= _FIRST_STEPS and not self._is_suspended:
            self._longest_s = max(self._longest_s, lasted_s)
        self._made = made
        self.silent_s, self.stalled_s, self._is_suspended = 0.0, None, False
