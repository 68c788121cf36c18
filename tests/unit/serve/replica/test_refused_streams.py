"""A call that its living engine ends with an error fails alone: the replica stays."""

from collections.abc import AsyncGenerator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from justitia_ray.core.actions import Grant
from justitia_ray.core.entities import Outcome
from justitia_ray.errors import StreamRefused
from justitia_ray.protocol.engine import Engine, EngineCall, Progress, ResponseHead
from justitia_ray.serve.replica.deployment import EngineReplica
from justitia_ray.serve.replica.lease_table import LeaseTable


class _RefusingEngine:
    """Fake engine that refuses each call after the response head."""

    async def call(self, call: EngineCall) -> AsyncGenerator[ResponseHead | bytes]:
        yield ResponseHead(200, {})
        yield b"event: response.created\n\n"
        raise StreamRefused(400, {"message": "the grammar is refused"})

    def release(self, lease_id: str) -> Progress:
        return Progress(3, 0)


async def test_refused_stream_fails_its_lease_and_not_the_engine() -> None:
    leases = LeaseTable("r", cast(Engine, _RefusingEngine()), grace_s=0.0)
    leases.read_messages([Grant("q", "i", "1-1", "r", 0, 10, 0.0)])
    replica: Any = SimpleNamespace(
        _leases=leases, _engine=_RefusingEngine(), _tracer=None, _holds=None
    )
    caller: Any = SimpleNamespace(is_lost=False)
    answer = partial(EngineReplica._answer_leased, replica)
    items: list[ResponseHead | bytes] = []
    with pytest.raises(StreamRefused, match="400"):
        items += [item async for item in answer(caller, "1-1", "/v1/responses", {}, b"{}")]

    assert [Outcome.FAILED] == [end.outcome for end in leases.report_ends()]
    assert ({}, None) == (leases.held_leases, leases.failure)
