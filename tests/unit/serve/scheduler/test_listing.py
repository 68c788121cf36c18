"""Listings of applications: a caller's own in full, those of other tenants as counts."""

import json

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.serve.scheduler.leadership import held_by
from justitia_ray.serve.scheduler.listing import (
    MOST_ASKED,
    application_with_outlook,
    json_outlooks,
    listing,
)
from tests.core_driver import PATIENT, CoreDriver


@pytest.fixture
def driver() -> CoreDriver:
    """Return a core with two tenants; `two` runs one inference, and each has one waiting."""
    driver = CoreDriver(SchedulerCore(timeouts=PATIENT))
    for name, tenant in (("two|runs", "two"), ("one|waits", "one"), ("two|secret", "two")):
        driver.open(name, 155, tenant=tenant)
        driver.submit(f"of {name}", name)
        driver.pull(kv=25)
    return driver


def test_tenants_list_has_its_own_applications_and_counts_others(driver: CoreDriver) -> None:
    """A caller may learn how many applications are ahead, but not their names."""
    told = listing(driver.core, driver.now, 10, "one")

    assert ["one|waits"] == [view["application_id"] for view in told["applications"]]
    assert "headroom" == told["applications"][0]["outlook"]["reason"]
    assert {"applications": 1, "waiting": 1, "running": 0} == told["own"]
    assert {"applications": 2, "waiting": 1, "running": 1} == told["others"]
    assert "two" not in json.dumps(told)


def test_tenant_sees_the_applications_of_its_descendants(driver: CoreDriver) -> None:
    """Tenants are compared by whole components of their paths."""
    driver.open("one/a|b", 155, tenant="one/a")
    driver.open("one1|b", 155, tenant="one1")
    seen = [
        {view["application_id"] for view in listing(driver.core, driver.now, 10, t)["applications"]}
        for t in ("one", "one/a")
    ]

    assert [{"one|waits", "one/a|b"}, {"one/a|b"}] == seen


def test_operators_list_has_all_applications_in_queue_order(driver: CoreDriver) -> None:
    """Waiting applications come first, in grant order, then those that only run."""
    told = listing(driver.core, driver.now, 2)

    assert ["one|waits", "two|secret"] == [v["application_id"] for v in told["applications"]]
    assert (3, 0) == (told["own"]["applications"], told["others"]["applications"])


def test_expected_start_does_not_reveal_names_of_other_applications(driver: CoreDriver) -> None:
    """Owners of applications read the expected start by the command `justitia why`."""
    application = driver.application("one|waits")
    told = application_with_outlook(driver.core, application, driver.now)

    assert "one|waits" == told["application_id"]
    assert 0 == told["outlook"]["position"]
    assert "two" not in json.dumps(told)


def test_number_of_queue_positions_in_a_request_is_bounded(driver: CoreDriver) -> None:
    """An ingress with thousands of waiting streams must not delay the scheduler."""
    names = [f"gone {number}" for number in range(MOST_ASKED)]

    assert {"one|waits"} == json_outlooks(driver.core, [*names[1:], "one|waits"], driver.now).keys()
    assert {} == json_outlooks(driver.core, [*names, "one|waits"], driver.now)


def test_application_that_is_not_stored_waits_for_the_store(driver: CoreDriver) -> None:
    """With strict durability, no inference is granted before Redis has stored its application."""
    driver.core.outlooks.held_by = held_by(["one|waits"], lambda name: None)

    assert "store" == json_outlooks(driver.core, ["one|waits"], driver.now)["one|waits"]["reason"]
    assert "turn" == json_outlooks(driver.core, ["two|secret"], driver.now)["two|secret"]["reason"]


def test_waiting_reason_names_the_tenant_with_the_exceeded_quota(driver: CoreDriver) -> None:
    """The operator must know which tenant in the tree has the quota."""
    driver.core.outlooks.held_by = held_by([], {"one|waits": "acme/search"}.get)

    told = json_outlooks(driver.core, ["one|waits"], driver.now)
    assert "quota:acme/search" == told["one|waits"]["reason"]
    assert "turn" == json_outlooks(driver.core, ["two|secret"], driver.now)["two|secret"]["reason"]
