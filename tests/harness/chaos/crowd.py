"""A crowd of calls of one tenant beyond its quota, and what came of it: none passes too many."""

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
from tests.harness.chaos.counts import went_with_an_ingress
from tests.harness.chaos.records import Call, Ending, InjectedFault

CROWD = "crowd"
LIMIT = 24
"""Applications of the crowd a day; each call is one."""
QUOTAS = {"tenants": {CROWD: {"quotas": [{"unit": "applications", "limit": LIMIT, "per": "day"}]}}}
"""Settings with the quota; no other tenant has any."""
_EXHAUSTED = "insufficient_quota"


@dataclass
class CrowdRecord:
    """Outcomes of the calls of a crowd."""

    answered_at: list[Seconds] = field(default_factory=list)
    """By this machine's monotonic clock."""
    refused: int = 0
    """For the quota."""
    unreached: int = 0
    """For accounts that did not answer in time, or with an ingress that died."""
    failed: list[Call] = field(default_factory=list)
    """Calls with an error that only the death of an ingress excuses."""

    def flaws(
        self,
        usage: Sequence[Mapping[str, Any]],
        faults: Sequence[InjectedFault],
        deaths_at: Sequence[Seconds],
        saved_s: Seconds,
    ) -> list[str]:
        """Return what is wrong, in words; nothing if quota and usage are kept.

        Usage has each answered call, once. It may have calls that were not answered, too: their
        ingresses died, or were not reached.

        Args:
            usage: Rows of `/v1/usage` of the crowd.
            faults: What was broken.
            deaths_at: When schedulers died together with who could have told their successors.
            saved_s: How old what a dying scheduler has not saved may be; for so long around these
                deaths something may be lost.
        """
        answered = len(self.answered_at)
        found = [
            f"call {call.inference}: {call.detail}"
            for call in self.failed
            if not went_with_an_ingress(faults, call)
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


class Crowd:
    """Calls as one tenant, steadily, whatever dies."""

    def __init__(self, http: Transport) -> None:
        """Begin with no call.

        Args:
            http: The way to the service, with a key whose calls may be for any tenant.
        """
        self._calls = JsonCalls(http, max_retries=0)
        self.record = CrowdRecord()
        self._made = 0

    async def call(self) -> None:
        """Make a call, an application of its own, and note what became of it."""
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

    async def play(self, calls: int, every_s: Seconds) -> None:
        """Make so many calls, one every so often, and wait for all answers."""
        async with asyncio.TaskGroup() as group:
            for _ in range(calls):
                group.create_task(self.call())
                await asyncio.sleep(every_s)


_TOO_MANY, _UNAVAILABLE = 429, 503
