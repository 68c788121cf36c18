"""CONCUR (arXiv 2601.22705), re-implemented: a cap on active agents by congestion control.

Each replica has a limit on its active agents, its *window*. At fixed intervals the window grows by
a constant if little of the KV memory is used, and shrinks by a factor if the memory is full and the
hit rate of the cache is low (additive increase, multiplicative decrease). Agents are paused only
between two turns; paused agents continue before new agents start.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from justitia_ray.sim.sessions.arm import Start, TurnCall
from justitia_ray.sim.sessions.replica import SessionReplica
from justitia_ray.sim.sessions.rivals.pinned import PinnedArm
from justitia_ray.sim.sessions.trace import Session
from justitia_ray.units import Seconds

_TURNS = 16
"""Number of last turns over which the cache's hit rate is measured."""


@dataclass(slots=True)
class _AgentWindow:
    size: float
    active: dict[str, None] = field(default_factory=dict)
    paused: dict[str, list[TurnCall]] = field(default_factory=dict)
    """Waiting turns of agents that were active before, in the order of submission."""
    new: dict[str, list[TurnCall]] = field(default_factory=dict)
    """First turns of new agents that wait."""
    found: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_TURNS))

    @property
    def hit_rate(self) -> float:
        prompts = sum(prompt for _, prompt in self.found)
        return sum(cached for cached, _ in self.found) / prompts if prompts else 1.0


class ConcurArm(PinnedArm):
    """Limits the number of active agents on each replica by the cache's hit rate.

    Args:
        replicas: The replicas.
        sessions: All sessions of the run; not used.
        low: Use of the KV memory below which the window grows.
        high: Use above which the window shrinks if the hit rate is low.
        hit_rate: Hit rate of the cache below which it counts as low.
        more: Number of agents by which the window grows.
        factor: Factor by which the window shrinks.
        start: First window of a replica.
        every_s: Interval of control.
    """

    def __init__(
        self,
        replicas: Sequence[SessionReplica],
        sessions: Sequence[Session],
        low: float = 0.2,
        high: float = 0.5,
        hit_rate: float = 0.2,
        more: float = 2.0,
        factor: float = 0.5,
        start: float = 4.0,
        every_s: Seconds = 5.0,
    ) -> None:
        super().__init__(replicas, sessions)
        self._low, self._high, self._hit_rate = low, high, hit_rate
        self._more, self._factor, self._every_s = more, factor, every_s
        self._windows = [_AgentWindow(start) for _ in replicas]
        self.wakes_at = every_s

    def submit(self, call: TurnCall, now: Seconds) -> Iterable[Start]:
        """Start a turn of an active agent; other turns wait until the limit allows one more."""
        name, replica = call.session.name, self.replica_of(call.session)
        window = self._windows[replica.index]
        if name in window.active:
            return [Start(replica, call)]
        waiting = window.paused if call.turn.after else window.new
        waiting.setdefault(name, []).append(call)
        return self._start_waiting_turns(replica)

    def finish(
        self, replica: SessionReplica, calls: Sequence[TurnCall], now: Seconds
    ) -> Iterable[Start]:
        """Pause agents whose turns end while the limit is exceeded."""
        window = self._windows[replica.index]
        for call in calls:
            window.found.append((call.cached_tokens, call.turn.prompt_tokens))
            if len(window.active) > max(1, int(window.size)):
                window.active.pop(call.session.name, None)
        return self._start_waiting_turns(replica)

    def close(self, session: Session, now: Seconds) -> Iterable[Start]:
        """Let a waiting agent become active in place of an ended session."""
        replica = self.replica_of(session)
        self._windows[replica.index].active.pop(session.name, None)
        super().close(session, now)
        return self._start_waiting_turns(replica)

    def wake(self, now: Seconds) -> Iterable[Start]:
        """Adapt the number of active agents to the use and the hit rate of the caches."""
        self.wakes_at = now + self._every_s
        starts: list[Start] = []
        for replica, window in zip(self._replicas, self._windows, strict=True):
            used = 1 - replica.free_tokens / replica.profile.kv_tokens
            is_full = len(window.active) >= int(window.size)
            if used < self._low and is_full:
                window.size += self._more
            elif used > self._high and window.hit_rate < self._hit_rate:
                window.size = max(1.0, window.size * self._factor)
                window.found.clear()
            starts += self._start_waiting_turns(replica)
        return starts

    def _start_waiting_turns(self, replica: SessionReplica) -> list[Start]:
        window, starts = self._windows[replica.index], []
        while len(window.active) < max(1, int(window.size)):
            waiting = window.paused or window.new
            if not waiting:
                break
            name = next(iter(waiting))
            window.active[name] = None
            starts += [Start(replica, call) for call in waiting.pop(name)]
        return starts
