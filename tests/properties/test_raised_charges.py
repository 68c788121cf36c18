"""Rule 7, charges raised by later estimates, against exact fluid servers and the fairness bound."""

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from justitia_ray.core.unsettled_share import NominalShare, UnsettledShare
from tests.exact import exact
from tests.properties.engine import Arrival, Engine, Server
from tests.properties.share_steps import VERBS, Step, lives
from tests.properties.test_clock_rules import Pair
from tests.properties.test_tenant_rules import Pair as TenantPair
from tests.properties.workloads import arrivals, servers

_WEIGHTS = st.sampled_from([Fraction(1), Fraction(2), Fraction(1, 2), Fraction(7, 5)])
_STEPS = lives((*VERBS, "expect", "expect"), st.sampled_from("abcde"), _WEIGHTS, 30)
_FACTORS = (Fraction(1, 10), Fraction(1), Fraction(5))


@given(_STEPS)
def test_raised_charges_keep_clock_and_tags_those_of_exact_gps(steps: list[Step]) -> None:
    """V, every tag and every account after every step; what GPS owes is chg − att, as before."""
    pair = Pair()
    for step in steps:
        pair.apply(step)
        live = [account for account in pair.share.accounts.values() if not account.withdrawn]

        assert pair.oracle.gps.virtual_time == pair.share.clock.virtual_time
        assert sum(a.charged - a.attained for a in live) == pair.share.clock.backlog()
        for name, ledger in pair.oracle.ledgers.items():
            account = pair.share.accounts[name]

            assert pair.oracle.gps.tag(name) == pair.share.clock.session(name).finish
            assert (exact(ledger.charged), ledger.away) == (account.charged, account.withdrawn)


@given(lives((*VERBS, "expect", "expect"), st.sampled_from("abcdef"), _WEIGHTS, 30))
def test_raised_charges_hold_at_both_levels_of_tenants(steps: list[Step]) -> None:
    """A tenant's applications are raised in its GPS, in its order, and the tenant at the root."""
    pair = TenantPair()
    for step in steps:
        pair.apply(step)

        assert pair.oracle.root.virtual_time == pair.share.clock.virtual_time
        for live in pair.present():
            assert pair.oracle.tag(live) == pair.share.tag_in_tenant(live), live
            assert pair.oracle.key(live) == pair.share.tag(live), live


@given(_STEPS)
def test_estimate_never_moves_a_tag_backwards(steps: list[Step]) -> None:
    """Nor anybody else's, nor V: it is told whether the tag moved, so that the queue can follow."""
    pair = Pair()
    for step in steps:
        before = {name: pair.share.tag(name) for name in pair.share.accounts}
        virtual_time = pair.share.clock.virtual_time
        if step.verb == "expect" and step.name in before:
            moved = pair.share.expect(step.name, exact(step.work))
            pair.oracle.expect(step.name, step.work)
            after = {name: pair.share.tag(name) for name in pair.share.accounts}

            assert virtual_time == pair.share.clock.virtual_time
            assert moved == (after[step.name] > before[step.name])
            assert before | {step.name: max(before[step.name], after[step.name])} == after
        else:
            pair.apply(step)


@pytest.mark.parametrize("share", [NominalShare(0.5), UnsettledShare()])
def test_clocks_that_settle_nothing_raise_nothing(share: NominalShare | UnsettledShare) -> None:
    """The paper's tag is given once; the clock without settling shows what raising is worth."""
    share.arrive("a", 10, 1, 1)

    assert share.expect("a", 500) is False
    assert (10, 10) == (share.tag("a"), share.accounts["a"].charged)


@settings(max_examples=30)
@given(arrivals(stages=3, predicted=_FACTORS), st.sampled_from(_FACTORS), servers(2))
def test_raised_charges_stay_within_the_bound_that_the_core_tells(
    applications: list[Arrival], expected: Fraction, replicas: list[Server]
) -> None:
    """What runs of a raised application is owed later by GPS: the bound counts it, no more."""
    raised = [replace(application, expected=expected) for application in applications]
    for ended in Engine(replicas).run(raised).ended.values():
        assert ended.lag is not None
        assert ended.lag.bound_kv_token_time is not None
        assert ended.lag.kv_token_time <= ended.lag.bound_kv_token_time
