"""The order by F in which some may pass: urgent ones, and the shortest (`slack`).

1. Urgent applications (`foretold`), by VTC's deadline, if all before them have the slack for
   their next inference, but for the guard's budget B.
2. With the order `sgps`, those that may pass with all that is left of them, the shortest first.
3. All others, by F.

Between applications slack is that of GPS. Inside a tenant it is that of its reference server
(`clock/tenant_share`), and two rules more keep what passes inside the tenant's share:

- What is to start before the one of least F, x, is first booked at the place of x in the reference
  server. So x's key, by which the tenant stands in the order, is later by it: the tenant waits for
  whom it puts first, and nobody else does. What was booked stays booked if it changes its mind.
- If V has reached x's key, and x waits still, its tenant is late, and x goes first.
"""

from collections.abc import Callable, Iterable, Iterator
from math import inf
from typing import NamedTuple, Protocol

from justitia_ray.core.clock.fair_share import ServedShare
from justitia_ray.core.clock.tenant_share import TenantShare
from justitia_ray.core.entities import Application
from justitia_ray.core.policies.guarded.foretold import ForetoldVtc
from justitia_ray.core.policies.guarded.slack import Slack
from justitia_ray.core.policies.tree_order import TreeOrder
from justitia_ray.core.queue import Key, LazyHeap
from justitia_ray.cost import CostFunction, kv_token_time
from justitia_ray.units import (
    ApplicationId,
    ClientId,
    KvTokenTime,
    RequestId,
    Seconds,
    VirtualTime,
)

_MOST_MOVED = 1024
"""Accounts that moved and are not in the slack yet, if nobody asks who is first."""
_CAUGHT_UP = 4
"""Accounts that moved inside a tenant and are put in the slack by a question that needs none."""


class Guard:
    """Who would end later than under VTC unless it goes first, and what that may cost others.

    Args:
        foretold: Foretells the end under VTC.
        budget: Returns B, token·iterations.
        now: Returns the instant of the event being handled.
        application: Returns a live application.
    """

    def __init__(
        self,
        foretold: ForetoldVtc,
        budget: Callable[[], KvTokenTime],
        now: Callable[[], Seconds],
        application: Callable[[ApplicationId], Application],
    ) -> None:
        self._foretold = foretold
        self.budget = budget
        self._now = now
        self._application = application

    def is_urgent(self, name: ApplicationId) -> bool:
        """Return whether an application is urgent."""
        return self._foretold.is_urgent(name, self._now())

    def urgent(self) -> list[ApplicationId]:
        """Return the urgent applications that wait, the earliest deadline first."""
        return self._foretold.urgent(self._now(), self._waits)

    def _waits(self, name: ApplicationId) -> bool:
        return len(self._application(name).waiting) > 0


class Promised(NamedTuple):
    """Promise to an application, and the work that is left for it."""

    finish: VirtualTime
    sequence: int
    weight: float
    remaining: KvTokenTime
    is_live: bool
    """Whether it may still ask for more."""


class Promises(Protocol):
    """Accounts as the order sees them."""

    def watch(self) -> dict[ApplicationId, None]:
        """Return where whoever moves from now on is written, all that are there at first."""

    def advance(self, slack: Slack) -> None:
        """Bring slack to V and S of now."""

    def of(self, name: ApplicationId) -> Promised | None:
        """Return what an application was promised; None if it bears on nobody's slack."""


class GpsPromises:
    """The promises of GPS between applications."""

    def __init__(self, share: ServedShare) -> None:
        self._share = share

    def watch(self) -> dict[ApplicationId, None]:
        """Let the accounts write down who moves."""
        return self._share.watch()

    def advance(self, slack: Slack) -> None:
        """Bring slack to the root's V, and to the service booked."""
        slack.advance(self._share.clock.virtual_time, self._share.served)

    def of(self, name: ApplicationId) -> Promised | None:
        """Return tag and charge left; None if GPS owes it nothing and it is owed nothing."""
        share, clock = self._share, self._share.clock
        account = share.accounts.get(name)
        is_live = account is not None and not account.withdrawn
        session = clock.session(name) if name in clock else None
        if session is None or not (is_live or session.active):
            return None
        remaining = 0.0
        if account is not None and is_live:
            remaining = max(0, account.charged - account.attained)
        return Promised(session.finish, session.sequence, session.weight, remaining, is_live)


class TenantPromises:
    """The promises of GPS inside a tenant, and what its reference server has to do for them.

    By the invariant of `tenant_share` the slack of k, Σ w·(min(F, F_k) − V_T) − R(≤ F_k), is the
    sum over the tags behind k of what remains of them less w·(F − F_k). While the reference server
    has anything to do up to k that is constant but for charges and transfers, overdue or not: what
    it does lowers both sums alike. So neither V nor S has to be told, and a look at the tenant that
    is old says the same as one of now.
    """

    def __init__(self, share: TenantShare, tenant: ClientId) -> None:
        self._share = share
        self._name = tenant

    def watch(self) -> dict[ApplicationId, None]:
        """Let the accounts write down who moves inside the tenant."""
        return self._share.watch_tenant(self._name)

    def advance(self, slack: Slack) -> None:
        """Do nothing: no slack depends on V."""

    def of(self, name: ApplicationId) -> Promised | None:
        """Return F_x and what remains at its place; None if neither server owes it anything."""
        tenant, account = self._share.tenant(self._name), self._share.accounts.get(name)
        if tenant is None or name not in tenant:
            return None
        is_live = account is not None and not account.withdrawn
        session, remaining = tenant.gps.session(name), tenant.server.remaining(name)
        if not (is_live or session.active or remaining > 0):
            return None
        return Promised(session.finish, session.sequence, session.weight, remaining, is_live)


class PassingOrder(LazyHeap):
    """Applications by F, but those that may pass first."""

    __slots__ = (
        "_application",
        "_aside",
        "_cost",
        "_guard",
        "_let_pass",
        "_moved",
        "_promises",
        "_shortest",
        "_slack",
    )

    lets_pass = True

    def __init__(
        self,
        promises: Promises,
        application: Callable[[ApplicationId], Application],
        *,
        shortest: bool,
        guard: Guard | None,
        cost: CostFunction = kv_token_time,
    ) -> None:
        """Begin empty.

        Args:
            promises: The accounts, which tell from now on who moves.
            application: Returns a live application.
            shortest: Whether the shortest go first where they may.
            guard: Tells who is urgent; None: nobody is.
            cost: Cost of an inference that is about to start.
        """
        super().__init__()
        self._promises = promises
        self._application = application
        self._shortest = shortest
        self._guard = guard
        self._cost = cost
        self._slack = Slack()
        promises.advance(self._slack)
        self._moved = promises.watch()
        self._let_pass: tuple[ApplicationId, KvTokenTime] | None = None
        """The first, if the guard let it pass, and the slack that it asked for."""
        self._aside: dict[ApplicationId, None] = {}
        """Applications set aside, which still wait by what the slack knows."""

    def put(self, name: str, key: Key) -> None:
        """Put an application at its place by F, or move it there."""
        super().put(name, key)
        if name in self._aside:  # the accounts tell what else of it has changed
            del self._aside[name]
        else:
            self._move(name)

    def drop(self, name: str) -> None:
        """Remove an application; what is left of its charge still counts."""
        super().drop(name)
        self._move(name)

    def set_aside(self, name: str) -> None:
        """Remove an application that waits on and comes back soon: its slack is left as it is."""
        if name in self:
            super().drop(name)
            self._aside[name] = None

    def first(self) -> str | None:
        """Return the first urgent one that may pass, else the shortest, else that of least F."""
        self._let_pass = None
        if not len(self):
            return None
        self._catch_up()
        for name, wanted in self._urgent():
            if self._slack.allows(name, wanted):
                self._let_pass = (name, wanted)
                return name
        passing = self._slack.first(self._aside) if self._shortest else None
        return self.least() if passing is None else passing

    def may_precede(self, name: ApplicationId, first: ApplicationId) -> bool:
        """Return whether one may come before another: it is urgent, or shorter.

        Or it has less F, and the other passes nobody. Whether its slack lets it pass is not asked:
        that takes a look. O(stages).
        """
        one, other = self._promises.of(name), self._promises.of(first)
        if one is None or other is None:
            return True
        if self._shortest and one.remaining * other.weight <= other.remaining * one.weight:
            return True
        if one[:2] < other[:2] and first == self.least():
            return True
        return self._guard is not None and self._guard.is_urgent(name)

    def in_order(self) -> Iterator[str]:
        """Yield the applications as they would be served if nothing moved. O(N log N)."""
        self._catch_up()
        passing = [name for name, wanted in self._urgent() if self._slack.allows(name, wanted)]
        if self._shortest:
            passing += filter(self.__contains__, self._slack.passing())
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
                yield name, self._next_cost(name) - budget

    def _next_cost(self, name: ApplicationId) -> KvTokenTime:
        inference = self._application(name).waiting.first
        return inference.cost(self._cost, inference.expected_output)

    def _move(self, name: ApplicationId) -> None:
        self._moved[name] = None
        if len(self._moved) > _MOST_MOVED:
            self._catch_up()

    def _catch_up(self) -> None:
        """Put all that moved at their places in the slack."""
        for name in self._moved:
            self._put_in_slack(name)
        self._moved.clear()
        self._promises.advance(self._slack)

    def _put_in_slack(self, name: ApplicationId) -> None:
        self._aside.pop(name, None)
        promised = self._promises.of(name)
        if promised is None:
            self._slack.drop(name)
            return
        finish, sequence, weight, remaining, is_live = promised
        self._slack.put(
            name,
            finish,
            sequence,
            weight,
            remaining,
            binds=is_live and (remaining > 0 or len(self._application(name).waiting) > 0),
            waits=name in self,
        )


class TenantOrder(PassingOrder):
    """The applications of one tenant by F_x, but those that may pass inside its share first."""

    __slots__ = ("_booked", "_share", "_tenant")

    def __init__(
        self,
        share: TenantShare,
        tenant: ClientId,
        application: Callable[[ApplicationId], Application],
        *,
        shortest: bool,
        guard: Guard | None,
        cost: CostFunction,
    ) -> None:
        """Begin empty.

        Args:
            share: The accounts, which tell from now on who moves inside the tenant.
            tenant: The tenant.
            application: Returns a live application.
            shortest: Whether the shortest go first where they may.
            guard: Tells who is urgent; None: nobody is.
            cost: Cost of an inference that is about to start, in the unit of the accounts.
        """
        self._share = share
        self._tenant = tenant
        self._booked: dict[ApplicationId, dict[RequestId, None]] = {}
        """Inferences, not over yet, that are booked at the place of another application."""
        super().__init__(
            TenantPromises(share, tenant), application, shortest=shortest, guard=guard, cost=cost
        )

    def first(self) -> str | None:
        """Return who may pass and is to be first by the rules, or who has the least F_x.

        Slack is brought up to date when somebody's is asked: whenever the shortest may pass, else
        if any is urgent. Until then a few of those that moved are put in it at a time.
        """
        self._let_pass = None
        least = self.least()
        if least is None or len(self) == 1 or self._is_late(least):
            return least
        if self._shortest:
            self._catch_up()
        for _ in range(min(_CAUGHT_UP, len(self._moved))):
            self._put_in_slack(self._moved.popitem()[0])
        for name, wanted in self._urgent():
            self._catch_up()
            if self._is_booked(name) or self._slack.allows(name, wanted):
                self._let_pass = (name, -inf if self._is_booked(name) else wanted)
                return name
        passing = self._slack.first() if self._shortest else None
        return least if passing is None else passing

    def in_order(self) -> Iterator[str]:
        """Yield the applications as they would be served if nothing moved. O(N log N)."""
        first, let_pass = self.first(), self._let_pass
        if first is not None:
            yield first
        yield from (name for name in LazyHeap.in_order(self) if name != first)
        self._let_pass = let_pass

    def claim(self) -> ApplicationId | None:
        """Return the first if its next inference is booked, or need not be; else book it: None.

        It is booked at the place of the least F_x.
        """
        name, least = self.first(), self.least()
        if name is None or least is None or name == least or self._is_booked(name):
            return name
        self._share.transfer(name, least, self._next_cost(name))
        self._booked.setdefault(name, {})[self._application(name).waiting.first.request_id] = None
        return None

    def booked(self, name: ApplicationId) -> list[RequestId]:
        """Return the inferences of an application that are booked before its place."""
        return list(self._booked.get(name, ()))

    def restore_booked(self, name: ApplicationId, request_ids: Iterable[RequestId]) -> None:
        """Restore what `booked` returned."""
        self._booked[name] = dict.fromkeys(request_ids)

    def inference_ended(self, name: ApplicationId, request_id: RequestId) -> None:
        """Forget that an inference was booked: it waits no more."""
        if (booked := self._booked.get(name)) is not None:
            booked.pop(request_id, None)

    def application_ended(self, name: ApplicationId) -> None:
        """Forget what was booked of an application."""
        self._booked.pop(name, None)

    def _is_booked(self, name: ApplicationId) -> bool:
        booked = self._booked.get(name, {})
        return bool(booked) and self._application(name).waiting.first.request_id in booked

    def _is_late(self, least: ApplicationId) -> bool:
        """Return whether V has reached the key by which the tenant stands in the order."""
        return self._share.tag(least) <= self._share.top_time(self._tenant)


class PassingTreeOrder(TreeOrder):
    """Applications below one branch at the top, some of which pass inside their tenants."""

    __slots__ = ()

    lets_pass = True

    def claim(self) -> ApplicationId | None:
        """Return the first of the tenant that is first; None if it was booked there just now."""
        order = self.first_leaf()
        return None if order is None else order.claim()
