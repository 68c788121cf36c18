"""Training a model of one class from its finished applications."""

import math
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

import numpy as np

from justitia_ray.errors import ConfigError
from justitia_ray.predictor.calibration import calibrate
from justitia_ray.predictor.cost_model import CostModel
from justitia_ray.predictor.sample import Sample
from justitia_ray.predictor.trained_model import TrainedModel

KINDS = ("auto", "mlp", "ridge", "forest", "median", "paper")
"""What can be asked for. `auto` is the mean of ridge, forest and mlp unless cross-validation shows
that another candidate is surely better (`selection`)."""

FEWEST = 5
"""Samples that training takes; below, the mean of the class is as good."""

_AS_PUBLISHED = ("median", "paper")
"""Kinds that are baselines: their answers are not shifted towards the least relative error."""


def train(samples: Sequence[Sample], *, kind: str = "auto", seed: int = 0) -> CostModel:
    """Return a model trained on finished applications of one class; takes seconds of one core.

    The same samples in the same order, kind and seed give the same model.

    Args:
        samples: Those without features are left out.
        kind: One of KINDS.
        seed: Of all random choices.

    Raises:
        ConfigError: If there is no such kind, or scikit-learn or torch is not installed.
        ValueError: If fewer than FEWEST samples have features.
    """
    if kind not in KINDS:
        raise ConfigError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    load_packages()
    from justitia_ray.predictor import fitting, selection

    known = [(sample.features, sample.kv_token_time) for sample in samples if sample.features]
    if len(known) < FEWEST:
        raise ValueError(f"{len(known)} samples have features: training takes at least {FEWEST}")
    inputs = [features for features, _ in known if features]
    log_costs = np.array([math.log(cost) for _, cost in known])

    recipes = ("median", *selection.MEMBERS) if kind == "auto" else (kind,)
    held_out = selection.held_out_answers(inputs, log_costs, recipes, seed)
    chosen = selection.Candidate(kind, {kind: 1.0})
    if kind == "auto":
        chosen = selection.choose(held_out, log_costs)
    answers = selection.mixed(held_out, chosen)

    design = fitting.fit_design(inputs)
    rows = design.rows(inputs)
    return TrainedModel(
        kind=chosen.kind,
        samples=len(known),
        design=design,
        regressors=tuple(fitting.RECIPES[name](rows, log_costs, seed) for name in chosen.weights),
        weights=tuple(chosen.weights.values()),
        calibration=calibrate(answers, log_costs, shifted=kind not in _AS_PUBLISHED),
        trained_with={name: version(name) for name in ("scikit-learn", "torch")},
    )


def load_packages() -> None:
    """Import what training needs: seconds the first time, nothing after.

    Raises:
        ConfigError: If scikit-learn or torch is not installed.
    """
    try:
        import_module("justitia_ray.predictor.selection")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("justitia_ray"):
            raise
        raise ConfigError(
            f"training needs the Python module {error.name}: pip install 'justitia-ray[learning]'"
        ) from error
