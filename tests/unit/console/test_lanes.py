"""Bars of the lanes: starts, ends, heights, and the changes that a frame contains."""

import pytest

from justitia_ray.console.lanes import LOOKS_KEPT, MERGED_S
from justitia_ray.core import events as ev
from justitia_ray.core.entities import Outcome
from justitia_ray.protocol.console import Bar, BarKind
from tests.unit.console.watched import WatchedCore

M = 1_000


@pytest.fixture
def core() -> WatchedCore:
    """Return a watched core with one replica of 1,000 tokens."""
    core = WatchedCore()
    core.pull(kv=M)
    return core


def start(core: WatchedCore, name: str, *, prompt: int = 100, output: int = 50) -> str:
    """Submit an inference of an application of its name; return the id of its lease."""
    core.open(name, 10_000)
    core.submit(f"of {name}", name, prompt=prompt, output=output)
    return core.lease_of(f"of {name}")


def bars(core: WatchedCore) -> list[Bar]:
    return sorted(core.frame().bars)


def test_a_bar_starts_with_the_grant_and_ends_with_the_last_report(core: WatchedCore) -> None:
    lease = start(core, "a")
    began_at = core.now
    core.look()
    (bar,) = bars(core)
    assert bar == Bar(bar.id, "r0", "a", BarKind.RUN, began_at, None, 100)

    core.now += 0.5
    core.pull(finished={lease: 50}, kv=M)
    ended_at = core.now
    core.look()

    (ended,) = bars(core)
    assert (ended.id, ended.start, ended.end) == (bar.id, began_at, ended_at)


def test_a_call_between_two_looks_leaves_a_bar(core: WatchedCore) -> None:
    core.look()
    lease = start(core, "a")
    core.now += 0.2
    core.pull(finished={lease: 10}, kv=M)
    core.look()

    (bar,) = bars(core)
    assert bar.end is not None
    assert bar.end - bar.start == pytest.approx(0.2)


def test_the_area_of_an_ended_bar_is_the_kv_token_time_of_even_growth(core: WatchedCore) -> None:
    """100 prompt tokens and 20 output tokens in 2 seconds: 110 tokens in the mean."""
    core.open("a", 10_000)
    core.submit("x", "a", prompt=100, output=20)
    lease = core.lease_of("x")
    core.now += 1.0
    core.pull(progress={lease: 10}, kv=M)
    core.look(0.0)
    core.now += 1.0
    core.pull(finished=_finished(lease, prompt=100, output=20), kv=M)
    core.look()

    (bar,) = bars(core)
    assert bar.kv_tokens == 110


def test_calls_of_an_application_on_a_replica_share_a_bar(core: WatchedCore) -> None:
    core.open("a", 10_000)
    for name in ("x", "y"):
        core.submit(name, "a", prompt=100, output=50)
    core.look()

    (bar,) = bars(core)
    assert bar.kv_tokens == 200


def test_a_short_pause_does_not_end_a_bar(core: WatchedCore) -> None:
    core.open("a", 10_000)
    for number, pause_s in enumerate((0.0, MERGED_S, MERGED_S * 2)):
        core.now += pause_s
        core.submit(f"{number}", "a", prompt=100, output=10)
        lease = core.lease_of(f"{number}")
        core.now += 0.1
        core.pull(finished={lease: 10}, kv=M)
    core.look()

    lengths = [round(bar.end - bar.start, 3) for bar in bars(core) if bar.end is not None]
    assert lengths == [0.2 + MERGED_S, 0.1]


def test_a_bar_is_cut_where_its_height_changes_much(core: WatchedCore) -> None:
    lease = start(core, "a", prompt=100, output=400)
    core.look()
    core.pull(progress={lease: 200}, kv=M)
    core.look()

    first, second = bars(core)
    assert first.end == second.start
    assert (second.end, second.kv_tokens) == (None, 300)


def test_a_lost_replica_ends_its_bars_at_the_next_look(core: WatchedCore) -> None:
    start(core, "a")
    core.look()
    core.handle(ev.ReplicaLost("r0"))
    core.look()

    assert [bar.end for bar in bars(core)] == [core.now]


def test_bars_of_what_ran_before_the_first_viewer_start_with_their_grants(
    core: WatchedCore,
) -> None:
    start(core, "a")
    began_at = core.now
    core.now += 5.0
    core.watch_from_now()
    core.look()

    frame = core.frame()
    assert [bar.start for bar in frame.bars] == [began_at]
    assert frame.recorded_from == began_at + 5.0


def test_idle_contexts_of_live_applications_are_held(core: WatchedCore) -> None:
    core.pull(kv=M, caches=True)
    lease = start(core, "a")
    core.pull(progress={lease: 1}, kv=M, caches=True)
    core.pull(finished=_finished(lease, prompt=100, output=20), kv=M, caches=True)
    ended_at = core.now
    core.look()

    held = [bar for bar in bars(core) if bar.kind is BarKind.HELD]
    assert [(bar.start, bar.end) for bar in held] == [(ended_at, None)]
    assert held[0].kv_tokens == core.core.state.replicas["r0"].contexts.live_tokens

    core.submit("again", "a", prompt=150, output=10)
    core.look()
    held = [bar for bar in bars(core) if bar.kind is BarKind.HELD]
    assert [bar.end for bar in held] == [core.now - 1.0]


def test_changes_add_up_to_all_bars(core: WatchedCore) -> None:
    known: dict[int, Bar] = {}
    since = None
    for second in range(20):
        lease = start(core, f"a{second}", prompt=20 + second)
        core.look()
        frame = core.frame(since=since)
        assert frame.is_whole == (since is None)
        known |= {bar.id: bar for bar in frame.bars}
        since = frame.number
        if second % 3:
            core.pull(finished={lease: 50}, kv=M)

    core.look()
    known |= {bar.id: bar for bar in core.frame(since=since).bars}
    assert sorted(known.values()) == bars(core)


def test_a_reader_too_far_behind_gets_all_bars(core: WatchedCore) -> None:
    core.look()
    since = core.frame().number
    for _ in range(LOOKS_KEPT):
        core.look()
    assert not core.frame(since=since).is_whole

    core.look()
    assert core.frame(since=since).is_whole


def test_only_new_bars_bring_their_names_again(core: WatchedCore) -> None:
    lease = start(core, "t|a")
    core.look()
    whole = core.frame()
    core.pull(progress={lease: 5}, kv=M)
    core.look()
    later = core.frame(since=whole.number)

    assert set(whole.labels) == {"t|a"}
    assert [bar.kv_tokens for bar in later.bars] == [105]
    assert not later.labels


def _finished(lease: str, prompt: int, output: int) -> list[ev.LeaseFinished]:

    return [ev.LeaseFinished(lease, prompt, output, Outcome.FINISHED)]
