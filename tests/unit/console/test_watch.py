"""Frames: their figures, and what a tenant is told."""

import json

import msgspec
import pytest

from justitia_ray.console.plan import planned_bars
from justitia_ray.console.queue_view import WHY, queue_of, why
from justitia_ray.console.watch import SHARES_EVERY_S
from justitia_ray.core.outlook import Reason
from justitia_ray.protocol.console import ShareRow
from justitia_ray.protocol.status import Counts
from tests.unit.console.watched import WatchedCore

OTHER = "secret"
"""Tenant that `acme` must not see."""


def share(node: str, used: float) -> ShareRow:
    return ShareRow(
        node=node,
        weight=None,
        fair_share=None,
        guaranteed=0.0,
        used=used,
        borrowed=0.0,
        waiting=0,
        running=0,
    )


@pytest.fixture
def core() -> WatchedCore:
    """Return a core with one replica, where an application of each tenant runs and others wait."""
    core = WatchedCore()
    core.pull(kv=250)
    for tenant in ("acme", OTHER):
        for number, seconds in enumerate((3.0, 5.0)):
            name = f"{tenant}|{tenant}-{number}"
            core.open(name, 1_000, tenant=tenant)
            core.submit(f"of {name}", name, prompt=80, output=20)
            core.now += seconds
    core.shares = (share("acme", 0.4), share("acme/search", 0.1), share(OTHER, 0.4))
    core.look()
    return core


def test_an_operators_frame_has_all_applications(core: WatchedCore) -> None:
    frame = core.frame()

    assert {bar.application for bar in frame.bars} == {"acme|acme-0", "acme|acme-1"}
    assert [row.application for row in frame.queue.rows[:2]] == [
        f"{OTHER}|{OTHER}-0",
        f"{OTHER}|{OTHER}-1",
    ]
    assert (frame.own, frame.others) == (Counts(4, 2, 2), Counts(0, 0, 0))
    assert frame.queue.by_reason == {"running": 2, "headroom": 1, "turn": 1}
    assert frame.strip.used_kv_tokens == frame.strip.leased_kv_tokens == 160
    assert frame.strip.free_kv_tokens == 90
    assert frame.ages is not None
    assert (frame.ages.p50_s, frame.ages.oldest_s) == (9.0, 9.0)


def test_a_tenants_frame_has_nothing_of_others_but_their_number(core: WatchedCore) -> None:
    """No name, no id, no time of another tenant's application, and no sum that includes it."""
    frame = core.frame("acme")
    told = msgspec.json.encode(frame).decode()

    assert OTHER not in told
    assert frame.others == Counts(2, 2, 0)
    assert {bar.application for bar in frame.bars} == {"acme|acme-0", "acme|acme-1"}
    assert frame.ages is None
    assert not frame.queue.rows
    assert {row.node for row in frame.shares} == {"acme", "acme/search"}
    assert {node for one in frame.shares_past for node in one.used} == {"acme", "acme/search"}
    assert not frame.planned
    for lane in json.loads(told)["replicas"]:
        assert {name for name, value in lane.items() if value is not None} == {
            "replica_id",
            "kv_tokens",
            "state",
        }
    strip = {name for name, value in json.loads(told)["strip"].items() if value is not None}
    assert strip == {"state", "policy"}


def test_another_tenants_application_changes_only_the_counts_of_a_tenants_frame(
    core: WatchedCore,
) -> None:
    """Its start and its end show nowhere else, so neither shows when they were."""
    before = msgspec.to_builtins(core.frame("acme"))
    core.open(f"{OTHER}|more", 1_000, tenant=OTHER)
    core.submit("more", f"{OTHER}|more", prompt=10, output=10)
    core.look(0.0)
    after = msgspec.to_builtins(core.frame("acme"))

    assert after["others"] == before["others"] | {"applications": 3, "waiting": 3}
    for name in ("others", "number"):
        del before[name], after[name]
    assert after == before


def test_a_tenant_with_a_longer_name_is_another_one(core: WatchedCore) -> None:
    core.open("acme-2|own", 1_000, tenant="acme-2")
    core.look()

    assert core.frame("acme").own.applications == 2
    assert core.frame("acme-2").own.applications == 1


def test_the_queue_has_the_first_rows_and_counts_the_others() -> None:
    core = WatchedCore()
    for number in range(6):
        core.open(f"t|{number}", 1_000 + number, tenant="t")
        core.submit(f"of {number}", f"t|{number}")
    queue = queue_of(core.core, core.core.state.applications, core.now, most=4)

    assert [(row.position, row.application_id) for row in queue.rows] == [
        (place, f"{place}") for place in range(4)
    ]
    assert queue.waiting == 6
    assert queue.rows[0].why == "no replica takes work now"
    assert queue.rows[0].expected_start_s is None


def test_every_reason_is_told_in_words() -> None:
    assert set(WHY) == set(Reason)
    assert why("quota:acme/search") == "a quota has nothing left: acme/search"


def test_asking_for_frames_leaves_later_expectations_as_they_are(core: WatchedCore) -> None:
    """The scheduler refuses deadlines by calibrated expectations: watching must not move them."""
    outlooks = core.core.outlooks
    before = dict(outlooks._said), dict(outlooks._said_of_ends)
    for _ in range(5):
        core.look()
        assert core.frame().queue.rows[0].expected_start_s is not None

    assert (dict(outlooks._said), dict(outlooks._said_of_ends)) == before


def test_shares_are_kept_every_few_seconds(core: WatchedCore) -> None:
    for _ in range(12):
        core.look()
    past = core.frame().shares_past

    assert [one.at - past[0].at for one in past] == [0.0, SHARES_EVERY_S, 2 * SHARES_EVERY_S]
    assert not core.frame(since=core.frame().number).shares_past


def test_the_plan_starts_what_waits_in_order_where_memory_comes_free(core: WatchedCore) -> None:
    """Both running calls end after 20 iterations: then the two that wait have room."""
    iteration_s = core.core.outlooks.iteration_s
    first, second = planned_bars(core.core, core.now)

    assert [first.application, second.application] == [f"{OTHER}|{OTHER}-0", f"{OTHER}|{OTHER}-1"]
    assert first.start == second.start == pytest.approx(core.now + 20 * iteration_s)
    assert first.end == pytest.approx(first.start + 20 * iteration_s)
    assert first.kv_tokens == 100


def test_the_plan_ends_where_no_replica_can_take_the_next(core: WatchedCore) -> None:
    core.pull(kv=250, draining=True)

    assert planned_bars(core.core, core.now) == []


def test_the_plan_is_bounded(core: WatchedCore) -> None:
    assert len(planned_bars(core.core, core.now, most=1)) == 1
