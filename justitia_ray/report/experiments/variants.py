"""Variants of justitia that the papers do not have: clock, share cap, backfill, admission."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from justitia_ray.report.chart import Chart
from justitia_ray.report.experiment import Arm, Comparison, Experiment, Found, Scale, Task
from justitia_ray.report.experiments import nine_class
from justitia_ray.report.tasks import PAPER_ENGINE, Simulation

_Options = tuple[tuple[str, object], ...]
_METRICS = (*nine_class.FAIRNESS, nine_class.LAG, nine_class.PREEMPTIONS)
_COMPARISONS = (
    Comparison("mean_jct_s", "justitia"),
    Comparison("no_later_than_vtc", "justitia", is_relative=False),
    Comparison("worst_ratio_to_vtc", "justitia", is_relative=False),
)
_NONE = "the papers have nothing like it"


def _of_options(
    variants: Mapping[str, _Options],
) -> Callable[[Scale, int], Mapping[Arm, Task]]:
    def arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
        found: dict[Arm, Task] = {}
        for density in scale.pick((1, 2, 3), (3,)):
            group, load = f"{density}x", nine_class.load(scale, seed, density)
            found |= nine_class.policies(group, load, ("vtc", "justitia"))
            for name, options in variants.items():
                found[Arm(group, name)] = Simulation(load, "justitia", options)
        return found

    return arms


def _ratios(name: str, variants: Mapping[str, object]) -> Callable[[Scale, Found], list[Chart]]:
    def charts(_: Scale, found: Found) -> list[Chart]:
        return [
            Chart(
                name,
                "Completion time over that under VTC at 3x: share of the applications below",
                "ratio to VTC",
                "share of applications",
                nine_class.ratio_series(found, "3x", ("justitia", *variants)),
                kind="step",
                is_log_x=True,
                y_limit=(0.0, 1.0),
            )
        ]

    return charts


def _experiment(name: str, title: str, about: str, variants: Mapping[str, _Options]) -> Experiment:
    """Return the experiment that sets variants of justitia beside justitia and vtc.

    Args:
        name: Of the experiment.
        title: Its heading.
        about: What is run and how to read it.
        variants: Options of justitia by the name of the arm.
    """
    return Experiment(
        name=name,
        title=title,
        source=_NONE,
        about=about,
        arms=_of_options(variants),
        measure=nine_class.measure,
        metrics=_METRICS,
        comparisons=_COMPARISONS,
        charts=_ratios(name, variants),
    )


CLOCK = _experiment(
    "clock",
    "Served against nominal clock",
    "The paper’s clock runs at the nominal rate of the machine; justitia’s default moves by "
    "the service that was delivered, and settles charges, which the nominal clock does not. "
    "What settling alone is worth is shown with the prediction errors.",
    {"nominal clock": (("clock", "nominal"),)},
)

SHARE_CAP = _experiment(
    "share-cap",
    "A cap on one application’s share of the KV memory",
    "While others wait, one application may hold at most this share of a replica’s memory.",
    {f"cap {cap}": (("kv_share_cap", cap),) for cap in (0.5, 0.65, 0.8)},
)

BACKFILL = _experiment(
    "backfill",
    "Backfill",
    "How often the first in line may be passed by what fits while it does not.",
    {f"backfill {passes}": (("backfill", passes),) for passes in (1, 8, "unlimited")},
)


def _rooms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    load = nine_class.load(scale, seed, 3)
    found: dict[Arm, Task] = dict(nine_class.policies("3x", load, ("vtc", "justitia")))
    engine = replace(PAPER_ENGINE, admission="peak")
    found[Arm("3x", "peak")] = Simulation(load, "justitia", engine=engine)
    return found


ADMISSION = Experiment(
    name="admission",
    title="Admission by prompt or by peak",
    source=_NONE,
    about=(
        "justitia admits what has room for its prompt, and what overflows is swapped out (the "
        "contract of the constant-iteration engine); peak admits only what will have room to its "
        "end, the default of the service. Swapping costs no time here, so peak’s advantage is "
        "what it is in spite of that."
    ),
    arms=_rooms,
    measure=nine_class.measure,
    metrics=_METRICS,
    comparisons=_COMPARISONS,
)
