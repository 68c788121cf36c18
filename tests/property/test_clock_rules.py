"""The clock rules against the exact fluid oracle, over random sequences of operations."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from justitia_ray.core.clock.fair_share import NominalShare, ServedShare, UnsettledShare
from justitia_ray.core.clock.virtual_clock import VirtualClock
from tests.exact import exact
from tests.oracles.gps import GpsServer
from tests.property.share_steps import VERBS, WORK, Pair, Step, apply_step, step_lists

_NAMES = st.sampled_from("abcde")
_WEIGHTS = st.sampled_from([Fraction(1), Fraction(2), Fraction(1, 2), Fraction(3), Fraction(7, 5)])
_STEPS = step_lists(VERBS, _NAMES, _WEIGHTS, 30)
_NOMINAL_VERBS = ("arrive", "arrive", "time", "time", "rate", "settle", "reweigh", "deliver")


@given(_STEPS)
def test_virtual_time_and_finish_tags_equal_exact_gps(steps: list[Step]) -> None:
    """Virtual time and finish tags are equal after every step, without rounding."""
    pair = Pair()
    for step in steps:
        pair.apply(step)

        assert pair.oracle.gps.virtual_time == pair.share.clock.virtual_time
        for name, ledger in pair.oracle.ledgers.items():
            account = pair.share.accounts[name]

            assert pair.oracle.gps.tag(name) == pair.share.clock.session(name).finish
            assert (exact(ledger.charged), exact(ledger.attained), ledger.away) == (
                account.charged,
                account.attained,
                account.withdrawn,
            )
        active = {name for name, s in pair.share.clock.sessions().items() if s.active}

        assert pair.oracle.gps.busy() == active


@given(_STEPS)
def test_work_left_in_gps_is_charged_service_minus_received_service(steps: list[Step]) -> None:
    """No service is lost between GPS and the charges of applications."""
    pair = Pair()
    for step in steps:
        before = pair.share.clock.virtual_time
        pair.apply(step)
        live = [account for account in pair.share.accounts.values() if not account.withdrawn]

        assert sum(a.charged - a.attained for a in live) == pair.share.clock.backlog()
        assert before <= pair.share.clock.virtual_time


@given(_STEPS)
def test_raised_estimate_never_lowers_a_finish_tag(steps: list[Step]) -> None:
    """The finish tags of other applications stay."""
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
def test_virtual_clock_without_corrections_keeps_finish_tags(
    share: NominalShare | UnsettledShare,
) -> None:
    """The paper sets a finish tag once; this variant shows the effect of raising tags."""
    share.arrive("a", 10, 1, 1)

    assert share.expect("a", 500) is False
    assert (10, 10) == (share.tag("a"), share.accounts["a"].charged)


@given(_STEPS, WORK)
def test_finish_tags_shift_with_the_start_of_virtual_time(
    steps: list[Step], origin: Fraction
) -> None:
    """A restarted scheduler may begin at any virtual time without a change of the order."""
    pair, shifted = Pair(), Pair(origin)
    for step in steps:
        pair.apply(step)
        shifted.apply(step)
    tags = {name: pair.share.tag(name) + exact(origin) for name in pair.share.accounts}

    assert tags == {name: shifted.share.tag(name) for name in shifted.share.accounts}


@given(_STEPS, st.sampled_from([2, 3, 10]))
def test_scaling_all_weights_keeps_the_order_of_finish_tags(steps: list[Step], scale: int) -> None:
    """With all weights multiplied by k, the order stays equal and tags are divided by k."""
    pair, scaled = Pair(), Pair()
    for step in steps:
        pair.apply(step)
        scaled.apply(Step(step.verb, step.name, step.work, step.weight * scale, step.others))
    tags = {name: pair.share.tag(name) for name in pair.share.accounts}

    assert tags == {name: scaled.share.tag(name) * scale for name in scaled.share.accounts}


@given(step_lists(_NOMINAL_VERBS, _NAMES, _WEIGHTS, 30))
def test_virtual_time_of_the_nominal_clock_equals_gps_at_the_nominal_rate(
    steps: list[Step],
) -> None:
    """GPS serves ended applications until their charged work is done."""
    iteration_s = Fraction(1, 4)
    share = NominalShare(exact(iteration_s), VirtualClock(exact(0)))
    gps = GpsServer()
    now, kv_tokens = Fraction(0), 8
    share.set_rate(kv_tokens, exact(now))
    for sequence, step in enumerate(steps):
        live = step.name in share.accounts
        if step.verb == "arrive" and not live:
            share.arrive(step.name, exact(step.work), exact(step.weight), sequence)
            gps.join(step.name, step.weight)
            gps.add_work(step.name, max(Fraction(2), step.work))
        elif step.verb == "time":
            now += step.work / 10
            share.advance(exact(now))
            gps.give_service(step.work / 10 * kv_tokens / iteration_s)
        elif step.verb == "rate":
            kv_tokens = int(step.work)
            share.set_rate(kv_tokens, exact(now))
        elif step.verb == "settle" and live:
            share.settle(step.name)
        elif step.verb == "reweigh" and live:
            share.reweigh(step.name, exact(step.weight))
            gps.join(step.name, step.weight)
        elif step.verb == "deliver" and live:
            share.deliver([(step.name, exact(step.work))])

        assert gps.virtual_time == share.clock.virtual_time
        owed = {n for n in share.accounts if gps.owed[n] > 0}

        assert {n: gps.tag(n) for n in owed} == {n: share.tag(n) for n in owed}
        assert owed == {n for n in share.accounts if share.clock.session(n).active}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("arrive", "deliver", "deliver", "withdraw", "resume", "settle")),
            _NAMES,
            st.floats(0.001, 1e7),
            st.floats(0.01, 100.0),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_rounding_errors_stay_within_a_billionth(
    steps: list[tuple[str, str, float, float]],
) -> None:
    """The service computes in floats; virtual time must never fall."""
    share = ServedShare()
    charged = 1.0
    for sequence, (verb, name, work, weight) in enumerate(steps):
        before = share.clock.virtual_time
        account = share.accounts.get(name)
        if verb == "arrive" and account is None:
            share.arrive(name, work, weight, sequence)
        elif account is None:
            continue
        else:
            apply_step(share, verb, name, work)
        charged += work
        live = [a for a in share.accounts.values() if not a.withdrawn]
        weights = sum(session.weight for session in share.clock.sessions().values())
        scale = (share.clock.virtual_time + charged) * (1 + weights)

        assert before <= share.clock.virtual_time
        assert abs(sum(a.charged - a.attained for a in live) - share.clock.backlog()) < scale * 1e-9
