"""The load of scripts/demo: agent applications cut to a tiny model of 2,048 tokens of context."""

from dataclasses import dataclass
from pathlib import Path

from justitia_ray.workloads.lengths import LengthPlan
from justitia_ray.workloads.load_plan import LoadPlan, PlannedApplication

_GAP_SCALE = 0.3  # tool time passes faster, as tokens do on a tiny model
_MAX_OUTPUT_TOKENS = 600  # three of 100 measured outputs are longer
_TENANTS = ("team-a", "team-b", "team-c")
_MIX = {"KBQAV": 0.5, "SC": 0.4, "MRS": 0.1}  # the paper: 72 % small, 26 % medium, 2 % large
_WARM_UP = {"KBQAV": 4, "SC": 3, "MRS": 1}


@dataclass(frozen=True, slots=True)
class DemoLoad:
    """What is played, and before it what the predictor learns its first means from."""

    warm_up: list[PlannedApplication]
    applications: list[PlannedApplication]
    length_scale: float
    """The measured lengths of prompts and outputs were multiplied by it."""


def demo_load(
    seed: int,
    data_dir: Path | None,
    *,
    quick: bool = False,
    count: int | None = None,
    window_s: float | None = None,
) -> DemoLoad:
    """Draw the load; the same arguments draw the same.

    Args:
        seed: Of all draws.
        data_dir: Where recorded runs and inputs lie; None: they are made up.
        quick: Fewer and shorter applications.
        count: How many, if not as many as the demo plays.
        window_s: In how long they arrive on average, if not at the demo's rate.

    Raises:
        ConfigError: If a value is out of range, or inputs cannot be loaded.
    """
    plays, rate_per_s, length_scale = (40, 4.4, 0.75) if quick else (72, 3.9, 1.0)
    plays = plays if count is None else count
    lengths = LengthPlan(
        seed=seed,
        length_scale=length_scale,
        gap_scale=_GAP_SCALE,
        max_output_tokens=_MAX_OUTPUT_TOKENS,
        data_dir=data_dir,
    )
    applications = LoadPlan(
        lengths,
        count=plays,
        rate_per_s=rate_per_s if window_s is None else plays / window_s,
        seed=seed,
        mix=_MIX,
        tenants=_TENANTS,
        data_dir=data_dir,
    ).applications()
    warm_up = [
        application
        for name, size in _WARM_UP.items()
        for application in LoadPlan(
            lengths,
            count=size,
            rate_per_s=4.0,
            seed=seed + 1000,
            mix={name: 1.0},
            data_dir=data_dir,
        ).applications()
    ]
    return DemoLoad(warm_up, applications, length_scale)
