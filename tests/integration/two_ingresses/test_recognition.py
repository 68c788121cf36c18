"""Recognition of agents' sessions by a running service with two ingresses."""

import asyncio
from typing import Any

import openai
import pytest
import ray
from openai.types.chat import ChatCompletionMessageParam

from tests.eventually import eventually
from tests.harness.bodies import CHAT, chat
from tests.harness.service import MODEL, Service

pytestmark = [pytest.mark.ray, pytest.mark.redis, pytest.mark.asyncio(loop_scope="session")]

TURNS = 3

Json = dict[str, Any]
Messages = list[ChatCompletionMessageParam]


async def open_applications(service: Service) -> dict[str, Json]:
    """Return the scheduler's view of each open application, by its caller's id."""
    status: Json = await service.scheduler().status.remote(1_000)
    return {view["application_id"].partition("|")[2]: view for view in status["first_applications"]}


async def hold_conversation(
    client: openai.AsyncOpenAI, question: str, *, stream: bool = False, turns: int = TURNS
) -> Messages:
    """Hold a conversation like an agent with the official SDK, and return its messages."""
    messages: Messages = [{"role": "user", "content": question}]
    for turn in range(turns):
        if stream:
            pieces = [
                chunk.choices[0].delta.content or ""
                async for chunk in await client.chat.completions.create(
                    model=MODEL, messages=messages, max_tokens=5, stream=True
                )
                if chunk.choices
            ]
            answer = "".join(pieces)
        else:
            whole = await client.chat.completions.create(
                model=MODEL, messages=messages, max_tokens=5
            )
            answer = whole.choices[0].message.content or ""
        messages.append({"role": "assistant", "content": answer})
        messages.append({"role": "user", "content": f"and then {turn}"})
    return messages


def openai_client_with(service: Service, **headers: str) -> openai.AsyncOpenAI:
    """Return OpenAI's client with these headers."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return openai.AsyncOpenAI(
        base_url=f"{service.url}/v1", api_key="none", default_headers=named, max_retries=0
    )


async def cancel_applications(service: Service, ids: list[str]) -> None:
    """Cancel applications, so that the next test starts without any."""
    async with service.http() as http:
        for application_id in ids:
            await http.delete(f"/v1/applications/{application_id}")


@pytest.mark.parametrize("stream", [False, True])
async def test_each_conversation_without_headers_stays_one_application(
    service: Service, stream: bool
) -> None:
    """Ten concurrent agents send each turn to a random ingress."""
    async with openai_client_with(service) as client:
        await asyncio.gather(
            *(hold_conversation(client, f"{n} {stream}", stream=stream) for n in range(10))
        )

    async def all_are_counted() -> bool:  # A stream ends before its replica reports the end.
        return bool(
            10 * TURNS == sum(v["ended"] for v in (await open_applications(service)).values())
        )

    await eventually(all_are_counted, "every turn is reported")
    found = await open_applications(service)
    await cancel_applications(service, list(found))

    assert [TURNS] * 10 == [view["ended"] for view in found.values()]
    assert {"conversation"} == {view["recognized_by"] for view in found.values()}


async def test_new_scheduler_recognises_continued_conversations(service: Service) -> None:
    """Ingresses tell a new scheduler which application each recent conversation belongs to."""
    async with openai_client_with(service) as client:
        messages = await hold_conversation(client, "survives", turns=1)
        [name] = await open_applications(service)
        ray.kill(service.scheduler(), no_restart=False)
        await service.until(lambda status: status["ready"] and status["ingresses"] == 2, "is back")

        async def conversation_is_joined() -> bool:
            await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=5)
            return bool((await open_applications(service))[name]["ended"] > 1)

        await eventually(conversation_is_joined, "the conversation goes on under its name")
    found = await open_applications(service)
    await cancel_applications(service, list(found))

    assert "conversation" == found[name]["recognized_by"]


async def test_harness_and_its_sub_agents_are_one_application(service: Service) -> None:
    """Three generations of agents form one application of the top agent's class."""
    family: list[dict[str, str]] = [
        {"x_session_id": "root"},
        *({"x_session_id": f"c{n}", "x_parent_session_id": "root"} for n in range(4)),
        *({"x_session_id": f"g{n}", "x_parent_session_id": f"c{n}"} for n in range(4)),
    ]
    for headers in family:
        async with openai_client_with(service, **headers) as client:
            await hold_conversation(client, "hello", turns=2)
    found = await open_applications(service)
    await cancel_applications(service, list(found))

    assert ["opencode/root"] == list(found)
    view = found["opencode/root"]
    assert (18, "opencode", "opencode") == (
        view["ended"],
        view["application_class"],
        view["recognized_by"],
    )


async def test_last_call_of_a_session_ends_its_application(service: Service) -> None:
    """A later call of the same session starts the application again."""
    async with service.http() as http:
        body = chat("q")
        headers = {"x-dynamo-session-id": "s"}
        first = await http.post(CHAT, json=body, headers=headers)
        last = await http.post(
            CHAT, json=body, headers=headers | {"x-dynamo-session-final": "true"}
        )
        await service.until_idle()
        again = await http.post(CHAT, json=body, headers=headers)
        found = await open_applications(service)
    await cancel_applications(service, list(found))

    assert [200] * 3 == [answer.status_code for answer in (first, last, again)]
    assert {"dynamo/s": 1} == {name: view["ended"] for name, view in found.items()}
