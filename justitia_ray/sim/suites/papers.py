"""Workloads of the Justitia paper: the nine-class suite, an elephant among mice, two merges.

- nine-class (v1, Sec. V-A): 300 applications of nine classes, 72 % small, 26 % medium, 2 % large,
  submitted over 18, 9 or 6 minutes (densities 1x, 2x, 3x).
- elephant-mice (v1, Sec. V-C and Fig. 11; v2, Fig. 9): a map-reduce summary arrives first, then a
  small application each second, drawn from KBQAV, CC and ALFWI. Under the policy SRJF the
  elephant waits as long as mice arrive.
- two-dm (v1, Sec. III-A and Fig. 3): two document merges that arrive together.
"""

import random
from collections.abc import Iterable, Iterator
from itertools import repeat

from justitia_ray.errors import ConfigError
from justitia_ray.sim.suites.application_runs import (
    CLASSES,
    DEFAULT_SAMPLES,
    ApplicationRun,
    deal_classes,
    deal_runs,
)
from justitia_ray.sim.suites.options import Suite, SuiteOptions, suite_arrivals
from justitia_ray.sim.workload import WorkloadApplication
from justitia_ray.units import Seconds

_SMALL_AND_LARGE = {"CC": 22, "KBQAV": 22, "ALFWI": 22, "EV": 3, "FV": 3, "DM": 1, "MRS": 1}
MIXES: dict[str, dict[str, int]] = {
    "paper": {**_SMALL_AND_LARGE, "PE": 13, "SC": 13},
    "recorded": {**_SMALL_AND_LARGE, "PE": 13, "CG": 13},
}
"""Number of applications of each class among a hundred, as in the Hermes trace generator.

The Justitia paper has the same classes, and shares of 72 % small, 26 % medium and 2 % large ones.
`paper` has the paper's nine classes, with SC in place of CG, which the paper names only once;
`recorded` is Hermes' own mix, whose classes all have recorded runs.
"""

NINE_CLASS_COUNT = 300
DEFAULT_GAP_S = 1.2
"""Mean seconds between arrivals: 300 applications in 6 minutes, which is density 3x of the paper.
"""


def _applications_at(
    options: SuiteOptions,
    classes: Iterable[str],
    arrivals: Iterable[Seconds],
    tenants: Iterable[str] = repeat("default"),
) -> list[WorkloadApplication]:
    """Return an application for each arrival, with the next run of its class."""
    samples = options.sc_samples or DEFAULT_SAMPLES
    runs: dict[str, Iterator[ApplicationRun]] = {}
    applications = []
    drawn = zip(arrivals, classes, tenants, strict=False)
    for number, (arrived_at_s, name, tenant) in enumerate(drawn):
        if name not in runs:
            runs[name] = deal_runs(name, options.seed, options.data_dir, samples)
        run = next(runs[name])
        applications.append(
            WorkloadApplication(
                f"a{number}", name, arrived_at_s, run.inferences, tenant, input=run.text
            )
        )
    return applications


def build_nine_class(options: SuiteOptions) -> list[WorkloadApplication]:
    """Return applications of the nine classes in order of arrival.

    Classes, runs, arrivals and tenants are drawn independently: a change to one leaves the others,
    and a larger count starts with the same applications.
    """
    mix, tenants = parse_mix(options.mix or "paper"), options.tenants or 1
    return _applications_at(
        options,
        deal_classes(mix, _new_rng(options, "classes")),
        suite_arrivals(options, options.count or NINE_CLASS_COUNT, DEFAULT_GAP_S),
        _draw_tenants(tenants, _new_rng(options, "tenants")),
    )


def parse_mix(text: str) -> dict[str, int]:
    """Return the number of applications of each class, from `CLASS=NUMBER,…` or a name in MIXES.

    Raises:
        ConfigError: If the text is neither, or all numbers are 0.
    """
    if text in MIXES:
        return MIXES[text]
    mix: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        name, number = name.strip(), number.strip()
        if name not in CLASSES or name in mix or not number.isdecimal() or int(number) > 10_000:
            raise ConfigError(
                f"mix must be {', '.join(MIXES)}, or CLASS=NUMBER,… with each of "
                f"{', '.join(CLASSES)} at most once and numbers from 0 to 10000, got {part!r:.80}"
            )
        mix[name] = int(number)
    if not any(mix.values()):
        raise ConfigError(f"mix must have a number > 0, got {text!r:.80}")
    return mix


def _draw_tenants(tenants: int, rng: random.Random) -> Iterator[str]:
    while True:
        yield "default" if tenants == 1 else f"t{rng.randrange(tenants)}"


def _new_rng(options: SuiteOptions, purpose: str) -> random.Random:
    return random.Random(f"{options.seed}/{purpose}")


NINE_CLASS = Suite(
    "the Justitia paper's mixed suite, from recorded runs and arrivals",
    build_nine_class,
    ("count", "window_s", "arrivals", "mix", "tenants", "sc_samples"),
)


ELEPHANT = "MRS"
MICE = ("KBQAV", "CC", "ALFWI")
ELEPHANT_MICE_COUNT = 301
MOUSE_EVERY_S = 1.0


def build_elephant_mice(options: SuiteOptions) -> list[WorkloadApplication]:
    """Return one large application, the elephant `a0`, and `count` - 1 small ones, the mice.

    A window spreads the mice evenly over it; by default one arrives per second.
    """
    mice = (options.count or ELEPHANT_MICE_COUNT) - 1
    every_s = options.window_s / max(1, mice) if options.window_s else MOUSE_EVERY_S
    rng = _new_rng(options, "classes")
    classes = [ELEPHANT, *(rng.choice(MICE) for _ in range(mice))]
    return _applications_at(options, classes, [round(n * every_s, 6) for n in range(len(classes))])


ELEPHANT_MICE = Suite(
    "a map-reduce summary, then a small application a second (Justitia Fig. 11)",
    build_elephant_mice,
    ("count", "window_s"),
)


def build_two_dm(options: SuiteOptions) -> list[WorkloadApplication]:
    """Return two applications that merge documents."""
    return _applications_at(options, ["DM", "DM"], [0.0, 0.0])


TWO_DM = Suite("two document merges that arrive together (Justitia Fig. 3)", build_two_dm)
