"""The scheduler's status: order of applications, its reasons, tags and lags."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from justitia_ray.config import AppConfig
from justitia_ray.core import SchedulerCore, Timeouts
from justitia_ray.core.policies import policy_path
from justitia_ray.protocol.status import HeadView, ReplicaView, StoreView, WorkingSetView
from justitia_ray.serve.scheduler.status import (
    core_view,
    first_applications,
    head_view,
    store_view,
    working_set_view,
)
from justitia_ray.store.scheduler_store import NoStore
from tests.core_driver import CoreDriver
from tests.fake_redis import AWAY, FakeSchedulerStore
from tests.unit.serve.scheduler.services import CheckpointedCore

_CONFIG = AppConfig.parse({"model": {"name": "m", "path": "none"}})
_PATIENT = Timeouts(1e9, 1e9, 1e9, 1e9, 1e9)


@pytest.fixture
def core() -> CoreDriver:
    """Return a core of one seat with a running, a waiting and an idle application.

    The giant's first token (40: 39 of prompt and itself) takes V to 40, where the mouse arrives
    with a cost of 2. The next nine, 41 + … + 49 = 405, are served 9 s later: GPS gives each
    application 2 of them and the giant the remaining 401, which takes V to 42 + 401 = 443. Then the
    idle one arrives.
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


def first_names(driver: CoreDriver, most: int = 10) -> list[str]:
    told = first_applications(driver.core, driver.now, most)
    return [application.application_id for application in told]


def test_status_names_the_next_application_and_its_waiting_reason(core: CoreDriver) -> None:
    """The virtual finish time is 42: the cost of 40 + 2, charged on arrival at time 0."""
    assert (
        HeadView(
            application_id="mouse",
            application_class="class",
            tenant="small",
            client="mouse",
            key=(42, core.application("mouse").sequence),
            virtual_finish_time=42,
            prompt_tokens=1,
            predicted_output_tokens=1,
            waited_s=9.0,
            waits_for="room",
        )
        == head_view(core.core, core.now)
        == core_view(core.core, core.now).head
    )


def test_applications_are_listed_in_order_with_their_tags_and_lags(core: CoreDriver) -> None:
    """Waiting applications come first, then running ones, then the rest.

    It starts after what is left of the giant, 931 − 445, and of itself at the latest.
    """
    mouse, giant, idle = first_applications(core.core, core.now, 10)

    assert [("mouse", 42, 1, 0), ("giant", 931, 0, 1), ("idle", 450, 0, 0)] == [
        (seen.application_id, seen.virtual_finish_time, seen.waiting, seen.running)
        for seen in (mouse, giant, idle)
    ]
    lag = mouse.gps_lag
    assert lag is not None
    assert (405, 9.0, 405 + 486 + 2) == (lag.kv_token_time, lag.seconds, lag.bound_kv_token_time)
    assert ["mouse", "giant"] == first_names(core, 2)


def test_application_is_shown_with_its_recognition_rule() -> None:
    """Applications of older records have no rule, shown as an empty text."""
    driver = CoreDriver()
    driver.open("a", recognized_by="metadata")
    driver.open("b")
    told = first_applications(driver.core, driver.now, 2)

    assert ["metadata", ""] == [application.recognized_by for application in told]


class _FailsWhenIterated(dict[str, Any]):
    """Dictionary of live applications that fails when iterated."""

    def __iter__(self) -> Iterator[str]:
        return map(_fail_iteration, ("the first",))

    def values(self) -> Any:
        return iter(self)


def _fail_iteration(name: str) -> NoReturn:
    raise AssertionError(f"walked over: {name}")


def test_status_report_reads_only_the_applications_that_it_shows() -> None:
    """Readiness probes read the status; with 50,000 applications a full iteration took 22 ms."""
    driver = CoreDriver()
    for name in "abc":
        driver.open(name)
        driver.submit(name, name)
    driver.core.state.applications = _FailsWhenIterated(driver.core.state.applications)
    core_view(driver.core, driver.now)
    head_view(driver.core, driver.now)

    assert ["a", "b", "c"] == first_names(driver, 3)
    with pytest.raises(AssertionError, match="walked over"):
        first_names(driver, 4)


def test_status_lists_applications_of_all_tenants_by_sort_key() -> None:
    """With tenant fairness, one tenant's second application may precede another's first."""
    driver = CoreDriver(SchedulerCore("justitia", {"fairness": "tenant"}, timeouts=_PATIENT))
    for name, cost, tenant in (("a", 10, "t"), ("b", 20, "t"), ("c", 1_000, "u"), ("d", 30, "t")):
        driver.open(name, cost, tenant=tenant)
        driver.submit(name, name)
    tags = {name: driver.core.tag(name) for name in "abcd"}

    assert ["a", "b", "d", "c"] == first_names(driver) == sorted(tags, key=tags.__getitem__)


def test_status_lists_applications_in_the_order_of_grants() -> None:
    """The listed order must also be right under policies with other sort keys."""
    driver = CoreDriver(SchedulerCore("sjf", timeouts=_PATIENT))
    for name, output in (("a", 30), ("b", 5), ("c", 17), ("d", 8)):
        driver.open(name)
        driver.submit(name, name, output=output)
    told = first_names(driver)
    driver.pull()
    leases = driver.core.state.leases.values()

    assert ["b", "d", "c", "a"] == told == [lease.request_id for lease in leases]


def test_status_says_why_the_next_application_waits() -> None:
    """Without a replica, the order cannot change when the application starts.

    Inferences granted before a scheduler restart may still run and occupy the memory.
    """
    driver, recovering = CoreDriver(), CoreDriver()
    recovering.core.recover(["r0"], recovering.now)
    for each in (driver, recovering):
        each.open()
        each.submit("x")
    heads = [head_view(each.core, each.now) for each in (driver, recovering)]
    driver.pull(draining=True)
    heads.append(head_view(driver.core, driver.now))

    assert ["replica", "recovery", "replica"] == [head.waits_for for head in heads if head]


def test_policy_that_delays_an_application_reports_the_delay() -> None:
    """The rate limit is one request a minute: at 100 s, the client must wait until 120 s."""
    driver = CoreDriver(SchedulerCore(policy_path("rpm"), {"requests_per_minute": 1}))
    driver.open()
    driver.submit("x")
    driver.submit("y")
    driver.pull()
    view = core_view(driver.core, driver.now)

    assert view.head is None
    assert (1, 20.0) == (view.waiting, view.held_back_s)
    assert ["a"] == first_names(driver)


def test_status_shows_granted_and_running_leases_of_replicas(core: CoreDriver) -> None:
    """The replica's own count of KV tokens is shown beside that of the scheduler."""
    view = core_view(core.core, core.now, {"r0": 49}.get)

    assert (1, 1, 0) == (view.waiting, view.in_flight, view.kept_out)
    assert {
        "r0": ReplicaView(
            kv_tokens=58,
            used_kv_tokens=49,
            leases=1,
            running=1,
            sequences=1,
            max_num_seqs=1,
            draining=False,
            state="serving",
            silent_s=0.0,
        )
    } == view.replicas


def test_lease_without_its_inference_is_not_shown_as_running() -> None:
    """A replica with leases but no running ones waits for an ingress."""
    driver = CoreDriver()
    driver.open()
    driver.submit("x")
    driver.pull()
    replica = core_view(driver.core, driver.now).replicas["r0"]

    assert (1, 0, None) == (replica.leases, replica.running, replica.used_kv_tokens)


async def test_status_reports_unsaved_changes() -> None:
    """The status shows what would be lost if the machine failed now."""
    driver, store = CoreDriver(), FakeSchedulerStore()
    kept = CheckpointedCore(store, driver.core)

    def store_status() -> StoreView:
        return store_view(_CONFIG, kept.checkpointer, driver.core)

    driver.open("a")
    before = store_status()
    await kept.save()
    saved = store_status()
    store.away = True
    driver.open("b")
    await kept.save()
    driver.open("c")
    away = store_status()

    expected = StoreView(
        kind="embedded",
        durability="batched",
        connected=True,
        trouble=None,
        saved_s_ago=None,
        save_interval_s=_CONFIG.store.save_interval_s,
        unsaved_applications=1,
    )
    assert expected == before
    assert saved.saved_s_ago is not None
    assert away.saved_s_ago is not None
    assert 0 <= saved.saved_s_ago <= away.saved_s_ago < 60
    assert replace(expected, saved_s_ago=saved.saved_s_ago, unsaved_applications=0) == saved
    assert (False, AWAY, 2) == (away.connected, away.trouble, away.unsaved_applications)


async def test_status_report_does_not_read_unsaved_applications() -> None:
    """Probes are frequent during failures; application b is unsaved and has changed again."""
    driver = CoreDriver()
    checkpointer = CheckpointedCore(NoStore(), driver.core).checkpointer
    checkpointer.unsaved = _FailsWhenIterated.fromkeys("xyb")
    for name in "abc":
        driver.open(name)

    assert 5 == store_view(_CONFIG, checkpointer, driver.core).unsaved_applications


async def test_no_late_save_is_reported_without_a_store() -> None:
    """Saves without a store must not be reported as saves."""
    config = AppConfig.parse(
        {"model": {"name": "m", "path": "none"}, "store": {"durability": "none"}}
    )
    driver = CoreDriver()
    kept = CheckpointedCore(NoStore(), driver.core)
    await kept.save()

    assert StoreView(kind="none", durability="none") == store_view(
        config, kept.checkpointer, driver.core
    )


def full_of_contexts() -> CoreDriver:
    """Return a core with a running application, an idle context of 6,000, and one that waits."""
    driver = CoreDriver(SchedulerCore("justitia", {}, "peak", _PATIENT))
    driver.pull(progress=None, kv=10_000, caches=True)
    for name, cost in (("runs", 1e6), ("idle", 2e6), ("first", 3e6)):
        driver.open(name, cost)
    driver.submit("runs1", "runs", prompt=990)
    driver.submit("idle1", "idle", prompt=5_990)
    driver.end("idle1", 5_990)
    driver.submit("first1", "first", prompt=3_000)
    return driver


def test_status_shows_the_working_set() -> None:
    driver = full_of_contexts()
    head = head_view(driver.core, driver.now)

    assert head is not None
    assert "working_set" == head.waits_for
    assert working_set_view(driver.core) == WorkingSetView(
        started=2, waiting=1, context_tokens=6_000, room_tokens=9_000, found=0, missed=0
    )


def test_short_status_does_not_read_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = full_of_contexts()
    gate = driver.core.ledger.gate
    assert gate is not None
    monkeypatch.setattr(
        gate, "_counts_for_place", lambda *_: pytest.fail("the contexts are walked")
    )

    assert head_view(driver.core, driver.now) is not None


def test_status_of_an_fcfs_scheduler_omits_the_working_set() -> None:
    assert working_set_view(SchedulerCore("fcfs")) is None
