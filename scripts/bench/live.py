"""Loads of `scripts/bench_live`: nine classes, one large application among small ones."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from justitia_ray.errors import ResponseError
from justitia_ray.predictor.observation import Observation
from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.suites.live_loads import nine_class_plan
from justitia_ray.sim.suites.load_plan import PlannedApplication
from justitia_ray.units import Seconds
from scripts.bench.live_model import LiveModel, fit_model
from scripts.bench.live_records import to_observations
from scripts.bench.live_session import ARMS, FCFS, JUSTITIA, SRJF, Arm, LiveRun, Session, shuffled

MICE = ("KBQAV", "CC", "ALFWI")
"""Classes of the small applications ("mice"), as in the simulated experiment (Justitia v1, Sec.
V-C).
"""
LENGTH_SCALE = 1.0
"""Factor on recorded lengths; shorter prompts would measure call overhead instead of tokens."""
GAP_SCALE = 0.3
"""Factor on tool times. At their full length the last applications would only wait for tools."""
SC_SAMPLES = 8
"""Number of sampled answers in an SC (self-consistency) application; the paper has 40."""
MOST_FAN_OUT = 20
"""Largest number of calls in a stage; the 40 scoring calls of class DM would take half of the time.
"""
_CALIBRATION_SEED = 1000
"""Offset of the calibration's seed, so that the profile is fitted on other draws than it predicts.
"""
_MICE_LOAD = 0.8
"""Share of the engines' capacity that small applications use; with more, fair sharing starves the
large application.
"""


@dataclass(frozen=True, slots=True)
class Size:
    """Number and classes of the applications in a live run, and when they arrive."""

    mix: Mapping[str, int]
    """Number of applications by class, equal for every seed."""
    window_s: Seconds
    """Mean length of the arrival window, in seconds."""
    elephant: str
    """Class of the large application ("elephant")."""
    mice_s: Seconds
    """Seconds during which small applications arrive."""

    @property
    def applications(self) -> int:
        """Number of applications in one run."""
        return sum(self.mix.values())


FULL = Size(
    {"CC": 11, "KBQAV": 11, "ALFWI": 11, "EV": 2, "FV": 2, "DM": 1, "MRS": 1, "PE": 7, "SC": 6},
    window_s=10.0,
    elephant="DM",
    mice_s=35.0,
)
"""Size of a full run: about half of the paper's 100 applications, at least one of each class."""
QUICK = Size(
    {"CC": 6, "KBQAV": 6, "ALFWI": 5, "EV": 1, "FV": 1, "MRS": 1, "PE": 3, "SC": 3},
    window_s=5.0,
    elephant="MRS",
    mice_s=12.0,
)
"""Size of a quick run, without DM: one costs a hundred times a small application."""


def nine_classes(seed: int, size: Size, data_dir: Path | None) -> list[PlannedApplication]:
    """Draw a load of the papers' nine application classes for one seed."""
    return _draw_load(seed, size.mix, size.window_s, data_dir)


def calibration(seed: int, size: Size, data_dir: Path | None) -> list[PlannedApplication]:
    """Draw the load on which the engine model is fitted and from which the predictor learns."""
    return nine_classes(seed + _CALIBRATION_SEED, size, data_dir)


@dataclass(frozen=True, slots=True)
class ElephantLoad:
    """A large application, and small ones that arrive at equal intervals."""

    applications: list[PlannedApplication]
    """Applications; the large one is first."""
    seed: int
    mouse_every_s: Seconds

    def document(self) -> dict[str, Any]:
        return {
            "elephant": self.applications[0].application_class,
            "mice": len(self.applications) - 1,
            "mouse_every_s": self.mouse_every_s,
            "mice_load": _MICE_LOAD,
            "seed": self.seed,
        }


def elephant_and_mice(
    seed: int, size: Size, data_dir: Path | None, mouse_takes_s: Seconds
) -> ElephantLoad:
    """Draw one large application, and small ones that nearly fill the engines.

    Args:
        seed: Of the draws.
        size: For how long mice come.
        data_dir: Where inputs lie; None: they are made up.
        mouse_takes_s: Of all engines together, if they serve nothing but mice.
    """
    every_s = mouse_takes_s / _MICE_LOAD
    [elephant] = _draw_load(seed, {size.elephant: 1}, 1.0, data_dir)
    count = max(1, round(size.mice_s / every_s))
    decks = {name: -(-count // len(MICE)) for name in MICE}
    mice = _draw_load(seed, decks, 1.0, data_dir)[:count]
    return ElephantLoad(
        [
            replace(elephant, number=0, arrived_at_s=0.0),
            *(
                replace(mouse, number=number, arrived_at_s=number * every_s)
                for number, mouse in enumerate(mice, 1)
            ),
        ],
        seed,
        every_s,
    )


def calibration_elephant(
    seed: int, size: Size, data_dir: Path | None, mouse_takes_s: Seconds
) -> ElephantLoad:
    """Draw a large application and small ones to fit the profile on; see `elephant_and_mice`."""
    return elephant_and_mice(seed + _CALIBRATION_SEED, size, data_dir, mouse_takes_s)


def _draw_load(
    seed: int, mix: Mapping[str, int], window_s: Seconds, data_dir: Path | None
) -> list[PlannedApplication]:
    return nine_class_plan(
        data_dir,
        seed,
        sum(mix.values()),
        window_s=window_s,
        length_scale=LENGTH_SCALE,
        gap_scale=GAP_SCALE,
        samples=SC_SAMPLES,
        most_fan_out=MOST_FAN_OUT,
        mix=mix,
    )


CALIBRATION_ARMS = (FCFS, SRJF)
"""Arms of the calibration: `fcfs` mixes calls of all sizes, `srjf` runs small ones first."""
ELEPHANT_ARMS = (SRJF, JUSTITIA)
_CALIBRATION = "calibration"
_CALIBRATION_ELEPHANT = "calibration elephant"
_ELEPHANT = "elephant"


@dataclass(frozen=True, slots=True)
class Plays:
    """All runs of a benchmark."""

    calibration: tuple[LiveRun, ...]
    """Runs on which the model is fitted: one load under each of `CALIBRATION_ARMS`."""
    calibration_elephant: LiveRun
    """Calibration run with a large application among small ones, which make shorter calls."""
    history: tuple[Observation, ...]
    """Observations from which the predictor learns."""
    runs: dict[int, list[LiveRun]]
    """Runs by seed, in the order of execution."""
    elephant_load: ElephantLoad
    elephant_runs: list[LiveRun]
    model: LiveModel
    """Engine model fitted on the calibration runs."""


async def play_all(
    session: Session,
    seeds: Sequence[int],
    size: Size,
    data_dir: Path | None,
    say: Callable[[str], None],
    start: Callable[[Mapping[str, Any]], EngineProfile],
    arms: Sequence[Arm] = ARMS,
    *,
    known: bool = False,
) -> Plays:
    """Run the calibrations, every seed under every arm, and the large application's load.

    The predictor must know the same at the start of every run. So each run has classes of its own,
    which are taught what was seen in the calibration; what a run teaches stays with its classes.

    Args:
        session: The service; it should have nothing else to do.
        seeds: Of the loads; the first also of calibration and elephant.
        size: How much is played.
        data_dir: Where inputs and recorded runs lie; None: they are made up.
        say: Told of every play.
        start: Returns the engines' memory and rules, by the service's status.
        arms: What every seed is played under.
        known: Whether the predictor is to know each application of a seed: each has a class of its
            own, and the load is played once before, under `srjf`, for the predictor to learn from.

    Raises:
        JustitiaError: If a policy does not come into force, or an application of the calibration or
            all of a run fail.
        ConnectionError: If the service does not answer.
    """

    async def run_arm(
        name: str, arm: Arm, load: Sequence[PlannedApplication], *, each: bool = False
    ) -> LiveRun:
        own = one_class_per_application(load) if each else {}
        played = await session.play(arm, load, _class_suffix(name, arm), own)
        say(_progress_line(name, played))
        if played.failed == len(load) or (name.startswith(_CALIBRATION) and played.failed):
            error = next(one.record.error for one in played.played if one.record.error)
            raise ResponseError(200, f"{name}, {arm.name}: {played.failed} failed, one of: {error}")
        return played

    status = await session.status()
    load = calibration(seeds[0], size, data_dir)
    first, *others = CALIBRATION_ARMS
    played_first = await run_arm(_CALIBRATION, first, load)
    history = tuple(to_observations(played_first.played))
    names = [f"seed {seed}" for seed in seeds]
    await session.train_and_wait(
        history,
        [_class_suffix(_CALIBRATION, arm) for arm in others]
        + [_class_suffix(_CALIBRATION_ELEPHANT, SRJF)]
        + [_class_suffix(name, arm) for name in names for arm in arms]
        + [_class_suffix(_ELEPHANT, arm) for arm in ELEPHANT_ARMS],
    )
    start_from, replicas = start(status), len(status["replicas"])
    calibrations = (played_first, *[await run_arm(_CALIBRATION, arm, load) for arm in others])
    mice = [one for one in played_first.played if one.record.application_class in MICE]
    takes_s = fit_model(calibrations, history, start_from, replicas).total_time_s(mice)
    tried = calibration_elephant(seeds[0], size, data_dir, takes_s)
    calibrated = await run_arm(_CALIBRATION_ELEPHANT, SRJF, tried.applications)
    model = fit_model([*calibrations, calibrated], history, start_from, replicas)
    say(f"engine profile fitted: {model.fit.residual:.0%} of a call's time is unexplained")
    runs: dict[int, list[LiveRun]] = {}
    for name, seed in zip(names, seeds, strict=True):
        load = nine_classes(seed, size, data_dir)
        if known:
            before = await run_arm(f"{name} before", SRJF, load, each=True)
            lessons = tuple(to_observations(before.played))
            await session.train_and_wait(lessons, [_class_suffix(name, arm) for arm in arms])
            history += lessons
        runs[seed] = [await run_arm(name, arm, load, each=known) for arm in shuffled(arms, seed)]
    elephant = elephant_and_mice(seeds[0], size, data_dir, model.total_time_s(mice))
    elephant_runs = [await run_arm(_ELEPHANT, arm, elephant.applications) for arm in ELEPHANT_ARMS]
    return Plays(calibrations, calibrated, history, runs, elephant, elephant_runs, model)


def one_class_per_application(load: Sequence[PlannedApplication]) -> dict[tuple[str, str], str]:
    return {
        (one.application_class, one.text): f"{one.application_class}.{one.number}" for one in load
    }


def _class_suffix(load: str, arm: Arm) -> str:
    return f".{load.replace(' ', '-')}.{arm.name}"


def _progress_line(load: str, run: LiveRun) -> str:
    jcts = [one.record.jct_s for one in run.played if one.record.outcome == "completed"]
    mean = f"{sum(jcts) / len(jcts):.1f} s" if jcts else "–"
    failed = f", {run.failed} FAILED" if run.failed else ""
    return (
        f"{load}, {run.arm.name}: {len(run.played)} applications in {run.wall_s:.0f} s,"
        f" mean {mean}{failed}"
    )
