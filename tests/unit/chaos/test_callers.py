"""A caller tries until it has an answer, and notes each call as what it was."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from justitia_ray.chaos.answers import Answer
from justitia_ray.chaos.callers import Callers
from justitia_ray.chaos.load import PlannedApplication
from justitia_ray.chaos.notes import Ending, Notes
from justitia_ray.client.transport import Response, StreamedResponse
from tests.unit.chaos.made_up import application

ANSWER = {
    "choices": [{"index": 0, "text": "w1 ", "finish_reason": "length"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}
BROKEN = ConnectionError("the answer broke off")


class FakeService:
    """A transport: answers calls by a script, applications by the book."""

    def __init__(self, *script: Any) -> None:
        self._script = list(script)
        self.users: list[str] = []
        self.reached = asyncio.Event()
        """Set when a call waits for ever."""
        self.closed: list[str] = []

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Response:
        if path.startswith("/v1/applications"):
            if path.endswith("/close"):
                self.closed.append(path.split("/")[-2])
            known = {"waiting": 0, "running": 0, "ended": len(self.users)}
            return Response(200, {}, json.dumps(known).encode())
        step = await self._next(body)
        if isinstance(step, Response):
            return step
        return Response(200, {}, json.dumps(step).encode())

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> AsyncIterator[StreamedResponse]:
        events = await self._next(body)
        yield StreamedResponse(200, {}, _chunks(events))

    async def aclose(self) -> None:
        """Nothing is open."""

    async def _next(self, body: bytes) -> Any:
        self.users.append(json.loads(body)["user"])
        step = self._script.pop(0)
        if step is None:
            self.reached.set()
            await asyncio.Event().wait()
        if isinstance(step, Exception):
            raise step
        return step


async def _chunks(events: list[Any]) -> AsyncGenerator[bytes]:
    for event in events:
        if isinstance(event, Exception):
            raise event
        yield b"data: " + (event if isinstance(event, bytes) else json.dumps(event).encode())
        yield b"\n\n"


def streamed(planned: PlannedApplication) -> PlannedApplication:
    stages = tuple(tuple(replace(one, stream=True) for one in s) for s in planned.stages)
    return replace(planned, stages=stages)


async def played(
    service: FakeService, planned: PlannedApplication, patience_s: float = 5.0
) -> Notes:
    notes = Notes()
    callers = Callers(service, service, notes, patience_s, again_after_s=0.0)
    await callers.play([planned])
    return notes


async def test_answered_call_is_noted_with_its_answer() -> None:
    """And what the scheduler had ended of the application, which is closed."""
    service = FakeService(ANSWER)
    notes = await played(service, application("a"))
    (call,) = notes.calls

    assert (Ending.ANSWERED, 1) == (call.ending, call.number)
    assert Answer(("w1 ",), ("length",), 3, 1) == call.answer
    assert {"a": 1} == notes.ended
    assert ["a"] == [name for name, _, _ in notes.opened]
    assert ["a"] == service.closed == list(notes.closed)


async def test_broken_call_is_made_again_under_its_next_number() -> None:
    """The journal has to tell the two apart."""
    service = FakeService(BROKEN, ANSWER)
    notes = await played(service, application("a"))

    assert [Ending.BROKEN, Ending.ANSWERED] == [call.ending for call in notes.calls]
    assert ["a.0#1", "a.0#2"] == service.users
    assert "ConnectionError: the answer broke off" == notes.calls[0].detail


async def test_stream_is_cut_if_it_had_begun_and_broken_if_not() -> None:
    """Only the first is something that its caller saw."""
    event = ANSWER | {"id": "x"}
    error = {"error": {"message": "cut", "code": "engine_error"}}
    service = FakeService(
        BROKEN, [event, BROKEN], [{**event, "usage": None}, error], [event, b"[DONE]"]
    )
    notes = await played(service, streamed(application("a")))

    assert [Ending.BROKEN, Ending.CUT, Ending.CUT, Ending.ANSWERED] == [
        call.ending for call in notes.calls
    ]
    assert () == notes.calls[-1].flaws


async def test_flaw_of_a_stream_is_noted() -> None:
    """Counting is done later."""
    event = ANSWER | {"id": "x"}
    service = FakeService([event, {**event, "choices": []}, b"[DONE]"])
    notes = await played(service, streamed(application("a")))

    assert ("usage came twice",) == notes.calls[0].flaws


async def test_caller_that_leaves_comes_back_with_another_call() -> None:
    """It did not get an answer, and nothing broke."""
    service, notes = FakeService(None, ANSWER), Notes()
    callers = Callers(service, service, notes, again_after_s=0.0)
    playing = asyncio.create_task(callers.play([application("a")]))
    await service.reached.wait()

    assert 1 == callers.open_calls == callers.disconnect(1.0, 0.5)
    await playing
    assert [Ending.LEFT, Ending.ANSWERED] == [call.ending for call in notes.calls]


async def test_caller_gives_up_in_the_end() -> None:
    """Else a lost inference would be a run that never ends."""
    notes = await played(FakeService(None), application("a"), patience_s=0.01)

    assert [Ending.GIVEN_UP] == [call.ending for call in notes.calls]
    assert "no answer after 0.01 s" == notes.calls[0].detail


async def test_call_that_is_refused_is_not_made_again() -> None:
    """It would be refused for ever."""
    notes = await played(FakeService(Response(400, {}, b"no")), application("a"))

    assert [(Ending.GIVEN_UP, "ResponseError: 400: no")] == [
        (call.ending, call.detail) for call in notes.calls
    ]


async def test_stage_begins_when_the_one_before_it_is_answered() -> None:
    """That is what makes it a stage."""
    planned = application("a", 3)
    (stage,) = planned.stages
    chain = replace(planned, stages=tuple((one,) for one in stage))
    service = FakeService(BROKEN, ANSWER, ANSWER, ANSWER)
    await played(service, chain)

    assert ["a.0#1", "a.0#2", "a.1#1", "a.2#1"] == service.users


async def test_knocking_opens_and_closes() -> None:
    """It shows how long openings wait, and leaves nothing behind."""
    service, notes = FakeService(), Notes()
    await Callers(service, service, notes).knock("k", 2)

    assert ["k-0", "k-1"] == service.closed == [name for name, _, _ in notes.opened]
