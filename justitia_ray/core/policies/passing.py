"""The order by F in which some may pass: urgent ones, and the shortest (`clock/slack`).

1. Urgent applications (`clock/foretold`), by VTC's deadline, if all before them have the slack for
   their next inference, but for the guard's budget B.
2. With the order `sgps`, those that may pass with all that is left of them, the shortest first.
3. All others, by F.
"""

from collections.abc import Callable, Iterator

from justitia_ray.core.clock.fair_share import ServedShare
from justitia_ray.core.clock.foretold import ForetoldVtc
from justitia_ray.core.clock.slack import Slack
from justitia_ray.core.entities import Application
from justitia_ray.core.queue import Key, LazyHeap
from justitia_ray.cost import kv_token_time
from justitia_ray.units import ApplicationId, KvTokenTime, Seconds

_MOST_MOVED = 1024
"""Accounts that moved and are not in the slack yet, if nobody asks who is first."""


class Guard:
    """Who would end later than under VTC unless it goes first, and what that may cost others.

    Args:
        foretold: Foretells the end under VTC.
        budget: Returns B, token·iterations.
        now: Returns the instant of the event being handled.
    """

    def __init__(
        self,
        foretold: ForetoldVtc,
        budget: Callable[[], KvTokenTime],
        now: Callable[[], Seconds],
    ) -> None:
        self._foretold = foretold
        self.budget = budget
        self._now = now

    def urgent(self) -> list[ApplicationId]:
        """Return the urgent applications, the earliest deadline first."""
        return self._foretold.urgent(self._now())


class PassingOrder(LazyHeap):
    """Applications by F, but those that may pass first."""

    __slots__ = (
        "_application", "_fair_share", "_guard", "_let_pass", "_moved", "_shortest", "_slack"
    )  # fmt: skip

    def __init__(
        self,
        fair_share: ServedShare,
        application: Callable[[ApplicationId], Application],
        *,
        shortest: bool,
        guard: Guard | None,
    ) -> None:
        """Begin empty.

        Args:
            fair_share: The accounts, which tell from now on who moves.
            application: Returns a live application.
            shortest: Whether the shortest go first where they may.
            guard: Tells who is urgent; None: nobody is.
        """
        super().__init__()
        self._fair_share = fair_share
        self._application = application
        self._shortest = shortest
        self._guard = guard
        self._slack = Slack(fair_share.clock.virtual_time, fair_share.served)
        self._moved = fair_share.watch()
        self._let_pass: tuple[ApplicationId, KvTokenTime] | None = None
        """The first, if the guard let it pass, and the slack that it asked for."""

    def put(self, name: str, key: Key) -> None:
        """Put an application at its place by F, or move it there."""
        super().put(name, key)
        self._move(name)

    def drop(self, name: str) -> None:
        """Remove an application; what is left of its charge still counts."""
        super().drop(name)
        self._move(name)

    def first(self) -> str | None:
        """Return the first urgent one that may pass, else the shortest, else that of least F."""
        self._catch_up()
        self._let_pass = None
        for name, wanted in self._urgent():
            if self._slack.allows(name, wanted):
                self._let_pass = (name, wanted)
                return name
        passing = self._slack.first() if self._shortest else None
        return super().first() if passing is None else passing

    def in_order(self) -> Iterator[str]:
        """Yield the applications as they would be served if nothing moved. O(N log N)."""
        self._catch_up()
        passing = [name for name, wanted in self._urgent() if self._slack.allows(name, wanted)]
        if self._shortest:
            passing += self._slack.passing()
        passed = dict.fromkeys(passing)
        yield from passed
        yield from (name for name in super().in_order() if name not in passed)

    def wanted_slack(self, application_id: ApplicationId) -> KvTokenTime | None:
        """Return the slack that the guard asked for, if it has let this one pass at the last look.

        What is below 0 those before it may lack.
        """
        if self._let_pass is None or self._let_pass[0] != application_id:
            return None
        return self._let_pass[1]

    def _urgent(self) -> Iterator[tuple[ApplicationId, KvTokenTime]]:
        """Yield who is urgent and waits, with the slack that it needs."""
        if self._guard is None or not (urgent := self._guard.urgent()):
            return
        budget = self._guard.budget()
        for name in urgent:
            if name in self:
                inference = self._application(name).waiting.first
                yield name, inference.cost(kv_token_time, inference.expected_output) - budget

    def _move(self, name: ApplicationId) -> None:
        self._moved[name] = None
        if len(self._moved) > _MOST_MOVED:
            self._catch_up()

    def _catch_up(self) -> None:
        share, clock = self._fair_share, self._fair_share.clock
        for name in self._moved:
            account = share.accounts.get(name)
            is_live = account is not None and not account.withdrawn
            session = clock.session(name) if name in clock else None
            if session is None or not (is_live or session.active):
                self._slack.drop(name)
                continue
            remaining = 0.0
            if account is not None and is_live:
                remaining = max(0, account.charged - account.attained)
            self._slack.put(
                name,
                session.finish,
                session.sequence,
                session.weight,
                remaining,
                binds=is_live and (remaining > 0 or len(self._application(name).waiting) > 0),
                waits=name in self,
            )
        self._moved.clear()
        self._slack.advance(clock.virtual_time, share.served)
