"""Estimate how much of a prompt an engine had computed when its call was aborted."""

from justitia_ray.units import Seconds, Tokens

_KEPT_SHARE = 0.9
"""Weight of the earlier prefill rate in its moving average; ten prompts replace most of it."""


class Prefills:
    """Estimates when the engine started each prompt, and its rate of prefill in tokens/s.

    vLLM reports both only with the first token of a sequence. Until then the estimate uses the
    numbers of running and waiting sequences in vLLM's scheduler. The waiting ones are the last in
    scheduling order among the sequences without a token; all others have been scheduled, except
    sequences that arrived after the iteration had started and are in neither number. A sequence
    that arrives at an idle engine is scheduled at once.
    """

    def __init__(self) -> None:
        self._unread: dict[str, tuple[int, int]] = {}
        """Scheduling order (priority, arrival) of the sequences whose prefill may not have started.
        """
        self._added_at: dict[str, Seconds] = {}
        self._scheduled_at: dict[str, Seconds] = {}
        """Time in seconds at which the prefill of each sequence started."""
        self._arrivals = 0
        self._stepped_at: Seconds = 0.0
        self._is_idle = True
        self._tokens = 0.0
        self._seconds = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Recent rate of prefill in tokens per second; 0 before the first prompt."""
        return self._tokens / self._seconds if self._seconds else 0.0

    def add_sequence(self, name: str, priority: int, now: Seconds) -> None:
        self._arrivals += 1
        if self._is_idle:
            self._scheduled_at[name] = now
            self._is_idle = False
        else:
            self._unread[name], self._added_at[name] = (priority, self._arrivals), now

    def note_step(self, running: int, waiting: int, now: Seconds) -> None:
        """Note the end of an engine step, in which new prompts may have started.

        Args:
            running: Number of running sequences after the iteration.
            waiting: Number of waiting sequences, the last in the order of priority and arrival.
            now: Current time (seconds).
        """
        if self._unread:
            absent = max(0, len(self._unread) + len(self._scheduled_at) - running - waiting)
            arrived = list(self._unread)[: max(0, len(self._unread) - absent)]
            ordered = sorted(arrived, key=self._unread.__getitem__)
            for name in ordered[: max(0, len(ordered) - waiting)]:
                del self._unread[name]
                self._scheduled_at[name] = max(self._stepped_at, self._added_at.pop(name))
        self._stepped_at = now
        self._is_idle = not (running or waiting or self._unread)

    def note_read(self, name: str, prompt_tokens: Tokens, took_s: Seconds) -> None:
        """Update the prefill rate with the time that a prompt took; recent prompts weigh most."""
        self._forget_sequence(name)
        if took_s > 0:
            self._tokens = _KEPT_SHARE * self._tokens + prompt_tokens
            self._seconds = _KEPT_SHARE * self._seconds + took_s

    def take_aborted(self, name: str, prompt_tokens: Tokens, now: Seconds) -> Tokens:
        """Return the estimated computed tokens of a prompt aborted before its first token."""
        since = self._scheduled_at.get(name)
        self._forget_sequence(name)
        return 0 if since is None else min(prompt_tokens, int(self.tokens_per_s * (now - since)))

    def _forget_sequence(self, name: str) -> None:
        for of in (self._unread, self._added_at, self._scheduled_at):
            of.pop(name, None)
