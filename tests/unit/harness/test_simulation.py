"""The simulated protocol: the real parts keep every rule, and each rule detects a broken part."""

import gc
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from justitia_ray.protocol.engine import Hold
from justitia_ray.serve.replica.call_holds import CallHolds
from justitia_ray.units import LeaseId, Seconds
from scripts import simulate_protocol
from tests.harness.planned import PlannedInference
from tests.harness.simulation.broken_parts import BROKEN
from tests.harness.simulation.connections import Connections
from tests.harness.simulation.parts import Parts, ReplicaHost
from tests.harness.simulation.plan import Fault, FaultKind, Plan, draw_plan, with_held_contexts
from tests.harness.simulation.run import run_plan, run_seeds, shrink
from tests.harness.simulation.virtual_loop import NothingLeftToDo, VirtualLoop, run_virtually
from tests.harness.simulation.world import World

_SEEDS = (0, 25)


@pytest.mark.slow
def test_simulated_service_keeps_every_rule_under_faults() -> None:
    """Messages are lost and repeated, and processes die: no inference is lost or runs twice."""
    result = run_seeds(_SEEDS)

    assert [] == result.findings
    assert 25 == result.simulations
    assert 10 <= len([kind for kind in result.struck if "in vain" not in kind])


def test_no_context_is_held_for_ever_when_schedulers_replicas_and_engines_die() -> None:
    for seed in (0, 4, 6):
        simulated = run_plan(_with_deaths(with_held_contexts(draw_plan(seed))))

        assert () == simulated.failures, f"seed {seed}"
        assert 20 < simulated.held, f"seed {seed}"


@pytest.mark.parametrize("seed", [0, 4, 6])
def test_draining_replica_with_held_contexts_stops_when_its_leases_end(seed: int) -> None:
    """Blocks of held contexts are free, so a replica need not wait for them."""
    drain = Fault(FaultKind.REPLICA_DRAIN, at_s=5.0, for_s=1.0)
    plan = replace(with_held_contexts(draw_plan(seed)), faults=(drain,))
    endless = _drains_of(plan, BROKEN["holds have no end"].parts)
    ended = _drains_of(plan, Parts(holds=_HoldsThatEndAtOnce))

    assert [left_s for left_s, _ in ended] == [left_s for left_s, _ in endless]
    assert 0 == ended[0][1] < endless[0][1]


class _HoldsThatEndAtOnce(CallHolds):
    def take(self, lease_id: LeaseId) -> Hold | None:
        hold = super().take(lease_id)
        return hold and hold._replace(for_s=0.0)


def _drains_of(plan: Plan, parts: Parts) -> list[tuple[Seconds, int]]:
    """Return when each drained replica stopped, and how many contexts it held then."""
    drains: list[tuple[Seconds, int]] = []
    leave = World._leave_and_crash

    async def leave_and_record(world: World, host: ReplicaHost) -> None:
        await leave(world, host)
        drains.append((world.recorder.now, host.engine.kept_kv().held_contexts or 0))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "_leave_and_crash", leave_and_record)
        run_plan(plan, parts)
    return drains


def _with_deaths(plan: Plan) -> Plan:
    """Return a plan in which a scheduler, an engine and a replica die at different times."""
    deaths = (
        Fault(FaultKind.SCHEDULER_CRASH, 3.0, 1.0),
        Fault(FaultKind.ENGINE_DEATH, 5.0, 1.0),
        Fault(FaultKind.REPLICA_CRASH, 7.0, 1.0, party=plan.replicas - 1),
    )
    faults = sorted((*plan.faults, *deaths), key=lambda fault: fault.at_s)
    return replace(plan, faults=tuple(faults))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3297, 4058, 12585])
def test_simulations_with_formerly_failing_seeds_break_no_rule(seed: int) -> None:
    """Causes of past failures: late settings, a repeated batch, a plan that changed quotas."""
    assert () == run_plan(draw_plan(seed)).failures


def test_simulation_with_a_fixed_seed_is_deterministic() -> None:
    """A seed that fails in a search of hours must fail again in a single run."""
    first, second = (run_plan(draw_plan(7), traced=True) for _ in range(2))

    assert first.trace == second.trace
    assert (first.steps, first.grants) == (second.steps, second.grants)


@pytest.mark.slow
@pytest.mark.parametrize("mistake", BROKEN)
def test_each_mutant_of_the_simulated_service_is_detected(mistake: str) -> None:
    """If no mutant broke a rule, the rule would show nothing."""
    simulated = BROKEN[mistake].find()

    assert simulated is not None
    assert not run_plan(simulated.plan).failures


@pytest.mark.slow
def test_calls_end_as_documented_while_no_replica_is_reachable() -> None:
    """A call may use twenty leases; here each replica takes two of them every two seconds."""
    plan = draw_plan(3117)
    faults = tuple(
        Fault(FaultKind.PORT_BLOCKED, at_s=6.9, for_s=40.0, party=replica, other=2, both=True)
        for replica in range(plan.replicas)
    )
    simulated = run_plan(replace(plan, faults=faults), traced=True)

    assert (1, 2, ()) == (plan.ingresses, plan.replicas, simulated.failures)
    assert "AttemptsExhausted('gave up after 20 attempts')" in simulated.trace


@pytest.mark.slow
@pytest.mark.parametrize("answers", [True, False], ids=["machine answers", "machine is silent"])
def test_suspended_replicas_keep_their_leases_while_their_hosts_answer(
    answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop of seven seconds is longer than five pings and than `replica_timeout_s`."""
    monkeypatch.setattr(Connections, "machine_answers", lambda self, end: answers)
    drawn = draw_plan(5)
    plan = replace(
        drawn,
        faults=tuple(
            Fault(FaultKind.REPLICA_STALL, at_s, for_s=7.0, party=replica)
            for replica, at_s in ((0, 2.5), (1, 4.0))
        ),
        applications=tuple(
            replace(application, stages=_with_patient_callers(application.stages))
            for application in drawn.applications
        ),
    )
    simulated = run_plan(plan)

    assert () == simulated.failures
    assert answers == (plan.inferences == simulated.grants)


def _with_patient_callers(stages: tuple[tuple[PlannedInference, ...], ...]) -> Any:
    """Return stages whose callers neither disconnect nor set deadlines."""
    return tuple(
        tuple(replace(one, leaves_after_s=None, deadline_s=None) for one in stage)
        for stage in stages
    )


@pytest.mark.slow
def test_failing_simulation_is_reduced_to_fewer_events() -> None:
    """Readers of a failure need a history without unrelated events."""
    broken = BROKEN["tags are put back wrong"]
    simulated = broken.find()
    assert simulated is not None
    plan = simulated.plan
    smaller = shrink(plan, broken.parts)

    assert broken.check == smaller.failures[0].check
    assert 1 == len(smaller.plan.faults)
    assert len(smaller.plan.applications) <= len(plan.applications)


@pytest.mark.slow
def test_failing_simulation_leaves_no_coroutine_behind() -> None:
    """A Python warning about a coroutine that was never awaited would hide the real failure."""
    plan = replace(
        draw_plan(3),
        faults=(
            Fault(FaultKind.INGRESS_STALL, at_s=0.5, for_s=40.0),
            Fault(FaultKind.SCHEDULER_CRASH, at_s=3.5, for_s=0.1),
        ),
    )
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        simulated = run_plan(plan, BROKEN["tags are put back wrong"].parts)
        gc.collect()

    assert ["tags_survive_restarts"] == [failure.check for failure in simulated.failures[:1]]
    assert [] == [str(warning.message) for warning in warned]


def test_endless_wait_is_detected() -> None:
    """A simulation where all parts wait for each other would never end."""

    async def wait_forever() -> None:
        await VirtualLoop.create_future(loop)

    loop = VirtualLoop()
    with pytest.raises(NothingLeftToDo, match="nothing will ever happen"):
        run_virtually(wait_forever(), loop)


@pytest.mark.slow
def test_search_result_is_written_as_json(tmp_path: Path) -> None:
    """Results of long searches are compared by this file."""
    file = tmp_path / "found.json"
    assert 0 == simulate_protocol.main(["--count", "2", "--jobs", "1", "--json", str(file)])

    found = json.loads(file.read_text(encoding="utf-8"))
    assert (2, []) == (found["simulations"], found["findings"])
    assert all(isinstance(count, int) for count in found["struck"].values())
