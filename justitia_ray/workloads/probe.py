"""Whether memory or computation is what an engine lacks: how throughput grows with the batch."""

import asyncio
import json
import statistics
import time
from dataclasses import dataclass

from justitia_ray.client import JustitiaClient
from justitia_ray.client.transport import Transport

_OUTPUT_TOKENS = 120
_NARROW = 10
"""Sequences a replica: about what the prompts of applications leave room for."""
_WIDE = 40
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Headroom:
    """Decode throughput of a replica, with few and with many short sequences in its batch."""

    narrow_sequences: int
    narrow_tokens_per_s: float
    wide_sequences: int
    wide_tokens_per_s: float

    def describe(self) -> str:
        """Return one sentence for people."""
        factor = self.wide_tokens_per_s / self.narrow_tokens_per_s
        return (
            f"{self.narrow_sequences} sequences, about as many as fit at this load's lengths, make"
            f" {self.narrow_tokens_per_s:.0f} tokens/s on a replica, {self.wide_sequences} short"
            f" ones {self.wide_tokens_per_s:.0f}: the CPU could serve {factor:.1f}x if they fitted."
        )


async def measure_headroom(client: JustitiaClient, transport: Transport) -> Headroom:
    """Measure an idle service, all replicas at once; takes some seconds.

    A batch is one call with that many choices, so that the calls themselves cost nothing.
    """
    answer = await transport.request("GET", "/v1/status", {})
    replicas = len(json.loads(answer.body)["replicas"])
    narrow, wide = [], []
    for _ in range(_ROUNDS):
        narrow.append(await _tokens_per_s(client, _NARROW, replicas))
        wide.append(await _tokens_per_s(client, _WIDE, replicas))
    return Headroom(_NARROW, statistics.median(narrow), _WIDE, statistics.median(wide))


async def _tokens_per_s(client: JustitiaClient, sequences: int, replicas: int) -> float:
    """Return the throughput of one replica while all are equally busy."""
    async with client.application("probe", input="") as app:
        started = time.monotonic()
        await asyncio.gather(
            *(
                app.complete(
                    "One two three", max_tokens=_OUTPUT_TOKENS, ignore_eos=True, n=sequences
                )
                for _ in range(replicas)
            )
        )
        return sequences * _OUTPUT_TOKENS / (time.monotonic() - started)
