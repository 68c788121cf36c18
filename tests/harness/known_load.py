"""Steady callers that check their answers while a test changes the service under them.

The fake engine's answer depends only on the prompt, so every answer can be compared with the one
that the same call got on an undisturbed service.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx

from tests.eventually import eventually
from tests.harness.answers import Answer, describe_difference, unary_answer
from tests.harness.bodies import COMPLETIONS, completion
from tests.harness.open_calls import OpenStream

PROMPTS = tuple(f"{'word ' * i}of caller {i}" for i in range(1, 9))
_TOKENS = 60


@dataclass
class KnownLoad:
    """Prompts of callers with known correct answers, and the answers they got."""

    http: httpx.AsyncClient
    expected: dict[str, Answer]
    """Correct answer by prompt."""
    right: int = 0
    wrong: list[str] = field(default_factory=list)
    """Descriptions of the wrong answers."""
    leases: Counter[str] = field(default_factory=Counter)
    """Number of answers by lease id; each must be 1. The fake engine uses the lease id as the
    answer's id.
    """
    calling: bool = True

    async def repeat_calls(self, lots: random.Random) -> None:
        """Repeat unary and streamed calls until the caller is stopped."""
        while self.calling:
            prompt = lots.choice(PROMPTS)
            try:
                if lots.random() < 0.5:
                    await self._call_unary(prompt)
                else:
                    await self._call_streamed(prompt)
            except httpx.HTTPError as error:
                self.wrong.append(f"{type(error).__name__}: {error}")

    async def _call_unary(self, prompt: str) -> None:
        answer = await self.http.post(COMPLETIONS, json=completion(prompt, _TOKENS))
        if answer.status_code != 200:
            self.wrong.append(f"{answer.status_code}: {answer.text[:200]}")
        else:
            lease_id = answer.json()["id"].removeprefix("cmpl-")
            self._record_answer(prompt, unary_answer(answer.json()), lease_id)

    async def _call_streamed(self, prompt: str) -> None:
        body = completion(prompt, _TOKENS, stream_options={"include_usage": True})
        stream = OpenStream(self.http, body)
        last = await stream.end()
        if last != "[DONE]":
            self.wrong.append(f"a stream ended with {last[:200]}")
        else:
            self._record_answer(prompt, await stream.answer(), stream.lease_id)

    def _record_answer(self, prompt: str, answer: Answer, lease_id: str) -> None:
        self.leases[lease_id] += 1
        differs = describe_difference(self.expected[prompt], answer)
        if differs:
            self.wrong.append(f"{prompt!r}: {differs}")
        else:
            self.right += 1

    async def wait_for_answers(self, calls: int, within_s: float = 120.0) -> None:
        enough = self.right + calls
        await eventually(lambda: self.right >= enough, f"{calls} more calls", within_s)

    def assert_all_correct(self) -> None:
        """Assert that every call had a correct answer under a lease of its own."""
        assert [] == self.wrong
        assert self.leases
        assert 1 == max(self.leases.values())


@asynccontextmanager
async def known_load(
    http: httpx.AsyncClient, callers: int = 4, seed: int = 1
) -> AsyncIterator[KnownLoad]:
    """Run callers during a `with` block; at its end wait for their last answers."""
    expected = {}
    for prompt in PROMPTS:
        answer = await http.post(COMPLETIONS, json=completion(prompt, _TOKENS))
        expected[prompt] = unary_answer(answer.json())
    load = KnownLoad(http, expected)
    callers_calls = [
        asyncio.create_task(load.repeat_calls(random.Random(seed * 1_000 + i)))
        for i in range(callers)
    ]
    try:
        yield load
    finally:
        load.calling = False
        await asyncio.gather(*callers_calls)
