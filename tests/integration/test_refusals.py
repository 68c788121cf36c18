"""OpenAI's and Anthropic's official clients, refused in a burst, return at the time given.

Anthropic's client posts to a path that the fake engines answer: its behaviour after a refusal is
the same on every path.
"""

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import anthropic
import openai
import pytest
import pytest_asyncio

from tests.harness.bodies import COMPLETIONS, completion
from tests.harness.service import MODEL, SEATS, Service, Serving

pytestmark = [
    pytest.mark.ray,
    pytest.mark.after_engines,
    pytest.mark.asyncio(loop_scope="session"),
]

_CALLERS = 100
_STEADY = 14
"""Number of callers that keep all engines busy before the burst; the queue takes 16 calls per
tenant.
"""
_STEADY_S = 8.0
_ITERATION_S = 0.02
_NUMBER = "x-caller"
_CLIENTS = ("openai", "anthropic")


@dataclass
class _Call:
    """Status and time of each answer that a caller got."""

    answers: list[tuple[int, float, Any]] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)

    @property
    def was_refused(self) -> bool:
        return bool(self.answers) and self.answers[0][0] == 429


class Callers:
    """Clients whose requests and answers are recorded for each caller.

    Numbers begin with the play's name: under the `Idempotency-Key` of an earlier play a call would
    get that call's answer without waiting.
    """

    def __init__(self, service: Service, play: str) -> None:
        self.calls: dict[str, _Call] = {}
        self._play = play
        hooks: Any = {"request": [self._note_request], "response": [self._note_answer]}
        key = service.api_key or "none"
        self.openai = openai.AsyncOpenAI(
            base_url=f"{service.url}/v1",
            api_key=key,
            max_retries=6,
            http_client=openai.DefaultAsyncHttpxClient(event_hooks=hooks),
        )
        self.anthropic = anthropic.AsyncAnthropic(
            base_url=service.url,
            api_key=key,
            max_retries=6,
            http_client=anthropic.DefaultAsyncHttpxClient(event_hooks=hooks),
        )

    async def __aenter__(self) -> "Callers":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.openai.close()
        await self.anthropic.close()

    async def call(self, number: str, by: str) -> Any:
        """Send a completion of about 40 tokens by a client, which retries by itself."""
        number = f"{self._play}-{number}"
        headers = {_NUMBER: number, "idempotency-key": number}
        max_tokens = 20 + crc32(number.encode()) % 41  # different lengths
        if by == "openai":
            return await self.openai.completions.create(
                model=MODEL,
                prompt="one two three",
                max_tokens=max_tokens,
                extra_body={"ignore_eos": True},
                extra_headers=headers,
            )
        return await self.anthropic.post(
            COMPLETIONS,
            cast_to=dict[str, Any],
            body=completion(max_tokens=max_tokens),
            options={"headers": headers},
        )

    async def _note_request(self, request: Any) -> None:
        call = self.calls.setdefault(request.headers[_NUMBER], _Call())
        call.sent.append(time.monotonic())

    async def _note_answer(self, response: Any) -> None:
        call = self.calls[response.request.headers[_NUMBER]]
        call.answers.append((response.status_code, time.monotonic(), response.headers))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def service(serving: Serving) -> AsyncIterator[Service]:
    """Application with one engine, and a queue that fills quickly."""
    async with serving.deployed_service(
        "refusals",
        replicas=1,
        fake={"iteration_s": _ITERATION_S},
        scheduler={"max_waiting_inferences": 20},
    ) as service:
        yield service


@dataclass
class RefusalOutcomes:
    """Refused calls, and what happened when their clients called again.

    The rate of freed places depends on the machine; `tests/unit/core/test_drain.py` tests the
    predicted times in simulated time. Here a first retry counts if it was admitted, or if a place
    was due to the caller: as many calls had been answered as were refused before it and had not
    returned, and one more.
    """

    refused: list[_Call]
    part_at_first: float
    """Share of the refused callers whose first retry, after the stated wait, was admitted."""

    @property
    def early_returns(self) -> list[_Call]:
        """Calls whose client did not wait as long as the service stated."""
        return [
            one for one in self.refused if one.sent[1] < one.answers[0][1] + _retry_after_s(one)
        ]

    @property
    def return_times(self) -> set[float]:
        """Times at which callers were asked to return, to a hundredth of a second."""
        return {round(one.answers[0][1] + _retry_after_s(one), 2) for one in self.refused}


def _retry_after_s(call: _Call) -> float:
    return float(call.answers[0][2]["retry-after-ms"]) / 1e3


def outcomes_since(callers: Callers, began_at: float) -> RefusalOutcomes:
    """Return the outcomes of the calls refused since an instant."""
    refused = sorted(
        (
            call
            for call in callers.calls.values()
            if call.was_refused and call.answers[0][1] > began_at
        ),
        key=lambda call: call.answers[0][1],
    )
    freed = sorted(
        at
        for call in callers.calls.values()
        for status, at, _ in call.answers
        if status == 200 and at > began_at
    )
    got_in, turned_away = 0, 0
    for number, call in enumerate(refused):
        refused_at = call.answers[0][1]
        ahead = sum(other.sent[1] > refused_at for other in refused[:number])
        came_free = bisect_left(freed, call.sent[1]) - bisect_right(freed, refused_at)
        if call.answers[1][0] == 200:
            got_in += 1
        elif came_free > ahead:
            turned_away += 1
    return RefusalOutcomes(refused, got_in / max(1, got_in + turned_away))


async def keep_busy(callers: Callers, number: int, until: float) -> None:
    """Repeat calls so that all engines are busy."""
    again = 0
    while time.monotonic() < until:
        await callers.call(f"steady-{number}-{again}", "openai")
        again += 1


async def test_clients_that_obey_the_retry_time_are_admitted_at_the_first_retry(
    service: Service,
) -> None:
    """Both official clients send an `Idempotency-Key`, so that every call is answered once."""
    async with Callers(service, "obedient") as callers:
        until = time.monotonic() + _STEADY_S
        steady = [asyncio.create_task(keep_busy(callers, n, until)) for n in range(_STEADY)]
        await asyncio.sleep(until - time.monotonic() - 0.2)
        began_at = time.monotonic()
        answers = await asyncio.gather(
            *(callers.call(f"burst-{n}", _CLIENTS[n % 2]) for n in range(_CALLERS))
        )
        await asyncio.gather(*steady)

    assert all(a["choices"] if isinstance(a, dict) else a.choices for a in answers)
    seen = outcomes_since(callers, began_at)
    headers = seen.refused[0].answers[0][2]
    assert len(seen.refused) > _CALLERS // 2
    assert seen.part_at_first >= 0.9
    assert not seen.early_returns
    assert len(seen.return_times) > 0.9 * len(seen.refused)
    assert "queue_full" == headers["x-justitia-dropped-reason"]
    assert 1 <= int(headers["retry-after"]) <= 120
    assert SEATS < _STEADY
    await service.until_idle()
