"""Recipes that fit networks to samples; needs scikit-learn and torch.

Only training imports this module, so a process that predicts needs neither. Several networks are
trained at the same time on one core. All random numbers come from a generator with the given seed,
and one thread adds in a fixed order: equal samples and seeds give the same network, bit for bit, on
one kind of processor.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer

from justitia_ray.predictor.input_features import MEASURES, InputFeatures
from justitia_ray.predictor.network_regressor import Floats, Integers, NetworkRegressor
from justitia_ray.predictor.trained_model import DesignMatrix, best_shift

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Function from (predictions, targets) to the loss of each prediction."""

_LOOK_EVERY = 10
"""Number of training steps between two evaluations on held-out samples."""
_PATIENCE = 60
"""Training ends after this number of steps without an improvement on held-out samples."""
_FURTHEST = 3.0
"""Largest error in ln(cost) that counts; larger ones would undo the rest of the training."""


@dataclass(frozen=True, slots=True)
class NetworkTraining:
    """Settings of training with full-batch AdamW (Loshchilov and Hutter, ICLR 2019)."""

    widths: tuple[int, ...]
    """Number of neurons of each hidden layer."""
    members: int
    """Number of networks; the prediction is the mean of their outputs."""
    steps: int
    rate: float
    """Learning rate of the training."""
    decay: float
    """Decoupled L2 penalty of the training."""
    loss: Loss
    held_out: float = 0.0
    """Share of the samples held out of a network's training, to end it before it overfits; 0: none.
    """


class _AdamW:
    """AdamW with its usual constants; torch's own would import its compiler for 3 s."""

    _BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8

    def __init__(self, parameters: list[torch.Tensor], how: NetworkTraining) -> None:
        self._parameters = parameters
        self._how = how
        self._means = [torch.zeros_like(p) for p in parameters]
        self._squares = [torch.zeros_like(p) for p in parameters]
        self._steps = 0

    def step(self, gradients: Sequence[torch.Tensor]) -> None:
        self._steps += 1
        rate = self._how.rate / (1 - self._BETA1**self._steps)
        unbias = (1 - self._BETA2**self._steps) ** 0.5
        state = zip(self._parameters, gradients, self._means, self._squares, strict=True)
        with torch.no_grad():
            for parameter, gradient, mean, square in state:
                mean.lerp_(gradient, 1 - self._BETA1)
                square.mul_(self._BETA2).addcmul_(gradient, gradient, value=1 - self._BETA2)
                parameter.mul_(1 - self._how.rate * self._how.decay)
                parameter.addcdiv_(mean, (square.sqrt() / unbias).add_(self._EPSILON), value=-rate)


def relative_error(answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return |p − t|/t for costs given as logarithms."""
    return torch.expm1(torch.clamp(answers - targets, max=_FURTHEST)).abs()


def squared_error(answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return (p − t)² for each pair."""
    return (answers - targets) ** 2


def train_networks(
    rows: Floats, targets: Floats, how: NetworkTraining, seed: int
) -> list[tuple[Floats, Floats]]:
    """Return trained weights [members, from, to] and biases [members, 1, to] by layer.

    The initial outputs are close to 0, so targets should lie around 0: training that stops early
    does not move far from the initial outputs.
    """
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    parameters = _initial_parameters((rows.shape[1], *how.widths, 1), how.members, generator)
    x = torch.tensor(rows, dtype=torch.float32).expand(how.members, -1, -1)
    t = torch.tensor(targets, dtype=torch.float32)
    trained = _training_mask(how, len(rows), generator)
    best = [p.detach().clone() for p in parameters]
    least = torch.full((how.members,), torch.inf)
    optimizer = _AdamW(parameters, how)
    improved_at = 0
    for step in range(how.steps + 1):
        losses = how.loss(_forward(parameters, x), t)
        if how.held_out and step % _LOOK_EVERY == 0:
            with torch.no_grad():
                unseen = (losses * ~trained).sum(dim=1) / (~trained).sum(dim=1)
                better = unseen < least
                if bool(better.any()):
                    improved_at = step
                elif step - improved_at >= _PATIENCE:
                    break
                least = torch.where(better, unseen, least)
                for kept, parameter in zip(best, parameters, strict=True):
                    kept[better] = parameter[better]
        loss = ((losses * trained).sum(dim=1) / trained.sum(dim=1)).sum()
        optimizer.step(torch.autograd.grad(loss, parameters))
    arrays = [p.detach().numpy().astype(np.float64) for p in (best if how.held_out else parameters)]
    return list(zip(arrays[::2], arrays[1::2], strict=True))


def _initial_parameters(
    sizes: tuple[int, ...], members: int, generator: torch.Generator
) -> list[torch.Tensor]:
    """Return random initial weights and zero biases by layer (He et al., ICCV 2015).

    The last layer's are small).
    """
    parameters: list[torch.Tensor] = []
    for before, after in itertools.pairwise(sizes):
        gain = (2.0 / before) ** 0.5 if after > 1 else 0.1 / before**0.5
        weights = torch.randn(members, before, after, generator=generator) * gain
        parameters += [weights.requires_grad_(), torch.zeros(members, 1, after).requires_grad_()]
    return parameters


def _forward(parameters: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Return the outputs of the networks, [members, samples]."""
    state = x
    for number in range(0, len(parameters), 2):
        state = torch.relu(state) if number else state
        state = torch.baddbmm(parameters[number + 1], state, parameters[number])
    return state[:, :, 0]


def _training_mask(how: NetworkTraining, samples: int, generator: torch.Generator) -> torch.Tensor:
    """Return bool [members, samples]: which samples each network is trained on."""
    trained = torch.ones(how.members, samples, dtype=torch.bool)
    count = max(1, round(how.held_out * samples))
    if how.held_out:
        for member in trained:
            member[torch.randperm(samples, generator=generator)[:count]] = False
    return trained


Recipe = Callable[[Floats, Floats, int], NetworkRegressor]
"""Function from (rows [samples, columns], ln(cost) [samples], seed) to trained networks."""

_TERMS_WEIGHT = 2.0
"""Factor on the normalized word counts of an input, whose other features have standard deviation 1.
"""
_MLP = NetworkTraining(
    widths=(16, 16, 8),
    members=8,
    steps=300,
    rate=3e-3,
    decay=0.05,
    loss=relative_error,
    held_out=0.2,
)
"""Small network with four layers as in the paper, because samples are few.

Mean relative error over the seven classes, on five random splits of the recorded runs: 25.5 %;
trained to the end on all samples 26.2 %, with the squared error of ln(cost) 25.7 %. Wider networks
(64, 32, 16), 2 to 20 times the decay and other rates were no better.
"""
_PAPER = NetworkTraining(widths=(), members=1, steps=300, rate=1e-3, decay=1e-4, loss=squared_error)


def fit_design(inputs: Sequence[InputFeatures]) -> DesignMatrix:
    """Return the conversion of inputs to rows of numbers; words of only one input are left out."""
    logs = np.log1p(np.array([features.measures for features in inputs], dtype=np.float64))
    scale = logs.std(axis=0)
    buckets, idf = _document_frequencies(inputs)
    return DesignMatrix(
        mean=logs.mean(axis=0),
        scale=np.where(scale > 1e-9, scale, 1.0),
        buckets=buckets,
        idf=idf,
    )


def _document_frequencies(inputs: Sequence[InputFeatures]) -> tuple[Integers, Floats]:
    """Return the words of at least two inputs, as hashes, and their inverse document frequencies.

    The formula is scikit-learn's smooth inverse document frequency, ln((1 + n)/(1 + df)) + 1.
    """
    vectorizer = TfidfVectorizer(analyzer=attrgetter("terms"), min_df=2)
    try:
        vectorizer.fit(inputs)
    except ValueError:  # no term is in two inputs
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    return vectorizer.get_feature_names_out().astype(np.int64), vectorizer.idf_


def fit_mlp(rows: Floats, log_costs: Floats, seed: int) -> NetworkRegressor:
    """Train small networks on the relative error; each stops when it begins to overfit.

    Differences from the paper: form measures besides TF-IDF, the logarithm of the cost, the
    reported error as the loss, early stopping, and the mean of several networks.
    """
    weights = np.full(rows.shape[1], _TERMS_WEIGHT)
    weights[: len(MEASURES)] = 1.0
    center = best_shift(log_costs)
    (first, biases), *rest = train_networks(rows * weights, log_costs - center, _MLP, seed)
    last, last_biases = rest[-1]
    return NetworkRegressor(
        ((first * weights[:, None], biases), *rest[:-1], (last, last_biases + center))
    )


def fit_paper(rows: Floats, log_costs: Floats, seed: int) -> NetworkRegressor:
    """Train the paper's network, from TF-IDF of the input to the cost.

    Source: Justitia (arXiv:2510.17015v1), Sec. IV-B: 4 layers, the first proportional to the mean
    input size, mean squared error with L2, gradient descent. The paper does not give these choices:
    one neuron of the first layer for each known term of a mean input, half as many neurons in each
    next layer, ReLU, 300 full-batch steps of AdamW, costs in units of their mean.
    """
    costs = np.exp(log_costs)
    unit = float(costs.mean())
    terms = rows.copy()
    terms[:, : len(MEASURES)] = 0.0
    width = int(np.clip(np.count_nonzero(terms, axis=1).mean(), 16, 512))
    how = replace(_PAPER, widths=(width, width // 2, width // 4))
    layers = train_networks(terms, costs / unit, how, seed)
    layers[0][0][:, : len(MEASURES)] = 0.0
    return NetworkRegressor(tuple(layers), float(np.log(unit)))


RECIPES: dict[str, Recipe] = {"mlp": fit_mlp, "paper": fit_paper}
"""Training recipes by the kind of model."""

_FOLDS = 5


def held_out_answers(
    inputs: Sequence[InputFeatures], log_costs: Floats, recipe: Recipe, seed: int
) -> Floats:
    """Return predictions for each sample from networks that were not trained on it.

    Samples are in five folds, drawn by the seed. A fold contributes nothing to its own model, not
    even its words.
    """
    order = np.random.default_rng(seed).permutation(len(inputs))
    answers = np.zeros(len(inputs))
    for number in range(_FOLDS):
        fold, rest = order[number::_FOLDS], np.delete(order, np.s_[number::_FOLDS])
        design = fit_design([inputs[i] for i in rest])
        regressor = recipe(design.rows([inputs[i] for i in rest]), log_costs[rest], seed)
        answers[fold] = regressor.log_costs(design.rows([inputs[i] for i in fold]))
    return answers
