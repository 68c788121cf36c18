"""An application on the client: open, ask, stream, close, cancel; over both transports."""

import asyncio
import logging
from contextlib import aclosing

import pytest

from justitia_ray.client import Completion, JustitiaClient, fan_out
from justitia_ray.errors import RequestError, ResponseError, UnknownModel

from .fakes import FakeService, as_error, as_json

CHAT = "/v1/chat/completions"
OPEN = "/v1/applications"
CLOSE = "/v1/applications/a%2F1/close"
CANCEL = "/v1/applications/a%2F1"


class AgentError(Exception):
    """What an agent of the tests fails of."""


async def test_opening_sends_what_was_said_and_reads_the_tag(
    client: JustitiaClient, service: FakeService
) -> None:
    """Left-out options stay out of the body: the service has defaults of its own."""
    async with client.application("SC", input="q", weight=2.0) as app:
        opened = (app.application_id, app.predicted_kv_token_time, app.virtual_finish_time)

    assert opened == ("a/1", 1234.0, 99.5)
    [request] = service.sent(OPEN)
    assert request.body == {"application_class": "SC", "input": "q", "weight": 2.0}


async def test_a_clean_exit_closes_and_an_exception_cancels(
    client: JustitiaClient, service: FakeService
) -> None:
    """A failed agent's inferences must not hold memory that others wait for."""
    async with client.application("SC", input="q"):
        pass
    with pytest.raises(AgentError):
        async with client.application("SC", input="q"):
            raise AgentError

    assert [request.method for request in service.sent(CLOSE)] == ["POST"]
    assert [request.method for request in service.sent(CANCEL)] == ["DELETE"]


async def test_a_cancelled_agent_cancels_its_application(
    client: JustitiaClient, service: FakeService
) -> None:
    """The goodbye is sent even though the task that sends it is being cancelled."""
    service.hold = CHAT

    async def agent() -> None:
        async with client.application("SC", input="q") as app:
            await app.chat("q")

    task = asyncio.create_task(agent())
    await service.held.acquire()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert service.cancelled_calls == 1
    assert len(service.sent(CANCEL)) == 1


async def test_a_failed_goodbye_costs_no_result(
    client: JustitiaClient, service: FakeService, caplog: pytest.LogCaptureFixture
) -> None:
    """The answers are here; the service ends what it does not hear of by itself."""
    service.answers[CLOSE] = [as_error(500, "broken")]

    with caplog.at_level(logging.WARNING):
        async with client.application("SC", input="q"):
            pass

    assert [record.getMessage() for record in caplog.records] == ["application.close_failed"]


async def test_a_failed_cancel_does_not_hide_the_agents_error(
    client: JustitiaClient, service: FakeService
) -> None:
    """What went wrong first is what the user must see."""
    service.answers[CANCEL] = [as_error(404, "unknown application")]

    with pytest.raises(AgentError):
        async with client.application("SC", input="q"):
            raise AgentError


async def test_inferences_carry_the_application(
    client: JustitiaClient, service: FakeService
) -> None:
    """The service knows by these headers whose inference it is."""
    async with client.application("SC", input="q", tenant="t1", application_id="mine") as app:
        await app.chat("q")

    [request] = service.sent(CHAT)
    assert tuple(
        request.headers[f"x-justitia-{name}"] for name in ("application", "class", "tenant")
    ) == ("mine", "SC", "t1")


async def test_chat_and_complete_build_openai_requests(
    client: JustitiaClient, service: FakeService
) -> None:
    """Fields that the client does not know pass through: the engine may."""
    conversation = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    async with client.application("SC", input="q") as app:
        await app.chat("q", max_tokens=5, ignore_eos=True)
        await app.chat(conversation, model="other")
        await app.complete("p", max_tokens=9)

    asked = [request.body for request in service.requests if "completions" in request.path]
    assert [
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": "q"}],
            "max_tokens": 5,
            "ignore_eos": True,
        },
        {"messages": conversation, "model": "other"},
        {"model": "tiny", "prompt": "p", "max_tokens": 9},
    ] == asked


async def test_answers_are_counted(client: JustitiaClient) -> None:
    """Load records need what was served, streams and failures included."""
    async with client.application("SC", input="q") as app:
        answers = [await app.chat("q"), await app.complete("q")]
        texts = [text async for text in app.chat_stream("q")]

    assert [answer.text for answer in answers] == ["Hello", "Hello"]
    assert texts == ["Hel", "lo"]
    assert (app.inferences, app.prompt_tokens, app.output_tokens) == (3, 21, 6)


async def test_the_only_model_is_asked_for_once(
    client: JustitiaClient, service: FakeService
) -> None:
    """Fifty calls at the start of an agent must not ask fifty times."""
    async with client.application("SC", input="q") as app:
        await fan_out(app.chat("q") for _ in range(50))

    assert len(service.sent("/v1/models")) == 1
    assert len(service.sent(CHAT)) == 50


@pytest.mark.parametrize(("models", "said"), [((), "none"), (("a", "b"), "a, b")])
async def test_several_models_need_a_choice(
    client: JustitiaClient, service: FakeService, models: tuple[str, ...], said: str
) -> None:
    """To guess would send an agent's prompts to a model that it does not mean."""
    service.models = models

    async with client.application("SC", input="q") as app:
        with pytest.raises(UnknownModel, match=f"exactly one; it has {said}"):
            await app.chat("q")


async def test_a_stream_taken_to_its_end_is_not_cancelled(
    client: JustitiaClient, service: FakeService
) -> None:
    """The service would count a complete inference as one whose caller had left."""
    async with client.application("SC", input="q") as app:
        texts = [text async for text in app.chat_stream("q")]

    assert texts == ["Hel", "lo"]
    assert service.unfinished_streams == 0


async def test_leaving_a_stream_early_tells_the_service(
    client: JustitiaClient, service: FakeService
) -> None:
    """Otherwise the replica generates to the end for nobody."""
    async with client.application("SC", input="q") as app, aclosing(app.chat_stream("q")) as stream:
        assert await anext(stream) == "Hel"
        assert service.unfinished_streams == 0

    assert service.unfinished_streams == 1
    assert app.inferences == 0


async def test_streaming_several_choices_is_refused(client: JustitiaClient) -> None:
    """Their texts would arrive mingled."""
    async with client.application("SC", input="q") as app:
        with pytest.raises(RequestError, match="n must be 1, got 3"):
            await anext(app.chat_stream("q", n=3))


async def test_the_first_failure_of_a_fan_out_cancels_the_rest(
    client: JustitiaClient, service: FakeService
) -> None:
    """An agent that has lost one part has no use for the others, and catches one plain error."""
    service.hold = CHAT

    async def fail_last() -> Completion:
        for _ in range(3):
            await service.held.acquire()
        raise AgentError

    async with client.application("SC", input="q") as app:
        with pytest.raises(AgentError):
            await fan_out([*(app.chat("q") for _ in range(3)), fail_last()])

    assert service.cancelled_calls == 3


@pytest.mark.parametrize("missing", ["application_id", "virtual_finish_time"])
async def test_an_opening_without_a_field_is_an_error(
    client: JustitiaClient, service: FakeService, missing: str
) -> None:
    """It is named, where a KeyError in the agent would not say whose fault it is."""
    granted = {"application_id": "a", "predicted_kv_token_time": 1, "virtual_finish_time": 1}
    del granted[missing]
    service.answers[OPEN] = [(200, {}, as_json(granted))]

    with pytest.raises(ResponseError, match=f"lacks {missing}"):
        async with client.application("SC", input="q"):
            pass


async def test_a_policy_without_tags_gives_none(
    client: JustitiaClient, service: FakeService
) -> None:
    """First come, first served has no virtual finish time to tell."""
    granted = {"application_id": "a", "predicted_kv_token_time": 1, "virtual_finish_time": None}
    service.answers[OPEN] = [(200, {}, as_json(granted))]

    async with client.application("SC", input="q") as app:
        assert app.virtual_finish_time is None


async def test_an_application_must_be_entered(client: JustitiaClient) -> None:
    """A forgotten `async with` gets a sentence."""
    app = client.application("SC", input="q")

    assert not app.was_opened
    with pytest.raises(RuntimeError, match="async with"):
        await app.chat("q")


@pytest.mark.parametrize("value", ["", "a\r\nx-evil: 1", "é", " a"])
@pytest.mark.parametrize("field", ["application_class", "tenant", "application_id"])
def test_names_that_cannot_travel_in_a_header_are_refused(
    service: FakeService, field: str, value: str
) -> None:
    """Before anything is sent, and by the name of the field."""
    client = JustitiaClient.from_handle(service.handle())
    names = {"application_class": "SC", field: value}

    with pytest.raises(RequestError, match=f"{field} travels in a header"):
        client.application(
            names["application_class"],
            input="q",
            tenant=names.get("tenant"),
            application_id=names.get("application_id"),
        )


async def test_status_is_what_the_service_says(
    client: JustitiaClient, service: FakeService
) -> None:
    """The id is quoted in the path: it may hold a slash."""
    service.answers[CANCEL] = [(200, {}, as_json({"waiting": 2}))]

    async with client.application("SC", input="q") as app:
        assert await app.status() == {"waiting": 2}


async def test_application_is_opened_for_the_model_that_was_named(
    client: JustitiaClient, service: FakeService
) -> None:
    """With several models it has its place in that queue at once, and its calls ask that model."""
    async with client.application("SC", input="q", model="small") as app:
        await app.chat("q")

    [request] = service.sent(OPEN)
    assert request.body == {"application_class": "SC", "input": "q", "model": "small"}
    [asked] = service.sent(CHAT)
    assert asked.body["model"] == "small"
