"""Runs of the papers' application classes, one after the other: recorded ones, or made-up ones.

With a data directory, the recorded runs of a class in random order, over again when they are used
up, with the text that they ran on where it is known (it is not for MRS). Self-consistency has no
recorded runs, see `self_consistency`. Without one, `workloads.made_up`.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from justitia_ray.errors import ConfigError
from justitia_ray.sim.suites import self_consistency
from justitia_ray.sim.suites.recorded_dag import inferences_of
from justitia_ray.sim.workload import WorkloadInference
from justitia_ray.workloads.inputs import load_inputs
from justitia_ray.workloads.made_up import made_up_run
from justitia_ray.workloads.recorded import load_runs

CLASSES = ("ALFWI", "CC", "CG", "DM", "EV", "FV", "KBQAV", "MRS", "PE", "SC")
"""Every class there are runs of."""


@dataclass(frozen=True, slots=True)
class ApplicationRun:
    """What one application does, and the text its user submitted if it is known."""

    inferences: tuple[WorkloadInference, ...]
    text: str


class ApplicationRuns:
    """Deals out runs; which ones depends on the seed, the class and how many of it came before.

    Args:
        seed: Of all draws.
        data_dir: Where `recorded/` and `apps/` lie; None: runs are made up.
        sc_samples: Samples of a self-consistency vote.
    """

    def __init__(self, seed: int, data_dir: Path | None, sc_samples: int) -> None:
        self._seed = seed
        self._data_dir = data_dir
        self._sc_samples = sc_samples
        self._runs: dict[str, Iterator[ApplicationRun]] = {}

    def next(self, application_class: str) -> ApplicationRun:
        """Return the next run of a class.

        Raises:
            ConfigError: If the data directory has no run of that class, or a file is wrong.
        """
        if application_class not in self._runs:
            self._runs[application_class] = self._dealt(application_class)
        return next(self._runs[application_class])

    def _dealt(self, application_class: str) -> Iterator[ApplicationRun]:
        rng = random.Random(f"{self._seed}/runs/{application_class}")
        if self._data_dir is None:
            return _made_up(application_class, rng, self._sc_samples)
        if application_class == "SC":
            return _sampled(self._data_dir, rng, self._sc_samples)
        return _recorded(self._data_dir, application_class, rng)


def _recorded(
    data_dir: Path, application_class: str, rng: random.Random
) -> Iterator[ApplicationRun]:
    recorded = load_runs(data_dir, application_class)
    if not recorded:
        raise ConfigError(
            f"{data_dir / 'recorded' / application_class}.jsonl: must hold at least one run, "
            "has none"
        )
    texts = {}
    if any(run.item_id is not None for run in recorded):
        inputs = load_inputs(data_dir, application_class)
        texts = {item.item_id: item.text for item in inputs}
    runs = [
        ApplicationRun(inferences_of(run), texts.get(run.item_id or "", "")) for run in recorded
    ]
    rng.shuffle(runs)
    return cycle(runs)


def _sampled(data_dir: Path, rng: random.Random, samples: int) -> Iterator[ApplicationRun]:
    questions = self_consistency.load_questions(data_dir)
    rng.shuffle(questions)
    for question in cycle(questions):
        run = self_consistency.sampled_run(question, samples, rng)
        yield ApplicationRun(inferences_of(run), question.text)


def _made_up(application_class: str, rng: random.Random, samples: int) -> Iterator[ApplicationRun]:
    while True:
        run = made_up_run(application_class, rng, samples=samples)
        yield ApplicationRun(inferences_of(run), "")
