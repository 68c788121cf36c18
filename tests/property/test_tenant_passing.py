"""Overtaking inside a tenant's share: its cost there is bounded, and other tenants lose nothing.

Lag is against GPS inside the tenant: f̄ is the time when the tenant's own V reaches F_x.
Applications of a tenant arrive at once (see `test_tenant_order`); urgency is drawn, as in
`test_guard`.
"""

from collections.abc import Callable
from fractions import Fraction
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.core.clock.tenant_share import TenantShare
from justitia_ray.core.policies.guarded import policy as guarded
from justitia_ray.core.policies.guarded.foretold import ForetoldVtc
from justitia_ray.core.policies.guarded.passing import PassingOrder, TenantOrder
from justitia_ray.core.policies.guarded.policy import GuardedPolicy
from justitia_ray.core.policies.guarded.rules import comes_first
from justitia_ray.cost import PrefillCost
from justitia_ray.units import ApplicationId, KvTokenTime, Seconds
from tests.property.engine import Arrival, Engine, Outcomes, Server
from tests.property.profiles import examples
from tests.property.test_guard import DELIVERED, random_shadow
from tests.property.workloads import servers

_SIZES = st.tuples(st.integers(1, 30), st.integers(1, 12))
_INFERENCES = st.lists(_SIZES, min_size=1, max_size=6).map(tuple)
_WEIGHTS = st.sampled_from([Fraction(1), Fraction(1), Fraction(2), Fraction(1, 2)])
_ORDERS: list[dict[str, object]] = [
    {"order": "sgps"},
    {"guard_iterations": 1},
    {"order": "sgps", "guard_iterations": 3},
    {"guard_iterations": 10},
]


@st.composite
def _arrivals_of_tenants(draw: st.DrawFn) -> list[Arrival]:
    """Return applications of up to three tenants; each tenant's arrive at once with one weight."""
    found = []
    for tenant in range(draw(st.integers(1, 3))):
        at, weight = draw(st.integers(0, 30)), draw(_WEIGHTS)
        stages = draw(st.lists(_INFERENCES, min_size=1, max_size=5))
        found += [Arrival(at, (stage,), weight, tenant=f"T{tenant}") for stage in stages]
    return found


class TenantEngine(Engine):
    """Engine that records when GPS inside the tenant would have finished each application."""

    def __init__(
        self,
        replicas: list[Server],
        options: dict[str, object],
        prefill_cost: PrefillCost | None = None,
    ) -> None:
        super().__init__(
            replicas, options={"fairness": "tenant", **options}, prefill_cost=prefill_cost
        )
        self._tag_inside: dict[str, float] = {}
        self._reached: dict[str, int] = {}

    @property
    def share(self) -> TenantShare:
        share = self.core.ledger.fair_share
        assert isinstance(share, TenantShare)
        return share

    def inner_lags(self) -> dict[str, int]:
        """Return each application's lag S(e) − S(f̄), with f̄ at the start of its report."""
        return {
            name: start - self._reached.get(name, self._served)
            for name, start in self._last_start.items()
        }

    def _arrive(self, name: str, arrival: Arrival) -> None:
        super()._arrive(name, arrival)
        self._tag_inside[name] = self.share.tag_in_tenant(name)

    def _report(self, number: int, server: Server) -> None:
        before = self._served
        super()._report(number, server)
        root, tenants = self.share.clock, self.share.nodes.kept_leaves()
        for name, tag in self._tag_inside.items():
            tenant = tenants.get(self._arrivals[name].tenant)
            level = inf
            if tenant is not None:
                idle = not root.session(self._arrivals[name].tenant).active
                given = tenant.server.share(root.virtual_time, idle=idle)
                level = tenant.gps.after(given)
            if level >= tag:
                self._reached.setdefault(name, before)


def _run_with_urgency(
    urgent: type[ForetoldVtc],
    options: dict[str, object],
    replicas: list[Server],
    applications: list[Arrival] | dict[str, Arrival],
    prefill_cost: PrefillCost | None = None,
) -> tuple[Outcomes, dict[str, int], KvTokenTime]:
    """Return the outcomes, the lags inside tenants, and the largest budget of the guard.

    The budget is in service of all replicas: a tenant's budget at a booking over the least part of
    the service that the tenant may have had later.
    """
    budgets: list[KvTokenTime] = [0]
    tenant_guard_budget = GuardedPolicy.tenant_guard_budget
    named = applications.values() if isinstance(applications, dict) else applications
    of_all = sum({a.tenant: a.weight for a in named}.values())

    def noted_budget(policy: GuardedPolicy, tenant: str) -> KvTokenTime:
        active = policy.fair_share.clock.active_weight
        budgets.append(policy.guard_budget * max(1, of_all / active))
        return tenant_guard_budget(policy, tenant)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guarded, "ForetoldVtc", urgent)
        patch.setattr(GuardedPolicy, "tenant_guard_budget", noted_budget)
        engine = TenantEngine(replicas, options, prefill_cost)
        outcomes = engine.run(applications)
    return outcomes, engine.inner_lags(), max(budgets)


@pytest.mark.parametrize("options", _ORDERS)
@examples(40)
@given(data=st.data())
def test_lag_inside_a_tenant_is_at_most_work_in_flight_plus_budget(
    options: dict[str, Any], data: st.DataObject
) -> None:
    """The overtaking budget is larger while fewer tenants are active."""
    replicas, applications = data.draw(servers()), data.draw(_arrivals_of_tenants())
    urgent = random_shadow(data.draw(st.integers(0, 99)))
    outcomes, lags, budget = _run_with_urgency(urgent, options, replicas, applications)

    late = max(lags.values()) - outcomes.in_flight - outcomes.report
    assert late <= budget


def _all_urgent_except(*but: str) -> type[ForetoldVtc]:
    class Claims(ForetoldVtc):
        def urgent(self, now: Seconds, waits: object = None) -> list[ApplicationId]:
            """Return all applications except some."""
            return sorted(name for name in self.clock.shadows if name not in but)

    return Claims


@pytest.mark.parametrize("prefill_cost", [None, PrefillCost(40)])
@examples(60)
@given(data=st.data())
def test_overtaking_inside_a_tenant_costs_other_tenants_nothing(
    prefill_cost: PrefillCost | None, data: st.DataObject
) -> None:
    """Tenant T0 has any urgency and no limit; others keep the work in flight as their bound."""
    replicas, applications = data.draw(servers()), data.draw(_arrivals_of_tenants())
    named = {f"a{number}": arrival for number, arrival in enumerate(applications)}
    others = [name for name, a in named.items() if a.tenant != "T0"]
    options: dict[str, object] = {"guard_iterations": 1e9, "order": "finish"}
    outcomes, lags, _ = _run_with_urgency(
        _all_urgent_except(*others), options, replicas, named, prefill_cost
    )

    late = max([lags[name] for name in others], default=0)
    assert late <= outcomes.in_flight + outcomes.report


def _mouse_among_elephants() -> dict[str, Arrival]:
    """Return one small and several large applications of a tenant, and another tenant's one."""
    found = {"mouse": Arrival(0, (((4, 4),) * 10,), tenant="T")}
    found |= {f"e{n}": Arrival(0, (((4, 4),) * 30,), tenant="T") for n in range(8)}
    return found | {"other": Arrival(0, (((4, 4),) * 50,), tenant="U")}


def _remove_budget(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GuardedPolicy, "guard_budget", inf)


@pytest.mark.parametrize(("change", "holds"), [(lambda patch: None, True), (_remove_budget, False)])
def test_delay_of_a_small_application_by_its_tenants_urgent_ones_is_limited(
    change: Callable[[pytest.MonkeyPatch], None], holds: bool
) -> None:
    """Without a budget, the small application would wait for all large ones."""
    with pytest.MonkeyPatch.context() as patch:
        change(patch)
        outcomes, lags, _ = _run_with_urgency(
            _all_urgent_except("mouse"),
            {"guard_iterations": 10},
            [Server(16, 2)],
            _mouse_among_elephants(),
        )

    late = lags["mouse"] - outcomes.in_flight - outcomes.report
    assert (late <= 10 * DELIVERED) == holds
    assert lags["other"] <= outcomes.in_flight + outcomes.report


def _charge_no_overtaking(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TenantOrder, "claim", lambda order: order.first())


def _charge_no_prefill(patch: pytest.MonkeyPatch) -> None:
    """Book an overtaking inference without the prefill that it is expected to cost."""

    def memory_alone(order: PassingOrder, name: ApplicationId) -> KvTokenTime:
        inference = order._application(name).waiting.first
        return inference.cost(order._cost, inference.expected_output)

    patch.setattr(PassingOrder, "_next_cost", memory_alone)


@pytest.mark.parametrize(
    ("change", "prefill_cost", "holds"),
    [
        (lambda patch: None, None, True),
        (_charge_no_overtaking, None, False),
        (lambda patch: None, PrefillCost(40), True),
        (_charge_no_prefill, PrefillCost(40), False),
    ],
)
def test_uncharged_overtaking_inside_a_tenant_delays_other_tenants(
    change: Callable[[pytest.MonkeyPatch], None], prefill_cost: PrefillCost | None, holds: bool
) -> None:
    """Mutant: the tenant keeps the sort key of a small application that it never starts."""
    applications = _mouse_among_elephants()
    applications["mouse"] = Arrival(0, (((4, 4),) * 28,), tenant="T")
    with pytest.MonkeyPatch.context() as patch:
        change(patch)
        outcomes, lags, _ = _run_with_urgency(
            _all_urgent_except("mouse"),
            {"guard_iterations": 1e9},
            [Server(16, 2)],
            applications,
            prefill_cost,
        )

    assert (lags["other"] <= outcomes.in_flight + outcomes.report) == holds


@pytest.mark.parametrize("options", _ORDERS)
@examples(15)
@given(
    inferences=st.integers(2, 8),
    data=st.data(),
    others=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 8)), min_size=1, max_size=5),
    size=st.tuples(st.integers(1, 15), st.integers(1, 8)),
    seats=st.integers(1, 4),
)
def test_overtaking_does_not_let_a_split_application_finish_earlier(
    options: dict[str, object],
    inferences: int,
    data: st.DataObject,
    others: list[tuple[int, int]],
    size: tuple[int, int],
    seats: int,
) -> None:
    """Even urgent pieces of an application end no earlier than the whole would."""
    cut, came = data.draw(st.integers(1, inferences - 1)), data.draw(st.integers(0, 40))
    rest = {
        f"o{n}": Arrival(at, ((size,) * k,), tenant=f"O{n}") for n, (at, k) in enumerate(others)
    }
    replicas = [Server(seats * sum(size), seats)]
    urgent = random_shadow(data.draw(st.integers(0, 99)))
    whole, _, _ = _run_with_urgency(
        urgent, options, replicas, {"w": Arrival(came, ((size,) * inferences,), tenant="T"), **rest}
    )
    pieces = {
        "p": Arrival(came, ((size,) * cut,), tenant="T"),
        "q": Arrival(came, ((size,) * (inferences - cut),), tenant="T"),
    }
    parts, _, _ = _run_with_urgency(urgent, options, replicas, {**pieces, **rest})

    assert max(parts.finished["p"], parts.finished["q"]) >= whole.finished["w"]


@pytest.mark.parametrize("options", _ORDERS)
@examples(30)
@given(data=st.data())
def test_every_start_follows_the_documented_order(
    options: dict[str, object], data: st.DataObject
) -> None:
    """Each start has the smallest sort key among tenants, and enough slack inside its tenant."""
    book = TenantShare.transfer

    def transfer_checked(share: TenantShare, source: str, target: str, amount: KvTokenTime) -> None:
        keys = {name: share.tag(name) for name in share.accounts}
        tenant = share.nodes.leaf_of(source)
        assert tenant is not None
        book(share, source, target, amount)
        between = (share.tag_in_tenant(target), share.tag_in_tenant(source))
        for name, key in keys.items():
            later = share.tag(name) - key
            is_between = name in tenant.live and (
                between[0] <= share.tag_in_tenant(name) <= between[1] and name != source
            )
            assert later >= 0
            assert is_between or later == 0, name

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TenantShare, "transfer", transfer_checked)
        patch.setattr(guarded, "ForetoldVtc", random_shadow(data.draw(st.integers(0, 99))))
        engine = TenantEngine(data.draw(servers()), options)
        first = engine.core.ledger.queue.first

        def checked_choice() -> Any:
            chosen, policy = first(), engine.core.ledger.policy
            assert isinstance(policy, GuardedPolicy)
            if chosen is not None:
                for holds, _, detail in comes_first(engine.core, policy, chosen):
                    assert holds, detail
            return chosen

        patch.setattr(engine.core.ledger.queue, "first", checked_choice)
        engine.run(data.draw(_arrivals_of_tenants()))
