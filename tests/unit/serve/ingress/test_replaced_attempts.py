"""An inference whose lease was revoked and granted elsewhere does not run at both replicas."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

from justitia_ray.config import IngressSection
from justitia_ray.core.actions import Grant
from justitia_ray.core.events import InferenceSubmitted, NackReason
from justitia_ray.protocol.engine import Answer, Output, ResponseHead
from justitia_ray.protocol.generation_bodies import COMPLETIONS
from justitia_ray.protocol.inference_body import InferenceBody
from justitia_ray.protocol.stream_parts import Part
from justitia_ray.serve.ingress.attempts import Attempts
from justitia_ray.serve.ingress.pending_inferences import PendingInference
from justitia_ray.serve.ingress.replica_calls import ReplicaCalls, StreamItem
from justitia_ray.serve.ingress.replica_links import ReplicaLinks
from justitia_ray.serve.transport.link import Link
from tests.unit.serve.ingress.test_gateway import context

_HEAD = {"content-type": "text/event-stream"}


def _last_events(lease_id: str) -> bytes:
    return f"data: {lease_id}\n\ndata: [DONE]\n\n".encode()


class Leases:
    """Fake queue client of one inference whose grants the test controls."""

    def __init__(self) -> None:
        self.inference = PendingInference(InferenceSubmitted("q", "t|a", "1", "i", 1, 1, 1), 0.0)
        self.given_back: list[tuple[str, NackReason]] = []
        self.answered = 0

    def add_grant(self, number: int) -> None:
        newer = Grant("q", "i", f"lease-{number}", f"replica-{number}", 0, 0, 0.0)
        self.inference.answers.append(newer)
        self.inference.news.set()
        if self.inference.on_grant is not None:
            self.inference.on_grant(newer)

    async def submit_inference(self, *_: Any) -> PendingInference:
        return self.inference

    async def next_grant(self, inference: PendingInference) -> Grant:
        while not inference.answers:
            inference.news.clear()
            await inference.news.wait()
        return cast("Grant", inference.answers.popleft())

    async def nack_lease(self, _: PendingInference, grant: Grant, reason: NackReason) -> None:
        self.given_back.append((grant.lease_id, reason))

    def note_answered(self, _: PendingInference) -> None:
        self.answered += 1

    def cancel_inference(self, _: PendingInference) -> None:
        return


class Replica:
    """Connection to a replica that answers when the test releases it."""

    is_lost = False

    def __init__(self, obstacle: str) -> None:
        self._obstacle = obstacle
        self.called = asyncio.Event()
        self.may_end = asyncio.Event()
        self.abandoned: list[str] = []
        self._cut: Exception | None = None

    async def call(self, method: str, lease_id: str, *arguments: Any) -> Answer:
        await self._wait_for_release()
        return 200, {}, lease_id.encode()

    async def stream(
        self, method: str, lease_id: str, *arguments: Any
    ) -> AsyncGenerator[list[Any]]:
        resume = arguments[-1]
        yield [ResponseHead(200, _HEAD)]
        if resume is None:
            yield [Part(b"data: 1\n\n", 1, (Output((1,)),), self._obstacle)]
        await self._wait_for_release()
        yield [Part(_last_events(lease_id), 1, (), "")]

    async def _wait_for_release(self) -> None:
        self.called.set()
        await self.may_end.wait()
        if self._cut is not None:
            raise self._cut

    def abandon(self, first: object, error: Exception) -> None:
        self.abandoned.append(str(first))
        self._cut = error
        self.may_end.set()


class Rig:
    """One inference that is tried at two replicas."""

    def __init__(self, obstacle: str = "") -> None:
        self.leases = Leases()
        self.replicas = [Replica(obstacle) for _ in range(2)]

        async def dial(address: str, target: str) -> Link:
            return cast("Link", self.replicas[int(address)])

        links = ReplicaLinks(dial)
        links.note_addresses({f"replica-{number}": str(number - 1) for number in (1, 2)})
        calls = ReplicaCalls(links, cast("Any", None))
        leases = cast("Any", self.leases)
        self._attempts = Attempts(leases, leases, calls, IngressSection())

    async def answer_unary(self) -> Answer:
        return await self._attempts.answer(COMPLETIONS, context({}), InferenceBody({}, ["p"]))

    def answer_stream(self) -> AsyncGenerator[StreamItem]:
        body = InferenceBody({}, ["p"], stream=True)
        return self._attempts.stream(COMPLETIONS, context({}), body)

    async def regrant(self) -> None:
        """Grant a second lease while the first replica is still running."""
        await self.replicas[0].called.wait()
        self.leases.add_grant(2)


async def _body_of(items: AsyncGenerator[StreamItem]) -> bytes:
    return b"".join([item for item in [one async for one in items] if isinstance(item, bytes)])


async def test_unary_call_is_repeated_under_a_newer_lease() -> None:
    rig = Rig()
    rig.leases.add_grant(1)
    answer = asyncio.create_task(rig.answer_unary())
    await rig.regrant()
    await rig.replicas[1].called.wait()
    rig.replicas[1].may_end.set()

    assert b"lease-2" == (await answer)[2]
    assert (["lease-1"], []) == (rig.replicas[0].abandoned, rig.replicas[1].abandoned)
    assert ([], 1) == (rig.leases.given_back, rig.leases.answered)


async def test_stream_continues_under_a_newer_lease() -> None:
    rig = Rig()
    rig.leases.add_grant(1)
    body = asyncio.create_task(_body_of(rig.answer_stream()))
    await rig.regrant()
    await rig.replicas[1].called.wait()
    rig.replicas[1].may_end.set()

    assert b"data: 1\n\n" + _last_events("lease-2") == await body
    assert ["lease-1"] == rig.replicas[0].abandoned
    assert [] == rig.leases.given_back


async def test_newer_lease_does_not_move_a_stream_that_cannot_continue() -> None:
    """The stream may still finish at its replica; cutting it would be an error."""
    rig = Rig(obstacle="it has more than one sequence")
    rig.leases.add_grant(1)
    body = asyncio.create_task(_body_of(rig.answer_stream()))
    await rig.regrant()
    rig.replicas[0].may_end.set()

    assert b"data: 1\n\n" + _last_events("lease-1") == await body
    assert [] == rig.replicas[0].abandoned


async def test_repeated_grant_of_a_lease_does_not_end_its_running_call() -> None:
    rig = Rig()
    rig.leases.add_grant(1)
    answer = asyncio.create_task(rig.answer_unary())
    await rig.replicas[0].called.wait()
    rig.leases.add_grant(1)
    rig.replicas[0].may_end.set()

    assert b"lease-1" == (await answer)[2]
    assert [] == rig.replicas[0].abandoned
