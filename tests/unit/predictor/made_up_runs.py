"""A class of applications made up so that what there is to learn of it is known."""

import math
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from justitia_ray.predictor import fitting
from justitia_ray.predictor.input_features import features_of
from justitia_ray.predictor.sample import Sample

_WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa")


def made_up_samples(count: int, seed: int = 0, noise: float = 0.2) -> list[Sample]:
    """Return applications that cost as the square of their input's length, three times if `slow`.

    Times a log-normal factor of `noise`: what cannot be foreseen.
    """
    rng = random.Random(seed)
    samples = []
    for _ in range(count):
        words = [rng.choice(_WORDS) for _ in range(rng.randint(5, 120))]
        is_slow = rng.random() < 0.4
        text = " ".join([*words, "slow" if is_slow else "quick"]) + "."
        cost = len(words) ** 2 * (3 if is_slow else 1) * math.exp(rng.gauss(0, noise))
        samples.append(Sample(max(1.0, cost), 1, len(words), features_of(text), text))
    return samples


@pytest.fixture(scope="module")
def quick_networks() -> Iterator[None]:
    """Train networks for fewer steps, larger ones: each file of tests trains dozens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "_MLP", replace(fitting._MLP, steps=60, rate=0.015, members=4))
        patch.setattr(fitting, "_PAPER_STEPS", 30)
        yield
