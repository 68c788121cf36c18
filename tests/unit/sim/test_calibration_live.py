"""The requests that show what an iteration costs, and a service in memory that they are sent to."""

import asyncio

import pytest

from justitia_ray.errors import ConfigError, ResponseError
from justitia_ray.serve.histories.virtual_loop import run_virtually
from justitia_ray.sim.calibration.live import designed_load, measure_live
from justitia_ray.sim.calibration.measured import MeasuredRun, TimedRequest
from justitia_ray.sim.calibration.regression import fit_iterations
from tests.unit.replay.fake_service import FakeService


def service(replicas: int = 1) -> FakeService:
    """Return a service that takes 1 s to a first token and 0.5 s to each other one."""
    made = FakeService()
    made.status["replicas"] = {f"r{i}": {"kv_tokens": 4000} for i in range(replicas)}
    return made


def measured(fake: FakeService) -> tuple[list[TimedRequest], int]:
    """Time the requests in virtual time."""

    async def main() -> tuple[list[TimedRequest], int]:
        clock = asyncio.get_running_loop().time
        return await measure_live("http://service", clock=clock, network=fake.network())

    return run_virtually(main())


def test_costs_of_a_service_are_found() -> None:
    """Each token of this service takes 0.5 s, whatever runs beside: all else costs nothing."""
    requests, kv_tokens = measured(service())
    fit = fit_iterations([MeasuredRun("live", "fcfs", tuple(requests))])

    assert 4000 == kv_tokens
    assert 0.5 == pytest.approx(fit.cost.base_s, rel=1e-6)
    assert 0 == pytest.approx(fit.cost.per_sequence_s, abs=1e-6)
    assert 0 == pytest.approx(fit.cost.per_prefill_token_s, abs=1e-6)


def test_stages_follow_each_other_and_keep_within_memory() -> None:
    """Nothing may wait for memory or be preempted, or waiting would be taken for cost.

    A stage's requests all wait for the stage before, and hold at most 3,200 tokens together.
    """
    load = designed_load("x", room=3200, longest=1000)
    load.check()
    stages: dict[tuple[str, ...], list[int]] = {}
    for inference in load.inferences:
        total = inference.prompt_tokens + inference.output_tokens
        assert total <= 1000
        stages.setdefault(inference.after, []).append(total)

    assert all(sum(totals) <= 3200 for totals in stages.values())
    # 1 to 32 short ones beside each other, then 1, 4 and 8 long ones.
    assert [1, 2, 4, 8, 16, 32, 1, 4, 8] == [len(totals) for totals in stages.values()][:9]


def test_small_engine_is_sent_fewer_and_shorter_requests() -> None:
    """An engine of 300 tokens takes no batch of four; it is measured all the same."""
    load = designed_load("x", room=240, longest=240)
    load.check()

    assert max(i.prompt_tokens + i.output_tokens for i in load.inferences) <= 240


def test_two_replicas_are_refused() -> None:
    """Nobody could tell which requests ran beside each other."""
    with pytest.raises(ConfigError) as error:
        measured(service(replicas=2))

    assert "--url must be a service with one replica, http://service has 2" == str(error.value)


def test_failed_request_fails_the_measurement() -> None:
    """A hole in the data would be filled with a guess."""
    fake = service()
    fake.streams[64] = "error"
    with pytest.raises(ResponseError) as error:
        measured(fake)

    assert "a request to http://service failed" in str(error.value)
