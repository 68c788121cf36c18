"""Estimates of how much of a prompt an engine had read when its call was left."""

from justitia_ray.units import Seconds, Tokens

_KEPT_SHARE = 0.9
"""Share of the past that the rate of prefill keeps with each prompt: ten prompts make it anew."""


class Prefills:
    """When the engine has begun to read prompts, and how fast it reads them.

    vLLM tells of both with the first token of a sequence only. Until then its scheduler's figures
    have to do: as many as wait are the last in its order of those that have no token, and the
    others have been scheduled, but for those that arrived after its iteration had begun: as many of
    the latest as it has in neither figure. A sequence that comes to an idle engine is scheduled at
    once.
    """

    def __init__(self) -> None:
        self._unread: dict[str, tuple[int, int]] = {}
        """Order of the sequences that are not known to have been scheduled."""
        self._added_at: dict[str, Seconds] = {}
        self._scheduled_at: dict[str, Seconds] = {}
        """Instants from which on sequences have been read."""
        self._arrivals = 0
        self._stepped_at: Seconds = 0.0
        self._is_idle = True
        self._tokens = 0.0
        self._seconds = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Rate at which prompts were read lately; 0 while none was."""
        return self._tokens / self._seconds if self._seconds else 0.0

    def add_sequence(self, name: str, priority: int, now: Seconds) -> None:
        """Note a sequence that goes to the engine."""
        self._arrivals += 1
        if self._is_idle:
            self._scheduled_at[name] = now
            self._is_idle = False
        else:
            self._unread[name], self._added_at[name] = (priority, self._arrivals), now

    def note_step(self, running: int, waiting: int, now: Seconds) -> None:
        """Note the end of an iteration of the engine.

        Args:
            running: Sequences that run after it.
            waiting: Sequences that wait, the last in the order of priorities and arrivals.
            now: The instant.
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
        """Note that a prompt was read in a time; the last ones count most."""
        self._forget(name)
        if took_s > 0:
            self._tokens = _KEPT_SHARE * self._tokens + prompt_tokens
            self._seconds = _KEPT_SHARE * self._seconds + took_s

    def take_left(self, name: str, prompt_tokens: Tokens, now: Seconds) -> Tokens:
        """Return how much was read of a prompt that was left before its first token."""
        since = self._scheduled_at.get(name)
        self._forget(name)
        return 0 if since is None else min(prompt_tokens, int(self.tokens_per_s * (now - since)))

    def _forget(self, name: str) -> None:
        for of in (self._unread, self._added_at, self._scheduled_at):
            of.pop(name, None)
