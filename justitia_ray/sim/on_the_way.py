"""Inferences that have a lease and are not at their engine yet: their payloads are on the way."""

from collections import deque

from justitia_ray.sim.sequence import Sequence
from justitia_ray.units import Seconds, Tokens


class OnTheWay:
    """What one replica was given; it arrives in the order in which it was sent."""

    def __init__(self, takes_s: Seconds = 0.0) -> None:
        self._takes_s = takes_s
        self._sent: deque[tuple[Seconds, Sequence]] = deque()
        self.prompt_tokens: Tokens = 0
        """KV that is kept for it."""

    def send(self, sequence: Sequence, now: Seconds) -> None:
        """Let an inference set out."""
        self._sent.append((now + self._takes_s, sequence))
        self.prompt_tokens += sequence.prompt_tokens

    def next_at(self) -> Seconds | None:
        """Return when the next one arrives; None if nothing is on the way."""
        return self._sent[0][0] if self._sent else None

    def arrived(self, now: Seconds) -> list[Sequence]:
        """Take out what is there by now."""
        there = []
        while self._sent and self._sent[0][0] <= now:
            there.append(self._sent.popleft()[1])
            self.prompt_tokens -= there[-1].prompt_tokens
        return there
