"""Calls of one tenant beyond its quota, to check that no more than the limit pass."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from justitia_ray.client.calls import JsonCalls
from justitia_ray.client.transport import Transport
from justitia_ray.errors import JustitiaError, ResponseError
from justitia_ray.protocol.endpoints import TENANT_HEADER
from justitia_ray.protocol.generation_bodies import COMPLETIONS
from justitia_ray.units import Seconds
from tests.harness.chaos.counts import is_excused_by_dead_ingress
from tests.harness.chaos.records import Call, Ending, InjectedFault

CROWD = "crowd"
LIMIT = 24
"""Applications per day that the quota allows; each call is an application."""
QUOTAS = {"tenants": {CROWD: {"quotas": [{"unit": "applications", "limit": LIMIT, "per": "day"}]}}}
"""Quota settings that limit one tenant only."""
_EXHAUSTED = "insufficient_quota"


@dataclass
class CrowdRecord:
    """Outcomes of the calls of a tenant with a quota."""

    answered_at: list[Seconds] = field(default_factory=list)
    """Times of the answered calls (monotonic clock, seconds)."""
    refused: int = 0
    """Number of calls refused by the quota."""
    unreached: int = 0
    """Number of calls that failed because the quota accounts did not answer in time, or the ingress
    died.
    """
    failed: list[Call] = field(default_factory=list)
    """Calls with an error that only the death of an ingress excuses."""

    def flaws(
        self,
        usage: Sequence[Mapping[str, Any]],
        faults: Sequence[InjectedFault],
        deaths_at: Sequence[Seconds],
        saved_s: Seconds,
    ) -> list[str]:
        """Describe violations of the quota and wrong usage figures; empty if there are none.

        Usage contains each answered call once. It may also contain calls without an answer, whose
        ingress died or was not reached.

        Args:
            usage: Rows of `/v1/usage` of the tenant.
            faults: Injected faults.
            deaths_at: Times at which a scheduler died together with every process that could have
                reported to its successor.
            saved_s: Age of the state that a dying scheduler may not have saved; usage may be lost
                for this long around each of these deaths.
        """
        answered = len(self.answered_at)
        found = [
            f"call {call.inference}: {call.detail}"
            for call in self.failed
            if not is_excused_by_dead_ingress(faults, call)
        ]
        if answered > LIMIT:
            found.append(f"{answered} calls were answered, {LIMIT} a day is the quota")
        at_risk = sum(
            any(abs(at - died_at) <= saved_s for died_at in deaths_at) for at in self.answered_at
        )
        for name in ("applications", "inferences"):
            counted = sum(row[name] for row in usage)
            most = max(answered, min(LIMIT, answered + self.unreached))
            if not answered - at_risk <= counted <= most:
                found.append(
                    f"usage has {counted} {name}: {answered} were answered, {at_risk} of them in"
                    f" the moment of two deaths, and {self.unreached} were not reached"
                )
        return found


class QuotaTenantLoad:
    """Steady calls of one tenant with a quota, made while faults are injected."""

    def __init__(self, http: Transport) -> None:
        self._calls = JsonCalls(http, max_retries=0)
        self.record = CrowdRecord()
        self._made = 0

    async def call(self) -> None:
        """Make one call, an application of its own, and record its outcome."""
        number, self._made = self._made, self._made + 1
        name = f"{CROWD}.{number}"
        body = {"prompt": CROWD, "max_tokens": 2, "user": f"{name}#1"}
        called_at = time.monotonic()
        try:
            await self._calls.call("POST", COMPLETIONS, body, {TENANT_HEADER: CROWD})
        except ResponseError as error:
            if error.status == _TOO_MANY and error.code == _EXHAUSTED and error.limit is not None:
                self.record.refused += 1
            elif error.status in (_TOO_MANY, _UNAVAILABLE):
                self.record.unreached += 1
            else:
                ended_at = time.monotonic()
                failed = Call(name, name, 1, called_at, ended_at, Ending.BROKEN, str(error))
                self.record.failed.append(failed)
        except (ConnectionError, JustitiaError):
            self.record.unreached += 1
        else:
            self.record.answered_at.append(time.monotonic())

    async def call_repeatedly(self, calls: int, every_s: Seconds) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(calls):
                group.create_task(self.call())
                await asyncio.sleep(every_s)


_TOO_MANY, _UNAVAILABLE = 429, 503
