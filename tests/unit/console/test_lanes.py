"""Bars of the lanes: starts, ends, heights, and the changes that a frame contains."""

import pytest

from justitia_ray.console.lanes import LOOKS_KEPT, MERGED_S
from justitia_ray.core import events as ev
from justitia_ray.core.entities import Outcome
from justitia_ray.protocol.console import Bar, BarKind
from tests.unit.console.recorded_core import RecordedCore

M = 1_000


@pytest.fixture
def recorded_core() -> RecordedCore:
    """Return a core that is recorded for the console, with one replica of 1,000 KV tokens."""
    core = RecordedCore()
    core.pull(kv=M)
    return core


def start_inference(core: RecordedCore, name: str, *, prompt: int = 100, output: int = 50) -> str:
    """Submit an inference to the application of this name and return its lease id."""
    core.open(name, 10_000)
    core.submit(f"of {name}", name, prompt=prompt, output=output)
    return core.lease_of(f"of {name}")


def sorted_bars(core: RecordedCore) -> list[Bar]:
    return sorted(core.frame().bars)


def test_console_bar_lasts_from_the_grant_to_the_last_report(
    recorded_core: RecordedCore,
) -> None:
    lease = start_inference(recorded_core, "a")
    began_at = recorded_core.now
    recorded_core.look()
    (bar,) = sorted_bars(recorded_core)
    assert bar == Bar(bar.id, "r0", "a", BarKind.RUN, began_at, None, 100)

    recorded_core.now += 0.5
    recorded_core.pull(finished={lease: 50}, kv=M)
    ended_at = recorded_core.now
    recorded_core.look()

    (ended,) = sorted_bars(recorded_core)
    assert (ended.id, ended.start, ended.end) == (bar.id, began_at, ended_at)


def test_call_that_runs_between_two_console_frames_leaves_a_bar(
    recorded_core: RecordedCore,
) -> None:
    recorded_core.look()
    lease = start_inference(recorded_core, "a")
    recorded_core.now += 0.2
    recorded_core.pull(finished={lease: 10}, kv=M)
    recorded_core.look()

    (bar,) = sorted_bars(recorded_core)
    assert bar.end is not None
    assert bar.end - bar.start == pytest.approx(0.2)


def test_area_of_an_ended_console_bar_is_its_kv_token_time(recorded_core: RecordedCore) -> None:
    """A call with 100 prompt and 20 output tokens holds 110 KV tokens on average."""
    recorded_core.open("a", 10_000)
    recorded_core.submit("x", "a", prompt=100, output=20)
    lease = recorded_core.lease_of("x")
    recorded_core.now += 1.0
    recorded_core.pull(progress={lease: 10}, kv=M)
    recorded_core.look(0.0)
    recorded_core.now += 1.0
    recorded_core.pull(finished=_finished_lease(lease, prompt=100, output=20), kv=M)
    recorded_core.look()

    (bar,) = sorted_bars(recorded_core)
    assert bar.kv_tokens == 110


def test_calls_of_an_application_on_one_replica_share_a_console_bar(
    recorded_core: RecordedCore,
) -> None:
    recorded_core.open("a", 10_000)
    for name in ("x", "y"):
        recorded_core.submit(name, "a", prompt=100, output=50)
    recorded_core.look()

    (bar,) = sorted_bars(recorded_core)
    assert bar.kv_tokens == 200


def test_short_pause_does_not_end_a_console_bar(recorded_core: RecordedCore) -> None:
    recorded_core.open("a", 10_000)
    for number, pause_s in enumerate((0.0, MERGED_S, MERGED_S * 2)):
        recorded_core.now += pause_s
        recorded_core.submit(f"{number}", "a", prompt=100, output=10)
        lease = recorded_core.lease_of(f"{number}")
        recorded_core.now += 0.1
        recorded_core.pull(finished={lease: 10}, kv=M)
    recorded_core.look()

    lengths = [
        round(bar.end - bar.start, 3) for bar in sorted_bars(recorded_core) if bar.end is not None
    ]
    assert lengths == [0.2 + MERGED_S, 0.1]


def test_console_bar_is_split_where_its_height_changes_much(recorded_core: RecordedCore) -> None:
    lease = start_inference(recorded_core, "a", prompt=100, output=400)
    recorded_core.look()
    recorded_core.pull(progress={lease: 200}, kv=M)
    recorded_core.look()

    first, second = sorted_bars(recorded_core)
    assert first.end == second.start
    assert (second.end, second.kv_tokens) == (None, 300)


def test_loss_of_a_replica_ends_its_console_bars(recorded_core: RecordedCore) -> None:
    start_inference(recorded_core, "a")
    recorded_core.look()
    recorded_core.handle(ev.ReplicaLost("r0"))
    recorded_core.look()

    assert [bar.end for bar in sorted_bars(recorded_core)] == [recorded_core.now]


def test_console_bars_of_running_calls_start_with_their_grants(
    recorded_core: RecordedCore,
) -> None:
    start_inference(recorded_core, "a")
    began_at = recorded_core.now
    recorded_core.now += 5.0
    recorded_core.watch_from_now()
    recorded_core.look()

    frame = recorded_core.frame()
    assert [bar.start for bar in frame.bars] == [began_at]
    assert frame.recorded_from == began_at + 5.0


def test_console_shows_idle_contexts_of_live_applications_as_held(
    recorded_core: RecordedCore,
) -> None:
    recorded_core.pull(kv=M, caches=True)
    lease = start_inference(recorded_core, "a")
    recorded_core.pull(progress={lease: 1}, kv=M, caches=True)
    recorded_core.pull(finished=_finished_lease(lease, prompt=100, output=20), kv=M, caches=True)
    ended_at = recorded_core.now
    recorded_core.look()

    held = [bar for bar in sorted_bars(recorded_core) if bar.kind is BarKind.HELD]
    assert [(bar.start, bar.end) for bar in held] == [(ended_at, None)]
    assert held[0].kv_tokens == recorded_core.core.state.replicas["r0"].contexts.live_tokens

    recorded_core.submit("again", "a", prompt=150, output=10)
    recorded_core.look()
    held = [bar for bar in sorted_bars(recorded_core) if bar.kind is BarKind.HELD]
    assert [bar.end for bar in held] == [recorded_core.now - 1.0]


def test_changes_between_console_frames_add_up_to_all_bars(recorded_core: RecordedCore) -> None:
    known: dict[int, Bar] = {}
    since = None
    for second in range(20):
        lease = start_inference(recorded_core, f"a{second}", prompt=20 + second)
        recorded_core.look()
        frame = recorded_core.frame(since=since)
        assert frame.is_whole == (since is None)
        known |= {bar.id: bar for bar in frame.bars}
        since = frame.number
        if second % 3:
            recorded_core.pull(finished={lease: 50}, kv=M)

    recorded_core.look()
    known |= {bar.id: bar for bar in recorded_core.frame(since=since).bars}
    assert sorted(known.values()) == sorted_bars(recorded_core)


def test_console_viewer_too_far_behind_gets_all_bars(recorded_core: RecordedCore) -> None:
    recorded_core.look()
    since = recorded_core.frame().number
    for _ in range(LOOKS_KEPT):
        recorded_core.look()
    assert not recorded_core.frame(since=since).is_whole

    recorded_core.look()
    assert recorded_core.frame(since=since).is_whole


def test_application_id_of_a_console_bar_is_sent_once(recorded_core: RecordedCore) -> None:
    lease = start_inference(recorded_core, "t|a")
    recorded_core.look()
    whole = recorded_core.frame()
    recorded_core.pull(progress={lease: 5}, kv=M)
    recorded_core.look()
    later = recorded_core.frame(since=whole.number)

    assert set(whole.labels) == {"t|a"}
    assert [bar.kv_tokens for bar in later.bars] == [105]
    assert not later.labels


def _finished_lease(lease: str, prompt: int, output: int) -> list[ev.LeaseFinished]:

    return [ev.LeaseFinished(lease, prompt, output, Outcome.FINISHED)]
