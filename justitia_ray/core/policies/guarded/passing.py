"""The order by F with overtaking: urgent applications, and the shortest (`slack`).

1. Urgent applications (`foretold`), by VTC's deadline, if all before them have the slack for their
next inference, less the guard's budget B.
2. With the order `sgps`, applications that may overtake with all their remaining work, the shortest
first.
3. All others, by F.

Between applications slack is that of GPS. Inside a tenant it is that of its reference server
(`clock/tenant_share`), and two more rules keep overtaking inside the tenant's share:

- Work that is to start before x, the application with the smallest F, is first booked at the place
  of x in the reference server. This makes x's key, which is the tenant's key, later by that work:
  the tenant waits for the application that it puts first, and no other tenant does. A booking stays
  if the choice changes.
- If V has reached x's key while x still waits, its tenant is late, and x is first.
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

_MAXIMUM_UNCOUNTED_CHANGES = 1024
"""Maximum number of changed accounts that may be missing in the slack of applications."""
_CHANGES_COUNTED_PER_QUERY = 4
"""Number of changed accounts that a query adds to a tenant's slack if the query does not need it.
"""


class Guard:
    """Finds urgent applications, which would otherwise end later than under the policy VTC.

    Args:
        foretold: Predicts the end under VTC.
        budget: Returns B, token·iterations.
        now: Returns the time of the event being handled.
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
        """Return whether an application would end later than under VTC if it did not overtake."""
        return self._foretold.is_urgent(name, self._now())

    def urgent(self) -> list[ApplicationId]:
        """Return the urgent applications that wait, the earliest deadline first."""
        return self._foretold.urgent(self._now(), self._has_waiting)

    def _has_waiting(self, name: ApplicationId) -> bool:
        return len(self._application(name).waiting) > 0


class Promised(NamedTuple):
    """An application's tag, which the order guarantees, and its remaining work."""

    finish: VirtualTime
    sequence: int
    weight: float
    remaining: KvTokenTime
    is_live: bool
    """Whether the application is live and may request more service."""


class Promises(Protocol):
    """Accounts with guarantees to applications, which overtaking must keep."""

    def watch(self) -> dict[ApplicationId, None]:
        """Return a set to which changed applications are added; at first it contains all."""

    def advance(self, slack: Slack) -> None:
        """Update the slack to the current virtual time V and service S."""

    def of(self, name: ApplicationId) -> Promised | None:
        """Return an application's guarantee by GPS and its remaining work.

        None if no server owes it service.
        """


class GpsPromises:
    """Guarantees of GPS to applications: each is served by the time of its tag."""

    def __init__(self, share: ServedShare) -> None:
        self._share = share

    def watch(self) -> dict[ApplicationId, None]:
        return self._share.watch()

    def advance(self, slack: Slack) -> None:
        slack.advance(self._share.clock.virtual_time, self._share.served)

    def of(self, name: ApplicationId) -> Promised | None:
        """Return the tag and the remaining charge of an application.

        None if neither GPS nor the account owes the application service.
        """
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
    """Guarantees to the applications of a tenant: each is served by the time of its tag.

    By the invariant of `tenant_share` the slack of k, Σ w·(min(F, F_k) − V_T) − R(≤ F_k), is the
    sum over the tags behind k of their remaining work less w·(F − F_k). While the reference server
    has any work up to k, the slack changes only by charges and transfers, even if k is overdue:
    service lowers both sums alike. So neither V nor S is needed, and the values of the last update
    are as good as current ones.
    """

    def __init__(self, share: TenantShare, tenant: ClientId) -> None:
        self._share = share
        self._name = tenant

    def watch(self) -> dict[ApplicationId, None]:
        return self._share.watch_tenant(self._name)

    def advance(self, slack: Slack) -> None:
        """Do nothing, because slack inside a tenant does not change with virtual time."""

    def of(self, name: ApplicationId) -> Promised | None:
        """Return an application's tag in its tenant and the work at its position.

        None if no server owes the application service.
        """
        tenant, account = self._share.nodes.leaves.get(self._name), self._share.accounts.get(name)
        if tenant is None or name not in tenant:
            return None
        is_live = account is not None and not account.withdrawn
        session, remaining = tenant.gps.session(name), tenant.server.remaining(name)
        if not (is_live or session.active or remaining > 0):
            return None
        return Promised(session.finish, session.sequence, session.weight, remaining, is_live)


class PassingOrder(LazyHeap):
    """Order of applications by tag, in which short or urgent ones may overtake others."""

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
        """Create an order without applications.

        Args:
            promises: The accounts, which record changes from now on.
            application: Returns a live application.
            shortest: Whether the shortest applications are first if they may overtake.
            guard: Determines urgent applications; None: no application is urgent.
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
        """Urgent application that was put first, with the slack required for it; None without one.
        """
        self._aside: dict[ApplicationId, None] = {}
        """Waiting applications that this dispatch skips and the slack still contains."""

    def put(self, name: str, key: Key) -> None:
        """Insert an application by its tag F, or move it."""
        super().put(name, key)
        if name in self._aside:  # the application returns after it was set aside
            del self._aside[name]
        else:
            self._record_changed_account(name)

    def drop(self, name: str) -> None:
        """Remove an application; its remaining charge still counts in the slack of others."""
        super().drop(name)
        self._record_changed_account(name)

    def set_aside(self, name: str) -> None:
        """Remove a waiting application that returns soon; its slack does not change."""
        if name in self:
            super().drop(name)
            self._aside[name] = None

    def first(self) -> str | None:
        """Return the first application: an overtaking one, or the one with the smallest tag.

        Else the shortest, or that of least F.
        """
        self._let_pass = None
        if not len(self):
            return None
        self._update_all_slack()
        for name, wanted in self._urgent_applications():
            if self._slack.allows(name, wanted):
                self._let_pass = (name, wanted)
                return name
        passing = self._slack.first(self._aside) if self._shortest else None
        return self.least() if passing is None else passing

    def may_precede(self, name: ApplicationId, first: ApplicationId) -> bool:
        """Return whether an application may come before `first`: it is urgent, or shorter.

        Also True if it has the smaller tag F, and `first` overtakes no application. Whether its
        slack allows it to overtake is not checked, because that is costly. O(stages).
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
        """Yield the applications in order of service, if no account changes meanwhile.

        Takes O(N log N).
        """
        self._update_all_slack()
        passing = [
            name for name, wanted in self._urgent_applications() if self._slack.allows(name, wanted)
        ]
        if self._shortest:
            passing += filter(self.__contains__, self._slack.passing())
        passed = dict.fromkeys(passing)
        yield from passed
        yield from (name for name in super().in_order() if name not in passed)

    def overtaking_slack(self, application_id: ApplicationId) -> KvTokenTime | None:
        """Return the slack with which an urgent application overtook, or None.

        None: the guard did not put it first. A negative value is the slack that the applications
        before it may lack.
        """
        if self._let_pass is None or self._let_pass[0] != application_id:
            return None
        return self._let_pass[1]

    def _urgent_applications(self) -> Iterator[tuple[ApplicationId, KvTokenTime]]:
        """Yield the waiting urgent applications, each with the slack that it needs."""
        if self._guard is None or not (urgent := self._guard.urgent()):
            return
        budget = self._guard.budget()
        for name in urgent:
            if name in self:
                yield name, self._next_cost(name) - budget

    def _next_cost(self, name: ApplicationId) -> KvTokenTime:
        inference = self._application(name).waiting.first
        cost = inference.cost(self._cost, inference.expected_output)
        return cost + inference.expected_prefill

    def _record_changed_account(self, name: ApplicationId) -> None:
        self._moved[name] = None
        if len(self._moved) > _MAXIMUM_UNCOUNTED_CHANGES:
            self._update_all_slack()

    def _update_all_slack(self) -> None:
        """Update the slack of all applications whose account changed."""
        for name in self._moved:
            self._update_slack_of(name)
        self._moved.clear()
        self._promises.advance(self._slack)

    def _update_slack_of(self, name: ApplicationId) -> None:
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
    """Order of one tenant's applications by tag, in which short or urgent ones may overtake."""

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
        """Create an order without applications.

        Args:
            share: The accounts, which record changes inside the tenant from now on.
            tenant: The tenant.
            application: Returns a live application.
            shortest: Whether the shortest applications are first if they may overtake.
            guard: Determines urgent applications; None: no application is urgent.
            cost: Cost of an inference that is about to start, in the unit of the accounts.
        """
        self._share = share
        self._tenant = tenant
        self._booked: dict[ApplicationId, dict[RequestId, None]] = {}
        """Unfinished inferences that overtook another application; their work counts at its
        position.
        """
        super().__init__(
            TenantPromises(share, tenant), application, shortest=shortest, guard=guard, cost=cost
        )

    def first(self) -> str | None:
        """Return the tenant's first application: one that may overtake, or with the smallest tag.

        Slack is updated only if needed: whenever the shortest may overtake, otherwise if any
        application is urgent. Until then a few changed applications are updated per call.
        """
        self._let_pass = None
        least = self.least()
        if least is None or len(self) == 1 or self._is_tenant_late(least):
            return least
        if self._shortest:
            self._update_all_slack()
        for _ in range(min(_CHANGES_COUNTED_PER_QUERY, len(self._moved))):
            self._update_slack_of(self._moved.popitem()[0])
        for name, wanted in self._urgent_applications():
            self._update_all_slack()
            if self._is_booked(name) or self._slack.allows(name, wanted):
                self._let_pass = (name, -inf if self._is_booked(name) else wanted)
                return name
        passing = self._slack.first() if self._shortest else None
        return least if passing is None else passing

    def in_order(self) -> Iterator[str]:
        """Yield the applications in order of service, if no account changes meanwhile.

        Takes O(N log N).
        """
        first, let_pass = self.first(), self._let_pass
        if first is not None:
            yield first
        yield from (name for name in LazyHeap.in_order(self) if name != first)
        self._let_pass = let_pass

    def claim(self) -> ApplicationId | None:
        """Return the tenant's first application if its next inference may start, or None.

        None: the inference has just been booked at the position of the application with the least
        F_x; call again.
        """
        name, least = self.first(), self.least()
        if name is None or least is None or name == least or self._is_booked(name):
            return name
        self._share.transfer(name, least, self._next_cost(name))
        self._booked.setdefault(name, {})[self._application(name).waiting.first.request_id] = None
        return None

    def booked(self, name: ApplicationId) -> list[RequestId]:
        """Return an application's inferences whose work counts at an overtaken one's position."""
        return list(self._booked.get(name, ()))

    def restore_booked(self, name: ApplicationId, request_ids: Iterable[RequestId]) -> None:
        self._booked[name] = dict.fromkeys(request_ids)

    def inference_ended(self, name: ApplicationId, request_id: RequestId) -> None:
        if (booked := self._booked.get(name)) is not None:
            booked.pop(request_id, None)

    def application_ended(self, name: ApplicationId) -> None:
        self._booked.pop(name, None)

    def _is_booked(self, name: ApplicationId) -> bool:
        booked = self._booked.get(name, {})
        return bool(booked) and self._application(name).waiting.first.request_id in booked

    def _is_tenant_late(self, least: ApplicationId) -> bool:
        """Return whether virtual time has reached the tenant's sort key."""
        return self._share.tag(least) <= self._share.keys.top_time(self._tenant)


class PassingTreeOrder(TreeOrder):
    """Order of the applications below a topmost tenant, with overtaking inside each tenant."""

    __slots__ = ()

    lets_pass = True

    def claim(self) -> ApplicationId | None:
        """Return the first application of the first tenant if it may start, or None."""
        order = self.first_leaf()
        return None if order is None else order.claim()
