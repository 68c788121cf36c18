"""CPU cost of recognition at an ingress: an agent's call, and a long conversation."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Any

from justitia_ray.cli.text_table import text_table
from justitia_ray.config import RecognitionSection
from justitia_ray.protocol.generation_bodies import CHAT
from justitia_ray.recognition.directory import Directory
from justitia_ray.recognition.rules import CONVERSATION
from justitia_ray.serve.ingress.door import ANYBODY
from justitia_ray.serve.ingress.recognition import ApplicationFinder
from justitia_ray.serve.ingress.request_context import RequestContext, read_context
from scripts.bench.statistics import spread

BODY_BYTES = 120_000
_TURN_WORDS = 250
_CHUNKS = 32
_HARNESS = {
    "host": "service:8000",
    "user-agent": "claude-cli/2.1.0 (external, cli)",
    "authorization": f"Bearer {'x' * 46}",
    "accept": "application/json",
    "content-type": "application/json",
    "content-length": str(BODY_BYTES),
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "interleaved-thinking-2025-05-14",
    "x-app": "cli",
    "x-stainless-lang": "js",
    "x-stainless-retry-count": "0",
    "x-claude-code-session-id": "7f3b6f0e-1c80-4b52-9d0c-50d1c7a8a001",
}


class _LocalDirectory:
    """Directory of conversations in this process, so that no connection is measured."""

    def __init__(self) -> None:
        self._directory = Directory()

    async def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self._directory, method)(*arguments)


def long_chat(seed: int) -> dict[str, Any]:
    """Return a chat of many turns with a total size of `BODY_BYTES`."""
    random = Random(seed)
    messages: list[dict[str, str]] = [{"role": "system", "content": "You are an agent."}]
    size = 0
    while size < BODY_BYTES:
        words = " ".join(f"{random.randrange(10**6):x}" for _ in range(_TURN_WORDS))
        messages.append({"role": "user" if len(messages) % 2 else "assistant", "content": words})
        size += len(json.dumps(messages[-1])) + 2
    return {"messages": messages}


def measure_cost(repeats: int, calls: int) -> dict[str, list[float]]:
    """Return the CPU microseconds per call, by kind of call, one for each repeat."""
    return asyncio.run(_cpu_microseconds(repeats, calls))


def cost_table(costs: Mapping[str, list[float]]) -> str:
    """Return a table of CPU time per call, by kind of call."""
    rows = [["CPU of an ingress", "µs a call"]]
    rows += [[name, spread(values).format(0)] for name, values in costs.items()]
    return text_table(rows, numbers_from=1)


async def _cpu_microseconds(repeats: int, calls: int) -> dict[str, list[float]]:
    plain = ApplicationFinder(RecognitionSection(), _LocalDirectory())
    rules = (*RecognitionSection().rules, CONVERSATION)
    by_conversation = ApplicationFinder(RecognitionSection(rules=rules), _LocalDirectory())
    fields = long_chat(1)
    message = {"role": "assistant", "content": "yes"}
    whole = json.dumps({"choices": [{"index": 0, "message": message}]}).encode()
    delta = {"choices": [{"index": 0, "delta": {"content": "word "}}]}
    chunks = [f"data: {json.dumps(delta)}\n\n".encode()] * _CHUNKS + [b"data: [DONE]\n\n"]

    def request_context(headers: Mapping[str, str]) -> RequestContext:
        return read_context(ANYBODY, [(k.encode(), v.encode()) for k, v in headers.items()])

    harness = request_context(_HARNESS)
    unnamed = request_context({k: v for k, v in _HARNESS.items() if "session" not in k})

    async def recognise_by_header() -> None:
        await plain.find(harness, CHAT, fields)

    async def recognise_request() -> None:
        await by_conversation.find(unnamed, CHAT, fields)

    async def note_answer() -> None:
        found = await by_conversation.find(unnamed, CHAT, fields)
        await found.read_answer((200, {}, whole))

    async def note_stream() -> None:
        found = await by_conversation.find(unnamed, CHAT, fields)

        async def chat_answer() -> Any:
            yield 200, {}
            for chunk in chunks:
                yield chunk

        async for _ in found.reading(chat_answer(), stream=True):
            pass

    kinds: dict[str, Callable[[], Awaitable[None]]] = {
        "headers of a harness": recognise_by_header,
        f"conversation of {BODY_BYTES // 1000} kB": recognise_request,
        "the same with its answer, whole": note_answer,
        f"the same with its answer, in {_CHUNKS} events": note_stream,
    }
    costs: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(repeats):
        for name, call in kinds.items():
            began = time.process_time()
            for _ in range(calls):
                await call()
            costs[name].append((time.process_time() - began) / calls * 1e6)
    return costs
