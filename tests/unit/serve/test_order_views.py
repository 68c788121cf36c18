"""What a scheduler tells people: who is next and why, and how far behind each application is."""

from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from justitia_ray.config import parse_app_config
from justitia_ray.core import SchedulerCore, Timeouts
from justitia_ray.core.entities import Application
from justitia_ray.errors import StoreError
from justitia_ray.serve.order_views import first_applications, head_view
from justitia_ray.serve.scheduler_views import core_view, store_view
from justitia_ray.serve.state_keeper import StateKeeper
from justitia_ray.store.no_store import NoStore
from tests.core_driver import CoreDriver

_PATIENT = Timeouts(1e9, 1e9, 1e9, 1e9, 1e9)


@pytest.fixture
def core() -> CoreDriver:
    """A giant that runs on the only seat, a mouse that waits for it, and one that is idle.

    The giant's first token (40: 39 of prompt and itself) takes V to 40, where the mouse comes with
    a cost of 2. The next nine, 41 + … + 49 = 405, are served 9 s later: GPS gives each of the two 2
    of them, and the giant the rest, which takes V to 42 + 401 = 443. There the idle one comes.
    """
    driver = CoreDriver(SchedulerCore(timeouts=_PATIENT))
    driver.open("giant", 931, tenant="big")
    driver.submit("g", "giant", prompt=39, output=19)
    driver.pull(kv=58, seats=1)
    driver.now += 1
    driver.pull(kv=58, seats=1, progress={"1": 1})
    driver.open("mouse", 2, tenant="small")
    driver.submit("m", "mouse", prompt=1, output=1)
    driver.now += 9
    driver.pull(kv=58, seats=1, progress={"1": 10})
    driver.open("idle", 7)
    return driver


def test_head_says_who_is_next_and_why(core: CoreDriver) -> None:
    """F is V at the mouse's arrival and its cost, 40 + 2; it waits since, for the giant's seat."""
    head = head_view(core.core, core.now)

    assert head is not None
    assert ("mouse", "class", "small") == (
        head["application_id"],
        head["application_class"],
        head["tenant"],
    )
    assert (42, [42, core.application("mouse").sequence]) == (
        head["virtual_finish_time"],
        head["key"],
    )
    assert (1, 1, 9.0, "room") == (
        head["prompt_tokens"],
        head["predicted_output_tokens"],
        head["waited_s"],
        head["waits_for"],
    )


def test_applications_come_in_order_with_their_tags_and_lags(core: CoreDriver) -> None:
    """What waits, what runs, the rest; the mouse is late by all that was served since V was 40."""
    mouse, giant, idle = first_applications(core.core, core.now, 10)

    assert [("mouse", 42), ("giant", 931), ("idle", 450)] == [
        (seen["application_id"], seen["virtual_finish_time"]) for seen in (mouse, giant, idle)
    ]
    assert (405, 9.0, 931 + 405) == (
        mouse["gps_lag"]["kv_token_time"],
        mouse["gps_lag"]["seconds"],
        mouse["gps_lag"]["bound_kv_token_time"],
    )
    assert [(1, 0), (0, 1), (0, 0)] == [
        (seen["waiting"], seen["running"]) for seen in (mouse, giant, idle)
    ]


@pytest.mark.parametrize("most", [0, 1, 2])
def test_no_more_applications_are_told_of_than_asked_for(core: CoreDriver, most: int) -> None:
    """With 50,000 of them the answer, and the time that it takes, has to have an end."""
    names = [seen["application_id"] for seen in first_applications(core.core, core.now, most)]

    assert ["mouse", "giant", "idle"][:most] == names


class _NotWalked(dict[str, Application]):
    """Live applications, of which there may be 50,000."""

    def __iter__(self) -> Iterator[str]:
        return map(_fail, ("the first",))

    def values(self) -> Any:
        """Return what fails when it is walked over."""
        return iter(self)


def _fail(name: str) -> NoReturn:
    raise AssertionError(f"walked over: {name}")


def test_nothing_is_walked_over_that_is_not_shown() -> None:
    """Readiness probes ask for this all the time: with 50,000 applications a walk took 22 ms."""
    driver = CoreDriver()
    for name in "abc":
        driver.open(name)
        driver.submit(name, name)
    driver.core.state.applications = _NotWalked(driver.core.state.applications)
    core_view(driver.core, driver.now)
    head_view(driver.core, driver.now)
    told = first_applications(driver.core, driver.now, 3)

    assert ["a", "b", "c"] == [seen["application_id"] for seen in told]
    with pytest.raises(AssertionError, match="walked over"):
        first_applications(driver.core, driver.now, 4)


def test_applications_of_tenants_are_merged_by_their_keys() -> None:
    """With fairness between tenants a tenant's second one may come before another's first."""
    driver = CoreDriver(SchedulerCore("justitia", {"fairness": "tenant"}, timeouts=_PATIENT))
    for name, cost, tenant in (("a", 10, "t"), ("b", 20, "t"), ("c", 1_000, "u"), ("d", 30, "t")):
        driver.open(name, cost, tenant=tenant)
        driver.submit(name, name)
    tags = {name: driver.core.tag(name) for name in "abcd"}
    names = [seen["application_id"] for seen in first_applications(driver.core, driver.now, 10)]

    assert ["a", "b", "d", "c"] == names == sorted(tags, key=tags.__getitem__)


def test_order_told_is_the_order_granted() -> None:
    """Under a policy of other keys, too: whoever reads it plans by it."""
    driver = CoreDriver(SchedulerCore("sjf", timeouts=_PATIENT))
    for name, output in (("a", 30), ("b", 5), ("c", 17), ("d", 8)):
        driver.open(name)
        driver.submit(name, name, output=output)
    told = [seen["application_id"] for seen in first_applications(driver.core, driver.now, 10)]
    driver.pull()
    leases = driver.core.state.leases.values()

    assert ["b", "d", "c", "a"] == told == [lease.request_id for lease in leases]


def test_nothing_waits_has_no_head() -> None:
    """Then nobody is next."""
    driver = CoreDriver()
    driver.open("a")

    assert head_view(driver.core, driver.now) is None


def test_head_without_a_replica_waits_for_one() -> None:
    """Engines that load for minutes are nothing that the order could change."""
    driver = CoreDriver()
    driver.open()
    driver.submit("x")
    before = head_view(driver.core, driver.now)
    driver.pull(draining=True)
    draining = head_view(driver.core, driver.now)

    assert before is not None
    assert draining is not None
    assert ("replica", "replica") == (before["waits_for"], draining["waits_for"])


def test_head_waits_for_reports_after_a_restart() -> None:
    """What ran under the scheduler before may still run, and holds the room."""
    driver = CoreDriver()
    driver.core.recover(["r0"], driver.now)
    driver.open()
    driver.submit("x")
    head = head_view(driver.core, driver.now)

    assert head is not None
    assert "recovery" == head["waits_for"]


def test_policy_that_holds_back_says_for_how_long() -> None:
    """At 100 s a client that has had its one request of [60, 120) goes on in 20 s."""
    driver = CoreDriver(SchedulerCore("rpm", {"requests_per_minute": 1}))
    driver.open()
    driver.submit("x")
    driver.submit("y")
    driver.pull()
    view = core_view(driver.core, driver.now)
    told = first_applications(driver.core, driver.now, 10)

    assert head_view(driver.core, driver.now) is None
    assert (1, 20.0) == (view["waiting"], view["held_back_s"])
    assert ["a"] == [seen["application_id"] for seen in told]


def test_replicas_tell_what_they_hold_and_run(core: CoreDriver) -> None:
    """KV by the replica's own gauge, beside what is leased to it by the scheduler."""
    view = core_view(core.core, core.now, {"r0": 49}.get)

    assert (1, 1, 0) == (view["waiting"], view["in_flight"], view["kept_out"])
    assert {
        "r0": {
            "kv_tokens": 58,
            "used_kv_tokens": 49,
            "leases": 1,
            "running": 1,
            "sequences": 1,
            "max_num_seqs": 1,
            "draining": False,
            "silent_s": 0.0,
        }
    } == view["replicas"]


def test_lease_whose_payload_has_not_come_does_not_run() -> None:
    """A replica with leases and nothing that runs waits for an ingress."""
    driver = CoreDriver()
    driver.open()
    driver.submit("x")
    driver.pull()
    replica = core_view(driver.core, driver.now)["replicas"]["r0"]

    assert (1, 0, None) == (replica["leases"], replica["running"], replica["used_kv_tokens"])


class _Store(NoStore):
    """Redis that may be away."""

    away = False

    async def save(self, *changes: object) -> bool:
        if self.away:
            raise StoreError("Redis: gone")
        return True


async def test_store_tells_what_is_not_saved_yet() -> None:
    """What a machine that dies now would take with it."""
    config = parse_app_config({"model": {"name": "m", "path": "none"}})
    driver, store = CoreDriver(), _Store()
    keeper = StateKeeper(store, None)
    driver.open("a")
    before = store_view(config, keeper, driver.core)
    await keeper.save(driver.core, 1, {})
    saved = store_view(config, keeper, driver.core)
    store.away = True
    driver.open("b")
    await keeper.save(driver.core, 1, {})
    driver.open("c")
    away = store_view(config, keeper, driver.core)

    assert (True, None, 1) == (
        before["connected"],
        before["saved_s_ago"],
        before["unsaved_applications"],
    )
    assert ("embedded", "batched", 0) == (
        saved["kind"],
        saved["durability"],
        saved["unsaved_applications"],
    )
    assert 0 <= saved["saved_s_ago"] <= away["saved_s_ago"] < 60
    assert (False, "Redis: gone", 2) == (
        away["connected"],
        away["trouble"],
        away["unsaved_applications"],
    )


class _Unsaved(dict[str, None]):
    """What failed saves have left: as many as there are applications, when Redis is away."""

    def __iter__(self) -> NoReturn:
        _fail("unsaved")


async def test_what_failed_saves_have_left_is_not_walked_over() -> None:
    """Readiness probes ask most often when something is wrong. b is in it and has changed again."""
    config = parse_app_config({"model": {"name": "m", "path": "none"}})
    driver, keeper = CoreDriver(), StateKeeper(NoStore(), None)
    keeper._unsaved = _Unsaved.fromkeys("xyb")
    for name in "abc":
        driver.open(name)

    assert 5 == store_view(config, keeper, driver.core)["unsaved_applications"]


async def test_without_a_store_nothing_is_late() -> None:
    """Saves that go nowhere must not look like saves."""
    config = parse_app_config(
        {"model": {"name": "m", "path": "none"}, "store": {"durability": "none"}}
    )
    keeper, driver = StateKeeper(NoStore(), None), CoreDriver()
    await keeper.save(driver.core, 1, {})
    told = store_view(config, keeper, driver.core)

    assert {"kind": "none", "durability": "none"} == {
        name: value for name, value in told.items() if value is not None
    }
