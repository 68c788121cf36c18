"""How long a new replica delays a rolling update until its prefix cache is filled."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from justitia_ray.serve.replica.cache_fill import IDLE_S, wait_until_filled
from tests.harness.simulation.virtual_loop import run_virtually


def wait_for_fill(tokens_each: int, calls: int, cached_each: int = 0) -> tuple[bool, float]:
    """Call once a second; return whether a cache of 1,000 tokens was filled, and when."""

    async def run_wait() -> tuple[bool, float]:
        leases: Any = SimpleNamespace(held_leases={}, prompt_tokens=0, cached_tokens=0)
        clock = asyncio.get_running_loop().time

        async def serve_calls() -> None:
            for number in range(calls):
                await asyncio.sleep(0.5)
                leases.held_leases[number] = None
                await asyncio.sleep(0.5)
                del leases.held_leases[number]
                leases.prompt_tokens += tokens_each
                leases.cached_tokens += cached_each

        began_at, serving = clock(), asyncio.create_task(serve_calls())
        filled = await wait_until_filled(leases, 1_000, 60.0)
        took_s = clock() - began_at
        serving.cancel()
        return filled, took_s

    return run_virtually(run_wait())


@pytest.mark.parametrize(
    ("tokens_each", "calls", "expected"),
    [
        (100, 100, (True, 10.0)),  # The prompt of the tenth call has been computed.
        (1, 100, (False, 60.0)),  # The prompts are too small, so the wait has its maximum length.
        (100, 3, (False, 3.0 + IDLE_S)),  # no more calls arrive
        (100, 0, (False, IDLE_S)),  # a cold start without callers
    ],
)
def test_wait_for_a_full_cache_ends_when_it_no_longer_fills(
    tokens_each: int, calls: int, expected: tuple[bool, float]
) -> None:
    filled, took_s = wait_for_fill(tokens_each, calls)

    assert expected[0] is filled
    assert expected[1] == pytest.approx(took_s, abs=0.3)


def test_already_cached_tokens_do_not_count_as_filled() -> None:
    filled, took_s = wait_for_fill(150, 100, cached_each=50)

    assert filled
    assert 10.0 == pytest.approx(took_s, abs=0.3)
