"""Concurrent estimate requests are batched without a waiting time."""

import asyncio
from collections.abc import Sequence

import pytest

from justitia_ray.errors import RequestError
from justitia_ray.predictor.estimate import Estimate
from justitia_ray.predictor.online import EstimateRequest, LearningPredictor
from justitia_ray.serve.predictor.deployment import EstimateBatch


class Counted:
    """Predictor that records the size of each batch."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, requests: Sequence[EstimateRequest]) -> list[Estimate]:
        self.sizes.append(len(requests))
        return LearningPredictor().estimate_many(requests)


def request_of(name: str, tokens: int = 5) -> EstimateRequest:
    return EstimateRequest(name, tokens, 4)


async def test_concurrent_predictor_calls_are_one_batch() -> None:
    batch = EstimateBatch(counted := Counted())
    found = await asyncio.gather(*(batch.estimate(request_of("EV", n)) for n in (1, 2, 3)))

    assert [3] == counted.sizes
    # 4 output tokens after p prompt tokens cost 4p + 10.
    assert [14, 18, 22] == [estimate.kv_token_time for estimate in found]


async def test_single_predictor_call_is_answered_in_the_next_loop_turn() -> None:
    batch = EstimateBatch(Counted())
    call = asyncio.create_task(batch.estimate(request_of("EV")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert call.done()


async def test_invalid_request_does_not_fail_other_requests_of_its_batch() -> None:
    """One caller's invalid request must not fail the batch."""
    batch = EstimateBatch(Counted())
    good, bad, also_good = await asyncio.gather(
        *(batch.estimate(request_of(name)) for name in ("EV", "a b", "DM")), return_exceptions=True
    )

    assert isinstance(good, Estimate)
    assert isinstance(also_good, Estimate)
    assert isinstance(bad, RequestError)


async def test_internal_error_reaches_all_callers_of_the_batch() -> None:
    """Callers have a fallback estimate and must not wait forever."""

    def fail_batch(requests: Sequence[EstimateRequest]) -> list[Estimate]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await EstimateBatch(fail_batch).estimate(request_of("EV"))


async def test_batch_skips_a_cancelled_caller() -> None:
    batch = EstimateBatch(counted := Counted())
    gone = asyncio.create_task(batch.estimate(request_of("EV")))
    stays = asyncio.create_task(batch.estimate(request_of("DM")))
    await asyncio.sleep(0)
    gone.cancel()
    await stays

    assert [1] == counted.sizes
