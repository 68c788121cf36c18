"""Applications with the client over both transports: open, call, stream, close, cancel."""

import asyncio
import logging
from contextlib import aclosing
from typing import Any

import pytest

from justitia_ray.client import Completion, JustitiaClient, fan_out
from justitia_ray.errors import RequestError, ResponseError, UnknownModel
from tests.unit.client.fakes import FakeService, error_answer, json_chunks

CHAT = "/v1/chat/completions"
OPEN = "/v1/applications"
CLOSE = "/v1/applications/a%2F1/close"
CANCEL = "/v1/applications/a%2F1"


class AgentError(Exception):
    """Error raised by the agents of these tests."""


async def test_opening_an_application_sends_its_options_and_returns_the_finish_tag(
    client: JustitiaClient, fake_service: FakeService
) -> None:
    """Omitted options are not sent, because the service has defaults.

    Of several models, the named one gets the application at once and all its calls.
    """
    async with client.application("SC", input="q", weight=2.0, model="small") as app:
        opened = (app.application_id, app.predicted_kv_token_time, app.virtual_finish_time)
        await app.chat("q")

    assert opened == ("a/1", 1234.0, 99.5)
    [request], [asked] = fake_service.requests_to(OPEN), fake_service.requests_to(CHAT)
    assert request.body == {
        "application_class": "SC",
        "input": "q",
        "weight": 2.0,
        "model": "small",
    }
    assert asked.body["model"] == "small"


async def test_call_may_override_the_applications_deadline(
    client: JustitiaClient, fake_service: FakeService
) -> None:
    """A header of the call overrides the application's deadline."""
    async with client.application("SC", input="q", deadline_s=30.0) as app:
        await app.chat("q")
        await app.chat("q", deadline_s=0.25, temperature=0)
        await app.complete("q", deadline_s=5)
        async with aclosing(app.chat_stream("q", deadline_s=7)) as texts:
            _ = [text async for text in texts]

    [opened] = fake_service.requests_to(OPEN)
    assert 30.0 == opened.body["deadline_s"]
    calls = [*fake_service.requests_to(CHAT), *fake_service.requests_to("/v1/completions")]
    assert [None, "0.250000", "7.000000", "5.000000"] == [
        call.headers.get("x-justitia-deadline-s") for call in calls
    ]
    assert not any("deadline_s" in call.body for call in calls)


async def test_context_exit_closes_or_cancels_the_application(
    client: JustitiaClient, fake_service: FakeService
) -> None:
    """A failed agent's inferences must not occupy memory."""
    async with client.application("SC", input="q"):
        pass
    with pytest.raises(AgentError):
        async with client.application("SC", input="q"):
            raise AgentError

    assert [request.method for request in fake_service.requests_to(CLOSE)] == ["POST"]
    assert [request.method for request in fake_service.requests_to(CANCEL)] == ["DELETE"]


async def test_cancelled_agent_cancels_its_application(
    client: JustitiaClient, fake_service: FakeService
) -> None:
    """The cancel request must be sent although its task is being cancelled."""
    fake_service.hold = CHAT

    async def run_agent() -> None:
        async with client.application("SC", input="q") as app:
            await app.chat("q")

    task = asyncio.create_task(run_agent())
    await fake_service.held.acquire()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert fake_service.cancelled_calls == 1
    assert len(fake_service.requests_to(CANCEL)) == 1


async def test_failed_close_does_not_hide_the_result_or_the_error(
    client: JustitiaClient, fake_service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """The service ends silent applications itself, and the agent's own error matters more."""
    fake_service.answers |= {p: [error_answer(500, "broken")] for p in (CLOSE, CANCEL)}

    with caplog.at_level(logging.WARNING):
        async with client.application("SC", input="q"):
            pass
        with pytest.raises(AgentError):
            async with client.application("SC", input="q"):
                raise AgentError

    failed = ["application.close_failed", "application.cancel_failed"]
    assert failed == [record.getMessage() for record in caplog.records]


async def test_chat_and_complete_send_openai_requests_with_the_application_id(
    client: JustitiaClient, fake_service: FakeService
) -> None:
    """Headers identify the application; unknown fields pass to the engine."""
    conversation = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    async with client.application("SC", input="q", tenant="t1", application_id="mine") as app:
        await app.chat("q", max_tokens=5, ignore_eos=True)
        await app.chat(conversation, model="other")
        await app.complete("p", max_tokens=9)

    asked = [request for request in fake_service.requests if "completions" in request.path]
    question = [{"role": "user", "content": "q"}]
    assert [
        {"model": "tiny", "messages": question, "max_tokens": 5, "ignore_eos": True},
        {"messages": conversation, "model": "other"},
        {"model": "tiny", "prompt": "p", "max_tokens": 9},
    ] == [request.body for request in asked]
    names = [f"x-justitia-{name}" for name in ("application", "class", "tenant")]
    assert [["mine", "SC", "t1"]] * 3 == [[r.headers[name] for name in names] for r in asked]


async def test_client_counts_answers_streams_and_failures(client: JustitiaClient) -> None:
    async with client.application("SC", input="q") as app:
        answers = [await app.chat("q"), await app.complete("q")]
        texts = [text async for text in app.chat_stream("q")]

    assert [answer.text for answer in answers] == ["Hello", "Hello"]
    assert texts == ["Hel", "lo"]
    assert (app.inferences, app.prompt_tokens, app.output_tokens) == (3, 21, 6)


async def test_model_list_is_requested_once(
    client: JustitiaClient, fake_service: FakeService
) -> None:
    """Fifty concurrent first calls share one request for the model list."""
    async with client.application("SC", input="q") as app:
        await fan_out(app.chat("q") for _ in range(50))

    assert len(fake_service.requests_to("/v1/models")) == 1
    assert len(fake_service.requests_to(CHAT)) == 50


@pytest.mark.parametrize(("models", "said"), [((), "none"), (("a", "b"), "a, b")])
async def test_call_must_name_its_model_if_several_are_served(
    client: JustitiaClient, fake_service: FakeService, models: tuple[str, ...], said: str
) -> None:
    """A guessed model could receive prompts that were not meant for it."""
    fake_service.models = models

    async with client.application("SC", input="q") as app:
        with pytest.raises(UnknownModel, match=f"exactly one; it has {said}"):
            await app.chat("q")


async def test_leaving_a_stream_early_disconnects_from_the_service(
    client: JustitiaClient, fake_service: FakeService
) -> None:
    """Without the disconnect the replica would continue to generate."""
    async with client.application("SC", input="q") as app:
        assert ["Hel", "lo"] == [text async for text in app.chat_stream("q")]
        assert (0, 1) == (fake_service.unfinished_streams, app.inferences)
        async with aclosing(app.chat_stream("q")) as stream:
            assert await anext(stream) == "Hel"
            assert fake_service.unfinished_streams == 0

    assert (1, 1) == (fake_service.unfinished_streams, app.inferences)


async def test_streaming_several_choices_is_refused(client: JustitiaClient) -> None:
    async with client.application("SC", input="q") as app:
        with pytest.raises(RequestError, match="n must be 1, got 3"):
            await anext(app.chat_stream("q", n=3))


async def test_failed_parallel_call_cancels_the_other_calls(
    client: JustitiaClient, fake_service: FakeService
) -> None:
    """After the first failure the other calls are useless; the agent catches the plain error."""
    fake_service.hold = CHAT

    async def fail_last() -> Completion:
        for _ in range(3):
            await fake_service.held.acquire()
        raise AgentError

    async with client.application("SC", input="q") as app:
        with pytest.raises(AgentError):
            await fan_out([*(app.chat("q") for _ in range(3)), fail_last()])

    assert fake_service.cancelled_calls == 3


@pytest.mark.parametrize("missing", ["application_id", "virtual_finish_time"])
async def test_opened_application_without_an_expected_field_is_an_error(
    client: JustitiaClient, fake_service: FakeService, missing: str
) -> None:
    """The error must name the missing field.

    Under first come, first served there is no virtual finish time, which is None.
    """
    granted = {"application_id": "a", "predicted_kv_token_time": 1, "virtual_finish_time": None}
    lacking = {name: value for name, value in granted.items() if name != missing}
    fake_service.answers[OPEN] = [(200, {}, json_chunks(granted)), (200, {}, json_chunks(lacking))]

    async with client.application("SC", input="q") as app:
        assert app.virtual_finish_time is None
    with pytest.raises(ResponseError, match=f"lacks {missing}"):
        async with client.application("SC", input="q"):
            pass


async def test_application_of_the_client_must_be_entered_as_a_context(
    client: JustitiaClient,
) -> None:
    """An agent that forgets `async with` gets an explanatory error."""
    app = client.application("SC", input="q")

    assert not app.was_opened
    with pytest.raises(RuntimeError, match="async with"):
        await app.chat("q")


@pytest.mark.parametrize("value", ["", "a\r\nx-evil: 1", "é", " a"])
@pytest.mark.parametrize("field", ["application_class", "tenant", "application_id"])
def test_application_name_that_is_no_valid_header_value_is_refused(
    fake_service: FakeService, field: str, value: str
) -> None:
    """The name is refused before anything is sent, and the error names the field."""
    client = JustitiaClient.from_handle(fake_service.serve_handle())
    names: dict[str, Any] = {"application_class": "SC", field: value}

    with pytest.raises(RequestError, match=f"{field} travels in a header"):
        client.application(input="q", **names)


async def test_client_returns_the_services_status_unchanged(
    client: JustitiaClient, fake_service: FakeService
) -> None:
    """The application id may contain a slash, so it is quoted in the path."""
    fake_service.answers[CANCEL] = [(200, {}, json_chunks({"waiting": 2}))]

    async with client.application("SC", input="q") as app:
        assert await app.status() == {"waiting": 2}
