"""Engines that the service starts and stops with the queue's demand under load."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from justitia_ray.client.transport import HttpTransport
from tests.eventually import eventually
from tests.harness.bodies import COMPLETIONS, completion
from tests.harness.chaos.app import loads_file
from tests.harness.chaos.counts import count_calls
from tests.harness.chaos.fleet import FleetLimits, measure_fleet
from tests.harness.chaos.load import draw_load, draw_long_streams
from tests.harness.chaos.plan import FaultKind, FaultRound
from tests.harness.chaos.records import read_loadings
from tests.harness.chaos.rounds import FaultRounds, fake_answers
from tests.harness.chaos.target import ChaosTarget
from tests.harness.known_load import known_load
from tests.harness.open_calls import OpenStream
from tests.harness.service import Service, Serving

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

_SCALED_WITHIN_S = 240.0
"""Time limit in seconds of a scaling step; an engine's process starts slowly on busy cores."""
_RULES: dict[str, Any] = {
    "max_replicas": 4,
    "target_drain_s": 1.5,
    "load_s": 2.0,
    "hold_s": 2.0,
    "upscale_delay_s": 0.5,
    "downscale_delay_s": 4.0,
    "poll_s": 0.2,
}
"""Autoscaling rules with short delays."""
_FAKE = {"iteration_s": 0.02, "max_num_seqs": 2, "kv_tokens": 2 * 65_536}
"""Engine on which a call of 60 tokens takes 1.2 s, so that 16 callers keep eight seats busy."""
_SEED = 1
_PLAN = (
    FaultRound(0, (FaultKind.LOADING_KILLED, FaultKind.SCHEDULER_KILLED), 0.0, 0.5),
    FaultRound(1, (FaultKind.CONTROLLER_KILLED_IN_DRAIN,), 0.0, 0.5),
)


async def wait_for_replicas(service: Service, number: int) -> list[str]:
    """Wait until `number` replicas take inferences, and return them."""
    found: list[str] = []

    async def replicas_are_there() -> bool:
        nonlocal found
        found = await service.pulling_replicas()
        return len(found) == number

    what = f"{number} replicas take work"
    try:
        await eventually(replicas_are_there, what, _SCALED_WITHIN_S, every_s=0.2)
    except AssertionError as late:
        late.add_note(f"{found} do; the size is {(await service.status()).get('size')}")
        raise
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def service(serving: Serving, request: pytest.FixtureRequest) -> AsyncIterator[Service]:
    """Application whose minimum number of engines is the fixture's parameter."""
    least = request.param
    async with serving.deployed_service(
        f"scaled-{least}",
        import_path="tests.harness.chaos.app:build_loading",
        replicas=least,
        fake=_FAKE,
        autoscaling={**_RULES, "min_replicas": least},
    ) as service:
        yield service


@pytest.mark.long
@pytest.mark.parametrize("service", [1], indirect=True)
async def test_scaling_from_one_to_four_and_back_under_load_loses_no_answer(
    service: Service, http: httpx.AsyncClient
) -> None:
    """Each caller gets each answer once; a stream on a stopping engine runs to its end.

    A stream with a penalty cannot continue elsewhere, so a cut one would end with an error. Four of
    them would fit on two engines, so that two engines are removed.
    """
    async with known_load(http, callers=1) as few:
        async with known_load(http, callers=16, seed=2) as many:
            four = await wait_for_replicas(service, 4)
            size = (await service.status())["size"]
        body = completion(max_tokens=1_000, presence_penalty=0.5)
        streams = [OpenStream(http, body) for _ in four]
        (last,) = await wait_for_replicas(service, 1)
        await few.wait_for_answers(3)

    assert last in four
    assert 4 == size["wanted"]
    assert ["[DONE]"] * 4 == [await stream.end() for stream in streams]
    many.assert_all_correct()
    few.assert_all_correct()


@pytest.mark.long
@pytest.mark.parametrize("service", [1], indirect=True)
async def test_faults_during_autoscaling_lose_no_answer(service: Service) -> None:
    """The test injects three of the faults of `scripts/chaos --autoscaling`.

    The scheduler determines the number of replicas, and Serve's controller starts and ends them.
    """
    assert service.config.autoscaling is not None
    target = ChaosTarget(service.name, service.config, {"Replica": 1, "Ingress": 1, "Predictor": 1})
    load = draw_load(_SEED, 12, 140, len(_PLAN), (40, 120))
    load += draw_long_streams(_SEED, len(_PLAN), 2, (200, 300))
    http = HttpTransport(service.url)
    rounds = FaultRounds(target, http, load, _PLAN, stopped_s=1.0)
    async with rounds.sampling():
        await rounds.run_rounds()
        await rounds.fleet.wait_for_minimum()
    await http.aclose()
    await service.until_idle()
    records, runs = rounds.records, rounds.runs()
    counts = count_calls(load, records, runs, fake_answers(load, service.config))
    limits = FleetLimits.from_autoscaling(service.config.autoscaling)
    fleet = measure_fleet(limits, records, runs, read_loadings(loads_file(service.config)))

    assert 3 == len(records.faults)
    assert ((),) * 5 == (counts.lost, counts.doubled, counts.wrong, counts.cut, counts.broken)
    assert () == fleet.flaws
    assert fleet.most > 2
    assert fleet.taken_off > 1


@pytest.mark.parametrize("service", [0], indirect=True)
async def test_scaling_from_zero_to_one_and_back_loses_no_answer(
    service: Service, http: httpx.AsyncClient
) -> None:
    """The first call waits for an engine to start."""
    assert [] == await wait_for_replicas(service, 0)
    ready = await http.get("/readyz")
    async with known_load(http, callers=2) as load:
        before = await wait_for_replicas(service, 1)
        await load.wait_for_answers(2)
    await wait_for_replicas(service, 0)
    stream = OpenStream(http, completion("again", max_tokens=20))
    after = await wait_for_replicas(service, 1)

    assert 200 == ready.status_code, ready.text
    assert "[DONE]" == await stream.end()
    assert before != after
    load.assert_all_correct()
    assert 200 == (await http.post(COMPLETIONS, json=completion())).status_code
    await wait_for_replicas(service, 0)
    assert "nothing" == (await service.status())["size"]["reason"]
