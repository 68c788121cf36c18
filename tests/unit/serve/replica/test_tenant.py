"""A replica receives the tenant of each call from the ingress; the engine's server does not."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

from justitia_ray.protocol.endpoints import TENANT_HEADER
from justitia_ray.protocol.engine import EngineCall, Hold, ResponseHead
from justitia_ray.protocol.messages import HoldContext, ReleaseContexts
from justitia_ray.serve.replica.call_holds import CallHolds
from justitia_ray.serve.replica.deployment import EngineReplica


class _Engine:
    """Fake engine that records its calls."""

    def __init__(self) -> None:
        self.calls: list[EngineCall] = []

    async def call(self, call: EngineCall) -> AsyncGenerator[ResponseHead | bytes]:
        self.calls.append(call)
        yield ResponseHead(200, {})


class _Leases:
    """Fake lease table that knows every lease."""

    held_leases: dict[str, Any] = {}  # noqa: RUF012

    @asynccontextmanager
    async def hold_lease(self, lease_id: str) -> AsyncGenerator[Any]:
        yield SimpleNamespace(priority=3, outcome=None)


async def test_tenant_header_is_not_sent_to_the_engine() -> None:
    engine = _Engine()
    replica: Any = SimpleNamespace(_leases=_Leases(), _engine=engine, _tracer=None, _holds=None)
    replica._answer_leased = partial(EngineReplica._answer_leased, replica)
    caller: Any = SimpleNamespace(is_lost=False)
    for headers in ({TENANT_HEADER: "a/b", "content-type": "json"}, {"content-type": "json"}):
        await EngineReplica.unary(replica, caller, "l", "/v1/completions", headers, b"{}")

    assert ["a/b", ""] == [call.tenant for call in engine.calls]
    assert [{"content-type": "json"}] * 2 == [dict(call.headers) for call in engine.calls]


async def test_hold_of_a_lease_is_sent_to_the_engine_with_its_call() -> None:
    engine, holds = _Engine(), CallHolds()
    holds.read([HoldContext("l", "a/app", 2.0), ReleaseContexts("a/old")])
    replica: Any = SimpleNamespace(_leases=_Leases(), _engine=engine, _tracer=None, _holds=holds)
    replica._answer_leased = partial(EngineReplica._answer_leased, replica)
    caller: Any = SimpleNamespace(is_lost=False)
    for _ in range(2):
        await EngineReplica.unary(replica, caller, "l", "/v1/completions", {}, b"{}")

    assert [Hold("a/app", 2.0, ("a/old",)), None] == [call.hold for call in engine.calls]
