"""Which recipe fits a class, or which mixture of them, by cross-validation on its samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from justitia_ray.predictor import fitting
from justitia_ray.predictor.calibration import best_shift
from justitia_ray.predictor.input_features import InputFeatures

Floats = NDArray[np.float64]

BLEND = "blend"
"""Kind of a model that is the mean, in ln(cost), of those trained by several recipes."""
MEMBERS = ("ridge", "forest", "mlp")
"""What a blend is made of."""
_MEDIAN = "median"
_FOLDS = 5
_SURE = 2.0
"""Standard errors by which another candidate must beat the blend.

Over ten random splits of the recorded runs the blend was off by 24.7 % over the seven classes. To
take whatever cross-validation finds best among it, its members and the median, by however little,
25.0 %: at 60 to 100 samples the noise of the choice costs more than the choice gains.
"""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A recipe, or a mixture."""

    kind: str
    weights: Mapping[str, float]
    """By recipe; they add up to 1."""


def candidates() -> tuple[Candidate, ...]:
    """Return what `auto` chooses among; the first is kept unless another is surely better."""
    equal = dict.fromkeys(MEMBERS, 1 / len(MEMBERS))
    shrunk = {name: weight / 2 for name, weight in equal.items()} | {_MEDIAN: 0.5}
    return (
        Candidate(BLEND, equal),
        Candidate(BLEND, shrunk),
        *(Candidate(name, {name: 1.0}) for name in (*MEMBERS, _MEDIAN)),
    )


def held_out_answers(
    inputs: Sequence[InputFeatures], log_costs: Floats, recipes: Sequence[str], seed: int
) -> dict[str, Floats]:
    """Return, by recipe, the answer for each sample of a model that has not seen it.

    Five folds, drawn by the seed; nothing of a fold goes into its model, its words neither.
    """
    order = np.random.default_rng(seed).permutation(len(inputs))
    answers = {name: np.zeros(len(inputs)) for name in recipes}
    for number in range(_FOLDS):
        fold, rest = order[number::_FOLDS], np.delete(order, np.s_[number::_FOLDS])
        design = fitting.fit_design([inputs[i] for i in rest])
        rows = design.rows([inputs[i] for i in rest])
        unseen = design.rows([inputs[i] for i in fold])
        for name in recipes:
            regressor = fitting.RECIPES[name](rows, log_costs[rest], seed)
            answers[name][fold] = regressor.log_costs(unseen)
    return answers


def mixed(answers: Mapping[str, Floats], candidate: Candidate) -> Floats:
    """Return a candidate's answers, from those of its recipes."""
    terms = [weight * answers[name] for name, weight in candidate.weights.items()]
    return np.asarray(np.sum(terms, axis=0))


def choose(answers: Mapping[str, Floats], log_costs: Floats) -> Candidate:
    """Return the candidate of least mean relative error among those surely better than the first.

    Surely: by _SURE standard errors of the difference, sample by sample.
    """
    first, *others = candidates()
    chosen, usual = first, _relative_errors(mixed(answers, first), log_costs)
    least = float(usual.mean())
    for candidate in others:
        errors = _relative_errors(mixed(answers, candidate), log_costs)
        gain = usual - errors
        needed = _SURE * float(gain.std(ddof=1)) / len(gain) ** 0.5
        if gain.mean() > needed and errors.mean() < least:
            chosen, least = candidate, float(errors.mean())
    return chosen


def _relative_errors(answers: Floats, log_costs: Floats) -> Floats:
    """Return |p − t|/t of each, after the shift that calibration would give."""
    shift = best_shift(log_costs - answers)
    return np.asarray(np.abs(np.expm1(answers + shift - log_costs)))
