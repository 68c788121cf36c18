"""Queue-position comments of waiting streams: requested in bulk, plain where nothing is known."""

import asyncio
from typing import Any

import pytest

from justitia_ray.errors import ConnectionLost
from justitia_ray.serve.ingress import waiting_streams
from justitia_ray.serve.ingress.waiting_streams import (
    KEEPALIVE,
    MOST_ASKED,
    StreamOutlooks,
    comment_of,
)

_TOLD: dict[str, Any] = {
    "reason": "turn",
    "what_would_help": "time",
    "position": 7,
    "position_is_least": False,
    "ahead_kv_token_time": 1000.0,
    "expected_start_s": {"p10": 3.14, "p50": 6.0, "p90": 12.4},
    "expected_finish_s": None,
    "guaranteed_by_s": 40.2,
}


class Scheduler:
    """Fake scheduler that answers requests for queue positions and records them."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.failure: Exception | None = None
        self.is_silent = False

    async def ask(self, names: tuple[str, ...]) -> dict[str, Any]:
        self.asked.append(names)
        if self.failure is not None:
            raise self.failure
        if self.is_silent:
            await asyncio.Event().wait()
        return dict.fromkeys(names, _TOLD)


def test_comment_in_a_waiting_stream_has_its_queue_position() -> None:
    """The line is readable for people and easily split by programs."""
    assert (
        b": justitia position=7 start_s=3.1..12 reason=turn guaranteed_by_s=40\n\n"
        == comment_of(_TOLD, 0.0)
    )


def test_keepalive_comment_omits_unknown_values() -> None:
    """Times count from now: the age of the scheduler's answer is subtracted."""
    waits = _TOLD | {"reason": "context:R2", "context_full_s": 0.84}
    assert comment_of(waits, 0.0).endswith(
        b"reason=context:R2 guaranteed_by_s=40 context_full_s=0.8\n\n"
    )
    waits = _TOLD | {"reason": "working_set", "missing_kv_tokens": 41_000}
    assert comment_of(waits, 0.0).endswith(b"missing_kv_tokens=41000\n\n")
    few = _TOLD | {"expected_start_s": None, "guaranteed_by_s": None, "position": None}

    assert b": justitia reason=turn\n\n" == comment_of(few, 0.0)
    assert b"position=7+ start_s=0.0..7.4" in comment_of(_TOLD | {"position_is_least": True}, 5.0)


async def test_queue_positions_of_all_streams_are_requested_once_per_interval() -> None:
    """A thousand streams make one request instead of a thousand."""
    scheduler = Scheduler()
    outlooks = StreamOutlooks(scheduler.ask, 1000.0)
    waits = [outlooks.wait(name) for name in ("a", "b", "a")]
    for wait in waits:
        wait.begin()
    comments = [await wait.comment() for wait in waits]

    assert [("a", "b")] == scheduler.asked
    assert all(b"position=7" in comment for comment in comments)


async def test_streams_take_turns_in_size_limited_position_requests() -> None:
    """A request has a limited size, and every stream gets its turn."""
    scheduler = Scheduler()
    outlooks = StreamOutlooks(scheduler.ask, 0.0)
    names = [f"n{number}" for number in range(MOST_ASKED + 10)]
    waits = [outlooks.wait(name) for name in names]
    for wait in waits:
        wait.begin()
    first = await waits[-1].comment()
    second = await waits[-1].comment()

    assert (KEEPALIVE, True) == (first, second != KEEPALIVE)
    assert [MOST_ASKED, MOST_ASKED] == [len(asked) for asked in scheduler.asked]


async def test_queue_positions_are_requested_for_waiting_streams_only() -> None:
    """Other streams have not started to wait, or their application is unknown."""
    scheduler = Scheduler()
    outlooks = StreamOutlooks(scheduler.ask, 0.0)
    gone, early, own, here = (outlooks.wait(name) for name in ("gone", "early", None, "here"))
    for wait in (gone, own, here):
        wait.begin()
    gone.end()
    gone.end()

    assert KEEPALIVE == await own.comment()
    await here.comment()
    own.note_application("own")
    assert b"position" in await own.comment()
    assert [("here",), ("here", "own")] == scheduler.asked
    assert early.application_id == "early"


@pytest.mark.parametrize("failure", [ConnectionLost("gone"), None])
async def test_keepalive_comment_has_no_position_if_the_scheduler_is_silent(
    failure: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comments keep proxies from closing the stream, so they cannot wait for a restart."""
    monkeypatch.setattr(waiting_streams, "ANSWER_S", 0.01)
    scheduler = Scheduler()
    scheduler.failure, scheduler.is_silent = failure, failure is None
    outlooks = StreamOutlooks(scheduler.ask, 0.0)
    wait = outlooks.wait("a")
    wait.begin()

    assert KEEPALIVE == await wait.comment()
    scheduler.failure, scheduler.is_silent = None, False
    comments = [await wait.comment() for _ in range(100)]  # each wait requests a comment
    assert b"position=7" in comments[-1]
