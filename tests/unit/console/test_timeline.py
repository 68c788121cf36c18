"""Timelines of applications: calls, tools, costs."""

import pytest

from justitia_ray.console import calls as recording
from justitia_ray.console.timeline import timeline_of
from justitia_ray.core import events as ev
from justitia_ray.core.entities import Outcome
from justitia_ray.protocol.console_answers import Timeline, TimeSpan
from tests.unit.console.watched import WatchedCore


@pytest.fixture
def core() -> WatchedCore:
    """Return a watched core with one replica of 1,000 tokens, and the open application `t|a`."""
    core = WatchedCore()
    core.pull()
    core.open("t|a", 10_000, tenant="t")
    return core


def timeline(core: WatchedCore) -> Timeline:
    found = timeline_of(core.core, core.watch, "t|a", core.now)
    assert found is not None
    return found


def finish(core: WatchedCore, request_id: str, *, prompt: int, output: int, cached: int) -> None:
    lease = core.lease_of(request_id)
    end = ev.LeaseFinished(lease, prompt, output, Outcome.FINISHED, cached_tokens=cached)
    core.pull(finished=[end])


def test_a_call_has_the_times_of_queue_prefill_and_decode(core: WatchedCore) -> None:
    core.open("t|before", 100, tenant="t")
    core.submit("before", "t|before", prompt=900, output=20)
    core.submit("x", "t|a", prompt=100, output=20)
    submitted_at = core.now
    core.now += 2.0
    finish(core, "before", prompt=900, output=20, cached=0)
    started_at = core.now
    lease = core.lease_of("x")
    core.now += 1.0
    core.pull(progress=[ev.LeaseProgress(lease, 100, 1, running=True, cached_tokens=60)])
    first_token_at = core.now
    core.now += 3.0
    finish(core, "x", prompt=100, output=20, cached=60)

    (call,) = timeline(core).calls
    times = (call.submitted_at, call.started_at, call.first_token_at, call.ended_at)
    assert times == (submitted_at, started_at, first_token_at, core.now)
    assert (call.outcome, call.attempts, call.replica_id) == ("finished", 1, "r0")
    assert (call.prompt_tokens, call.cached_prompt_tokens, call.output_tokens) == (100, 60, 20)


def test_times_without_a_call_are_tools(core: WatchedCore) -> None:
    """The first is between the arrival and the first call."""
    arrived_at = core.now
    core.now += 1.0
    core.submit("x", "t|a", prompt=10, output=5)
    core.now += 1.0
    finish(core, "x", prompt=10, output=5, cached=0)
    core.now += 4.0
    core.submit("y", "t|a", prompt=10, output=5)
    core.now += 2.0

    assert timeline(core).tools == (
        TimeSpan(arrived_at, arrived_at + 1.0),
        TimeSpan(arrived_at + 2.0, arrived_at + 6.0),
    )


def test_waiting_calls_are_told_before_they_have_a_lease(core: WatchedCore) -> None:
    core.handle(ev.ReplicaLost("r0"))
    core.submit("x", "t|a", prompt=100, output=20)
    found = timeline(core)

    assert [(call.started_at, call.ended_at) for call in found.calls] == [(None, None)]
    assert found.row is not None
    assert found.row.reason == "replica"


def test_a_call_of_a_lost_replica_waits_again(core: WatchedCore) -> None:
    core.submit("x", "t|a", prompt=100, output=20)
    core.handle(ev.ReplicaLost("r0"))
    core.look()
    (call,) = timeline(core).calls
    assert (call.started_at, call.ended_at, call.attempts) == (None, None, 1)

    core.pull("r1")
    (call,) = timeline(core).calls
    assert (call.replica_id, call.attempts) == ("r1", 2)


def test_an_ended_application_keeps_its_timeline_for_some_minutes(core: WatchedCore) -> None:
    core.submit("x", "t|a", prompt=100, output=20)
    core.now += 1.0
    finish(core, "x", prompt=100, output=20, cached=40)
    core.handle(ev.ApplicationClosed("t|a"))
    ended = timeline(core)

    assert (ended.state, ended.outcome, ended.ended_at) == ("ended", "finished", core.now)
    assert (ended.prompt_tokens, ended.cached_prompt_tokens, ended.output_tokens) == (100, 40, 20)
    assert ended.predicted_kv_token_time == 10_000
    assert ended.kv_token_time == core_cost(100, 20)

    core.look(recording.KEPT_S + 1.0)
    assert timeline_of(core.core, core.watch, "t|a", core.now) is None


def core_cost(prompt: int, output: int) -> float:
    """Return Σ (p + i) over the output: the KV token-time of one call."""
    return sum(prompt + number for number in range(1, output + 1))


def test_a_cancelled_application_ends_its_calls(core: WatchedCore) -> None:
    core.submit("x", "t|a", prompt=100, output=20)
    lease = core.lease_of("x")
    core.now += 1.0
    core.handle(ev.ApplicationCancelled("t|a"))
    core.last_word(lease, output=3, prompt=100)
    found = timeline(core)

    assert [call.outcome for call in found.calls] == ["cancelled"]
    assert found.outcome == "cancelled"


def test_an_application_keeps_its_last_calls_only(
    core: WatchedCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MOST_CALLS_OF_ONE", 3)
    for number in range(5):
        core.submit(f"{number}", "t|a", prompt=10, output=5)
        finish(core, f"{number}", prompt=10, output=5, cached=0)
    found = timeline(core)

    assert [call.inference_id for call in found.calls] == ["2", "3", "4"]
    assert (found.left_out, found.inferences) == (2, 5)


def test_an_id_that_is_opened_again_is_another_application(core: WatchedCore) -> None:
    core.submit("x", "t|a", prompt=100, output=20)
    finish(core, "x", prompt=100, output=20, cached=0)
    core.handle(ev.ApplicationClosed("t|a"))
    core.open("t|a", 500, tenant="t")
    core.submit("y", "t|a", prompt=10, output=5)

    assert [call.inference_id for call in timeline(core).calls] == ["y"]


def test_what_ended_before_the_recording_is_in_the_sums_only(core: WatchedCore) -> None:
    core.submit("x", "t|a", prompt=100, output=20)
    finish(core, "x", prompt=100, output=20, cached=0)
    core.watch_from_now()
    found = timeline(core)

    assert not found.calls
    assert (found.inferences, found.output_tokens) == (1, 20)
