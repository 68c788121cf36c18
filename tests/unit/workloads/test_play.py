"""Playing a load against a service in memory."""

import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import pytest

from justitia_ray.client import JustitiaClient, Response, StreamedResponse
from justitia_ray.workloads import (
    ApplicationRecord,
    LengthPlan,
    PlannedApplication,
    Progress,
    play,
)
from justitia_ray.workloads.steps import CallMade


class FakeTransport:
    """A service that takes 2 s an inference; applications whose input says so fail."""

    def __init__(self, time: "FakeTime") -> None:
        self.time = time
        self.opened: dict[str, str] = {}
        self.cancelled: list[str] = []

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Response:
        """Answer as the ingress would."""
        fields = json.loads(body) if body else {}
        application_id = headers.get("x-justitia-application", "")
        if path == "/v1/applications":
            if fields["input"] == "refused":
                return _answer(400, {"error": {"message": "refused"}})
            application_id = f"a{len(self.opened)}"
            self.opened[application_id] = fields["input"]
            tag = {"predicted_kv_token_time": 1, "virtual_finish_time": 1}
            return _answer(200, {"application_id": application_id, **tag})
        if method == "DELETE":
            self.cancelled.append(path)
        if path == "/v1/chat/completions" and self.opened[application_id] == "fails":
            return _answer(500, {"error": {"message": "broken"}})
        self.time.now_s += 2.0
        choices = [{"index": 0, "message": {"content": "Answer: 1"}}]
        usage = {"prompt_tokens": 3, "completion_tokens": 2}
        return _answer(200, {"choices": choices, "usage": usage})

    def stream(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> AbstractAsyncContextManager[StreamedResponse]:
        """Refuse: agents do not stream."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """Do nothing."""


class FakeTime:
    """A clock that sleeping sets forward, so that arrivals come at their instants."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def clock(self) -> float:
        """Return the time."""
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        """Let the time pass."""
        self.now_s += seconds


def _answer(status: int, value: object) -> Response:
    return Response(status, {}, json.dumps(value).encode())


def _planned(number: int, text: str = "How many?") -> PlannedApplication:
    return PlannedApplication(
        number=number,
        application_class="SC",
        item_id="x",
        text=text,
        tenant="t1",
        arrived_at_s=10.0 * number,
        lengths=LengthPlan().draw("SC", "x", number),
    )


@pytest.fixture
def transport() -> FakeTransport:
    """A service that nothing has been asked of."""
    return FakeTransport(FakeTime())


async def _play(
    transport: FakeTransport, *planned: PlannedApplication, progress: list[Progress] | None = None
) -> list[ApplicationRecord]:
    time = transport.time
    async with JustitiaClient(transport, model="tiny") as client:
        return await play(
            planned,
            client,
            on_progress=None if progress is None else progress.append,
            clock=time.clock,
            sleep=time.sleep,
        )


async def test_records_say_what_became_of_each_application(transport: FakeTransport) -> None:
    """Arrived at 10 s; five samples of 2 s, which this service takes in turn; finished at 20 s."""
    calls = tuple(CallMade("sample", index, 3, 2) for index in range(5))

    assert await _play(transport, _planned(1)) == [
        ApplicationRecord("a0", "SC", "t1", 10.0, 20.0, 10.0, "completed", 5, 10, None, calls)
    ]


async def test_a_late_sender_is_no_excuse(transport: FakeTransport) -> None:
    """Completion counts from the planned arrival: a stalled player must not flatter the service."""
    late = replace(_planned(0), arrived_at_s=-3.0)

    [record] = await _play(transport, late)

    assert (record.arrived_at_s, record.finished_at_s, record.jct_s) == (-3.0, 10.0, 13.0)


@pytest.mark.parametrize(
    ("text", "application_id", "error"),
    [
        ("refused", None, "ResponseError: 400: refused"),
        ("fails", "a0", "ResponseError: 500: broken"),
    ],
)
async def test_a_failure_is_recorded_and_stops_no_other(
    transport: FakeTransport, text: str, application_id: str | None, error: str
) -> None:
    """An hour of load must not be lost to one application."""
    failed, completed = await _play(transport, _planned(0, text), _planned(1))

    assert (failed.outcome, failed.application_id, failed.error) == (
        "failed",
        application_id,
        error,
    )
    assert (failed.inferences, failed.output_tokens) == (0, 0)
    assert completed.outcome == "completed"
    assert transport.cancelled == ([] if application_id is None else ["/v1/applications/a0"])


async def test_an_agent_that_breaks_is_recorded_too(transport: FakeTransport) -> None:
    """Any exception counts: here a plan without the agent's stage, and a tenant of no header."""
    no_stage = replace(_planned(0), lengths=replace(_planned(0).lengths, stages={}))
    no_header = replace(_planned(1), tenant="\n")

    records = await _play(transport, no_stage, no_header, _planned(2))

    assert [record.outcome for record in records] == ["failed", "failed", "completed"]
    assert records[0].error == "KeyError: 'sample'"
    assert (records[1].error or "").startswith("RequestError: tenant travels in a header")


async def test_progress_is_told_at_arrivals_and_ends(transport: FakeTransport) -> None:
    """A person in front of a terminal sees that something happens."""
    progress: list[Progress] = []

    await _play(transport, _planned(0), _planned(1, "fails"), progress=progress)

    assert len(progress) == 4
    assert progress[0] == Progress(total=2, arrived=1, completed=0, failed=0)
    assert progress[-1] == Progress(total=2, arrived=2, completed=1, failed=1)
