"""State that survives the scheduler, through JSON and back."""

import json
from typing import Any

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.actions import Grant
from justitia_ray.core.policies import Durable, policy_path
from justitia_ray.core.policies.guarded.foretold import ForetoldVtc
from justitia_ray.core.policies.guarded.passing import TenantOrder
from justitia_ray.core.snapshot import application_record, clock_record, restore, snapshot
from justitia_ray.errors import StoreError
from tests.core_driver import CoreDriver, ended, granted

NOMINAL = {"clock": "nominal", "nominal_iteration_s": 0.5}
TENANTS: dict[str, object] = {"fairness": "tenant"}
GUARD: dict[str, object] = {"order": "sgps", "guard_iterations": 300}


def _create_filled_core(**options: object) -> CoreDriver:
    """Return a core with a running, a waiting and an idle application, and one ended early."""
    driver = CoreDriver(SchedulerCore("justitia", options, lease_prefix="1-"))
    for number, (name, cost) in enumerate((("d", 155), ("a", 300), ("c", 200), ("b", 900))):
        driver.open(name, cost, weight=1 + number / 3, tenant="one" if name in "ad" else "two")
        driver.submit(f"{name}1", name)
    driver.handle(ev.ApplicationClosed("d"))
    driver.pull()
    driver.pull(progress={"1-1": 9, "1-2": 9, "1-3": 7, "1-4": 0})
    driver.pull(progress={"1-3": 8, "1-4": 0}, finished={"1-1": 10, "1-2": 10})
    return driver


def _restore_from_snapshot(driver: CoreDriver, **options: object) -> CoreDriver:
    """Return a core restored from another core's snapshot through JSON."""
    successor = CoreDriver(driver.core, driver.now)
    successor.hand_over(SchedulerCore("justitia", options, lease_prefix="2-"))
    return successor


@pytest.mark.parametrize("options", [{}, NOMINAL, GUARD])
def test_snapshot_has_the_clock_and_live_and_ended_applications(options: dict[str, object]) -> None:
    """The virtual-time session of an ended application (a ghost) has a tag and no account."""
    driver = _create_filled_core(**options)
    record = driver.record()
    successor = _restore_from_snapshot(driver, **options)

    assert sorted(record["applications"]) == ["a", "b", "c", "d"]
    assert {"finish", "weight", "sequence"} == set(record["applications"]["d"])
    assert record == successor.record()


def test_overtaking_guard_continues_from_its_stored_state() -> None:
    driver = _create_filled_core(**GUARD)
    record = driver.record()

    assert record["clock"]["counted"]["owed"] > 0
    assert {"a", "b"} <= {n for n, kept in record["applications"].items() if "counted" in kept}
    damages: tuple[object, ...] = ({"shadow": {}}, 3)
    for damaged in damages:
        record["applications"]["a"]["counted"] = damaged
        core = SchedulerCore("justitia", GUARD, lease_prefix="2-")
        core.recover([], driver.now)
        with pytest.raises(StoreError, match=r"applications\[a\]: the stored record is damaged"):
            restore(core, record["clock"], record["applications"])


def test_overtaking_guard_includes_inferences_leased_before_a_restart() -> None:
    driver = CoreDriver(SchedulerCore("justitia", GUARD, lease_prefix="1-"))
    driver.open("a", 300)
    driver.submit("a1", "a")
    driver.pull()
    successor = _restore_from_snapshot(driver, **GUARD)
    successor.submit("a1", "a", resubmitted=True, lease_id="1-1")
    successor.pull(progress={"1-1": 3})
    stages = []
    for core in (driver.core, successor.core):
        assert isinstance(core.ledger.policy, Durable)
        stages.append(core.ledger.policy.application_state("a"))

    assert stages[0] is not None
    assert stages[1] is not None
    assert stages[0]["shadow"]["stages"] == stages[1]["shadow"]["stages"]


@pytest.mark.parametrize("options", [{}, NOMINAL, TENANTS, GUARD, TENANTS | GUARD])
def test_restored_core_grants_in_the_same_order(options: dict[str, object]) -> None:
    orders = []
    for restarted in (False, True):
        driver = _create_filled_core(**options)
        driver.handle(ev.PullAnswered("r0"))
        for lease in ("1-3", "1-4"):
            driver.handle(ev.LeaseNacked(lease, ev.NackReason.CONNECTION))
        if restarted:
            driver = _restore_from_snapshot(driver, **options)
            for name in ("a", "b"):
                driver.submit(f"{name}1", name, resubmitted=True)
        driver.open("e", 250)
        for name in ("b", "e", "c", "a"):
            driver.submit(f"{name}2", name)
        orders.append(granted(driver.pull("r1")))

    assert orders[0] == orders[1]
    assert sorted(["a1", "a2", "b1", "b2", "c2", "e2"]) == sorted(orders[0])


def _core_with_booked_start(options: dict[str, object]) -> CoreDriver:
    """Return a core that has charged a tenant for an overtaking inference not yet started.

    x wants 20 inferences of 155, y 21 of 155, v and w 25 of 155: GPS inside is done with x before
    y, which is urgent. One booking puts x's key, 3,100, at 3,255.
    """
    driver = CoreDriver(SchedulerCore("justitia", options, lease_prefix="1-"))
    for name, tenant, count in (("x", "T", 20), ("y", "T", 21), ("v", "U", 25)):
        driver.open(name, 155 * count, tenant=tenant)
        for number in range(count):
            driver.submit(f"{name}{number}", name)
    return driver


def test_overtaking_is_charged_once_over_a_scheduler_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = TENANTS | {"guard_iterations": 1000}
    monkeypatch.setattr(
        ForetoldVtc,
        "urgent",
        lambda shadow, now, waits: [n for n in ("y",) if n in shadow.clock.shadows],
    )
    driver = _core_with_booked_start(options)
    driver.pull(kv=20, seats=2)
    order = driver.core.ledger.policy.members_order("T")
    successor = _restore_from_snapshot(driver, **options)
    restored = successor.core.ledger.policy.members_order("T")

    assert isinstance(order, TenantOrder)
    assert isinstance(restored, TenantOrder)
    assert ["y0", "y1"] == order.booked("y") == restored.booked("y")
    assert 3100 + 2 * 155 == driver.core.tag("x") == successor.core.tag("x")
    assert 155 * 41 == driver.core.tag("y") == successor.core.tag("y")
    assert driver.record() == successor.record()


def test_tenants_have_the_same_keys_after_a_restart() -> None:
    driver = _create_filled_core(**TENANTS)
    successor = _restore_from_snapshot(driver, **TENANTS)
    shares = [d.core.ledger.fair_share for d in (driver, successor)]

    assert driver.record() == successor.record()
    assert [2, 2] == [len(share.clock.sessions()) for share in shares]
    for name in "abc":
        ours, theirs = ((s.tag(name), s.tag_in_tenant(name)) for s in shares)
        assert ours == theirs
    for core in (driver.core, successor.core):
        core.handle(ev.ApplicationCancelled("a"), driver.now)
        core.handle(ev.ApplicationArrived("d", "class", "two", 1, 70, "i0"), driver.now)
    assert shares[0].tag("d") == shares[1].tag("d")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, TENANTS),
        (TENANTS, {}),
        (NOMINAL, TENANTS),
        (TENANTS, NOMINAL),
        ({}, NOMINAL),
        (NOMINAL, {}),
    ],
)
def test_charges_are_restored_under_another_clock_or_fairness_unit(
    before: dict[str, object], after: dict[str, object]
) -> None:
    """Tags of another kind of accounts are meaningless."""
    driver = _create_filled_core(**before)
    driver.core.take_changed()
    successor = _restore_from_snapshot(driver, **after)
    share = successor.core.ledger.fair_share

    assert driver.core.ledger.fair_share.clock.virtual_time == share.clock.virtual_time
    assert {"a", "b", "c"} == set(share.sessions())
    assert {"a", "b", "c", "d"} == set(successor.core.take_changed())
    for name in "abc":
        left = successor.account(name).charged - successor.account(name).attained
        assert left == driver.account(name).charged - driver.account(name).attained


@pytest.mark.parametrize("name", ["weight", "since", "virtual_time", "released", "finish"])
def test_error_of_a_damaged_tenant_names_its_application_record(name: str) -> None:
    record = snapshot(_create_filled_core(**TENANTS).core)
    (carrier,) = [
        n
        for n, r in record["applications"].items()
        if r.get("carries", {}) and r["tenant"] == "two"
    ]
    record["applications"][carrier]["carries"][name] = "soon"
    core = SchedulerCore("justitia", TENANTS)
    with pytest.raises(StoreError, match=rf"^applications\[{carrier}\]: .* damaged.*{name}"):
        restore(core, record["clock"], record["applications"])


def test_removed_application_has_no_record() -> None:
    driver = _create_filled_core()

    assert None is application_record(driver.core, "nobody")


@pytest.mark.parametrize("options", [{}, TENANTS])
def test_changed_application_stays_stored_until_gps_has_finished_it(
    options: dict[str, object],
) -> None:
    """After the changes are saved, the store must equal a full snapshot."""
    driver = _create_filled_core(**options)
    stored: dict[str, Any] = {}

    def save_changes() -> None:
        for name in driver.core.take_changed():
            record = application_record(driver.core, name)
            stored.pop(name, None)
            if record is not None:
                stored[name] = json.loads(json.dumps(record))

        assert driver.record()["applications"] == stored

    save_changes()
    driver.open("f", 40, weight=2)
    save_changes()
    driver.pull(progress={"1-3": 9, "1-4": 1})
    save_changes()
    driver.submit("f1", "f")
    save_changes()
    driver.handle(ev.WeightChanged("b", 3))
    save_changes()
    driver.handle(ev.InferenceCancelled("f1"))
    save_changes()
    driver.pull(progress={"1-3": 9, "1-4": 5})
    save_changes()
    driver.handle(ev.ApplicationCancelled("a"))
    driver.handle(ev.ApplicationClosed("f"))
    save_changes()
    driver.pull(progress={"1-4": 9})
    save_changes()
    driver.open("b", 900, ingress_id="i1")
    save_changes()
    driver.handle(ev.PolicyChanged("fcfs", (("clock", "nominal"),)))
    save_changes()


def test_empty_store_restores_an_empty_core() -> None:
    core = SchedulerCore()
    restore(core, None, {})

    assert clock_record(core) == {
        "virtual_time": 0,
        "kind": "served",
        "sequence": 0,
        "grants": 0,
        "policy": "justitia",
        "counted": {},
    }


def test_restored_core_continues_the_stored_sequence_numbers() -> None:
    """Ties go to the earlier arrival, so numbers must not repeat after a restart."""
    driver = _create_filled_core()
    highest = driver.core.state.sequence
    successor = _restore_from_snapshot(driver)
    successor.open("new", 1)

    assert highest + 1 == successor.application("new").sequence


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("finish", "soon"),
        ("finish", float("nan")),
        ("weight", 0),
        ("weight", -1.5),
        ("weight", None),
        ("sequence", 1.5),
        ("sequence", True),
        ("state", "asleep"),
        ("charged", "much"),
        ("charged", float("inf")),
        ("withdrawn", 1),
        ("tenant", 7),
        ("first_dispatched_at", "once"),
        ("unfinished_kv_token_time", []),
        ("recognized_by", 7),
        ("idle_s", 0),
        ("idle_s", None),
    ],
)
def test_error_of_a_damaged_application_record_names_the_application(
    name: str, value: object
) -> None:
    record = snapshot(_create_filled_core().core)
    record["applications"]["b"][name] = value
    with pytest.raises(StoreError, match=r"^applications\[b\]: .* damaged") as caught:
        restore(SchedulerCore(), record["clock"], record["applications"])

    assert repr(value) in str(caught.value) or "asleep" in str(caught.value)


@pytest.mark.parametrize("name", ["finish", "weight", "charged", "arrived_at", "sequence"])
def test_error_of_a_missing_field_names_the_application_record(name: str) -> None:
    record = snapshot(_create_filled_core().core)
    del record["applications"]["b"][name]
    with pytest.raises(StoreError, match=rf"^applications\[b\]: .* damaged.*{name}"):
        restore(SchedulerCore(), record["clock"], record["applications"])


@pytest.mark.parametrize("damaged", [None, 7, "text", []])
def test_error_of_a_record_that_is_no_object_names_the_record(damaged: Any) -> None:
    record = snapshot(_create_filled_core().core)
    with pytest.raises(StoreError, match=r"^applications\[b\]: "):
        restore(SchedulerCore(), record["clock"], {"b": damaged})


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"virtual_time": 1.0, "kind": "served"},
        {"virtual_time": "1", "kind": "served", "sequence": 1},
        {"virtual_time": 1.0, "kind": None, "sequence": 1},
        {"virtual_time": 1.0, "kind": "served", "sequence": "1"},
    ],
)
def test_error_of_a_damaged_clock_names_the_field(damaged: dict[str, Any]) -> None:
    """Without virtual time no tag is defined, so the scheduler must not start."""
    with pytest.raises(StoreError, match=r"^clock: the stored record is damaged"):
        restore(SchedulerCore(), damaged, {})


def test_recognition_rule_and_idle_limit_survive_a_scheduler_restart() -> None:
    """A restored application ends by its own idle limit, counted from the restart."""
    driver = CoreDriver()
    driver.open("a", recognized_by="conversation", idle_s=40.0)
    successor = _restore_from_snapshot(driver)
    application = successor.application("a")

    assert ("conversation", 40.0) == (application.recognized_by, application.idle_s)
    assert [] == ended(successor.wait(39.0))
    assert [("a", "expired")] == ended(successor.wait(1.0))


def test_application_without_idle_limit_has_the_record_format_of_earlier_releases() -> None:
    """Earlier releases wrote and read records without a rule and with the common idle limit."""
    driver = CoreDriver()
    driver.open("a")
    successor = _restore_from_snapshot(driver)
    application = successor.application("a")

    assert not {"recognized_by", "idle_s"} & driver.record()["applications"]["a"].keys()
    assert ("", None) == (application.recognized_by, application.idle_s)
    assert [("a", "expired")] == ended(successor.wait(600.0))


def test_last_replica_of_an_application_survives_a_scheduler_restart() -> None:
    """Prefixes of the application are still in that replica's cache."""
    driver = _create_filled_core()
    assert ["r0"] == list(_restore_from_snapshot(driver).application("c").replicas)


def test_engine_priority_of_grants_after_a_restart_is_below_earlier_grants() -> None:
    """Leases of the old scheduler still run, at the priority of their grant."""
    driver = CoreDriver(SchedulerCore("fcfs", lease_prefix="1-"))
    driver.open("a")
    driver.submit("a1")
    driver.submit("a2")
    (last,) = driver.pull()[-1:]
    driver.hand_over(SchedulerCore("fcfs", lease_prefix="2-"))
    driver.submit("a3")
    (grant,) = driver.pull("r1")

    assert isinstance(last, Grant)
    assert isinstance(grant, Grant)
    assert (2, 3) == (last.priority, grant.priority)


def test_counters_of_another_policy_are_not_restored() -> None:
    """After a restart under another policy the accounts continue, but not the counters."""
    old = CoreDriver(SchedulerCore("vtc"))
    old.open("a", 50)
    old.submit("a1")
    old.pull()
    counted, tag = old.record()["clock"]["counted"], old.core.tag("a")
    old.hand_over(SchedulerCore(policy_path("plas")))

    fresh = clock_record(SchedulerCore(policy_path("plas")))["counted"]
    assert counted != fresh
    assert fresh == old.record()["clock"]["counted"]
    assert tag == old.core.tag("a")
