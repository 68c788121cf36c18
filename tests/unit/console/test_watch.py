"""Frames: their figures, and what a tenant is told."""

import json

import msgspec
import pytest

from justitia_ray.console.plan import planned_bars
from justitia_ray.console.queue_view import WHY, queue_listing, why
from justitia_ray.console.watch import SHARES_EVERY_S
from justitia_ray.core.outlook import Reason
from justitia_ray.protocol.console import ShareRow
from justitia_ray.protocol.status import Counts
from tests.unit.console.recorded_core import RecordedCore

OTHER = "secret"
"""Tenant that `acme` must not see."""


def share_row(node: str, used: float) -> ShareRow:
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
def recorded_core() -> RecordedCore:
    """Return a core with one replica, where an application of each tenant runs and others wait."""
    core = RecordedCore()
    core.pull(kv=250)
    for tenant in ("acme", OTHER):
        for number, seconds in enumerate((3.0, 5.0)):
            name = f"{tenant}|{tenant}-{number}"
            core.open(name, 1_000, tenant=tenant)
            core.submit(f"of {name}", name, prompt=80, output=20)
            core.now += seconds
    core.shares = (share_row("acme", 0.4), share_row("acme/search", 0.1), share_row(OTHER, 0.4))
    core.look()
    return core


def test_console_frame_of_an_operator_has_all_applications(recorded_core: RecordedCore) -> None:
    frame = recorded_core.frame()

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


def test_console_frame_of_a_tenant_only_counts_foreign_applications(
    recorded_core: RecordedCore,
) -> None:
    """A tenant sees neither names, ids nor times of foreign applications, nor sums of them."""
    frame = recorded_core.frame("acme")
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


def test_foreign_application_changes_only_counts_in_the_frame_of_a_tenant(
    recorded_core: RecordedCore,
) -> None:
    """Start and end of a foreign application must not be visible."""
    before = msgspec.to_builtins(recorded_core.frame("acme"))
    recorded_core.open(f"{OTHER}|more", 1_000, tenant=OTHER)
    recorded_core.submit("more", f"{OTHER}|more", prompt=10, output=10)
    recorded_core.look(0.0)
    after = msgspec.to_builtins(recorded_core.frame("acme"))

    assert after["others"] == before["others"] | {"applications": 3, "waiting": 3}
    for name in ("others", "number"):
        del before[name], after[name]
    assert after == before


def test_tenant_whose_name_extends_another_name_is_separate(recorded_core: RecordedCore) -> None:
    recorded_core.open("acme-2|own", 1_000, tenant="acme-2")
    recorded_core.look()

    assert recorded_core.frame("acme").own.applications == 2
    assert recorded_core.frame("acme-2").own.applications == 1


def test_console_frame_lists_the_first_queue_rows_and_counts_the_rest() -> None:
    core = RecordedCore()
    for number in range(6):
        core.open(f"t|{number}", 1_000 + number, tenant="t")
        core.submit(f"of {number}", f"t|{number}")
    queue = queue_listing(core.core, core.core.state.applications, core.now, most=4)

    assert [(row.position, row.application_id) for row in queue.rows] == [
        (place, f"{place}") for place in range(4)
    ]
    assert queue.waiting == 6
    assert queue.rows[0].why == "no replica takes work now"
    assert queue.rows[0].expected_start_s is None


def test_every_waiting_reason_has_a_text_in_the_console() -> None:
    assert set(WHY) == set(Reason)
    assert why("quota:acme/search") == "a quota has nothing left: acme/search"


def test_console_frames_leave_later_expected_waits_unchanged(recorded_core: RecordedCore) -> None:
    """Viewing the console must not change the expected waits by which deadlines are refused."""
    outlooks = recorded_core.core.outlooks
    before = dict(outlooks._expected), dict(outlooks._expected_ends)
    for _ in range(5):
        recorded_core.look()
        assert recorded_core.frame().queue.rows[0].expected_start_s is not None

    assert (dict(outlooks._expected), dict(outlooks._expected_ends)) == before


def test_tenant_shares_are_recorded_every_few_seconds(recorded_core: RecordedCore) -> None:
    for _ in range(12):
        recorded_core.look()
    past = recorded_core.frame().shares_past

    assert [one.at - past[0].at for one in past] == [0.0, SHARES_EVERY_S, 2 * SHARES_EVERY_S]
    assert not recorded_core.frame(since=recorded_core.frame().number).shares_past


def test_planned_starts_of_waiting_calls_follow_the_queue_order(
    recorded_core: RecordedCore,
) -> None:
    iteration_s = recorded_core.core.outlooks.iteration_s
    first, second = planned_bars(recorded_core.core, recorded_core.now)

    assert [first.application, second.application] == [f"{OTHER}|{OTHER}-0", f"{OTHER}|{OTHER}-1"]
    assert first.start == second.start == pytest.approx(recorded_core.now + 20 * iteration_s)
    assert first.end == pytest.approx(first.start + 20 * iteration_s)
    assert first.kv_tokens == 100


def test_planned_starts_end_where_no_replica_can_take_the_next_call(
    recorded_core: RecordedCore,
) -> None:
    recorded_core.pull(kv=250, draining=True)

    assert planned_bars(recorded_core.core, recorded_core.now) == []


def test_number_of_planned_starts_is_limited(recorded_core: RecordedCore) -> None:
    assert len(planned_bars(recorded_core.core, recorded_core.now, most=1)) == 1
