"""Clients of a simulation: they open applications, call, disconnect, retry, and read answers."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any

from ray.exceptions import RayActorError, RayError, RayTaskError

from justitia_ray.access.identity import Identity, Scope
from justitia_ray.application_key import application_key
from justitia_ray.errors import (
    AdmissionError,
    AttemptsExhausted,
    DeadlineMissed,
    JustitiaError,
    KillsEngines,
    QuotaExhausted,
)
from justitia_ray.protocol.generation_bodies import COMPLETIONS
from justitia_ray.protocol.stream_forms import stream_form
from justitia_ray.serve.ingress.request_context import RequestContext
from justitia_ray.serve.ingress.submission import ApplicationSpec
from justitia_ray.units import ReplicaId, Seconds
from tests.harness.answers import Answer, StreamedAnswer, unary_answer
from tests.harness.planned import PlannedInference
from tests.harness.simulation.network import Network, current_process
from tests.harness.simulation.parts import IngressHost
from tests.harness.simulation.plan import Ending, PlannedApplication
from tests.harness.simulation.recorder import Recorder
from tests.harness.simulation.unusable_leases import NOTE_UNUSABLE, CutOffs, UnusableLease

PATH = COMPLETIONS
_QUOTA_CODES = ("rate_limit_exceeded", "insufficient_quota")
_KILLER_CODE = "engine_killer"
_GAVE_UP = "gave up after"
"""Part of the error text of a stream that was cut too often."""
_EVENT = "data: "
_DONE = "[DONE]"


class Verdict(StrEnum):
    """Outcome of a client's call, as the client sees it."""

    OPEN = "open"
    """The call has not ended."""
    ANSWERED = "answered"
    REFUSED = "refused"
    LEFT = "left"
    """The client disconnected."""
    CUT = "cut"
    """The stream ended with an error event."""


@dataclass(slots=True)
class CallRecord:
    """Record of a simulated client's call, over all its retries."""

    planned: PlannedInference
    application_id: str | None
    cancelled: bool = False
    """Whether the client has cancelled the application."""
    verdict: Verdict = Verdict.OPEN
    detail: str = ""
    missed: bool = False
    """Whether the call was refused because its deadline had passed."""
    limited: bool = False
    """Whether the call was refused for a quota."""
    limited_by: str | None = None
    """Tenant-tree node whose quota refused the call; None if the quota service did not answer in
    time.
    """
    killed: bool = False
    """Whether the call was refused because it had killed engines."""
    gave_up: bool = False
    """Whether the call ended because all its leases had failed."""
    unusable: list[UnusableLease] = field(default_factory=list)
    """Leases that the last attempt could not use."""
    tries: int = 0
    answer: Answer | None = None


def read_answer(record: CallRecord, status: int, raw: bytes) -> None:
    if status != 200:
        record.verdict, record.detail = Verdict.REFUSED, f"{status} {raw[:200]!r}"
        return
    record.verdict = Verdict.ANSWERED
    if record.planned.stream:
        _read_events(record, raw.decode())
    else:
        record.answer = unary_answer(json.loads(raw))


def record_quota_refusal(record: CallRecord, error: QuotaExhausted) -> None:
    record.verdict, record.limited, record.detail = Verdict.REFUSED, True, repr(error)
    record.limited_by = None if error.limit is None else error.limit["scope"]


def _read_events(record: CallRecord, text: str) -> None:
    joined, done = StreamedAnswer(), 0
    for event in text.split("\n\n"):
        if not event.startswith(_EVENT):
            continue  # a comment, or empty
        if done:
            joined.flaws.append("something follows [DONE]")
        if event == _EVENT + _DONE:
            done += 1
            continue
        chunk = json.loads(event[len(_EVENT) :])
        if "error" in chunk:
            record.verdict, record.detail = Verdict.CUT, str(chunk["error"].get("message"))
            record.limited = chunk["error"].get("code") in _QUOTA_CODES
            record.gave_up = _GAVE_UP in record.detail
            record.killed = chunk["error"].get("code") == _KILLER_CODE
            return
        joined.add_event(chunk)
    if done != 1:
        joined.flaws.append(f"[DONE] came {done} times")
    record.answer = joined.joined_answer()
    record.detail = "; ".join(joined.flaws)


_AGAIN_S: Seconds = 0.5
"""Pause in seconds before a client tries again."""
_CHANGES_MIND_S: Seconds = 1.5


class Callers:
    """All clients of a simulation, in one process."""

    def __init__(
        self,
        model: str,
        rng: random.Random,
        network: Network,
        recorder: Recorder,
        ingresses: Callable[[], list[IngressHost]],
        cut_offs: CutOffs,
    ) -> None:
        """Create the clients.

        Args:
            model: What they ask for.
            rng: Decides which ingress a call goes to.
            network: Carries their calls.
            recorder: Told what they do.
            ingresses: Returns those that take connections now.
            cut_offs: Knows whether they reach the replicas.
        """
        self.records: list[CallRecord] = []
        self.unclosed: list[str] = []
        """Applications that could not be closed, or were left open on purpose."""
        self._model = model
        self._rng = rng
        self._network = network
        self._recorder = recorder
        self._ingresses = ingresses
        self._cut_offs = cut_offs

    async def run_application(self, application: PlannedApplication) -> None:
        """Run one application's client, from the first call to the end of the application."""
        await asyncio.sleep(application.at_s)
        name = application.application_id
        if application.opens and name is not None:
            await self._open_application(application, name)
        last = len(application.stages) - 1
        for number, stage in enumerate(application.stages):
            records = [CallRecord(planned, name) for planned in stage]
            self.records += records
            calls = [asyncio.create_task(self._run_stages(application, one)) for one in records]
            if number == last and application.ending is Ending.CANCEL and name is not None:
                await asyncio.sleep(_CHANGES_MIND_S)
                for record in records:
                    record.cancelled = True
                await self._end_application(application.tenant, name, "cancel")
            await asyncio.gather(*calls)
            await asyncio.sleep(application.gap_s)
        if name is None or application.ending is Ending.CANCEL:
            return
        if application.ending is Ending.CLOSE:
            await self._end_application(application.tenant, name, "close")
        else:
            self.unclosed.append(name)

    async def _open_application(self, application: PlannedApplication, name: str) -> None:
        opening = ApplicationSpec("c", "some words of input", application.tenant, None, name)
        await self._call_until_answered(
            lambda host: host.answers.gateway.submitter.open_application(opening), f"open {name}"
        )

    async def _end_application(self, tenant: str, name: str, verb: str) -> None:
        self._recorder.add_event("caller", f"{verb}s {name}")
        key = application_key(tenant, name)
        await self._call_until_answered(
            lambda host: getattr(host.answers.scheduler_calls, f"{verb}_application")(key),
            f"{verb} {name}",
        )

    async def _call_until_answered(self, work: Callable[[IngressHost], Any], what: str) -> None:
        while True:
            host = self._choose_ingress()
            if host is not None:
                try:
                    await self._network.call(
                        current_process(), host.process, partial(work, host), what
                    )
                    return
                except RayActorError:
                    pass
                except RayTaskError as error:
                    if isinstance(error.cause, QuotaExhausted):
                        return  # Otherwise the first inference opens the application.
                    if not isinstance(error.cause, AdmissionError):
                        raise
            await asyncio.sleep(_AGAIN_S)

    async def _run_stages(self, application: PlannedApplication, record: CallRecord) -> None:
        patience_s = record.planned.leaves_after_s
        try:
            await asyncio.wait_for(self._submit_until_answered(application, record), patience_s)
        except TimeoutError:
            record.verdict = Verdict.LEFT
        told = "" if record.verdict is Verdict.ANSWERED else f": {record.detail}"
        self._recorder.add_event("caller", f"{record.planned.name} {record.verdict}{told}")

    async def _submit_until_answered(
        self, application: PlannedApplication, record: CallRecord
    ) -> None:
        limits, most_limits = 0, len(record.planned.prompt) % 3
        while True:
            host = self._choose_ingress()
            if host is not None:
                record.tries += 1
                self._recorder.add_event(
                    "caller", f"{record.planned.name} asks {host.process.name}"
                )
                try:
                    await self._submit_once(application, record, host)
                    return
                except RayActorError:
                    pass  # the connection is lost
                except RayTaskError as error:
                    if isinstance(error.cause, DeadlineMissed):
                        record.verdict, record.missed = Verdict.REFUSED, True
                        return
                    if isinstance(error.cause, QuotaExhausted):
                        limits += 1
                        if limits > most_limits:
                            record_quota_refusal(record, error.cause)
                            return
                    if not isinstance(error.cause, AdmissionError):
                        record.verdict, record.detail = Verdict.REFUSED, repr(error.cause)
                        record.gave_up = isinstance(error.cause, AttemptsExhausted)
                        record.killed = isinstance(error.cause, KillsEngines)
                        return
                except RayError as error:
                    record.verdict, record.detail = Verdict.REFUSED, repr(error)
                    return
            await asyncio.sleep(_AGAIN_S)

    async def _submit_once(
        self, application: PlannedApplication, record: CallRecord, host: IngressHost
    ) -> None:
        context = _call_context(application)
        if record.planned.deadline_s is not None:
            context = replace(context, named_deadline=f"{record.planned.deadline_s}")
        raw = json.dumps(record.planned.body(model=self._model)).encode()

        record.unusable.clear()

        def record_unusable_lease(replica_id: ReplicaId) -> None:
            record.unusable.append(self._cut_offs.unusable_lease(replica_id, self._network.now))

        def answer() -> Any:
            NOTE_UNUSABLE.set(record_unusable_lease)
            gateway = host.answers.gateway
            body = gateway.parse(PATH, raw)
            if body.stream:
                items = gateway.attempts.stream(PATH, context, body)
            else:
                items = _unary_as_stream(partial(gateway.attempts.answer, PATH, context, body))
            items = _with_final_error(items, raw)
            return _read_slowly(items, record.planned.reads_every_s)

        items = self._network.stream(current_process(), host.process, answer, record.planned.name)
        status, chunks = 0, []
        try:
            async for item in items:
                if isinstance(item, bytes):
                    chunks.append(item)
                else:
                    status = item[0]
        except BaseException:
            items.cancel()  # A lost connection is lost at both ends.
            raise
        read_answer(record, status, b"".join(chunks))

    def _choose_ingress(self) -> IngressHost | None:
        ingresses = self._ingresses()
        return self._rng.choice(ingresses) if ingresses else None


async def _unary_as_stream(answer: Callable[[], Awaitable[Any]]) -> AsyncGenerator[Any]:
    status, head, whole = await answer()
    yield status, head
    yield whole


async def _with_final_error(items: AsyncGenerator[Any], raw: bytes) -> AsyncGenerator[Any]:
    """Yield an answer, and an error event if its stream fails after the head."""
    has_head = False
    try:
        async with aclosing(items):
            async for item in items:
                yield item
                has_head = True
    except JustitiaError as error:
        if not has_head:
            raise
        yield stream_form(PATH, raw).failure(error)


async def _read_slowly(items: AsyncGenerator[Any], every_s: Seconds) -> AsyncGenerator[Any]:
    """Yield items at the speed of a slow reader; unread items wait at the ingress."""
    async with aclosing(items):
        async for item in items:
            yield item
            if every_s:
                await asyncio.sleep(every_s)


def _call_context(application: PlannedApplication) -> RequestContext:
    named = application.application_id
    owner = Identity(application.tenant, frozenset({Scope.INFER, Scope.OWN}), "key:1")
    names_class = named is not None and (application.opens or len(application.stages) > 1)
    return RequestContext(owner, None, named, "c" if names_class else None)
