"""The mixed suite of the Justitia paper (v1, Sec. V-A).

300 applications of nine classes, 72 % small, 26 % medium, 2 % large, submitted over 18, 9 or 6
minutes (1x, 2x, 3x).
"""

import random
from collections.abc import Iterator, Mapping

from justitia_ray.errors import ConfigError
from justitia_ray.sim.suites.application_runs import CLASSES, ApplicationRuns
from justitia_ray.sim.suites.arrivals import arrival_times
from justitia_ray.sim.suites.options import Suite, SuiteOptions
from justitia_ray.sim.suites.self_consistency import DEFAULT_SAMPLES
from justitia_ray.sim.workload import WorkloadApplication

_SMALL_AND_LARGE = {"CC": 22, "KBQAV": 22, "ALFWI": 22, "EV": 3, "FV": 3, "DM": 1, "MRS": 1}
MIXES: dict[str, dict[str, int]] = {
    "paper": {**_SMALL_AND_LARGE, "PE": 13, "SC": 13},
    "recorded": {**_SMALL_AND_LARGE, "PE": 13, "CG": 13},
}
"""Of a hundred applications, how many of each class: those of the Hermes trace generator, whose
classes and 72/26/2 the Justitia paper shares. `paper` has the nine classes that the paper lists, so
SC in CG's place (the paper names CG once, among the medium ones, and nowhere else); `recorded` is
Hermes' own, of whose classes each has recorded runs."""

DEFAULT_COUNT = 300
DEFAULT_GAP_S = 1.2
"""300 applications in 6 minutes: the paper's 3x."""


def build(options: SuiteOptions) -> list[WorkloadApplication]:
    """Return the applications in order of arrival.

    Classes, runs, arrivals and tenants are drawn apart: a change to one leaves the others, and a
    larger count begins with the same applications.
    """
    count = options.count or DEFAULT_COUNT
    runs = ApplicationRuns(options.seed, options.data_dir, options.sc_samples or DEFAULT_SAMPLES)
    classes = _dealt(parse_mix(options.mix or "paper"), _rng(options, "classes"))
    arrivals = arrival_times(
        options.arrivals or ("poisson" if options.data_dir is None else "mooncake"),
        count,
        options.window_s or DEFAULT_GAP_S * count,
        _rng(options, "arrivals"),
        options.data_dir,
    )
    tenants = _tenants(options.tenants or 1, _rng(options, "tenants"))
    applications = []
    for number, arrived_at_s in enumerate(arrivals):
        application_class = next(classes)
        run = runs.next(application_class)
        applications.append(
            WorkloadApplication(
                application_id=f"a{number}",
                application_class=application_class,
                arrived_at_s=arrived_at_s,
                inferences=run.inferences,
                tenant=next(tenants),
                input=run.text,
            )
        )
    return applications


def parse_mix(text: str) -> dict[str, int]:
    """Return how many of each class a deck holds: a name of MIXES, or `CLASS=NUMBER,…`.

    Raises:
        ConfigError: If it is neither, or all are 0.
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


def _dealt(mix: Mapping[str, int], rng: random.Random) -> Iterator[str]:
    """Deal classes from shuffled decks, so that every full deck has exactly the mix.

    Differs from the paper, which draws each class by itself: of 300 applications, two to eleven
    would then be large, and one seed's load several times another's.
    """
    deck = [name for name, number in mix.items() for _ in range(number)]
    while True:
        rng.shuffle(deck)
        yield from deck


def _tenants(tenants: int, rng: random.Random) -> Iterator[str]:
    while True:
        yield "default" if tenants == 1 else f"t{rng.randrange(tenants)}"


def _rng(options: SuiteOptions, purpose: str) -> random.Random:
    return random.Random(f"{options.seed}/{purpose}")


SUITE = Suite(
    "the Justitia paper's mixed suite, from recorded runs and arrivals",
    build,
    ("count", "window_s", "arrivals", "mix", "tenants", "sc_samples"),
)
