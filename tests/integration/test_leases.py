"""The protocol between ingress, scheduler and replica, tested by direct calls."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import pytest
import pytest_asyncio

from justitia_ray.core.actions import Grant
from justitia_ray.core.events import NackReason
from justitia_ray.errors import ConnectionLost, UnknownLease
from justitia_ray.protocol.engine import ResponseHead
from justitia_ray.protocol.stream_parts import Part
from justitia_ray.serve.transport.link import SocketLink
from tests.harness.answers import StreamedAnswer, fake_answer
from tests.harness.bodies import COMPLETIONS, completion, encoded_json
from tests.harness.service import MAX_MODEL_LEN, MODEL, Json, Service
from tests.integration.raw_ingress import RawIngress, grants_in, raw_ingress, wait_for_open_pull

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

_MOST_HELD = 100
"""Largest number of unread items of a stream: the limit of 64, and those already in transit when it
was reached.
"""
_LONG, _SHORT = 8_000, 4_000
"""Output tokens of a stream that is not read, and of another stream on the same connection."""


@pytest_asyncio.fixture(loop_scope="session")
async def raw(service: Service) -> AsyncIterator[RawIngress]:
    """Client of the scheduler's ingress protocol, without an inference so far."""
    await wait_for_open_pull(service)
    async with raw_ingress(service) as raw:
        yield raw
    await service.until_idle()


async def test_abandoned_long_poll_loses_no_grants(raw: RawIngress) -> None:
    """Messages answered to a long-poll whose caller has gone are sent again."""
    abandoned = asyncio.create_task(raw.poll_mail())
    granted = await raw.submit()
    polled = await raw.poll_mail()

    assert [granted] == grants_in(polled)
    await abandoned


async def test_replica_unreachable_for_one_ingress_gets_leases_of_other_ingresses(
    raw: RawIngress, service: Service
) -> None:
    """An ingress gets leases elsewhere for replicas that only it cannot reach."""
    before = await service.pulling_replicas()
    first = await raw.submit()
    assert await raw.nack_lease(first, NackReason.CONNECTION)
    again = await raw.next_grant(first.request_id, after=first)

    assert (first.request_id, before) == (again.request_id, await service.pulling_replicas())
    assert first.replica_id != again.replica_id


async def test_replica_refuses_an_inference_without_a_lease_after_a_grace_time(
    raw: RawIngress,
) -> None:
    """The inference of an expired lease runs elsewhere; running its payload would repeat it."""
    link = await raw.link_to_replica(await raw.submit())
    with pytest.raises(UnknownLease):
        await link.call("unary", "1-0", COMPLETIONS, {}, encoded_json(completion()))


async def test_connection_to_another_process_on_a_replicas_port_is_refused(raw: RawIngress) -> None:
    """Another process may now listen on the port of a replica that has gone."""
    grant = await raw.submit()
    with pytest.raises(ConnectionLost, match=f"wants 'gone': this is {grant.replica_id}"):
        await raw.replicas.dial(raw.addresses[grant.replica_id], "gone")


def read_batches(
    link: SocketLink, grant: Grant, body: Json
) -> AsyncGenerator[list[ResponseHead | Part]]:
    return link.stream("stream", grant.lease_id, COMPLETIONS, {}, encoded_json(body), None)


def check_answer_is_complete(batches: list[list[ResponseHead | Part]], body: Json) -> None:
    """Check that a stream has the fake engine's whole answer to its request."""
    read = b"".join(item.body for batch in batches for item in batch if isinstance(item, Part))
    joined = StreamedAnswer()
    *events, last = read.decode().strip().split("\n\n")
    for event in events:
        joined.add_event(json.loads(event.removeprefix("data: ")))

    assert "data: [DONE]" == last
    assert (
        fake_answer(COMPLETIONS, encoded_json(body), MODEL, MAX_MODEL_LEN) == joined.joined_answer()
    )
    assert [] == joined.flaws


async def test_caller_that_reads_slowly_delays_only_its_own_stream(limited: Service) -> None:
    """Streams share a connection, so a stream that is not read must not block it."""
    slow_body, fast_body = (
        completion(f"of {n}", n, stream=True, stream_options={"include_usage": True})
        for n in (_LONG, _SHORT)
    )
    await wait_for_open_pull(limited)
    async with raw_ingress(limited) as raw:
        slow, fast = await raw.submit(_LONG), await raw.submit(_SHORT)
        link = await raw.link_to_replica(slow)
        async with aclosing(read_batches(link, slow, slow_body)) as items:
            slowly = [await anext(items)]
            beside = [batch async for batch in read_batches(link, fast, fast_body)]
            slowly += [batch async for batch in items]

    assert len(slowly[1]) <= _MOST_HELD < sum(map(len, beside))
    check_answer_is_complete(slowly, slow_body)
    check_answer_is_complete(beside, fast_body)
