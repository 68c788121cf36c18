"""Training small networks side by side on one core; the only file that needs torch.

Everything is drawn from a generator with the seed, and one thread adds up in one order: the same
samples and seed give the same network, bit for bit, on one kind of processor.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(answers, targets) to the loss of each."""

_LOOK_EVERY = 10
"""Steps between two looks at what a network was not trained on."""
_PATIENCE = 60
"""Steps without any network doing better on that, after which they are as good as they get."""
_FURTHEST = 3.0
"""e³ times too large counts no more than that: a gradient as large as its error would undo the rest
of the training."""


@dataclass(frozen=True, slots=True)
class Training:
    """How networks are trained: full-batch AdamW (Loshchilov and Hutter, ICLR 2019)."""

    widths: tuple[int, ...]
    """Neurons of each hidden layer."""
    members: int
    """Networks, whose mean is the answer."""
    steps: int
    rate: float
    """Learning rate."""
    decay: float
    """L2 penalty, decoupled."""
    loss: Loss
    held_out: float = 0.0
    """Share of the samples that a network is not trained on, other ones for each; it is left as it
    was when it did best on them. 0: trained on all, to the end."""


class _AdamW:
    """AdamW with its usual constants; torch's own first imports torch's compiler, for 3 s."""

    _BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8

    def __init__(self, parameters: list[torch.Tensor], how: Training) -> None:
        self._parameters = parameters
        self._how = how
        self._means = [torch.zeros_like(p) for p in parameters]
        self._squares = [torch.zeros_like(p) for p in parameters]
        self._steps = 0

    def step(self, gradients: Sequence[torch.Tensor]) -> None:
        """Move the parameters one step."""
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
    """Return |p − t|/t of costs given as logarithms."""
    return torch.expm1(torch.clamp(answers - targets, max=_FURTHEST)).abs()


def squared_error(answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return (p − t)²."""
    return (answers - targets) ** 2


def train_networks(
    rows: Floats, targets: Floats, how: Training, seed: int
) -> list[tuple[Floats, Floats]]:
    """Return weights [members, from, to] and biases [members, 1, to] of each layer.

    Before the first step the answer is close to 0, so targets should be around it: what was stopped
    early has gone less far from there.
    """
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    parameters = _initial((rows.shape[1], *how.widths, 1), how.members, generator)
    x = torch.tensor(rows, dtype=torch.float32).expand(how.members, -1, -1)
    t = torch.tensor(targets, dtype=torch.float32)
    trained = _chosen(how, len(rows), generator)
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


def _initial(
    sizes: tuple[int, ...], members: int, generator: torch.Generator
) -> list[torch.Tensor]:
    """Return weights and biases, layer by layer (He et al., ICCV 2015; the last one small)."""
    parameters: list[torch.Tensor] = []
    for before, after in itertools.pairwise(sizes):
        gain = (2.0 / before) ** 0.5 if after > 1 else 0.1 / before**0.5
        weights = torch.randn(members, before, after, generator=generator) * gain
        parameters += [weights.requires_grad_(), torch.zeros(members, 1, after).requires_grad_()]
    return parameters


def _forward(parameters: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Return the answers, [members, samples]."""
    state = x
    for number in range(0, len(parameters), 2):
        state = torch.relu(state) if number else state
        state = torch.baddbmm(parameters[number + 1], state, parameters[number])
    return state[:, :, 0]


def _chosen(how: Training, samples: int, generator: torch.Generator) -> torch.Tensor:
    """Return bool [members, samples]: which ones each network is trained on."""
    trained = torch.ones(how.members, samples, dtype=torch.bool)
    count = max(1, round(how.held_out * samples))
    if how.held_out:
        for member in trained:
            member[torch.randperm(samples, generator=generator)[:count]] = False
    return trained
