"""Rules 1 to 6 of the served clock, each by hand, in exact arithmetic."""

from justitia_ray.core.fair_share import ServedShare
from justitia_ray.core.virtual_clock import VirtualClock
from tests.exact import exact


def _share(**applications: tuple[int, int]) -> ServedShare:
    share = ServedShare(VirtualClock(exact(0)))
    for sequence, (name, (cost, weight)) in enumerate(applications.items()):
        share.arrive(name, exact(cost), exact(weight), sequence)
    return share


def _owed(share: ServedShare) -> tuple[float, float]:
    """Return both sides of the invariant."""
    live = [account for account in share.accounts.values() if not account.withdrawn]
    return share.clock.backlog(), sum(account.charged - account.attained for account in live)


def test_service_beyond_the_charge_doubles_it() -> None:
    """Rule 1: chg 4 → 8 → 16 until it covers 9; F = 4, then 8, then 16; V after the charges."""
    share = _share(a=(4, 1), b=(40, 1))
    recharged = share.deliver([("a", exact(9))])
    account = share.accounts["a"]

    assert recharged == ["a", "a"]
    assert (account.charged, account.attained, account.settlements) == (16, 9, 2)
    assert (16, exact(9, 2)) == (share.tag("a"), share.clock.virtual_time)
    assert _owed(share) == (47, 47)


def test_service_up_to_the_charge_changes_no_tag() -> None:
    """An exact prediction is never settled."""
    share = _share(a=(4, 1))

    assert share.deliver([("a", exact(4))]) == []
    assert (share.tag("a"), share.accounts["a"].charged) == (4, 4)


def test_recharge_behind_v_starts_at_v() -> None:
    """A giant predicted small is tagged from now on, not from when it arrived: max(F, V)."""
    share = _share(a=(2, 1), b=(100, 1))
    share.deliver([("b", exact(20))])  # V = 2 at 4, then b alone: V = 18
    share.deliver([("a", exact(3))])  # att 3 > chg 2: F = 18 + 2, and W is 2 again: V = 19.5

    assert (20, exact(39, 2)) == (share.tag("a"), share.clock.virtual_time)
    assert _owed(share) == (81, 81)


def test_one_report_is_served_as_a_whole() -> None:
    """Rule 2: V moves by the sum of a report over W, whoever received it."""
    share = _share(a=(10, 1), b=(10, 3))
    share.deliver([("a", exact(3)), ("b", exact(1)), ("a", exact(4))])

    assert (
        share.clock.virtual_time,
        share.accounts["a"].attained,
        share.accounts["b"].attained,
    ) == (2, 7, 1)


def test_settling_gives_unused_service_to_the_others() -> None:
    """Rule 3: mice predicted too large must not hold V back for the elephant."""
    share = _share(mouse=(20, 1), elephant=(100, 1))
    share.deliver([("mouse", exact(2)), ("elephant", exact(6))])  # V = 4
    final = share.settle("mouse")  # refund 18: GPS owes it 16, had given it 2 too much

    assert (final, share.clock.virtual_time, share.tag("elephant")) == (4, 6, 100)
    assert ("mouse" in share.accounts, "mouse" in share.clock) == (False, False)
    assert _owed(share) == (94, 94)


def test_application_served_ahead_of_gps_leaves_its_debt() -> None:
    """The one that had all its service at once still has its place in GPS until others catch up."""
    share = _share(a=(10, 1), b=(10, 1))
    share.deliver([("a", exact(10))])  # V = 5, a attained all
    final = share.settle("a")

    assert (final, "a" in share.clock, share.clock.virtual_time) == (10, True, 5)
    assert _owed(share) == (10, 10)

    share.deliver([("b", exact(9))])  # V = 9.5

    assert ("a" in share.clock, exact(19, 2)) == (True, share.clock.virtual_time)

    share.deliver([("b", exact(1))])

    assert ("a" in share.clock, 10) == (False, share.clock.virtual_time)


def test_tool_gap_withdraws_and_the_next_submission_charges_again() -> None:
    """Rules 4 and 5: the credit of an application that waits for its tools is taken from it."""
    share = _share(a=(10, 1), b=(30, 1))
    share.deliver([("a", exact(4)), ("b", exact(4))])  # V = 4
    share.withdraw("a")

    assert (share.clock.virtual_time, share.clock.active_weight) == (4, 1)

    share.withdraw("a")
    share.deliver([("b", exact(6))])

    assert (share.clock.virtual_time, share.resume("a")) == (10, True)
    assert (share.tag("a"), share.resume("a")) == (16, False)
    assert _owed(share) == (26, 26)


def test_tag_of_a_withdrawn_application_is_what_a_submission_would_make_it() -> None:
    """Whoever opens an application is told F, although it is withdrawn until it submits."""
    share = _share(a=(10, 2), b=(30, 1))
    share.withdraw("a")
    share.deliver([("b", exact(3))])

    assert share.tag("a") == 3 + 5

    share.resume("a")

    assert share.tag("a") == 8


def test_short_gap_gives_the_tag_back() -> None:
    """While GPS has not overtaken it, withdrawing and coming back at the same V changes nothing."""
    share = _share(a=(10, 1), b=(30, 1))
    share.deliver([("a", exact(4)), ("b", exact(4))])
    share.withdraw("a")
    share.resume("a")

    assert (share.tag("a"), share.clock.virtual_time) == (10, 4)


def test_arrival_is_charged_at_least_two() -> None:
    """Rule 6: a prediction of nothing would put an application first for ever."""
    share = _share(a=(0, 1), b=(1, 2), c=(3, 1))

    assert (share.tag("a"), share.tag("b"), share.tag("c")) == (2, 1, 3)
    assert _owed(share) == (7, 7)


def test_weight_change_moves_what_is_left_of_the_charge() -> None:
    """Refund, new weight, charge: 6 left of 10, at weight 3 from V = 4 on."""
    share = _share(a=(10, 1), b=(30, 1))
    share.deliver([("a", exact(4)), ("b", exact(4))])
    share.reweigh("a", exact(3))

    assert (share.tag("a"), share.clock.virtual_time, share.clock.active_weight) == (4 + 2, 4, 4)
    assert _owed(share) == (32, 32)


def test_weight_change_keeps_the_debt_of_one_served_ahead_of_gps() -> None:
    """A caller must not shed its debt by changing its weight back and forth."""
    share = _share(a=(10, 1), b=(10, 1))
    share.deliver([("a", exact(8))])  # V = 4: GPS owes a 6, of which 2 are not attained
    share.reweigh("a", exact(2))

    assert (share.tag("a"), share.clock.virtual_time) == (4 + 3, 4)

    share.reweigh("a", exact(1))

    assert (share.tag("a"), _owed(share)) == (10, (12, 12))


def test_weight_change_in_a_tool_gap_charges_nothing() -> None:
    """The next submission charges, at the new weight."""
    share = _share(a=(10, 1), b=(30, 1))
    share.withdraw("a")
    share.reweigh("a", exact(5))

    assert (share.accounts["a"].withdrawn, share.clock.active_weight) == (True, 1)

    share.resume("a")

    assert share.tag("a") == 2


def test_time_and_capacity_move_nothing() -> None:
    """Only delivered service moves the served clock."""
    share = _share(a=(10, 1))
    share.set_rate(1000, 1.0)
    share.advance(50.0)

    assert share.clock.virtual_time == 0


def test_tag_of_a_withdrawn_application_counts_what_it_has_had() -> None:
    """Else one that has had 4 of its 10 would be told the place of a new one, or a worse one."""
    share = _share(a=(10, 1), b=(30, 1))
    share.deliver([("a", exact(4)), ("b", exact(6))])  # V = 5
    share.withdraw("a")  # GPS has given it 5, 1 too much: V = 6
    told = share.tag("a")
    share.resume("a")

    assert 6 + 6 == told == share.tag("a")
