"""Cancelled calls are charged by the engine's count, in usage and in quotas."""

import asyncio
import json
import random
from contextlib import aclosing, suppress

import pytest

from justitia_ray.core import events as ev
from justitia_ray.core.actions import Grant
from justitia_ray.core.entities import ReplicaCapacity
from justitia_ray.core.usage import UsageTotals
from justitia_ray.cost import choices_kv_token_time
from justitia_ray.errors import UnknownLease
from justitia_ray.protocol.engine import EngineCall
from justitia_ray.protocol.messages import Submission
from justitia_ray.serve.engines.fake_engine import FakeEngine
from justitia_ray.serve.replica.lease_table import LeaseTable
from justitia_ray.serve.scheduler.service import SchedulerService
from tests.eventually import eventually
from tests.harness.simulation.virtual_loop import run_virtually
from tests.unit.serve.scheduler.services import Services, arrival_of
from tests.unit.serve.scheduler.test_quota_gate import Accounts

_LIMIT = 10**9
_CALLS, _AT_ONCE = 200, 4
_PREFILL_S = 0.001
"""Prefill seconds per computed token: the first token of four prompts of 100 takes 0.4 s."""


class _Replica:
    """Fake replica whose reports and messages arrive without delay."""

    def __init__(self, service: SchedulerService) -> None:
        self.driver = service.term.driver
        self.engine = FakeEngine(
            "m",
            10**6,
            max_model_len=10**4,
            iteration_s=0.05,
            prefill_s_per_token=_PREFILL_S,
        )
        self.table = LeaseTable("r", self.engine, grace_s=1.0)
        self.bodies: dict[str, bytes] = {}
        self.calls: list[asyncio.Task[None]] = []
        self.ends: dict[str, ev.LeaseFinished] = {}
        self.choices: dict[str, int] = {}
        self._read = 0

    def report(self) -> None:
        """Report held and ended leases, and process the scheduler's messages."""
        ends = self.table.report_ends()
        self.ends |= {end.lease_id: end for end in ends}
        progress = self.table.report_progress()
        self.driver.apply(ev.ReplicaPulled("r", ReplicaCapacity(10**6), 10**6, progress, ends))
        self.table.confirm_ends(ends)
        self.process_messages()

    def process_messages(self) -> None:
        """Process the scheduler's messages and run the granted inferences."""
        for place, message in self.driver.outboxes.of_replica("r").unread_after(self._read):
            self._read = place
            self.table.read_messages([message])
            if isinstance(message, Grant):
                self.calls.append(asyncio.create_task(self._run_grant(message)))

    async def _run_grant(self, grant: Grant) -> None:
        body = self.bodies[grant.request_id]
        self.choices[grant.lease_id] = json.loads(body)["n"]
        call = EngineCall(grant.lease_id, grant.priority, "/v1/completions", {}, body)
        with suppress(UnknownLease):
            async with self.table.hold_lease(grant.lease_id), aclosing(self.engine.call(call)) as a:
                async for _ in a:
                    pass


async def _usage_of_cancelled_calls(choices: int) -> tuple[_Replica, UsageTotals, float]:
    """Cancel 200 calls of a tenant at random times; return its usage and its quota's use."""
    rng, services, accounts = random.Random(34), Services(), Accounts()
    await accounts.restart()
    service = services.new_service(quota_timeout_s=10.0)
    service.term.gate.exchange._connect = lambda: accounts
    await service.term.begin()
    quota = {"unit": "tokens", "limit": _LIMIT, "per": "minute"}
    await service.configure({"tenants": {"*": {"quotas": [quota]}}})
    replica, state = _Replica(service), service.term.driver.core.state
    await replica.engine.start()
    replica.report()  # the report ends the recovery

    async def cancel_later(name: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        service.term.driver.apply(ev.InferenceCancelled(name))
        replica.process_messages()

    for first in range(0, _CALLS, _AT_ONCE):
        items: list[Submission] = [] if first else [arrival_of("a")]
        for number in range(first, first + _AT_ONCE):
            name, prompt, most = f"q{number}", rng.randint(100, 300), rng.randint(1, 60)
            body = {"model": "m", "prompt": [number] * prompt, "max_tokens": most, "n": choices}
            replica.bodies[name] = json.dumps({**body, "stream": number % 3 > 0}).encode()
            sizes = choices * prompt, choices * most, choices * most
            items.append(ev.InferenceSubmitted(name, "a", name, "i", *sizes, choices=choices))
        await service.submit_many("i", service.term.epoch, 0, tuple(items))
        await eventually(lambda: len(state.inferences) == _AT_ONCE, "let in")
        replica.report()
        leaving = [
            asyncio.create_task(
                # One call in four is cancelled during prefill, the others at any time or never.
                cancel_later(
                    f"q{first + k}", rng.uniform(0.4, 3.0) if k else rng.uniform(0.02, 0.35)
                )
            )
            for k in range(_AT_ONCE)
        ]
        while not all(task.done() for task in (*leaving, *replica.calls)):
            await asyncio.sleep(0.25)
            replica.report()
        replica.report()
    await replica.engine.stop()
    (of_day,) = state.usage.totals.values()
    used = of_day["t"]
    tokens = used.prompt_tokens + used.output_tokens
    with suppress(AssertionError):
        await eventually(lambda: accounts.remaining_of() == _LIMIT - tokens, "booked", within_s=2.0)
    of_quota = _LIMIT - accounts.remaining_of()
    await services.close()
    assert accounts.service is not None
    await accounts.service.end()
    return replica, used, of_quota


@pytest.mark.parametrize("choices", [1, 3])
def test_cancelled_calls_are_charged_the_tokens_that_the_engine_computed(choices: int) -> None:
    """Charged tokens and KV token-time equal exactly what the engine computed.

    50 of the 200 calls are cancelled in their prefill.
    """
    replica, used, of_quota = run_virtually(_usage_of_cancelled_calls(choices))
    engine, ends = replica.engine, replica.ends
    unread = [end.prompt_tokens for end in ends.values() if not end.output_tokens]
    service = sum(
        choices_kv_token_time(end.prompt_tokens, end.output_tokens, replica.choices[name])
        for name, end in ends.items()
    )

    assert (_CALLS, _CALLS) == (len(ends), used.inferences)
    assert len(unread) >= 50
    assert all(0 < tokens < 300 * choices for tokens in unread)
    assert engine.made_tokens == used.output_tokens
    assert engine.begun_prompt_tokens + sum(unread) == used.prompt_tokens
    assert used.prompt_tokens + used.output_tokens == of_quota
    assert service + sum(unread) == used.kv_token_time
