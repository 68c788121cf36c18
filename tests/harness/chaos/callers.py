"""Callers of a chaos run: they call, call again after a broken connection, and record all.

A call uses this project's client with its retries, which repeat calls that cannot have begun (no
connection, 429, 503). Beyond these, a caller calls again whenever a call ended without an answer,
and records the reason: only the death of an ingress excuses it.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from justitia_ray.client.calls import JsonCalls
from justitia_ray.client.load import LoadClock, play_load
from justitia_ray.client.transport import Transport
from justitia_ray.errors import JustitiaError, ResponseError
from justitia_ray.protocol.endpoints import APPLICATION_HEADER, CLASS_HEADER, TENANT_HEADER
from justitia_ray.protocol.generation_bodies import COMPLETIONS
from justitia_ray.units import Seconds
from tests.harness.answers import Answer, StreamedAnswer, unary_answer
from tests.harness.chaos.load import PlannedApplication, call_body
from tests.harness.chaos.records import Call, Ending, RunRecords
from tests.harness.planned import PlannedInference

AGAIN_AFTER_S: Seconds = 0.2
ANSWER_WITHIN_S: Seconds = 600.0
"""Seconds after which an inference without an answer counts as lost."""
_POLL_S: Seconds = 0.1
_RETRIES = 6
"""Number of retries of a call; their doubling pauses together outlast a restart of the service."""

_LATER = frozenset({408, 429})
"""HTTP statuses after which a caller tries again."""


class Callers:
    """Callers of a chaos run: they run applications and keep track of their open calls."""

    def __init__(
        self,
        http: Transport,
        handle: Transport,
        records: RunRecords,
        answer_within_s: Seconds = ANSWER_WITHIN_S,
        again_after_s: Seconds = AGAIN_AFTER_S,
        clock: Callable[[], Seconds] = time.monotonic,
    ) -> None:
        """Create callers without open calls.

        Args:
            http: The way to the service over HTTP.
            handle: The way to it over a Serve handle.
            records: Where everything is noted.
            answer_within_s: How long a caller tries to get one answer.
            again_after_s: How long it waits before it calls again.
            clock: The machine's monotonic clock.
        """
        self._http = JsonCalls(http, max_retries=_RETRIES)
        self._handle = JsonCalls(handle, max_retries=_RETRIES)
        self._records = records
        self._patience_s = answer_within_s
        self._again_after_s = again_after_s
        self._clock = clock
        self._open: dict[str, asyncio.Task[tuple[Answer, tuple[str, ...]]]] = {}
        self._leaving: set[str] = set()
        self._may_read: dict[str, asyncio.Event] = {}
        """Event for each open stream; its reader pauses while the event is not set."""

    @property
    def open_calls(self) -> int:
        """Number of calls that have no answer so far."""
        return len(self._open)

    def disconnect(self, share: float, draw: float) -> int:
        """Disconnect a random share of the open calls; return how many. Their callers try again."""
        names = sorted(self._open)
        leaving = random.Random(draw).sample(names, round(len(names) * share))
        for name in leaving:
            self._leaving.add(name)
            self._open[name].cancel()
        return len(leaving)

    async def stall(self, draw: float, for_s: Seconds) -> str:
        """Let one stream's reader pause for `for_s` seconds; return the inference's name.

        The name is empty if no stream is being read.
        """
        names = sorted(self._may_read)
        if not names:
            return ""
        name = names[int(draw * len(names))]
        may_read = self._may_read[name]
        may_read.clear()
        await asyncio.sleep(for_s)
        may_read.set()
        return name

    async def probe_openings(self, name: str, times: int) -> None:
        """Open and close applications one after the other, and record the time of each opening."""
        for number in range(times):
            body = {"application_id": f"{name}-{number}", "application_class": "probe"}
            if await self._open_with_body(body, self._http):
                path = f"/v1/applications/{body['application_id']}/close"
                await self._repeat_until_answered(partial(self._http.call, "POST", path))

    async def probe_inferences(self, name: str, count: int) -> None:
        """Request short answers concurrently, without recording their outcomes."""
        bodies = [
            {"prompt": name, "max_tokens": 2, "user": f"{name}.{number}#1"}
            for number in range(count)
        ]
        calls = [self._http.call("POST", COMPLETIONS, body) for body in bodies]
        await asyncio.gather(*calls, return_exceptions=True)

    async def probe_killer(self, name: str, word: str) -> str:
        """Send a prompt that kills its engine; return the answer, or "" if it is as expected.

        Args:
            name: Of the call.
            word: Says what dies of it: `KILLER` or `CRASHER`.
        """
        body = {"prompt": f"{word} {name}", "max_tokens": 200, "user": f"{name}.0#1"}
        try:
            answer = await self._http.call("POST", COMPLETIONS, body)
        except ResponseError as error:
            is_right = (502, "engine_killer", False) == (
                error.status,
                error.code,
                error.should_retry,
            )
            return "" if is_right else f"{name} was answered {error}"
        except ConnectionError as error:
            return f"{name} lost its connection: {error}"
        return f"{name} was answered {answer}"

    async def run_applications(self, applications: Sequence[PlannedApplication]) -> None:
        """Run applications concurrently to their ends, each after its own delay."""
        await play_load(applications, self._run_application, arrived_at_s=lambda one: one.delay_s)

    async def _run_application(self, planned: PlannedApplication, _: LoadClock) -> None:
        calls = self._handle if planned.over_handle else self._http
        if not await self._open_application(planned, calls):
            return
        for stage in planned.stages:
            async with asyncio.TaskGroup() as group:
                for inference in stage:
                    group.create_task(self._call_until_answered(planned, inference, calls))
        await self._close_application(planned, calls)

    async def _open_application(self, planned: PlannedApplication, calls: JsonCalls) -> bool:
        body = {
            "application_id": planned.application_id,
            "application_class": planned.application_class,
            "input": " ".join(inference.prompt for inference in planned.inferences),
            "tenant": planned.tenant,
            "weight": planned.weight,
        }
        return await self._open_with_body(body, calls)

    async def _open_with_body(self, body: Mapping[str, Any], calls: JsonCalls) -> bool:
        asked_at = self._clock()
        opened = await self._repeat_until_answered(
            partial(calls.call, "POST", "/v1/applications", body)
        )
        if opened is not None:
            self._records.opened.append((body["application_id"], asked_at, self._clock()))
        return opened is not None

    async def _call_until_answered(
        self, planned: PlannedApplication, inference: PlannedInference, calls: JsonCalls
    ) -> None:
        deadline = self._clock() + self._patience_s
        number = 0
        while True:
            number += 1
            note = await self._call_once(planned, inference, calls, number, deadline)
            self._records.calls.append(note)
            if note.ending in (Ending.ANSWERED, Ending.GIVEN_UP):
                return
            await asyncio.sleep(self._again_after_s)

    async def _call_once(
        self,
        planned: PlannedApplication,
        inference: PlannedInference,
        calls: JsonCalls,
        number: int,
        deadline: Seconds,
    ) -> Call:
        called_at = self._clock()
        headers = {
            APPLICATION_HEADER: planned.application_id,
            CLASS_HEADER: planned.application_class,
            TENANT_HEADER: planned.tenant,
        }
        asked = (calls, inference.path, call_body(inference, number), headers)
        if inference.stream:
            may_read = self._may_read[inference.name] = asyncio.Event()
            may_read.set()
            work = asyncio.create_task(_streamed_answer(*asked, may_read))
        else:
            work = asyncio.create_task(_call_unary(*asked))
        self._open[inference.name] = work
        ending, detail = Ending.GIVEN_UP, ""
        answer: Answer | None = None
        flaws: tuple[str, ...] = ()
        try:
            async with asyncio.timeout(max(0.0, deadline - called_at)):
                answer, flaws = await work
            ending = Ending.ANSWERED
        except TimeoutError:
            detail = f"no answer after {self._patience_s:g} s"
        except asyncio.CancelledError:
            if inference.name not in self._leaving:
                raise
            ending = Ending.LEFT
        except _StreamCut as cut:
            ending, detail = Ending.CUT, str(cut)
        except ResponseError as error:
            refused = 400 <= error.status < 500 and error.status not in _LATER
            ending = Ending.GIVEN_UP if refused else Ending.BROKEN
            detail = f"ResponseError: {error}"
        except (JustitiaError, ConnectionError, KeyError, TypeError) as error:
            ending, detail = Ending.BROKEN, f"{type(error).__name__}: {error}"
        finally:
            self._open.pop(inference.name, None)
            self._leaving.discard(inference.name)
            self._may_read.pop(inference.name, None)
        return Call(
            inference.name,
            planned.application_id,
            number,
            called_at,
            self._clock(),
            ending,
            detail[:300],
            answer,
            flaws,
        )

    async def _close_application(self, planned: PlannedApplication, calls: JsonCalls) -> None:
        """Wait until an application is idle, record its ended inferences, and close it."""
        path = f"/v1/applications/{planned.application_id}"
        tenant = {TENANT_HEADER: planned.tenant}
        deadline = self._clock() + self._patience_s
        while self._clock() < deadline:
            known = await self._repeat_until_answered(
                partial(calls.call, "GET", path, None, tenant)
            )
            if known is None:
                return
            if known["waiting"] == 0 == known["running"]:
                self._records.ended[planned.application_id] = known["ended"]
                break
            await asyncio.sleep(_POLL_S)
        asked_at = self._clock()
        close = partial(calls.call, "POST", f"{path}/close", None, tenant)
        if await self._repeat_until_answered(close) is not None:
            self._records.closed[planned.application_id] = (asked_at, self._clock())

    async def _repeat_until_answered(self, attempt: Callable[[], Any]) -> dict[str, Any] | None:
        """Repeat an idempotent call after errors; return its answer, None if it keeps failing."""
        deadline = self._clock() + self._patience_s
        while self._clock() < deadline:
            try:
                answer: dict[str, Any] = await attempt()
            except ResponseError as error:
                if error.status == 404:
                    return None  # The lost answer was that of a successful close.
            except ConnectionError:
                pass
            else:
                return answer
            await asyncio.sleep(self._again_after_s)
        return None


class _StreamCut(Exception):
    """A stream broke off after its first event."""


async def _call_unary(
    calls: JsonCalls, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
) -> tuple[Answer, tuple[str, ...]]:
    return unary_answer(await calls.call("POST", path, body, headers)), ()


async def _streamed_answer(
    calls: JsonCalls,
    path: str,
    body: Mapping[str, Any],
    headers: Mapping[str, str],
    may_read: asyncio.Event,
) -> tuple[Answer, tuple[str, ...]]:
    joined, begun = StreamedAnswer(), False
    try:
        async with aclosing(calls.events(path, body, headers)) as events:
            async for event in events:
                begun = True
                joined.add_event(event)
                await may_read.wait()
    except (ResponseError, ConnectionError) as error:
        if begun:
            raise _StreamCut(f"{type(error).__name__}: {error}") from error
        raise
    answer = joined.joined_answer()
    return answer, tuple(joined.flaws)
