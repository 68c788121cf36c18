"""CacheTTL, first called Continuum (arXiv 2511.02230), re-implemented.

The prompt of a turn that calls a tool is pinned in the cache for a time to live. Sessions are
served first come, first served as a whole, so that a turn of an older session overtakes turns of
younger sessions. The time to live is either fixed (2 s in the authors' public preview), or
maximises a gain over the gaps seen so far. The gain is the chance that the tool returns in time,
multiplied by the time that a return saves (computing the prompt again, and queueing), less the time
for which the memory is held. The paper weighs these terms in words; the exact formula is ours.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Literal

from justitia_ray.sim.sessions.arm import NEVER, SessionArm, Start, TurnCall
from justitia_ray.sim.sessions.replica import SessionReplica
from justitia_ray.sim.sessions.rivals.lmetric import LMetricArm
from justitia_ray.sim.sessions.rivals.pinned import PinnedArm
from justitia_ray.sim.sessions.trace import Session
from justitia_ray.units import Seconds

_PREVIEW_S: Seconds = 2.0
_LEAST_GAPS, _MOST_GAPS = 10, 200
_SMOOTHING = 0.05


class CacheTtlArm(SessionArm):
    """Keeps a session's prompt in the cache during a tool call, for a limited time.

    Args:
        replicas: The replicas.
        sessions: All sessions of the run; not used.
        ttl_s: Fixed time to live; None: computed for each turn.
        placed: `pinned`, as in the paper, or `lmetric`.
    """

    def __init__(
        self,
        replicas: Sequence[SessionReplica],
        sessions: Sequence[Session],
        ttl_s: Seconds | None = None,
        placed: Literal["pinned", "lmetric"] = "pinned",
    ) -> None:
        kind = PinnedArm if placed == "pinned" else LMetricArm
        self._placer: SessionArm = kind(replicas, sessions)
        self._fixed_s = ttl_s
        self._count = count()
        self._arrival: dict[str, int] = {}
        self._held_on: dict[str, SessionReplica] = {}
        self._expires: dict[str, Seconds] = {}
        self._tool_since: dict[str, Seconds] = {}
        self._submitted: dict[str, Seconds] = {}
        """Time at which each turn that runs or waits was submitted."""
        self._gaps: deque[Seconds] = deque(maxlen=_MOST_GAPS)
        self._queued_s: Seconds = 0.0

    def open(self, session: Session, now: Seconds) -> None:
        self._placer.open(session, now)
        self._arrival[session.name] = next(self._count)

    def submit(self, call: TurnCall, now: Seconds) -> Iterable[Start]:
        """Start a turn; the prompt of its session stays in the cache until the turn ends."""
        name = call.session.name
        self._submitted[call.name] = now
        since = self._tool_since.pop(name, None)
        if since is not None:
            self._gaps.append(now - since)
        if self._expires.pop(name, None) is not None:
            self._plan_wake()
        starts = self._placer.submit(call, now)
        return [start._replace(priority=self._arrival[name]) for start in starts]

    def hold(self, replica: SessionReplica, call: TurnCall, now: Seconds) -> None:
        """Keep the prompt of a turn that calls a tool in the cache for a limited time."""
        name, turn = call.session.name, call.turn
        self._learn_queue_wait(replica, call, now)
        ttl_s = self._context_lifetime_s(replica, call) if turn.calls_tool else 0.0
        if turn.calls_tool:
            self._tool_since[name] = now
        if self._held_on.get(name) is not replica or ttl_s <= 0:
            self._release(name, now)
        if ttl_s <= 0:
            return
        replica.holds.add(name, call.content, turn.prompt_tokens, self._arrival[name])
        self._held_on[name], self._expires[name] = replica, now + ttl_s
        self._plan_wake()

    def wake(self, now: Seconds) -> Iterable[Start]:
        """Let prompts be evicted whose time in the cache is over."""
        for name in [name for name, at in self._expires.items() if at <= now]:
            del self._expires[name]
            self._release(name, now)
        self._plan_wake()
        return ()

    def close(self, session: Session, now: Seconds) -> Iterable[Start]:
        name = session.name
        self._expires.pop(name, None)
        self._tool_since.pop(name, None)
        self._plan_wake()
        self._release(name, now)
        return self._placer.close(session, now)

    def _release(self, name: str, now: Seconds) -> None:
        held_on = self._held_on.pop(name, None)
        if held_on is not None:
            held_on.release(name, now)

    def _plan_wake(self) -> None:
        self.wakes_at = min(self._expires.values(), default=NEVER)

    def _learn_queue_wait(self, replica: SessionReplica, call: TurnCall, now: Seconds) -> None:
        turn = call.turn
        alone_s = replica.profile.solo_turn_s(
            turn.prompt_tokens, turn.output_tokens, turn.prompt_tokens - call.cached_tokens
        )
        waited_s = max(0.0, now - self._submitted.pop(call.name) - alone_s)
        self._queued_s += _SMOOTHING * (waited_s - self._queued_s)

    def _context_lifetime_s(self, replica: SessionReplica, call: TurnCall) -> Seconds:
        if self._fixed_s is not None:
            return self._fixed_s
        if len(self._gaps) < _LEAST_GAPS:
            return _PREVIEW_S
        prompt = call.turn.prompt_tokens
        saved_s = replica.profile.solo_turn_s(prompt, 0, prompt) + self._queued_s
        return best_ttl_s(self._gaps, saved_s, prompt / replica.profile.kv_tokens)


def best_ttl_s(gaps: Iterable[Seconds], saved_s: Seconds, share: float) -> Seconds:
    """Return for how many seconds keeping a prompt in the cache gains most, by recorded pauses.

    Args:
        gaps: Lengths of tool calls.
        saved_s: Time that a turn saves if it returns in time.
        share: Share of the memory that the pin takes; it is the cost of holding for a second.
    """
    ordered = sorted(gaps)
    best_s, most, passed_s = 0.0, 0.0, 0.0
    for place, gap_s in enumerate(ordered):
        passed_s += gap_s
        held_s = passed_s + (len(ordered) - place - 1) * gap_s
        gain = (place + 1) * saved_s - share * held_s
        if gain > most:
            best_s, most = gap_s, gain
    return best_s
