"""Timelines of applications: calls, tools, costs."""

import pytest

from justitia_ray.console import calls as recording
from justitia_ray.console.timeline import timeline_of
from justitia_ray.core import events as ev
from justitia_ray.core.entities import Outcome
from justitia_ray.protocol.console_answers import Timeline, TimeSpan
from tests.unit.console.recorded_core import RecordedCore


@pytest.fixture
def recorded_core() -> RecordedCore:
    """Return a core with one replica of 1,000 KV tokens and the open application `t|a`."""
    core = RecordedCore()
    core.pull()
    core.open("t|a", 10_000, tenant="t")
    return core


def read_timeline(core: RecordedCore) -> Timeline:
    found = timeline_of(core.core, core.watch, "t|a", core.now)
    assert found is not None
    return found


def finish_lease(
    core: RecordedCore, request_id: str, *, prompt: int, output: int, cached: int
) -> None:
    lease = core.lease_of(request_id)
    end = ev.LeaseFinished(lease, prompt, output, Outcome.FINISHED, cached_tokens=cached)
    core.pull(finished=[end])


def test_timeline_separates_queue_prefill_and_decode_times_of_a_call(
    recorded_core: RecordedCore,
) -> None:
    recorded_core.open("t|before", 100, tenant="t")
    recorded_core.submit("before", "t|before", prompt=900, output=20)
    recorded_core.submit("x", "t|a", prompt=100, output=20)
    submitted_at = recorded_core.now
    recorded_core.now += 2.0
    finish_lease(recorded_core, "before", prompt=900, output=20, cached=0)
    started_at = recorded_core.now
    lease = recorded_core.lease_of("x")
    recorded_core.now += 1.0
    recorded_core.pull(progress=[ev.LeaseProgress(lease, 100, 1, running=True, cached_tokens=60)])
    first_token_at = recorded_core.now
    recorded_core.now += 3.0
    finish_lease(recorded_core, "x", prompt=100, output=20, cached=60)

    (call,) = read_timeline(recorded_core).calls
    times = (call.submitted_at, call.started_at, call.first_token_at, call.ended_at)
    assert times == (submitted_at, started_at, first_token_at, recorded_core.now)
    assert (call.outcome, call.attempts, call.replica_id) == ("finished", 1, "r0")
    assert (call.prompt_tokens, call.cached_prompt_tokens, call.output_tokens) == (100, 60, 20)


def test_time_without_calls_counts_as_tool_time(recorded_core: RecordedCore) -> None:
    arrived_at = recorded_core.now
    recorded_core.now += 1.0
    recorded_core.submit("x", "t|a", prompt=10, output=5)
    recorded_core.now += 1.0
    finish_lease(recorded_core, "x", prompt=10, output=5, cached=0)
    recorded_core.now += 4.0
    recorded_core.submit("y", "t|a", prompt=10, output=5)
    recorded_core.now += 2.0

    assert read_timeline(recorded_core).tools == (
        TimeSpan(arrived_at, arrived_at + 1.0),
        TimeSpan(arrived_at + 2.0, arrived_at + 6.0),
    )


def test_waiting_calls_are_listed_in_the_timeline_before_their_grant(
    recorded_core: RecordedCore,
) -> None:
    recorded_core.handle(ev.ReplicaLost("r0"))
    recorded_core.submit("x", "t|a", prompt=100, output=20)
    found = read_timeline(recorded_core)

    assert [(call.started_at, call.ended_at) for call in found.calls] == [(None, None)]
    assert found.row is not None
    assert found.row.reason == "replica"


def test_timeline_shows_a_call_of_a_lost_replica_as_waiting_again(
    recorded_core: RecordedCore,
) -> None:
    recorded_core.submit("x", "t|a", prompt=100, output=20)
    recorded_core.handle(ev.ReplicaLost("r0"))
    recorded_core.look()
    (call,) = read_timeline(recorded_core).calls
    assert (call.started_at, call.ended_at, call.attempts) == (None, None, 1)

    recorded_core.pull("r1")
    (call,) = read_timeline(recorded_core).calls
    assert (call.replica_id, call.attempts) == ("r1", 2)


def test_ended_application_keeps_its_timeline_for_some_minutes(
    recorded_core: RecordedCore,
) -> None:
    recorded_core.submit("x", "t|a", prompt=100, output=20)
    recorded_core.now += 1.0
    finish_lease(recorded_core, "x", prompt=100, output=20, cached=40)
    recorded_core.handle(ev.ApplicationClosed("t|a"))
    ended = read_timeline(recorded_core)

    assert (ended.state, ended.outcome, ended.ended_at) == (
        "ended",
        "finished",
        recorded_core.now,
    )
    assert (ended.prompt_tokens, ended.cached_prompt_tokens, ended.output_tokens) == (100, 40, 20)
    assert ended.predicted_kv_token_time == 10_000
    assert ended.kv_token_time == kv_token_time(100, 20)

    recorded_core.look(recording.KEPT_S + 1.0)
    assert timeline_of(recorded_core.core, recorded_core.watch, "t|a", recorded_core.now) is None


def kv_token_time(prompt: int, output: int) -> float:
    """Return Σ (p + i) over the output: the KV token-time of one call."""
    return sum(prompt + number for number in range(1, output + 1))


def test_timeline_ends_the_calls_of_a_cancelled_application(recorded_core: RecordedCore) -> None:
    recorded_core.submit("x", "t|a", prompt=100, output=20)
    lease = recorded_core.lease_of("x")
    recorded_core.now += 1.0
    recorded_core.handle(ev.ApplicationCancelled("t|a"))
    recorded_core.last_word(lease, output=3, prompt=100)
    found = read_timeline(recorded_core)

    assert [call.outcome for call in found.calls] == ["cancelled"]
    assert found.outcome == "cancelled"


def test_timeline_keeps_only_the_last_calls_of_an_application(
    recorded_core: RecordedCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MOST_CALLS_OF_ONE", 3)
    for number in range(5):
        recorded_core.submit(f"{number}", "t|a", prompt=10, output=5)
        finish_lease(recorded_core, f"{number}", prompt=10, output=5, cached=0)
    found = read_timeline(recorded_core)

    assert [call.inference_id for call in found.calls] == ["2", "3", "4"]
    assert (found.left_out, found.inferences) == (2, 5)


def test_reopened_application_id_has_a_separate_timeline(
    recorded_core: RecordedCore,
) -> None:
    recorded_core.submit("x", "t|a", prompt=100, output=20)
    finish_lease(recorded_core, "x", prompt=100, output=20, cached=0)
    recorded_core.handle(ev.ApplicationClosed("t|a"))
    recorded_core.open("t|a", 500, tenant="t")
    recorded_core.submit("y", "t|a", prompt=10, output=5)

    assert [call.inference_id for call in read_timeline(recorded_core).calls] == ["y"]


def test_calls_before_the_recording_count_only_in_the_timeline_sums(
    recorded_core: RecordedCore,
) -> None:
    recorded_core.submit("x", "t|a", prompt=100, output=20)
    finish_lease(recorded_core, "x", prompt=100, output=20, cached=0)
    recorded_core.watch_from_now()
    found = read_timeline(recorded_core)

    assert not found.calls
    assert (found.inferences, found.output_tokens) == (1, 20)
