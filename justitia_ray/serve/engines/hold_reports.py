"""Counts of held contexts, sent from vLLM's engine process to the replica's process.

vLLM sends the statistics of a connector with the outputs of an iteration, and an engine without
work makes no iteration. So a report has the end of each hold, and its reader leaves out the holds
that have ended since.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from justitia_ray.protocol.engine import KeptKv
from justitia_ray.serve.engines.held_contexts import HeldContexts
from justitia_ray.units import Seconds, Tokens

_PAUSE_S: Seconds = 0.25
"""Shortest time in seconds between two reports of held contexts by a working engine."""
_SHARE = 0.01
"""Largest fraction of a working engine's time that counting held contexts may take."""


class HoldReports:
    """Decides when an engine counts its held contexts, and counts them.

    Args:
        held: Held contexts of the engine.
        block_size: Size of a block in tokens.
        clock: Returns the current time on the clock of the holds (seconds).
    """

    def __init__(
        self, held: HeldContexts, block_size: Tokens, clock: Callable[[], Seconds]
    ) -> None:
        self._held = held
        self._block_size = block_size
        self._clock = clock
        self._due_at: Seconds = 0.0
        self._reported: int | None = None
        """Value of `HeldContexts.changes` at the last report; None before the first."""

    def next_report(self, *, is_idle: bool) -> dict[str, Any] | None:
        """Return a report of held contexts if one is due after an engine step.

        An engine that becomes idle reports at once, because no iteration may follow, and its last
        calls may have taken the memory of held contexts.

        Args:
            is_idle: Whether no sequence has any KV block.
        """
        has_changed = self._held.changes != self._reported
        if not (has_changed or self._held):
            return None
        began_at = self._clock()
        if began_at < self._due_at and not is_idle:
            return None
        counted = self._held.cached_blocks(began_at)
        self._reported = self._held.changes
        now = self._clock()
        self._due_at = now + max(_PAUSE_S, (now - began_at) / _SHARE)
        return {
            "ends_at": [ends_at for ends_at, _ in counted],
            "tokens": [blocks * self._block_size for _, blocks in counted],
        }


class HeldKv:
    """Held contexts of an engine as of its last report; used in the replica's process."""

    def __init__(self) -> None:
        self._ends_at: Sequence[Seconds] = ()
        self._tokens: Sequence[Tokens] = ()
        self._is_known = False

    def note(self, report: Mapping[str, Any]) -> None:
        self._ends_at, self._tokens = report["ends_at"], report["tokens"]
        self._is_known = True

    def read(self, now: Seconds) -> KeptKv:
        """Return the held contexts at `now`, on the system's monotonic clock."""
        if not self._is_known:
            return KeptKv()
        tokens = [
            tokens
            for ends_at, tokens in zip(self._ends_at, self._tokens, strict=True)
            if ends_at > now
        ]
        return KeptKv(held_contexts=len(tokens), held_kv_tokens=sum(tokens))
