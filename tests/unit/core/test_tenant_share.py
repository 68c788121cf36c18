"""Fairness between tenants, by hand and in exact arithmetic."""

import pytest

from justitia_ray.core.tenant_share import TenantShare
from justitia_ray.core.virtual_clock import VirtualClock
from tests.exact import exact


def _share(**applications: tuple[str, int, int]) -> TenantShare:
    """Open applications, each with (tenant, cost, weight)."""
    share = TenantShare(VirtualClock(exact(0)))
    for sequence, (name, (tenant, cost, weight)) in enumerate(applications.items()):
        share.arrive(name, exact(cost), exact(weight), sequence, tenant)
    return share


def _keys(share: TenantShare, *names: str) -> list[float]:
    return [share.tag(name) for name in names]


def _owed(share: TenantShare) -> tuple[float, float]:
    """Return both sides of the invariant."""
    live = [account for account in share.accounts.values() if not account.withdrawn]
    return share.clock.backlog(), sum(account.charged - account.attained for account in live)


def test_keys_of_two_tenants_by_hand() -> None:
    """T has x of 10 and y of 30, U has z of 20: at φ = 1 T finishes x at V = 10 and y at 40.

    Inside T, GPS finishes x at 10 and y at 30 of its own virtual time: that is their order only.
    """
    share = _share(y=("T", 30, 1), x=("T", 10, 1), z=("U", 20, 1))

    assert [10, 20, 40] == _keys(share, "x", "z", "y")
    assert (share.tag_in_tenant("x"), share.tag_in_tenant("y")) == (10, 30)
    assert {"T": 40, "U": 20} == {n: s.finish for n, s in share.clock.sessions().items()}

    share.deliver([("z", exact(20)), ("x", exact(4))])  # V = 12

    assert (12, [10, 20, 40]) == (share.clock.virtual_time, _keys(share, "x", "z", "y"))

    share.arrive("w", exact(5), exact(1), 9, "T")  # T's GPS is at 6 of its own: F_w = 11

    assert (11, [10, 20, 17, 45]) == (
        share.tag_in_tenant("w"),
        _keys(share, "x", "z", "w", "y"),
    )
    assert _owed(share) == (41, 41)


def test_tenant_with_ten_applications_gets_what_a_tenant_with_one_gets() -> None:
    """The whole point: opening more applications must not give a tenant more."""
    many = {f"m{n}": ("many", 10, 1) for n in range(10)}
    share = _share(one=("one", 100, 1), **many)

    assert [10 * (n + 1) for n in range(10)] == _keys(share, *many)
    assert [100] == _keys(share, "one")

    share.deliver([("one", exact(50))])  # V = 25: GPS gave 25 to each tenant
    share.settle("m9")

    assert (share.clock.session("one").finish, share.clock.session("many").finish) == (100, 90)


def test_weight_of_a_tenant_is_its_speed() -> None:
    """With φ = 3 the same work is done in a third of V."""
    share = _share(a=("T", 30, 3), b=("U", 30, 1), c=("T", 60, 3))

    assert [10, 30, 30] == _keys(share, "a", "b", "c")


def test_lone_tenant_is_served_one_application_at_a_time_in_order_of_gps() -> None:
    """Fair Sojourn Protocol: tags 12 and 30 by GPS, finished at 12 and 42; a late small one first.

    After 10 of service GPS inside is at 5, and the reference server has 2 of p left.
    """
    share = _share(q=("T", 30, 1), p=("T", 12, 1))

    assert [12, 42] == _keys(share, "p", "q")

    share.deliver([("q", exact(10))])
    share.arrive("r", exact(3), exact(1), 5, "T")

    assert (8, 12) == (share.tag_in_tenant("r"), share.tag_in_tenant("p"))
    assert [13, 15, 45] == _keys(share, "r", "p", "q")


def test_charge_to_one_application_moves_those_behind_it() -> None:
    """Rule 1: x attains 5 of 4, so chg = 8 and F_x = 8; y, now first, keeps its own work only."""
    share = _share(x=("T", 4, 1), y=("T", 6, 1), z=("U", 50, 1))

    assert [4, 10] == _keys(share, "x", "y")

    assert ["x"] == share.deliver([("x", exact(5))])
    assert [6, 14] == _keys(share, "y", "x")
    assert (exact(5, 2), (59, 59)) == (share.clock.virtual_time, _owed(share))


def test_unused_service_stays_in_the_tenant_first() -> None:
    """Rule 3: what was given to a small one predicted large goes to its tenant's others."""
    share = _share(x=("T", 20, 1), y=("T", 30, 1), z=("U", 100, 1))
    share.deliver([("z", exact(10)), ("x", exact(2))])  # V = 6; T got 6, all of it spent on x

    assert share.settle("x") == 6  # refund of 18: 14 not yet spent, 4 go to y at once
    assert (32, share.clock.virtual_time) == (share.clock.session("T").finish, 6)
    assert [32] == _keys(share, "y")
    assert share.tag_in_tenant("y") == 30
    assert _owed(share) == (120, 120)

    # T is owed 26; y attains nothing of its 30, and the refund of 30 leaves 4 for U.
    assert (6, 10) == (share.settle("y"), share.clock.virtual_time)
    assert ([100], (90, 90)) == (_keys(share, "z"), _owed(share))


def test_ended_application_served_ahead_leaves_its_debt_to_the_tenant() -> None:
    """Whoever ends early must not give its tenant a second share: the debt is still served."""
    share = _share(x=("T", 10, 1), z=("U", 10, 1))
    share.deliver([("x", exact(10))])  # V = 5
    final = share.settle("x")
    share.arrive("y", exact(10), exact(1), 3, "T")

    assert (10, 20) == (final, share.tag("y"))
    assert {"x", "y", "z"} == set(share.sessions())

    share.deliver([("z", exact(10))])  # V = 10: x is paid for
    share.deliver([("y", exact(5))])
    share.withdraw("y")

    assert {"y", "z"} == set(share.sessions())


def test_id_used_again_takes_over_its_debt_also_in_another_tenant() -> None:
    """A caller must not shed its debt by naming another tenant."""
    share = _share(x=("T", 10, 1), z=("U", 10, 1))
    share.deliver([("x", exact(10))])  # V = 5, and 5 of x are still owed
    share.settle("x")
    share.arrive("x", exact(20), exact(1), 3, "W")

    assert share.tag("x") == 5 + 20 + 5
    assert (30, 30) == (_owed(share)[0], 20 + 10)
    assert {"x", "z"} == set(share.sessions())
    assert share.take_changed()  # T is forgotten, x of W is not
    assert (30, {"U", "W"}) == (share.tag("x"), set(share.tenants()))


def test_id_used_again_takes_over_what_either_server_owes() -> None:
    """At V = 10 the reference server has finished x and GPS in T still owes it 5 of 10.

    The two must go on owing T the same, so 5 of y are done at once, and x is charged for them.
    """
    share = _share(x=("T", 10, 1), y=("T", 30, 1), z=("U", 50, 1))
    share.deliver([("x", exact(10)), ("z", exact(10))])
    share.settle("x")
    share.arrive("x", exact(20), exact(1), 3, "W")
    tenant = share.tenants()["T"]

    assert (35, 10 + 20 + 5) == (share.tag("y"), share.tag("x"))
    assert 25 == tenant.gps.backlog() == tenant.server.total


def test_id_used_again_after_its_debt_is_paid_starts_anew() -> None:
    """V has passed what was owed to it, and its tenant had not been looked at since."""
    share = _share(x=("T", 10, 1), z=("U", 30, 1))
    share.deliver([("x", exact(10))])
    share.settle("x")
    share.deliver([("z", exact(20))])  # V = 20
    share.arrive("x", exact(4), exact(1), 3, "T")

    assert (20, 24) == (share.clock.virtual_time, share.tag("x"))


def test_tool_gap_is_withdrawn_at_both_levels_and_asked_for_without_a_change() -> None:
    """Rules 4 and 5. T has y before x: F_y = 6, F_x = 10.

    At V = 4, with 4 of y done and T's GPS at 2, x has had 4 and gives 6 back: F_x = 4, and the 4
    that it had come before the rest of y. At V = 8 they are paid for, GPS is at 4, y has 2 to go.
    """
    share = _share(x=("T", 10, 1), y=("T", 6, 1), z=("U", 50, 1))
    share.deliver([("x", exact(4)), ("z", exact(4))])
    share.withdraw("x")

    assert [10, 10] == [share.tag("y"), share.clock.session("T").finish]

    share.withdraw("x")
    share.deliver([("z", exact(8))])
    foretold = share.tag_in_tenant("x"), share.tag("x")

    assert ((4 + 6, 8 + 2 + 6), 8) == (foretold, share.clock.virtual_time)
    assert (share.resume("x"), share.resume("x")) == (True, False)
    assert foretold == (share.tag_in_tenant("x"), share.tag("x"))
    assert _owed(share) == (38 + 6 + 6, 50)


def test_tag_of_the_withdrawn_application_of_an_idle_tenant_starts_at_v() -> None:
    """Nothing of T is in GPS while it waits for its tools: 10 from V = 6 on, y before it in T."""
    share = _share(x=("T", 10, 1), y=("T", 2, 1), z=("U", 50, 1))
    share.withdraw("x")
    share.deliver([("y", exact(2)), ("z", exact(6))])  # both until V = 2, then U alone

    assert (6, 16) == (share.clock.virtual_time, share.tag("x"))
    assert share.tag_in_tenant("x") == 2 + 10

    share.resume("x")

    assert (16, 12) == (share.tag("x"), share.tag_in_tenant("x"))


def test_weight_named_last_is_the_tenants() -> None:
    """By an arrival or by a change; what the root owes is owed at the new weight."""
    share = _share(x=("T", 10, 1), z=("U", 30, 1))
    share.deliver([("z", exact(8))])  # V = 4, T is owed 6
    share.arrive("y", exact(12), exact(3), 3, "T")

    assert (4 + 18 // 3, 4) == (share.clock.session("T").finish, share.clock.virtual_time)

    share.reweigh("x", exact(2))

    assert (4 + 9, 2) == (share.clock.session("T").finish, share.clock.session("T").weight)
    assert (2, _owed(share)) == (share.accounts["x"].weight, (44, 44))

    share.withdraw("x")
    share.reweigh("x", exact(1))

    assert (share.accounts["x"].withdrawn, share.clock.session("T").weight) == (True, 1)


def test_tenant_comes_back_while_the_root_still_serves_its_debt() -> None:
    """Its session was to be forgotten; it goes on, at the weight of the arrival.

    T is owed 5 of x and 10 of y, at φ = 5. Inside, y is before x: 5 + 10/5 against 10.
    """
    share = _share(x=("T", 10, 1), z=("U", 10, 1))
    share.deliver([("x", exact(10))])  # V = 5
    share.settle("x")

    assert share.clock.session("T").released

    share.arrive("y", exact(10), exact(5), 3, "T")

    assert not share.clock.session("T").released
    assert (5 + 3, 5 + 2) == (share.clock.session("T").finish, share.tag("y"))


def test_weight_change_keeps_the_debt_at_both_levels() -> None:
    """An x that has had 8, and its tenant's share 4: the debt moves with the tag inside.

    T's GPS is at 2, x gave 2 of its 10 back: F_x = 8, 6 ahead; at weight 3 that is 4. y is at 10.
    """
    share = _share(x=("T", 10, 1), y=("T", 10, 1), z=("U", 90, 1))
    share.deliver([("x", exact(8))])  # V = 4
    share.withdraw("x")
    share.reweigh("x", exact(3))
    tenant = share.tenants()["T"]

    assert (4, 4) == (tenant.gps.session("x").finish, tenant.server.remaining("x"))
    assert (exact(4 * 3 + 14, 3), exact(26, 3)) == (
        share.clock.session("T").finish,
        share.tag("y"),
    )


def test_application_with_nothing_left_to_charge_is_tagged_from_now_on() -> None:
    """It has had all that it was charged: coming back it has no claim to an earlier place.

    At V = 13 T has had 13: x, withdrawn, is paid for at 4, and 9 of y's 30 are done.
    """
    share = _share(x=("T", 4, 1), y=("T", 30, 1), z=("U", 90, 1))
    share.deliver([("x", exact(4))])
    share.withdraw("x")
    share.deliver([("z", exact(22))])

    assert (13, 9) == (share.clock.virtual_time, share.tag_in_tenant("x"))
    assert (share.tag("x"), share.resume("x"), share.tag("x")) == (13, True, 13)


def test_tenant_forgotten_and_back_between_two_saves_is_not_dropped() -> None:
    """The root names it as forgotten although it lives again."""
    share = _share(x=("T", 10, 1))
    share.settle("x")
    share.arrive("y", exact(5), exact(1), 2, "T")

    assert ["T"] == list(share.tenants())
    assert {"x", "y"} == set(share.take_changed())
    assert (5, ["T"]) == (share.tag("y"), list(share.tenants()))


def test_forgotten_tenant_leaves_nothing_behind() -> None:
    """Tenants come and go; those that owe nothing and are owed nothing take no memory."""
    share = _share(x=("T", 10, 1), z=("U", 10, 1))
    share.deliver([("x", exact(10))])
    share.settle("x")
    share.deliver([("z", exact(10))])  # V = 10

    assert ({"z"}, None) == (set(share.sessions()), share.session_record("x"))
    assert "x" in share.take_changed()
    assert (["U"], ["z"]) == (list(share._tenants), list(share._tenant_of))
    assert share.session_record("nobody") is None


def test_tenants_whose_keys_moved_are_named_once() -> None:
    """The queue sorts them anew: an arrival moves others of its tenant and nobody else's."""
    share = _share(x=("T", 10, 1), z=("U", 10, 1))

    assert ["T", "U"] == share.take_rekeyed()
    assert [] == share.take_rekeyed()

    share.arrive("w", exact(2), exact(1), 3, "T")
    share.deliver([("z", exact(1))])

    assert ["T"] == share.take_rekeyed()


@pytest.mark.parametrize("field", ["finish", "weight", "sequence", "released", "since"])
def test_what_is_the_tenants_alone_is_carried_by_one_record(field: str) -> None:
    """A record for each tenant, saved when it changed, and passed on when its carrier goes."""
    share = _share(x=("T", 10, 1), y=("T", 10, 1))
    carriers = [n for n in ("x", "y") if "carries" in (share.session_record(n) or {})]

    assert ["x"] == carriers

    share.deliver([("x", exact(10))])
    share.take_changed()
    share.settle("x")
    share.withdraw("y")
    record = share.session_record("y")

    assert record is not None
    assert (None, {"x", "y"}) == (share.session_record("x"), set(share.take_changed()))
    assert field in record["carries"]


def test_record_of_a_tenant_that_no_record_carries_is_an_error() -> None:
    """It cannot be put back without its V."""
    record = _share(x=("T", 10, 1), y=("T", 10, 1)).session_record("y")

    assert record is not None
    with pytest.raises(KeyError):
        TenantShare().restore_session("y", record, live=True)
