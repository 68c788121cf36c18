"""The short form of `scripts/chaos`: a seeded load, four kinds of fault, nothing lost."""

import asyncio

import pytest
import pytest_asyncio

from justitia_ray.chaos.callers import Callers
from justitia_ray.chaos.counts import count
from justitia_ray.chaos.journal import read_journal
from justitia_ray.chaos.kinds import Kind
from justitia_ray.chaos.load import draw_load
from justitia_ray.chaos.notes import Notes
from justitia_ray.chaos.order import measure_order
from justitia_ray.chaos.plan import draw_plan
from justitia_ray.chaos.recovery import is_over, windows
from justitia_ray.client.handle_transport import HandleTransport
from justitia_ray.client.transport import HttpTransport
from justitia_ray.serve.chaos_run import fake_answers
from justitia_ray.serve.chaos_sampler import keep_sampling
from justitia_ray.serve.chaos_strikes import Striker
from justitia_ray.serve.chaos_target import ChaosTarget
from tests.eventually import eventually
from tests.integration.service import Service, Serving

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

_SEED = 1
_KINDS = (Kind.SCHEDULER_KILLED, Kind.REPLICA_KILLED, Kind.ENGINE_KILLED, Kind.CALLERS_LEFT)
_BACK_WITHIN_S = 20.0
"""The target is 5 s on a machine with nothing else to do."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def chaotic(serving: Serving) -> Service:
    """An application to break, with a journal of its runs."""
    service = serving.service(
        "chaotic",
        import_path="justitia_ray.serve.chaos_app:build",
        fake={"iteration_s": 0.01, "max_num_seqs": 3},
        scheduler={
            "replica_timeout_s": 4.0,
            "lease_timeout_s": 5.0,
            # What was ended and not saved when the scheduler died ends by idle time.
            "application_idle_s": 15.0,
        },
    )
    await service.deploy()
    return service


async def test_faults_under_load_lose_double_and_disorder_nothing(chaotic: Service) -> None:
    """What `scripts/chaos` shows at length, small enough to be run with every change."""
    target = ChaosTarget(chaotic.name, chaotic.config, {"Replica": 2, "Ingress": 1, "Predictor": 1})
    plan = draw_plan(_SEED, _KINDS)
    load = draw_load(_SEED, 20, 80, len(plan) + 1)
    notes, journal = Notes(), target.journal
    http, handle = HttpTransport(chaotic.url), HandleTransport(target.handle("Ingress"))
    callers = Callers(http, handle, notes)
    striker = Striker(target, callers, notes, load, stopped_s=1.0, more_ways={})

    async def all_recovered() -> bool:
        runs = await asyncio.to_thread(read_journal, journal)
        return all(is_over(hit, notes, runs) for hit in notes.hits)

    sampling = asyncio.create_task(keep_sampling(target, notes))
    async with asyncio.TaskGroup() as group:
        for strike in plan:
            await striker.ready(strike)
            phase = [planned for planned in load if planned.phase == strike.number]
            group.create_task(callers.play(phase))
            await asyncio.sleep(strike.after_s)
            notes.hits += await striker.strike(strike)
            await eventually(all_recovered, f"{strike.kinds[0]} is over", _BACK_WITHIN_S)
        last = [planned for planned in load if planned.phase == len(plan)]
        group.create_task(callers.play(last))
    sampling.cancel()
    await http.aclose()
    await chaotic.until_idle()
    runs = read_journal(journal)
    counts = count(load, notes, runs, fake_answers(load, chaotic.config))
    order = measure_order(runs, notes.calls, windows(notes, runs), notes.tags)

    assert [kind for strike in plan for kind in strike.kinds] == [h.kind for h in notes.hits]
    assert 80 == counts.inferences
    assert ((),) * 5 == (counts.lost, counts.doubled, counts.wrong, counts.cut, counts.broken)
    assert ((), ()) == (order.unexplained, order.tags_changed)
    assert order.pairs > 0
    assert 2 < len({run.pid for run in runs})  # what was started in place of the dead ran too
