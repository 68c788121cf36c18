"""Every kind of wrong answer is detected."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from justitia_ray.client.transport import Response, StreamedResponse
from tests.eventually import eventually
from tests.harness.answers import Answer, StreamedAnswer, describe_difference, unary_answer
from tests.harness.chaos.callers import Callers
from tests.harness.chaos.load import PlannedApplication
from tests.harness.chaos.records import Ending, RunRecords
from tests.harness.simulation.virtual_loop import run_virtually
from tests.unit.harness.made_up import RIGHT, planned_application

BODY: dict[str, Any] = {
    "choices": [
        {"index": 1, "message": {"content": "b"}, "finish_reason": "stop"},
        {"index": 0, "text": "a", "finish_reason": "length"},
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
}


def text_chunk(
    text: str, reason: str | None = None, identifier: str = "cmpl-1-2"
) -> dict[str, Any]:
    return {
        "id": identifier,
        "choices": [{"index": 0, "text": text, "finish_reason": reason}],
    }


USAGE = {
    "id": "cmpl-1-2",
    "choices": [],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
}


def join_events(*events: dict[str, Any]) -> tuple[Answer, list[str]]:
    streamed = StreamedAnswer()
    for event in events:
        streamed.add_event(event)
    return streamed.joined_answer(), streamed.flaws


def test_unary_and_streamed_answers_are_read_alike() -> None:
    """Choices may come in any order."""
    assert Answer(("a", "b"), ("length", "stop"), 3, 2) == unary_answer(BODY)
    assert (RIGHT, []) == join_events(text_chunk("w1 "), text_chunk("w2 ", "length"), USAGE)


@pytest.mark.parametrize(
    ("events", "flaw"),
    [
        ((text_chunk("w1 w2 ", "length"), USAGE, USAGE), "usage came twice"),
        ((text_chunk("w1 w2 ", "length"),), "usage did not come"),
        (
            (text_chunk("w1 ", "length"), text_chunk("w2 ", "length"), USAGE),
            "a chunk came after the end",
        ),
        (
            (text_chunk("w1 "), text_chunk("w2 ", "length", "cmpl-9-9"), USAGE),
            "the id of the answer changed",
        ),
    ],
)
def test_protocol_violation_of_a_stream_is_reported(
    events: tuple[dict[str, Any], ...], flaw: str
) -> None:
    """A stream that breaks the protocol is wrong even if its text happens to be correct."""
    _, flaws = join_events(*events)

    assert [True] == [told.startswith(flaw) for told in flaws]


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (replace(RIGHT, texts=("w1 w3 ",)), "choice 0 differs from character 4 on"),
        (replace(RIGHT, texts=("w1 w2 w2 ",)), "choice 0 differs from character 6 on"),
        (replace(RIGHT, texts=("w1 ",)), "choice 0 differs from character 3 on"),
        (replace(RIGHT, texts=("w1 w2 ", "x")), "choices: 2 in place of 1"),
        (replace(RIGHT, finish_reasons=(None,)), "finish_reasons: "),
        (replace(RIGHT, prompt_tokens=5), "prompt_tokens: 5 in place of 3"),
        (replace(RIGHT, output_tokens=4), "output_tokens: 4 in place of 2"),
    ],
)
def test_report_of_a_wrong_answer_omits_the_text(found: Answer, told: str) -> None:
    """Missing chunks, repeated chunks and wrong usage all count as wrong answers."""
    assert describe_difference(RIGHT, found).startswith(told)
    assert "w1" not in describe_difference(RIGHT, found)


ANSWER = {
    "choices": [{"index": 0, "text": "w1 ", "finish_reason": "length"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}
BROKEN = ConnectionError("the answer broke off")


class FakeService:
    """Fake transport that answers inferences by a script, and application requests correctly."""

    def __init__(self, *script: Any) -> None:
        self._script = list(script)
        self.users: list[str] = []
        self.reached = asyncio.Event()
        """Event that is set when a call waits forever."""
        self.closed: list[str] = []

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Response:
        if path.startswith("/v1/applications"):
            if path.endswith("/close"):
                self.closed.append(path.split("/")[-2])
            known = {"waiting": 0, "running": 0, "ended": len(self.users)}
            return Response(200, {}, json.dumps(known).encode())
        step = await self._next_step(body)
        if isinstance(step, Response):
            return step
        return Response(200, {}, json.dumps(step).encode())

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> AsyncIterator[StreamedResponse]:
        events = await self._next_step(body)
        yield StreamedResponse(200, {}, _event_chunks(events))

    async def aclose(self) -> None: ...

    async def _next_step(self, body: bytes) -> Any:
        self.users.append(json.loads(body)["user"])
        step = self._script.pop(0)
        if step is None:
            self.reached.set()
            await asyncio.Event().wait()
        if isinstance(step, Exception):
            raise step
        return step


async def _event_chunks(events: list[Any]) -> AsyncGenerator[bytes]:
    for event in events:
        await asyncio.sleep(0)  # other tasks run between two chunks
        if isinstance(event, Exception):
            raise event
        yield b"data: " + (event if isinstance(event, bytes) else json.dumps(event).encode())
        yield b"\n\n"


def as_streams(planned: PlannedApplication) -> PlannedApplication:
    stages = tuple(tuple(replace(one, stream=True) for one in s) for s in planned.stages)
    return replace(planned, stages=stages)


async def play_application(
    service: FakeService, planned: PlannedApplication, answer_within_s: float = 5.0
) -> RunRecords:
    records = RunRecords()
    callers = Callers(service, service, records, answer_within_s, again_after_s=0.0)
    await callers.run_applications([planned])
    return records


async def test_chaos_caller_records_the_answer_to_its_call() -> None:
    """The scheduler's counts of the application are recorded when it closes."""
    service = FakeService(ANSWER)
    records = await play_application(service, planned_application("a"))
    (call,) = records.calls

    assert (Ending.ANSWERED, 1) == (call.ending, call.number)
    assert Answer(("w1 ",), ("length",), 3, 1) == call.answer
    assert {"a": 1} == records.ended
    assert ["a"] == [name for name, _, _ in records.opened]
    assert ["a"] == service.closed == list(records.closed)


@pytest.mark.parametrize(
    ("script", "endings", "detail"),
    [
        # The journal must separate two calls of one inference.
        ((BROKEN, ANSWER), [Ending.BROKEN, Ending.ANSWERED], f"ConnectionError: {BROKEN}"),
        # A retry of this call would be refused forever.
        ((Response(400, {}, b"no"),), [Ending.GIVEN_UP], "ResponseError: 400: no"),
        # Without this call, a lost inference would be a run that never ends.
        ((None,), [Ending.GIVEN_UP], "no answer after 0.1 s"),
    ],
    ids=["broken", "refused", "endless"],
)
async def test_failed_call_is_repeated_as_the_next_attempt(
    script: tuple[Any, ...], endings: list[Ending], detail: str
) -> None:
    service = FakeService(*script)
    records = await play_application(service, planned_application("a"), answer_within_s=0.1)

    assert endings == [call.ending for call in records.calls]
    assert [f"a.0#{number}" for number in range(1, 1 + len(endings))] == service.users
    assert detail == records.calls[0].detail


async def test_failed_call_counts_as_cut_only_after_its_stream_has_begun() -> None:
    """A caller sees that a stream broke off only after the stream has begun."""
    event = ANSWER | {"id": "x"}
    error = {"error": {"message": "cut", "code": "engine_error"}}
    service = FakeService(
        BROKEN, [event, BROKEN], [{**event, "usage": None}, error], [event, b"[DONE]"]
    )
    records = await play_application(service, as_streams(planned_application("a")))

    assert [Ending.BROKEN, Ending.CUT, Ending.CUT, Ending.ANSWERED] == [
        call.ending for call in records.calls
    ]
    assert () == records.calls[-1].flaws


async def test_caller_that_disconnected_calls_again() -> None:
    """A caller that disconnected received no answer, but its call did not break."""
    service, records = FakeService(None, ANSWER), RunRecords()
    callers = Callers(service, service, records, again_after_s=0.0)
    playing = asyncio.create_task(callers.run_applications([planned_application("a")]))
    await service.reached.wait()

    assert 1 == callers.open_calls == callers.disconnect(1.0, 0.5)
    await playing
    assert [Ending.LEFT, Ending.ANSWERED] == [call.ending for call in records.calls]


def test_stalled_chaos_caller_reads_no_data_until_it_continues() -> None:
    """A slow reader that received everything in time would test nothing."""
    run_virtually(_stall_and_continue())


async def _stall_and_continue() -> None:
    service = FakeService([text_chunk("w1 "), text_chunk("w2 ", "length"), USAGE, b"[DONE]"])
    records = RunRecords()
    callers = Callers(service, service, records, 5.0, again_after_s=0.0)
    playing = asyncio.create_task(callers.run_applications([as_streams(planned_application("a"))]))
    await eventually(lambda: callers.open_calls, "it reads", every_s=0.0)
    stalling = asyncio.create_task(callers.stall(0.0, 0.05))
    for _ in range(100):  # Let the event loop read the whole stream.
        await asyncio.sleep(0)

    assert [] == records.calls
    assert "" == await Callers(service, service, records).stall(0.0, 0.0)
    assert "a.0" == await stalling
    await playing
    assert [Ending.ANSWERED] == [call.ending for call in records.calls]
