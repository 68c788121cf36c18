"""No order of requests, uses, repeats and scheduler deaths exceeds a quota; exact arithmetic."""

import json
from dataclasses import dataclass, field
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.accounts.book import QuotaBook
from justitia_ray.accounts.messages import Ask, Exchange, Use
from justitia_ray.accounts.windows import LENGTHS
from justitia_ray.core.tenants import Period, Quota, TenantNode, TenantTree, Unit, Window, ancestors
from tests.exact import exact
from tests.property.profiles import examples

_TREE = TenantTree(
    {
        "a": TenantNode(
            quotas=(
                Quota(Unit.APPLICATIONS, 3, Period.MINUTE),
                Quota(Unit.KV_TOKEN_TIME, 16, Period.HOUR),
            )
        ),
        "a/x": TenantNode(
            quotas=(
                Quota(Unit.APPLICATIONS, 2, Period.DAY, Window.CALENDAR),
                Quota(Unit.KV_TOKEN_TIME, 8, Period.MINUTE),
            )
        ),
        "a/*": TenantNode(quotas=(Quota(Unit.KV_TOKEN_TIME, 5, Period.SECOND),)),
    }
)
_TENANTS = ("a/x", "a/y", "a")
_SCHEDULERS = ("one", "two")


@dataclass
class _Claimed:
    """Reservation of quota as its scheduler stores it."""

    tenant: str
    holds: dict[Unit, float] = field(default_factory=dict)
    used: dict[Unit, float] = field(default_factory=dict)


@dataclass
class _Scheduler:
    epoch: int = 1
    number: int = 0
    claims: dict[str, _Claimed] = field(default_factory=dict)
    over: list[Use] = field(default_factory=list)
    last: Exchange | None = None
    is_answered: bool = True
    """Whether the answer to the last exchange has been accepted; later answers are dropped."""
    loses: bool = False
    """Whether the answer to the next exchange is lost."""
    given_up: list[str] = field(default_factory=list)
    """Reservations that ended while their request was unanswered."""
    saved: dict[str, _Claimed] = field(default_factory=dict)
    """Applications of earlier schedulers, with their recorded use."""
    ended: set[str] = field(default_factory=set)
    """Applications that ended unreported under an earlier scheduler."""


class _World:
    """Quota service with schedulers that reserve and use quota, and a list of all real use."""

    def __init__(self) -> None:
        self.now = exact(86_400 * 59 - 30)
        self.book: QuotaBook = QuotaBook(_TREE)
        self.schedulers = {name: _Scheduler() for name in _SCHEDULERS}
        self.used: list[tuple[float, str, Unit, float]] = []

    def send(self, name: str, asks: tuple[Ask, ...] = (), survivors: bool = False) -> None:
        one = self.schedulers[name]
        self._repeat_until_answered(name)
        one.number += 1
        uses = [Use(claim, {**of.used}) for claim, of in one.claims.items()]
        alive = (*one.claims, *(ask.name for ask in asks)) if survivors else None
        one.last = Exchange(name, one.epoch, one.number, (*one.over, *uses), asks, survivors=alive)
        one.over, one.is_answered = [], False
        self.repeat(name)

    def request(self, name: str, claim: str, tenant: str, more: float) -> None:
        """Request an application, and more KV token-time than it has reserved."""
        self._repeat_until_answered(name)
        if claim in self.schedulers[name].ended:
            return
        known = self.schedulers[name].claims.get(claim, _Claimed(tenant))
        held = known.holds.get(Unit.KV_TOKEN_TIME, exact(0))
        wants = {Unit.APPLICATIONS: exact(1), Unit.KV_TOKEN_TIME: held + more}
        self.send(name, (Ask(claim, known.tenant, wants),))

    def _repeat_until_answered(self, name: str) -> None:
        """Repeat the last message to the quota service until it is answered."""
        while not self.schedulers[name].is_answered:
            self.repeat(name)

    def repeat(self, name: str) -> None:
        """Send the last message again; only the first answer is accepted."""
        one = self.schedulers[name]
        if one.last is None:
            return
        answer = self.book.exchange(one.last, self.now)
        if one.is_answered or one.loses:
            one.loses = False
            return
        one.is_answered, given_up, one.given_up = True, one.given_up, []
        for ask, verdict in zip(one.last.asks, answer.verdicts, strict=True):
            if ask.name in given_up:
                one.over.append(Use(ask.name, {}, is_over=True))
            elif verdict.refused_by is None:
                claim = one.claims.get(ask.name)
                if claim is None:
                    claim = one.claims[ask.name] = self._new_claim(one, ask)
                claim.holds = {
                    unit: exact(Fraction(amount)) for unit, amount in verdict.holds.items()
                }

    def _new_claim(self, one: _Scheduler, ask: Ask) -> _Claimed:
        """Return a new reservation, or one of an earlier scheduler with its recorded use."""
        before = one.saved.pop(ask.name, None)
        used = {} if before is None or before.tenant != ask.tenant else before.used
        return _Claimed(ask.tenant, used=used)

    def use(self, name: str, claim: str, share: float) -> None:
        """Use a share of a reservation's remaining amount without reporting it yet."""
        of = self.schedulers[name].claims.get(claim)
        if of is None:
            return
        for unit, holds in of.holds.items():
            left = holds - of.used.get(unit, 0)
            amount = left if unit is Unit.APPLICATIONS else left * share
            if amount > 0:
                of.used[unit] = of.used.get(unit, exact(0)) + amount
                self.used.append((self.now, of.tenant, unit, amount))

    def end(self, name: str, claim: str) -> None:
        one = self.schedulers[name]
        if not one.is_answered:
            one.given_up.append(claim)
        of = one.claims.pop(claim, None)
        if of is not None:
            one.over.append(Use(claim, {**of.used}, is_over=True))

    def lose_answer(self, name: str) -> None:
        """Lose the answer to the scheduler's next message."""
        self.schedulers[name].loses = True

    def replace_scheduler(self, name: str) -> None:
        """Replace a scheduler by one that starts from the saved reservations."""
        dead = self.schedulers[name]
        ended = {use.name for use in dead.over} | {*dead.given_up} | dead.ended
        saved = dead.saved | dead.claims
        self.schedulers[name] = _Scheduler(dead.epoch + 1, saved=saved, ended=ended)

    def restart_book(self) -> None:
        records = {name: self.book.record(name) for name in self.book.all_records()}
        stored = {name: r for name, r in records.items() if r is not None}
        self.book = QuotaBook(_TREE, self.book.epoch + 1)
        self.book.restore(json.loads(json.dumps(stored, default=float)), self.now)

    def check(self) -> None:
        """Check by the real use that no window of any quota exceeds its limit."""
        for path, node in _TREE.described.items():
            for quota in node.quotas:
                for tenant in _TENANTS:
                    own = [p for p in ancestors(tenant) if _TREE.node(p) is node]
                    for at in own:
                        self._check_quota(at, quota)
                assert path  # every node is examined

    def _check_quota(self, path: str, quota: Quota) -> None:
        length = LENGTHS[quota.per]
        since = self.now - length
        if quota.window is Window.CALENDAR:
            since = self.now // length * length - exact(1, 10**9)
        used = sum(
            amount
            for at, tenant, unit, amount in self.used
            if unit is quota.unit and at > since and path in ancestors(tenant)
        )
        held = sum(
            max(exact(0), claim.holds.get(quota.unit, exact(0)) - claim.used.get(quota.unit, 0))
            for one in self.schedulers.values()
            for claim in one.claims.values()
            if path in ancestors(claim.tenant)
        )
        assert used + held <= quota.limit, (path, quota, used, held)


_NAMES = st.sampled_from(_SCHEDULERS)
_CLAIMS = st.sampled_from(("p", "q", "r"))
_AMOUNTS = st.sampled_from([Fraction(n, 4) for n in (0, 3, 8, 20)])
"""Multiples of 1/4, which floats and the stored records represent exactly."""
_PAUSES = [Fraction(n, 7) for n in (5, 141, 427, 25_207)]
_STEPS = st.one_of(
    st.tuples(st.just("ask"), _NAMES, _CLAIMS, st.sampled_from(_TENANTS), _AMOUNTS),
    st.tuples(st.just("use"), _NAMES, _CLAIMS, st.sampled_from([Fraction(1, 4), Fraction(1)])),
    st.tuples(st.just("end"), _NAMES, _CLAIMS),
    st.tuples(st.just("tell"), _NAMES, st.booleans()),
    st.tuples(st.just("repeat"), _NAMES),
    st.tuples(st.just("lose"), _NAMES),
    st.tuples(st.just("die"), _NAMES),
    st.tuples(st.just("restart")),
    st.tuples(st.just("wait"), st.sampled_from(_PAUSES)),
)


@examples(600)
@given(st.lists(_STEPS, min_size=10, max_size=60))
def test_no_quota_window_exceeds_its_limit(steps: list[tuple[object, ...]]) -> None:
    """Use in any window, plus the open reservations, is within each limit.

    Schedulers die with claims and unreported use, exchanges are repeated, and the accounts are
    restored from their records.
    """
    world = _World()
    for kind, *of in steps:
        match kind, of:
            case "ask", [str(name), str(claim), str(tenant), Fraction() as amount]:
                world.request(name, claim, tenant, exact(amount))
            case "use", [str(name), str(claim), Fraction() as share]:
                world.use(name, claim, exact(share))
            case "end", [str(name), str(claim)]:
                world.end(name, claim)
            case "tell", [str(name), bool(survivors)]:
                world.send(name, survivors=survivors)
            case "repeat", [str(name)]:
                world.repeat(name)
            case "lose", [str(name)]:
                world.lose_answer(name)
            case "die", [str(name)]:
                world.replace_scheduler(name)
            case "restart", []:
                world.restart_book()
            case "wait", [Fraction() as pause]:
                world.now += exact(pause)
        world.check()


def test_quota_usage_with_a_timestamp_too_early_is_detected() -> None:
    world = _World()
    world.send("one", (Ask("p", "a/x", {Unit.APPLICATIONS: exact(2)}),))
    world.use("one", "p", exact(1))
    world.used.append((world.now, "a/x", Unit.APPLICATIONS, exact(1)))
    try:
        world.check()
    except AssertionError:
        return
    raise AssertionError("a third application went unseen")
