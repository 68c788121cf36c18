"""The recipes: from rows of a design matrix and costs to a trained function.

What needs scikit-learn or torch is imported from here only, so a process that predicts needs
neither.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import TruncatedSVD
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.linear_model import RidgeCV

from justitia_ray.predictor.calibration import best_shift
from justitia_ray.predictor.design_matrix import DesignMatrix
from justitia_ray.predictor.input_features import MEASURES, InputFeatures
from justitia_ray.predictor.networks import (
    Training,
    relative_error,
    squared_error,
    train_networks,
)
from justitia_ray.predictor.regressors import Constant, Forest, Linear, Network, Regressor

Floats = NDArray[np.float64]
Recipe = Callable[[Floats, Floats, int], Regressor]
"""(rows [samples, columns], ln(cost) [samples], seed) to a trained function."""

_TOPICS = 8
"""Directions of the terms that trees look at: they would see nothing in single words."""
_TERMS_WEIGHT = 2.0
"""How much larger the network sees the terms, whose rows have length 1 beside measures of standard
deviation 1."""
_MLP = Training(
    widths=(16, 16, 8),
    members=8,
    steps=300,
    rate=3e-3,
    decay=0.05,
    loss=relative_error,
    held_out=0.2,
)
"""Four layers as in the paper, small since samples are few. Over five random splits of the recorded
runs: 25.5 % over the seven classes; trained to the end on all samples 26.2 %, on the squared error
of ln(cost) 25.7 %. Wider networks (64, 32, 16), 2 to 20 times the decay and other rates were
no better."""
_PAPER_STEPS, _PAPER_RATE, _PAPER_DECAY = 300, 1e-3, 1e-4


def fit_design(inputs: Sequence[InputFeatures]) -> DesignMatrix:
    """Return how inputs like these become rows; terms that only one of them has are left out.

    The inverse document frequency is scikit-learn's smooth one, ln((1 + n)/(1 + df)) + 1.
    """
    logs = np.log1p(np.array([features.measures for features in inputs], dtype=np.float64))
    scale = logs.std(axis=0)
    occurs = Counter(term for features in inputs for term in features.terms)
    shared = sorted(term for term, count in occurs.items() if count >= 2)
    frequency = np.array([occurs[term] for term in shared], dtype=np.float64)
    return DesignMatrix(
        mean=logs.mean(axis=0),
        scale=np.where(scale > 1e-9, scale, 1.0),
        buckets=np.array(shared, dtype=np.int64),
        idf=np.log((1 + len(inputs)) / (1 + frequency)) + 1,
    )


def fit_median(rows: Floats, log_costs: Floats, seed: int) -> Regressor:
    """Return the class median."""
    return Constant(np.array([np.median(log_costs)]))


def fit_ridge(rows: Floats, log_costs: Floats, seed: int) -> Regressor:
    """Return linear least squares on ln(cost), with the L2 penalty that leave-one-out prefers."""
    model = RidgeCV(alphas=np.logspace(0, 3, 7)).fit(rows, log_costs)
    return Linear(model.coef_.astype(np.float64), np.array([model.intercept_], dtype=np.float64))


def fit_forest(rows: Floats, log_costs: Floats, seed: int) -> Regressor:
    """Return extremely randomised trees (Geurts et al., Machine Learning 63, 2006) on ln(cost)."""
    projection = _projection(rows, seed)
    model = ExtraTreesRegressor(
        64, min_samples_leaf=3, max_features=0.5, max_depth=10, random_state=seed
    ).fit(rows @ projection, log_costs)
    trees = [estimator.tree_ for estimator in model.estimators_]
    nodes = max(tree.node_count for tree in trees)
    shape = (len(trees), nodes)
    feature, threshold, value = np.zeros(shape, dtype=np.int64), np.zeros(shape), np.zeros(shape)
    left = np.tile(np.arange(nodes, dtype=np.int64), (len(trees), 1))
    right = left.copy()
    for number, tree in enumerate(trees):
        inner = np.flatnonzero(tree.children_left >= 0)
        feature[number, inner] = tree.feature[inner]
        threshold[number, inner] = tree.threshold[inner]
        left[number, inner] = tree.children_left[inner]
        right[number, inner] = tree.children_right[inner]
        value[number, : tree.node_count] = tree.value[:, 0, 0]
    depth = max(tree.max_depth for tree in trees)
    return Forest(projection, feature, threshold, left, right, value, depth)


def fit_mlp(rows: Floats, log_costs: Floats, seed: int) -> Regressor:
    """Return small networks trained on the relative error, each stopped when it began to overfit.

    Differs from the paper: form measures beside TF-IDF, the logarithm of the cost, the error that
    is reported as the loss, early stopping, and the mean of several.
    """
    weights = np.full(rows.shape[1], _TERMS_WEIGHT)
    weights[: len(MEASURES)] = 1.0
    center = best_shift(log_costs)
    (first, biases), *rest = train_networks(rows * weights, log_costs - center, _MLP, seed)
    last, last_biases = rest[-1]
    return Network(((first * weights[:, None], biases), *rest[:-1], (last, last_biases + center)))


def fit_paper(rows: Floats, log_costs: Floats, seed: int) -> Regressor:
    """Return the paper's network: TF-IDF of the input and nothing else, to the cost itself.

    Source: Justitia (arXiv:2510.17015v1), Sec. IV-B: 4 layers, the first proportional to the mean
    input size, mean squared error with L2, gradient descent. Left open there and chosen here: one
    neuron of the first layer for each term that a mean input has of those known, halved from layer
    to layer, ReLU, 300 full-batch steps of AdamW, costs in units of their mean.
    """
    costs = np.exp(log_costs)
    unit = float(costs.mean())
    terms = rows.copy()
    terms[:, : len(MEASURES)] = 0.0
    width = int(np.clip(np.count_nonzero(terms, axis=1).mean(), 16, 512))
    how = Training(
        widths=(width, width // 2, width // 4),
        members=1,
        steps=_PAPER_STEPS,
        rate=_PAPER_RATE,
        decay=_PAPER_DECAY,
        loss=squared_error,
    )
    layers = train_networks(terms, costs / unit, how, seed)
    layers[0][0][:, : len(MEASURES)] = 0.0
    return Network(tuple(layers), float(np.log(unit)))


RECIPES: dict[str, Recipe] = {
    "median": fit_median,
    "ridge": fit_ridge,
    "forest": fit_forest,
    "mlp": fit_mlp,
    "paper": fit_paper,
}
"""By kind."""


def _projection(rows: Floats, seed: int) -> Floats:
    """Return [columns, features]: each measure, and the main directions of the terms."""
    columns, measures = rows.shape[1], len(MEASURES)
    projection = np.eye(columns, measures)
    topics = min(_TOPICS, columns - measures - 1, len(rows) - 1)
    if topics < 1:
        return projection
    svd = TruncatedSVD(topics, random_state=seed).fit(rows[:, measures:])
    directions = np.zeros((columns, topics))
    directions[measures:] = svd.components_.T
    return np.hstack([projection, directions])
