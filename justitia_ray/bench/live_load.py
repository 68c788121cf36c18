"""The loads of scripts/bench_live: nine classes, and an elephant among mice."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from justitia_ray.units import Seconds
from justitia_ray.workloads.load_plan import PlannedApplication
from justitia_ray.workloads.nine_class_load import nine_class_plan

MICE = ("KBQAV", "CC", "ALFWI")
"""As in the simulated one: Justitia v1, Sec. V-C."""
LENGTH_SCALE = 1.0
"""On recorded lengths, as far as the model's context of 2,048 tokens goes: DM is cut to it. With a
third of them calls cost these engines more than tokens do, and memory is not what is scarce."""
GAP_SCALE = 0.3
"""On tool time: at its full length the last applications wait for their tools and for nothing else.
"""
SC_SAMPLES = 8
"""Of 40: each is a call, and 13 of 100 applications are of this class."""
MOST_FAN_OUT = 20
"""Of a stage. DM scores 40 times in two of its six: alone it would take half of the time."""
_CALIBRATION_SEED = 1000
"""Added to the first seed: the engine profile is fitted on draws that are not predicted."""
_MICE_LOAD = 0.8
"""Of what the engines can serve. More of it, and fair sharing itself starves the elephant."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is played."""

    mix: Mapping[str, int]
    """How many of each class: every seed has as many."""
    window_s: Seconds
    """They arrive in, on average."""
    elephant: str
    """Class of the elephant."""
    mice_s: Seconds
    """For so long mice come."""

    @property
    def applications(self) -> int:
        """Of one run."""
        return sum(self.mix.values())


FULL = Size(
    {"CC": 11, "KBQAV": 11, "ALFWI": 11, "EV": 2, "FV": 2, "DM": 1, "MRS": 1, "PE": 7, "SC": 6},
    window_s=10.0,
    elephant="DM",
    mice_s=35.0,
)
"""About half of the paper's 100; of each class one at least."""
QUICK = Size(
    {"CC": 6, "KBQAV": 6, "ALFWI": 5, "EV": 1, "FV": 1, "MRS": 1, "PE": 3, "SC": 3},
    window_s=5.0,
    elephant="MRS",
    mice_s=12.0,
)
"""Without DM: one has a hundred times the cost of a small application."""


def nine_classes(seed: int, size: Size, data_dir: Path | None) -> list[PlannedApplication]:
    """Draw the load of one seed."""
    return _draw(seed, size.mix, size.window_s, data_dir)


def calibration(seed: int, size: Size, data_dir: Path | None) -> list[PlannedApplication]:
    """Draw the load that the profile is fitted on, and that the predictor learns from."""
    return nine_classes(seed + _CALIBRATION_SEED, size, data_dir)


@dataclass(frozen=True, slots=True)
class ElephantLoad:
    """One large application, and small ones that come evenly."""

    applications: list[PlannedApplication]
    """The elephant first."""
    seed: int
    mouse_every_s: Seconds

    def document(self) -> dict[str, Any]:
        """Return what it is, as JSON."""
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
    """Draw an elephant, and mice that come as fast as they nearly fill the engines.

    Args:
        seed: Of the draws.
        size: For how long mice come.
        data_dir: Where inputs lie; None: they are made up.
        mouse_takes_s: Of all engines together, if they serve nothing but mice.
    """
    every_s = mouse_takes_s / _MICE_LOAD
    [elephant] = _draw(seed, {size.elephant: 1}, 1.0, data_dir)
    count = max(1, round(size.mice_s / every_s))
    decks = {name: -(-count // len(MICE)) for name in MICE}
    mice = _draw(seed, decks, 1.0, data_dir)[:count]
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
    """Draw an elephant and mice that the profile is fitted on; see `elephant_and_mice`."""
    return elephant_and_mice(seed + _CALIBRATION_SEED, size, data_dir, mouse_takes_s)


def _draw(
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
    ).applications
