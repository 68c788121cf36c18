"""Lag of applications against GPS, and a guarantee on their starts, computed on request.

Only the history of virtual time V and the last start of each application are stored for it. The
guarantee holds for the order from now on, if service continues until V reaches the tag F, and no
application with a larger tag starts before this application. Then it lags by no more than

    work in flight of larger tags + Σ over tags ≤ F of (chg − att − w·max(0, F − V)),

plus, if V has passed F already, the service since then. Applications of the working set may start
before this application, at the position in the order that they had when they started: the service
that they may receive there counts as in flight. `core/README.md` has the premises.
"""

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import Protocol

from justitia_ray.core.actions import Lag
from justitia_ray.core.entities import Application, Inference
from justitia_ray.core.ledger import Ledger
from justitia_ray.core.ledger_observer import LedgerObserver
from justitia_ray.core.queue import Key
from justitia_ray.core.state import State
from justitia_ray.cost import choices_kv_token_time
from justitia_ray.units import ApplicationId, KvTokenTime, Seconds, VirtualTime

_UNCACHED_UP_TO = 100
"""Number of live applications and leases up to which sums over GPS sessions are not cached, because
computing them takes less than 0.2 ms.
"""
_KEPT_S: Seconds = 2.0
_KEPT_S_EACH: Seconds = 1e-3
"""Maximum age of cached sums over GPS sessions, per live application or lease (in total at most
`_KEPT_S`). Computing them takes 2 µs for each.
"""


class Lags(Protocol):
    """Lags of live applications behind GPS, measured or computed on request."""

    @property
    def virtual_time(self) -> VirtualTime: ...

    def tag(self, application_id: ApplicationId) -> VirtualTime:
        """Return the tag F of a live application on the clock against which lags are computed.

        Raises:
            KeyError: If no such application is live.
        """

    def knows(self, tag: VirtualTime) -> bool:
        """Return whether it is known when GPS finishes, or finished, an application."""

    def lag(self, application: Application) -> Lag | None:
        """Return a live application's lag behind GPS, as if a waiting inference started now."""


class Meter(LedgerObserver, Lags, Protocol):
    """Measures how far applications lag behind GPS, from the events of a ledger."""


class CurrentLags:
    """Computes the lags of applications from the core's own accounts."""

    def __init__(
        self, state: State, ledger: Ledger, seconds_for: Callable[[KvTokenTime], Seconds]
    ) -> None:
        self._state = state
        self._ledger = ledger
        self._seconds_for = seconds_for
        self._walk: _SessionSums | None = None

    @property
    def virtual_time(self) -> VirtualTime:
        return self._ledger.fair_share.clock.virtual_time

    def tag(self, application_id: ApplicationId) -> VirtualTime:
        """Return the tag F of a live application.

        Raises:
            KeyError: If no such application is live.
        """
        return self._ledger.fair_share.tag(application_id)

    def knows(self, tag: VirtualTime) -> bool:
        """Return whether GPS had not finished an application when this scheduler began."""
        return self._ledger.history.knows(tag)

    def lag(self, application: Application) -> Lag | None:
        """Return a live application's lag behind GPS, as if a waiting inference started now.

        Only a waiting application has a bound. Costs O(log N), and for a bound a pass over all live
        applications; with more than a hundred of them a pass is cached for a short time.
        """
        history, tag = self._ledger.history, self.tag(application.application_id)
        start = application.last_start
        if application.waiting:
            start = (history.served, self._state.now)
        late = self._ledger.late(application, start, tag)
        if late is None:
            return None
        if not application.waiting or not self._ledger.promises_by_tag:
            return Lag(late.work, late.seconds, None, None)
        walk = self._recent_session_sums()
        passed = max(0, late.work - (history.served - walk.served))
        bound = max(0, passed + walk.rest((tag, application.sequence)))
        left_s = self._seconds_for(bound - max(0, late.work))
        return Lag(late.work, late.seconds, bound, max(0.0, late.seconds) + left_s)

    def _recent_session_sums(self) -> "_SessionSums":
        walk, size = self._walk, len(self._state.applications) + len(self._state.leases)
        kept_s = min(_KEPT_S, size * _KEPT_S_EACH)
        if walk is None or size <= _UNCACHED_UP_TO or self._state.now - walk.made_at > kept_s:
            walk = self._walk = _SessionSums(self._state, self._ledger)
        return walk


class _SessionSums:
    """Sums over the accounts in GPS in the order of their tags, at one moment."""

    def __init__(self, state: State, ledger: Ledger) -> None:
        share, clock = ledger.fair_share, ledger.fair_share.clock
        self.made_at, self.served = state.now, ledger.history.served
        flight: dict[ApplicationId, KvTokenTime] = {}
        for lease in state.leases.values():
            inference = state.inferences[lease.request_id]
            name = inference.application_id
            flight[name] = flight.get(name, 0) + most_remaining_work(inference)
        rows: list[tuple[Key, KvTokenTime, KvTokenTime]] = []
        for name, session in clock.sessions().items():
            account, flying = share.accounts.get(name), flight.get(name, 0)
            tag: VirtualTime = session.finish
            own: KvTokenTime = 0
            if account is not None:  # ended applications have no account
                tag = share.tag(name)
                own = 0 if account.withdrawn else account.charged - account.attained
            uncovered = max(own, flying) - clock.owed(name)
            rows.append(((tag, session.sequence), uncovered, flying))
        rows.sort()
        self._keys = [key for key, _, _ in rows]
        self._uncovered = [0, *accumulate(uncovered for _, uncovered, _ in rows)]
        self._flying = [0, *accumulate(flying for _, _, flying in rows)]
        self._kept: list[tuple[Key, Key, KvTokenTime]] = []
        """Each started application's sort key at its start, its present sort key, and its remaining
        work not in flight.
        """
        if ledger.gate is not None:
            for name, ((_, start), sequence), work in ledger.gate.kept_queue_positions():
                key = (share.tag(name), sequence)
                self._kept.append(((start, sequence), key, max(0, work - flight.get(name, 0))))

    def rest(self, key: Key) -> KvTokenTime:
        """Return the most service between an application's finish in GPS and its last start."""
        place = bisect_right(self._keys, key)
        kept = sum(work for start, now, work in self._kept if start < key < now)
        return self._flying[-1] - self._flying[place] + self._uncovered[place] + kept


def most_remaining_work(inference: Inference) -> KvTokenTime:
    longest = inference.true_output_tokens
    if longest is None:
        longest = inference.max_output_tokens
    longest = max(longest, inference.output_tokens)
    whole = choices_kv_token_time(inference.prompt_tokens, longest, inference.choices)
    left = max(0, whole - inference.attained)
    return left if inference.prefill is None else left + inference.prefill.most
