"""Shortest first between applications: those that are set aside for a while."""

import pytest

from justitia_ray.core import SchedulerCore
from justitia_ray.core import events as ev
from justitia_ray.core.invariants import check
from justitia_ray.core.policies.guarded.slack import Slack
from tests.core_driver import CoreDriver


@pytest.fixture
def driver_with_three_waiting() -> CoreDriver:
    """Return a core in which application `held` runs, and `a`, `b` and `c` fit on no replica.

    The tag of `c` is the latest, 3,085, as GPS has served 555 for three when it arrives. It is
    shorter than `b`.
    """
    driver = CoreDriver(SchedulerCore("justitia", {"order": "sgps", "backfill": 8}))
    driver.pull(kv=100)
    for name, cost in (("held", 100_000), ("a", 2000), ("b", 3000), ("c", 2900)):
        driver.open(name, cost)
        driver.submit(name, name, prompt=50, output=20)
        if name == "b":
            driver.pull(progress={driver.lease_of("held"): 10}, kv=100)
    driver.pull(progress={driver.lease_of("held"): 10}, kv=100)
    return driver


def _waiting_in_order(driver: CoreDriver) -> list[str]:
    queue = driver.core.ledger.queue
    first, names = queue.first(), [one.application_id for one in queue.in_order()]
    assert first is not None
    assert names[0] == first.application_id
    return names


def test_skipping_applications_that_fit_no_replica_changes_no_slack(
    driver_with_three_waiting: CoreDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    put: list[str] = []
    monkeypatch.setattr(Slack, "put", lambda slack, name, *_, **__: put.append(name))
    driver_with_three_waiting.pull(
        progress={driver_with_three_waiting.lease_of("held"): 10}, kv=100
    )

    assert not put


def test_skipped_application_leaves_the_waiting_order_until_its_update(
    driver_with_three_waiting: CoreDriver,
) -> None:
    queue, applications = (
        driver_with_three_waiting.core.ledger.queue,
        driver_with_three_waiting.core.state.applications,
    )
    orders = [_waiting_in_order(driver_with_three_waiting)]
    for name in ("a", "c"):
        queue.unschedule(applications[name])
        orders.append(_waiting_in_order(driver_with_three_waiting))
    for name in ("c", "a"):
        queue.touch(applications[name])
        orders.append(_waiting_in_order(driver_with_three_waiting))

    assert ["acb", "cb", "b", "cb", "acb"] == ["".join(names) for names in orders]


def test_application_without_inferences_returns_with_its_next_submission(
    driver_with_three_waiting: CoreDriver,
) -> None:
    queue, applications = (
        driver_with_three_waiting.core.ledger.queue,
        driver_with_three_waiting.core.state.applications,
    )
    queue.unschedule(applications["a"])
    before = _waiting_in_order(driver_with_three_waiting)
    driver_with_three_waiting.handle(ev.InferenceCancelled("a"))

    assert (["c", "b"], ["c", "b"]) == (before, _waiting_in_order(driver_with_three_waiting))

    driver_with_three_waiting.submit("a again", "a", prompt=50, output=20)

    assert ["a", "c", "b"] == _waiting_in_order(driver_with_three_waiting)
    check(driver_with_three_waiting.core)
