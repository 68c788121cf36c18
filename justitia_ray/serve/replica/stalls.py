"""Detect that an engine has stalled: it is alive and has work, but makes no steps.

A time without tokens proves nothing, because a prefill takes time. But vLLM records every step of
its loop while it has any request: also steps of a prefill, and while requests wait for memory, for
a grammar, or for KV from elsewhere.
"""

from collections.abc import Callable

from justitia_ray.config import ReplicaSection
from justitia_ray.protocol.engine import Steps
from justitia_ray.units import Seconds

LOOK_S: Seconds = 0.25
"""Seconds between two checks of an engine for a stall."""
_LONGEST_LOOK_S: Seconds = 1.0
"""Maximum seconds that count between two checks of an engine, because a blocked event loop is no
stall of the engine.
"""
_FIRST_STEPS = 16
"""Number of an engine's first steps in which kernels may still be compiled."""
_FIRST_ALLOWANCES = 4
"""Factor of `stall_allowance_s` for an engine's first steps, each of which may compile several
kernels.
"""
_KEPT_S: Seconds = 600.0
"""Seconds (at most twice as many) for which the longest step is remembered. One slow step must not
raise the limit forever.
"""
_SUSPICIOUS_S: Seconds = 1.0
"""Seconds without a step after which the engine's processes are checked for suspension."""


class StallWatch:
    """Detects stalls of one engine from its step counts; the caller passes the time."""

    def __init__(self, section: ReplicaSection) -> None:
        self._section = section
        self._seen_at: Seconds | None = None
        self._made = 0
        self._longest_s: Seconds = 0.0
        self._longest_before_s: Seconds = 0.0
        """Seconds that the longest engine step took in the period before `_longest_since`."""
        self._longest_since: Seconds = 0.0
        self._is_suspended = False
        self.silent_s: Seconds = 0.0
        """Seconds since the last step during which the engine had work."""
        self.stalled_s: Seconds | None = None
        """Seconds since the stall was detected; None: the engine is not stalled."""

    @property
    def is_stalled(self) -> bool:
        """Whether the engine has work and has made no step for longer than `limit_s`."""
        return self.stalled_s is not None

    @property
    def hangs(self) -> bool:
        """Whether the engine is stalled without being suspended by a signal."""
        return self.is_stalled and not self._is_suspended

    @property
    def limit_s(self) -> Seconds:
        """Seconds without a step after which an engine with work counts as stalled."""
        allowances = _FIRST_ALLOWANCES if self._made < _FIRST_STEPS else 1
        longest_s = max(self._longest_s, self._longest_before_s)
        return allowances * self._section.stall_allowance_s + self._section.stall_factor * longest_s

    @property
    def is_lasting(self) -> bool:
        """Whether the engine has been stalled for so long that it should be replaced."""
        return self.stalled_s is not None and self.stalled_s >= self._section.stall_replace_s

    def look(self, now: Seconds, steps: Steps, suspended: Callable[[], str]) -> None:
        """Update the state from the engine's step count at time `now`.

        Only a step ends a stall: an engine whose work was taken away has not shown that it can make
        steps.

        Args:
            now: Time of a monotonic clock.
            steps: The engine's step count.
            suspended: Returns which process of the engine is suspended, empty if none is. It is
                called only during a silence, because it has to check each process.
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
        """Note an engine step after a silence; update the longest step unless it was suspended."""
        lasted_s = self.silent_s + (self.stalled_s or 0.0)
        if now - self._longest_since > _KEPT_S:
            self._longest_since = now
            self._longest_before_s, self._longest_s = self._longest_s, 0.0
        if self._made >= _FIRST_STEPS and not self._is_suspended:
            self._longest_s = max(self._longest_s, lasted_s)
        self._made = made
        self.silent_s, self.stalled_s, self._is_suspended = 0.0, None, False
