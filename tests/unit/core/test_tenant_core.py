"""The core with `fairness: tenant`: the queue is in step with keys that others move."""

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.tenant_share import TenantShare
from tests.core_driver import CoreDriver, granted


@pytest.fixture
def tenants() -> CoreDriver:
    """Return a core in which T has a (100) and c (300), U has b (150); all wait.

    Keys are 100 (a), 150 (b), 400 (c).
    """
    driver = CoreDriver(SchedulerCore("justitia", {"fairness": "tenant"}))
    for name, cost, tenant in (("c", 300, "T"), ("a", 100, "T"), ("b", 150, "U")):
        driver.open(name, cost, tenant=tenant)
        driver.submit(f"{name}1", name)
    return driver


def test_tenants_take_turns_by_key_and_their_applications_by_tag(tenants: CoreDriver) -> None:
    """Between applications c would come at 300; T has been given its share with a."""
    assert isinstance(tenants.core.order.fair_share, TenantShare)
    assert (400, 300) == (
        tenants.core.tag("c"),
        tenants.core.order.fair_share.tag_in_tenant("c"),
    )
    assert ["a1", "b1", "c1"] == granted(tenants.pull())


def test_arrival_that_submits_nothing_yet_moves_the_others_of_its_tenant(
    tenants: CoreDriver,
) -> None:
    """Nothing of d waits, but its charge of 60 puts a behind b: 160 against 150.

    At the next report d is withdrawn, and a comes first again.
    """
    tenants.open("d", 60, tenant="T")
    queue = tenants.core.order.queue

    assert (160, 150) == (tenants.core.tag("a"), tenants.core.tag("b"))
    assert tenants.application("b") is queue.first()
    assert ["a1", "b1", "c1"] == granted(tenants.pull())


def test_end_of_an_application_moves_the_others_of_its_tenant(tenants: CoreDriver) -> None:
    """Without a, c is at 300; b, with a new weight, at 500: the queue hears of both."""
    tenants.handle(ev.WeightChanged("b", 0.25))
    tenants.open("e", 50, tenant="V")
    tenants.submit("e1", "e")
    tenants.handle(ev.ApplicationCancelled("a"))

    assert (300, 600) == (tenants.core.tag("c"), tenants.core.tag("b"))
    assert ["e1", "c1", "b1"] == granted(tenants.pull())


def test_application_tells_its_key_as_its_virtual_finish_time(tenants: CoreDriver) -> None:
    """It is what is compared between tenants, and what the lag is measured from."""
    (ended,) = [
        action
        for action in tenants.handle(ev.ApplicationCancelled("b"))
        if hasattr(action, "virtual_finish_time")
    ]

    assert ended.virtual_finish_time == 0  # all of it refunded at V = 0
