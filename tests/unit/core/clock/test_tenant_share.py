"""Fairness between tenants, by hand and in exact arithmetic."""

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.clock.tenant_share import TenantShare
from justitia_ray.core.clock.virtual_clock import VirtualClock
from tests.core_driver import CoreDriver, granted
from tests.exact import exact


def _open_in_tenants(**applications: tuple[str, int, int]) -> TenantShare:
    """Open applications, given by (tenant, cost, weight)."""
    share = TenantShare(VirtualClock(exact(0)))
    for sequence, (name, (tenant, cost, weight)) in enumerate(applications.items()):
        share.arrive(name, exact(cost), exact(weight), sequence, tenant)
    return share


def _policy_keys(share: TenantShare, *names: str) -> list[float]:
    return [share.tag(name) for name in names]


def _backlog_and_charges(share: TenantShare) -> tuple[float, float]:
    """Return the clock's backlog, and charged minus attained service, which must equal it."""
    live = [account for account in share.accounts.values() if not account.withdrawn]
    return share.clock.backlog(), sum(account.charged - account.attained for account in live)


def test_finish_tags_of_two_tenants_equal_a_hand_calculation() -> None:
    share = _open_in_tenants(y=("T", 30, 1), x=("T", 10, 1), z=("U", 20, 1))

    assert [10, 20, 40] == _policy_keys(share, "x", "z", "y")
    assert (share.tag_in_tenant("x"), share.tag_in_tenant("y")) == (10, 30)
    assert {"T": 40, "U": 20} == {n: s.finish for n, s in share.clock.sessions().items()}

    share.deliver([("z", exact(20)), ("x", exact(4))])  # V = 12

    assert (12, [10, 20, 40]) == (share.clock.virtual_time, _policy_keys(share, "x", "z", "y"))

    share.arrive("w", exact(5), exact(1), 9, "T")

    assert (11, [10, 20, 17, 45]) == (
        share.tag_in_tenant("w"),
        _policy_keys(share, "x", "z", "w", "y"),
    )
    assert _backlog_and_charges(share) == (41, 41)


def test_tenants_with_ten_and_with_one_application_get_equal_service() -> None:
    """Opening more applications must not give a tenant more service."""
    many = {f"m{n}": ("many", 10, 1) for n in range(10)}
    share = _open_in_tenants(one=("one", 100, 1), **many)

    assert [10 * (n + 1) for n in range(10)] == _policy_keys(share, *many)
    assert [100] == _policy_keys(share, "one")

    share.deliver([("one", exact(50))])
    share.settle("m9")

    assert (share.clock.session("one").finish, share.clock.session("many").finish) == (100, 90)


def test_applications_of_a_single_tenant_are_served_one_after_another() -> None:
    share = _open_in_tenants(q=("T", 30, 1), p=("T", 12, 1))

    assert [12, 42] == _policy_keys(share, "p", "q")

    share.deliver([("q", exact(10))])
    share.arrive("r", exact(3), exact(1), 5, "T")

    assert (8, 12) == (share.tag_in_tenant("r"), share.tag_in_tenant("p"))
    assert [13, 15, 45] == _policy_keys(share, "r", "p", "q")


def test_unused_charge_goes_to_applications_of_the_same_tenant_first() -> None:
    """The refund of a small application with a high prediction stays in its tenant (rule 3)."""
    share = _open_in_tenants(x=("T", 20, 1), y=("T", 30, 1), z=("U", 100, 1))
    share.deliver([("z", exact(10)), ("x", exact(2))])

    assert share.settle("x") == 6
    assert (32, share.clock.virtual_time) == (share.clock.session("T").finish, 6)
    assert [32] == _policy_keys(share, "y")
    assert share.tag_in_tenant("y") == 30
    assert _backlog_and_charges(share) == (120, 120)

    assert (6, 10) == (share.settle("y"), share.clock.virtual_time)
    assert ([100], (90, 90)) == (_policy_keys(share, "z"), _backlog_and_charges(share))


def test_ended_application_served_ahead_leaves_its_debt_to_the_tenant() -> None:
    """An early end must not give the tenant a second share."""
    share = _open_in_tenants(x=("T", 10, 1), z=("U", 10, 1))
    share.deliver([("x", exact(10))])  # V = 5
    final = share.settle("x")
    share.arrive("y", exact(10), exact(1), 3, "T")

    assert (10, 20) == (final, share.tag("y"))
    assert {"x", "y", "z"} == set(share.sessions())

    share.deliver([("z", exact(10))])  # V = 10: x is paid for
    share.deliver([("y", exact(5))])
    share.withdraw("y")

    assert {"y", "z"} == set(share.sessions())


def test_application_reopened_in_another_tenant_keeps_its_debt() -> None:
    """A caller must not lose its debt by naming another tenant."""
    share = _open_in_tenants(x=("T", 10, 1), z=("U", 10, 1))
    share.deliver([("x", exact(10))])
    share.settle("x")
    share.arrive("x", exact(20), exact(1), 3, "W")

    assert share.tag("x") == 5 + 20 + 5
    assert (30, 30) == (_backlog_and_charges(share)[0], 20 + 10)
    assert {"x", "z"} == set(share.sessions())
    assert share.take_changed()
    assert (30, {"U", "W"}) == (share.tag("x"), set(share.nodes.kept_leaves()))


def test_application_reopened_in_another_tenant_owes_its_debt_at_both_levels() -> None:
    share = _open_in_tenants(x=("T", 10, 1), y=("T", 30, 1), z=("U", 50, 1))
    share.deliver([("x", exact(10)), ("z", exact(10))])
    share.settle("x")
    share.arrive("x", exact(20), exact(1), 3, "W")
    tenant = share.nodes.kept_leaves()["T"]

    assert (35, 10 + 20 + 5) == (share.tag("y"), share.tag("x"))
    assert 25 == tenant.gps.backlog() == tenant.server.total


def test_reopened_application_without_debt_starts_at_virtual_time() -> None:
    share = _open_in_tenants(x=("T", 10, 1), z=("U", 30, 1))
    share.deliver([("x", exact(10))])
    share.settle("x")
    share.deliver([("z", exact(20))])  # V = 20
    share.arrive("x", exact(4), exact(1), 3, "T")

    assert (20, 24) == (share.clock.virtual_time, share.tag("x"))


def test_tool_call_withdraws_the_charge_from_the_application_and_its_tenant() -> None:
    share = _open_in_tenants(x=("T", 10, 1), y=("T", 6, 1), z=("U", 50, 1))
    share.deliver([("x", exact(4)), ("z", exact(4))])
    share.withdraw("x")

    assert [10, 10] == [share.tag("y"), share.clock.session("T").finish]

    share.withdraw("x")
    share.deliver([("z", exact(8))])
    foretold = share.tag_in_tenant("x"), share.tag("x")

    assert ((4 + 6, 8 + 2 + 6), 8) == (foretold, share.clock.virtual_time)
    assert (share.resume("x"), share.resume("x")) == (True, False)
    assert foretold == (share.tag_in_tenant("x"), share.tag("x"))
    assert _backlog_and_charges(share) == (38 + 6 + 6, 50)


def test_withdrawn_application_of_an_idle_tenant_is_tagged_from_virtual_time() -> None:
    share = _open_in_tenants(x=("T", 10, 1), y=("T", 2, 1), z=("U", 50, 1))
    share.withdraw("x")
    share.deliver([("y", exact(2)), ("z", exact(6))])

    assert (6, 16) == (share.clock.virtual_time, share.tag("x"))
    assert share.tag_in_tenant("x") == 2 + 10

    share.resume("x")

    assert (16, 12) == (share.tag("x"), share.tag_in_tenant("x"))


def test_returning_tenant_with_a_debt_keeps_its_gps_session() -> None:
    share = _open_in_tenants(x=("T", 10, 1), z=("U", 10, 1))
    share.deliver([("x", exact(10))])  # V = 5
    share.settle("x")

    assert share.clock.session("T").released

    share.arrive("y", exact(10), exact(5), 3, "T")

    assert not share.clock.session("T").released
    assert (5 + 3, 5 + 2) == (share.clock.session("T").finish, share.tag("y"))


def test_weight_change_keeps_the_debts_of_an_application_and_its_tenant() -> None:
    share = _open_in_tenants(x=("T", 10, 1), y=("T", 6, 1), z=("U", 90, 1))
    share.deliver([("x", exact(8))])  # V = 4
    share.withdraw("x")
    share.reweigh("x", exact(3))
    tenant = share.nodes.kept_leaves()["T"]

    assert (4, 8) == (tenant.gps.session("x").finish, tenant.server.remaining("x"))
    assert exact(4 * 3 + 8 + 2, 3) == share.clock.session("T").finish == share.tag("y")


def test_rounding_leaves_no_debt_inside_a_tenant_without_debt() -> None:
    share = TenantShare(VirtualClock(1e6))
    for sequence, name in enumerate("xy"):
        share.arrive(name, 10.1, 0.7, sequence, "T")
    share.withdraw("y")
    share.deliver([("x", 10.1)])
    share.settle("x")

    assert {"y"} == share.sessions().keys()


def test_tenant_that_returns_between_two_saves_stays_in_the_store() -> None:
    share = _open_in_tenants(x=("T", 10, 1))
    share.settle("x")
    share.arrive("y", exact(5), exact(1), 2, "T")

    assert ["T"] == list(share.nodes.kept_leaves())
    assert {"x", "y"} == set(share.take_changed())
    assert (5, ["T"]) == (share.tag("y"), list(share.nodes.kept_leaves()))


def test_tenant_whose_last_application_ended_leaves_no_state() -> None:
    """Tenants without work and without debt must take no memory."""
    share = _open_in_tenants(x=("T", 10, 1), z=("U", 10, 1))
    share.deliver([("x", exact(10))])
    share.settle("x")
    share.deliver([("z", exact(10))])  # V = 10

    assert ({"z"}, None) == (set(share.sessions()), share.session_record("x"))
    assert "x" in share.take_changed()
    assert (["U"], ["z"]) == (list(share.nodes.leaves), list(share.nodes.path_of))
    assert share.session_record("nobody") is None


def test_each_tenant_with_a_changed_key_is_reported_to_the_queue_once() -> None:
    share = _open_in_tenants(x=("T", 10, 1), z=("U", 10, 1))

    assert ["T", "U"] == share.take_retagged_tenants()
    assert [] == share.take_retagged_tenants()

    share.arrive("w", exact(2), exact(1), 3, "T")
    share.deliver([("z", exact(1))])

    assert ["T"] == share.take_retagged_tenants()


@pytest.mark.parametrize("field", ["finish", "weight", "sequence", "released", "since"])
def test_state_of_a_tenant_is_stored_with_one_of_its_applications(field: str) -> None:
    """A tenant's state is saved with one of its applications, and moves when that one ends."""
    share = _open_in_tenants(x=("T", 10, 1), y=("T", 10, 1))
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


def test_tenant_state_without_an_application_record_is_an_error() -> None:
    """A tenant cannot be restored without its virtual time."""
    share = TenantShare()
    share.arrive("x", 10, 1, 1, "T")
    share.arrive("y", 10, 1, 2, "T")
    record = share.session_record("y")

    assert record is not None
    with pytest.raises(KeyError):
        TenantShare().restore_session("y", record, live=True)


@pytest.fixture
def core_of_two_tenants() -> CoreDriver:
    """Return a core in which tenant T has two waiting applications and U has one.

    Keys are 100 (a), 150 (b), 400 (c).
    """
    driver = CoreDriver(SchedulerCore("justitia", {"fairness": "tenant"}))
    for name, cost, tenant in (("c", 300, "T"), ("a", 100, "T"), ("b", 150, "U")):
        driver.open(name, cost, tenant=tenant)
        driver.submit(f"{name}1", name)
    return driver


def test_tenants_are_ordered_by_key_and_their_applications_by_tag(
    core_of_two_tenants: CoreDriver,
) -> None:
    """Without tenants the applications of one tenant could be served first one after another."""
    assert isinstance(core_of_two_tenants.core.ledger.fair_share, TenantShare)
    assert (400, 300) == (
        core_of_two_tenants.core.tag("c"),
        core_of_two_tenants.core.ledger.fair_share.tag_in_tenant("c"),
    )
    assert ["a1", "b1", "c1"] == granted(core_of_two_tenants.pull())


def test_arrival_of_an_application_changes_the_keys_of_its_tenant(
    core_of_two_tenants: CoreDriver,
) -> None:
    core_of_two_tenants.open("d", 60, tenant="T")
    queue = core_of_two_tenants.core.ledger.queue

    assert (160, 150) == (core_of_two_tenants.core.tag("a"), core_of_two_tenants.core.tag("b"))
    assert core_of_two_tenants.application("b") is queue.first()
    assert ["a1", "b1", "c1"] == granted(core_of_two_tenants.pull())


def test_end_of_an_application_changes_the_keys_of_its_tenant(
    core_of_two_tenants: CoreDriver,
) -> None:
    """The queue must be notified of the moved applications."""
    core_of_two_tenants.handle(ev.WeightChanged("b", 0.25))
    core_of_two_tenants.open("e", 50, tenant="V")
    core_of_two_tenants.submit("e1", "e")
    core_of_two_tenants.handle(ev.ApplicationCancelled("a"))

    assert (300, 600) == (core_of_two_tenants.core.tag("c"), core_of_two_tenants.core.tag("b"))
    assert ["e1", "c1", "b1"] == granted(core_of_two_tenants.pull())


def test_key_of_an_application_is_its_virtual_finish_time(core_of_two_tenants: CoreDriver) -> None:
    (ended,) = [
        action
        for action in core_of_two_tenants.handle(ev.ApplicationCancelled("b"))
        if hasattr(action, "virtual_finish_time")
    ]

    assert ended.virtual_finish_time == 0  # all of it refunded at V = 0


def test_moving_work_to_an_earlier_application_changes_only_keys_in_between() -> None:
    share = _open_in_tenants(
        p=("T", 10, 1), x=("T", 20, 1), y=("T", 30, 1), z=("T", 40, 1), u=("U", 50, 1)
    )
    tags = [share.tag_in_tenant(name) for name in "pxyz"]
    moved = share.watch_tenant("T")
    moved.clear()
    share.transfer("y", "x", exact(5))

    assert [10, 35, 60, 100, 50] == _policy_keys(share, *"pxyzu")
    assert tags == [share.tag_in_tenant(name) for name in "pxyz"]
    assert _backlog_and_charges(share) == (150, 150)
    assert {"x", "y"} <= set(moved)

    share.transfer("y", "x", exact(100))  # no more than is left of y

    assert [10, 60, 60, 100] == _policy_keys(share, *"pxyz")
    assert tags == [share.tag_in_tenant(name) for name in "pxyz"]


def test_no_work_is_moved_to_a_finished_application() -> None:
    share = _open_in_tenants(x=("T", 10, 1), y=("T", 30, 1), u=("U", 50, 1))
    share.deliver([("u", exact(30))])  # V = 15
    share.transfer("y", "x", exact(5))

    assert [10, 40] == _policy_keys(share, "x", "y")

    share.transfer("x", "y", exact(5))

    assert [10, 40] == _policy_keys(share, "x", "y")


def test_work_moved_between_applications_is_scaled_by_both_weights() -> None:
    share = _open_in_tenants(x=("T", 10, 2), y=("T", 30, 2), u=("U", 50, 1))
    share.transfer("y", "x", exact(6))

    assert [8, 20] == _policy_keys(share, "x", "y")


def test_unwatched_tenant_reports_no_changed_keys() -> None:
    share = _open_in_tenants(x=("T", 10, 1))
    first = share.watch_tenant("T")
    share.unwatch_tenant("T")
    share.expect("x", exact(50))

    assert {"x": None} == first
    assert {} == share.watch_tenant("of nobody")
