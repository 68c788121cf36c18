"""Plays that were never played, for tests of what is made of them."""

import random
from collections.abc import Sequence

from justitia_ray.bench.decisions import Decisions
from justitia_ray.bench.live_arms import FCFS, Arm
from justitia_ray.bench.live_model import REPORT_INTERVAL_S
from justitia_ray.bench.live_recorder import RecordedApplication, RecordedInference
from justitia_ray.bench.live_rows import PlayedApplication
from justitia_ray.bench.live_session import LiveRun
from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.settings import RunSettings
from justitia_ray.sim.simulation import simulate
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.workloads.lengths import Lengths
from justitia_ray.workloads.load_plan import PlannedApplication
from justitia_ray.workloads.play import ApplicationRecord

NO_DECISIONS = Decisions(0, None, None, 0.0)


def inference(
    submitted_at_s: float,
    finished_at_s: float,
    tokens: tuple[int, int] = (100, 10),
    waited_s: float = 0.0,
    replica: str | None = "r1",
    ways_s: float = 0.0,
    dispatch_s: float = 0.0,
) -> RecordedInference:
    """Return an inference of a prompt and an output.

    It was on its ways for `ways_s` without a lease, and for `dispatch_s` with one.
    """
    leased_s = finished_at_s - submitted_at_s - waited_s - ways_s
    ran_s = leased_s - dispatch_s
    return RecordedInference(
        submitted_at_s, finished_at_s, *tokens, replica, waited_s, ran_s, leased_s
    )


def application(
    number: int,
    arrived_at_s: float,
    rows: Sequence[RecordedInference],
    application_class: str = "KBQAV",
    predicted: float = 1000.0,
    error: str | None = None,
) -> PlayedApplication:
    """Return an application that ended with its last inference."""
    planned = PlannedApplication(
        number,
        application_class,
        f"item-{number}",
        "text",
        "team-a",
        arrived_at_s,
        Lengths(steered=True, stages={}, limits={}),
    )
    ended_at_s = max((row.finished_at_s for row in rows), default=arrived_at_s)
    record = ApplicationRecord(
        f"app-{number}",
        application_class,
        "team-a",
        arrived_at_s,
        ended_at_s,
        ended_at_s - arrived_at_s,
        "completed" if error is None else "failed",
        len(rows),
        sum(row.output_tokens for row in rows),
        error,
    )
    return PlayedApplication(
        planned, record, RecordedApplication(f"app-{number}", predicted, list(rows))
    )


def run(arm: Arm, played: Sequence[PlayedApplication]) -> LiveRun:
    """Return a play under an arm."""
    return LiveRun(arm, tuple(played), 0.5, 0, NO_DECISIONS, {"engine": 1.0}, 10.0)


def simulated_play(
    engine: EngineProfile,
    count: int,
    seed: int,
    way_s: float,
    *,
    dispatch_s: float = 0.0,
    hold_up_s: float = 0.0,
    arm: Arm = FCFS,
) -> LiveRun:
    """Return what a recorder would have seen of engines of this profile, two of them.

    Args:
        engine: What an iteration costs.
        count: Applications of two stages.
        seed: Of their sizes.
        way_s: Added to each call, after its engine is done with it.
        dispatch_s: From the lease of a call to its engine.
        hold_up_s: How long a call holds up both engines when it comes, and again when it ends.
        arm: The policy.
    """
    rng = random.Random(seed)
    load = [
        WorkloadApplication(
            f"a{number:03d}",
            "KBQAV",
            number * 0.05,
            tuple(
                WorkloadInference(
                    f"{stage}-{i}",
                    rng.randrange(50, 700),
                    rng.randrange(20, 250),
                    () if stage == 0 else ("0-0", "0-1"),
                    way_s if stage else 0.0,
                )
                for stage in range(2)
                for i in range(2)
            ),
        )
        for number in range(count)
    ]
    settings = RunSettings(
        engine=engine,
        policy=arm.policy,
        replicas=2,
        report_interval_s=REPORT_INTERVAL_S if dispatch_s or hold_up_s else 0.0,
        dispatch_s=dispatch_s,
        hold_up_s=hold_up_s,
    )
    result = simulate(load, settings)
    rows: dict[str, list[RecordedInference]] = {}
    for row in result.inferences:
        assert row.dispatched_at_s is not None
        assert row.finished_at_s is not None
        rows.setdefault(row.application_id, []).append(
            inference(
                row.submitted_at_s,
                row.finished_at_s + way_s,
                (row.prompt_tokens, row.output_tokens),
                row.dispatched_at_s - row.submitted_at_s,
                str(row.replica),
                way_s,
                dispatch_s,
            )
        )
    played = [application(n, a.arrived_at_s, rows[a.application_id]) for n, a in enumerate(load)]
    return run(arm, played)
