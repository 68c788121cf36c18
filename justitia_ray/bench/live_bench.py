"""What scripts/bench_live does on a service that is up: every play, in its order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from justitia_ray.bench.live_arms import ARMS, FCFS, JUSTITIA, SRJF, Arm, rotated
from justitia_ray.bench.live_load import (
    MICE,
    ElephantLoad,
    Size,
    calibration,
    calibration_elephant,
    elephant_and_mice,
    nine_classes,
)
from justitia_ray.bench.live_model import LiveModel, fit_model
from justitia_ray.bench.live_rows import as_history
from justitia_ray.bench.live_session import LiveRun, Session
from justitia_ray.errors import ResponseError
from justitia_ray.predictor.observation import Observation
from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.workloads.load_plan import PlannedApplication

CALIBRATION_ARMS = (FCFS, SRJF)
"""Under the one all sorts of calls run side by side, under the other small ones and then large."""
ELEPHANT_ARMS = (SRJF, JUSTITIA)
_CALIBRATION = "calibration"
_CALIBRATION_ELEPHANT = "calibration elephant"
_ELEPHANT = "elephant"


@dataclass(frozen=True, slots=True)
class Plays:
    """Everything that was played."""

    calibration: tuple[LiveRun, ...]
    """What the model is fitted on: a load under each of `CALIBRATION_ARMS`."""
    calibration_elephant: LiveRun
    """And an elephant among mice: their calls are shorter, and fewer run side by side."""
    history: tuple[Observation, ...]
    """What the predictor was taught of every class before the other plays: the first one's."""
    runs: dict[int, list[LiveRun]]
    """By seed, in the order in which they were played."""
    elephant_load: ElephantLoad
    elephant_runs: list[LiveRun]
    model: LiveModel
    """Fitted on the calibrations."""


async def play_all(
    session: Session,
    seeds: Sequence[int],
    size: Size,
    data_dir: Path | None,
    say: Callable[[str], None],
    start: Callable[[Mapping[str, Any]], EngineProfile],
) -> Plays:
    """Play the calibrations, every seed under every arm, and the elephant.

    The predictor must know the same at the start of every run. So each run has classes of its own,
    which are taught what was seen in the calibration; what a run teaches stays with its classes.

    Args:
        session: The service; it should have nothing else to do.
        seeds: Of the loads; the first also of calibration and elephant.
        size: How much is played.
        data_dir: Where inputs and recorded runs lie; None: they are made up.
        say: Told of every play.
        start: Returns the engines' memory and rules, by the service's status.

    Raises:
        JustitiaError: If a policy does not come into force, or an application of the calibration or
            all of a run fail.
        ConnectionError: If the service does not answer.
    """

    async def run(name: str, arm: Arm, load: Sequence[PlannedApplication]) -> LiveRun:
        played = await session.play(arm, load, _suffix(name, arm))
        say(_line(name, played))
        if played.failed == len(load) or (name.startswith(_CALIBRATION) and played.failed):
            error = next(one.record.error for one in played.played if one.record.error)
            raise ResponseError(200, f"{name}, {arm.name}: {played.failed} failed, one of: {error}")
        return played

    status = await session.status()
    load = calibration(seeds[0], size, data_dir)
    first, *others = CALIBRATION_ARMS
    played_first = await run(_CALIBRATION, first, load)
    history = tuple(as_history(played_first.played))
    names = [f"seed {seed}" for seed in seeds]
    await session.teach(
        history,
        [_suffix(_CALIBRATION, arm) for arm in others]
        + [_suffix(_CALIBRATION_ELEPHANT, SRJF)]
        + [_suffix(name, arm) for name in names for arm in ARMS]
        + [_suffix(_ELEPHANT, arm) for arm in ELEPHANT_ARMS],
    )
    start_from, replicas = start(status), len(status["replicas"])
    calibrations = (played_first, *[await run(_CALIBRATION, arm, load) for arm in others])
    mice = [one for one in played_first.played if one.record.application_class in MICE]
    takes_s = fit_model(calibrations, history, start_from, replicas).takes_s(mice)
    tried = calibration_elephant(seeds[0], size, data_dir, takes_s)
    calibrated = await run(_CALIBRATION_ELEPHANT, SRJF, tried.applications)
    model = fit_model([*calibrations, calibrated], history, start_from, replicas)
    say(f"engine profile fitted: {model.fit.residual:.0%} of a call's time is unexplained")
    runs: dict[int, list[LiveRun]] = {}
    for index, seed in enumerate(seeds):
        load = nine_classes(seed, size, data_dir)
        runs[seed] = [await run(names[index], arm, load) for arm in rotated(ARMS, index)]
    elephant = elephant_and_mice(seeds[0], size, data_dir, model.takes_s(mice))
    elephant_runs = [await run(_ELEPHANT, arm, elephant.applications) for arm in ELEPHANT_ARMS]
    return Plays(calibrations, calibrated, history, runs, elephant, elephant_runs, model)


def _suffix(load: str, arm: Arm) -> str:
    """Return what is put after the classes of a run."""
    return f".{load.replace(' ', '-')}.{arm.name}"


def _line(load: str, run: LiveRun) -> str:
    jcts = [one.record.jct_s for one in run.played if one.record.outcome == "completed"]
    mean = f"{sum(jcts) / len(jcts):.1f} s" if jcts else "–"
    failed = f", {run.failed} FAILED" if run.failed else ""
    return (
        f"{load}, {run.arm.name}: {len(run.played)} applications in {run.wall_s:.0f} s,"
        f" mean {mean}{failed}"
    )
