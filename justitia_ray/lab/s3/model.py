"""S3, a predictor of the papers: one DistilBERT for all classes, from an input text to its cost.

Jin et al. 2023 fine-tune DistilBERT to predict the length of one answer from its prompt; the papers
use the application's input and cost instead (`Justitia-S3`: v1, Sec. IV-B and V-D, Table II; v2,
Table 1). Here: transformers' DistilBERT with its regression head on the first token's state, the
standardised ln(cost) as target, mean squared error, AdamW. The papers do not state the target. With
the cost as the target, one model for classes whose costs differ by a factor of 1,000 learns only
the large costs.

Importing this module imports torch and transformers, the extra `lab`, or raises ConfigError.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from justitia_ray.errors import ConfigError
from justitia_ray.lab.s3.config import S3Config
from justitia_ray.predictor.input_features import READ_CHARS
from justitia_ray.predictor.observation import Sample
from justitia_ray.predictor.trained_model import CostPrediction
from justitia_ray.units import KvTokenTime

try:
    import torch
    from tokenizers import Tokenizer
    from torch.nn.utils.rnn import pad_sequence

    from justitia_ray.lab.s3.weights import Network, load_weights, random_weights
except ModuleNotFoundError as error:
    if error.name is None or error.name.startswith("justitia_ray"):
        raise
    raise ConfigError(
        f"S3 needs the Python module {error.name}: pip install 'justitia-ray[lab]'"
    ) from error

LEAST_SAMPLES = 10
_BOUND = 10.0
"""Maximum factor by which a prediction may lie outside the range of training costs."""
_PIECES_AT_ONCE = 2048
"""Word pieces in a batch of predictions; larger batches are slower on a CPU."""


@dataclass(frozen=True, slots=True)
class S3Target:
    """Converts costs to the standardised output of the network, and back."""

    in_log: bool
    """Whether the network predicts ln(cost) instead of the cost."""
    mean: float
    deviation: float
    low: float
    high: float
    """Largest prediction in token·iterations; `low` is the smallest."""
    residual_p10: float = 0.0
    residual_p90: float = 0.0
    """90 % quantile of ln(true) − ln(predicted) on held-back samples, at least 0."""

    def standardised(self, costs: Sequence[KvTokenTime]) -> torch.Tensor:
        """Return the network's targets for given costs."""
        values = torch.tensor(costs, dtype=torch.float64)
        return ((_to_target(values, self.in_log) - self.mean) / self.deviation).float()

    def prediction(self, answer: float) -> CostPrediction:
        """Return the predicted cost and its spread for an output of the network."""
        cost = self.mean + self.deviation * answer
        if self.in_log:
            cost = math.exp(min(cost, math.log(self.high) + 1))
        cost = min(self.high, max(self.low, cost))
        return CostPrediction(
            kv_token_time=cost,
            p10=max(self.low, cost * math.exp(self.residual_p10)),
            p90=min(self.high, cost * math.exp(self.residual_p90)),
        )


@dataclass(slots=True, eq=False)
class S3Model:
    """Trained DistilBERT regressor that predicts costs from input texts.

    The network reads a call's inputs in batches, whose composition may change the last bits of a
    prediction: float32 sums are then added in another order.
    """

    config: S3Config
    tokenizer: Tokenizer
    network: Network
    target: S3Target
    samples: int
    """Number of finished applications that the model was trained on."""

    def __post_init__(self) -> None:
        self.network.eval()

    @property
    def parameters(self) -> int:
        """Number of weights of the network."""
        return sum(weights.numel() for weights in self.network.parameters())

    def predict(self, application_class: str, texts: Sequence[str]) -> list[CostPrediction]:
        """Predict the cost of each input text.

        Args:
            application_class: Class of all inputs; used only if the configuration has
                `names_class`.
            texts: The inputs; any Python strings.
        """
        read = [_input_text(self.config, application_class, text) for text in texts]
        pieces = _word_pieces(self.tokenizer, read)
        found: dict[int, CostPrediction] = {}
        with torch.inference_mode():
            for group in _batches_by_length([len(text) for text in pieces]):
                answers = _network_outputs(self.network, [pieces[i] for i in group]).tolist()
                for index, answer in zip(group, answers, strict=True):
                    found[index] = self.target.prediction(answer)
        return [found[index] for index in range(len(texts))]


def train_s3(
    samples_by_class: Mapping[str, Sequence[Sample]],
    *,
    weights: str | None = None,
    config: S3Config = S3Config(),  # noqa: B008 (frozen)
    seed: int = 0,
) -> S3Model:
    """Fine-tune a model on the samples of all classes.

    Args:
        samples_by_class: Samples by class; samples without a text are skipped.
        weights: Pretrained weights: a directory, or a name on the hub (see `load_weights`), which
            then determine the sizes. None: random weights of the configured sizes, and a tokenizer
            built from the training texts.
        config: Sizes and training settings.
        seed: Seed of the split, the order, random weights and dropout. Equal calls on one machine
            give equal models; torch's global random state is not changed.

    Raises:
        ConfigError: If fewer than 10 samples have a text, or the weights cannot be loaded.
    """
    trained_on, held_back = _split_samples(samples_by_class, config, seed)
    costs = [sample.kv_token_time for _, sample in trained_on]
    texts = [_input_text(config, name, sample.input_text or "") for name, sample in trained_on]
    target = _fit_target(costs, in_log=config.target == "log")
    with _deterministic(seed):
        if weights is None:
            tokenizer, network = random_weights(config, texts)
        else:
            tokenizer, network = load_weights(weights, config)
        _train_network(
            network, _word_pieces(tokenizer, texts), target.standardised(costs), config, seed
        )
        model = S3Model(config, tokenizer, network, target, len(trained_on))
        model.target = _with_spread(model, held_back)
    return model


_Labelled = tuple[str, Sample]


def _split_samples(
    samples_by_class: Mapping[str, Sequence[Sample]], config: S3Config, seed: int
) -> tuple[list[_Labelled], list[_Labelled]]:
    """Split samples into training and held-back ones, with the same shares for each class."""
    trained_on: list[_Labelled] = []
    held_back: list[_Labelled] = []
    for name in sorted(samples_by_class):
        labelled = [(name, s) for s in samples_by_class[name] if s.input_text is not None]
        random.Random(f"{seed}/held back/{name}").shuffle(labelled)
        count = round(config.held_back * len(labelled))
        held_back += labelled[:count]
        trained_on += labelled[count:]
    if len(trained_on) < LEAST_SAMPLES:
        raise ConfigError(
            f"samples with a text must be {LEAST_SAMPLES} or more after {len(held_back)} were held "
            f"back, got {len(trained_on)}"
        )
    return trained_on, held_back


def _fit_target(costs: Sequence[KvTokenTime], *, in_log: bool) -> S3Target:
    values = _to_target(torch.tensor(costs, dtype=torch.float64), in_log)
    # Equal costs have a deviation of 0, which must not become a divisor.
    deviation = max(values.std().item(), 1e-6 * abs(values.mean().item()), 1e-6)
    return S3Target(
        in_log, values.mean().item(), deviation, min(costs) / _BOUND, max(costs) * _BOUND
    )


def _to_target(costs: torch.Tensor, in_log: bool) -> torch.Tensor:
    return costs.log() if in_log else costs


def _train_network(
    network: Network,
    pieces: Sequence[torch.Tensor],
    targets: torch.Tensor,
    config: S3Config,
    seed: int,
) -> None:
    """Train the network in place with AdamW; the learning rate falls linearly to 0."""
    network.train()
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
    )
    steps = config.epochs * math.ceil(len(pieces) / config.batch_size)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    order = random.Random(f"{seed}/order")
    for _ in range(config.epochs):
        indices = list(range(len(pieces)))
        order.shuffle(indices)
        for start in range(0, len(indices), config.batch_size):
            batch = indices[start : start + config.batch_size]
            answers = _network_outputs(network, [pieces[i] for i in batch])
            loss = torch.nn.functional.mse_loss(answers, targets[batch])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()


def _word_pieces(tokenizer: Tokenizer, texts: Sequence[str]) -> list[torch.Tensor]:
    return [torch.tensor(encoded.ids) for encoded in tokenizer.encode_batch(list(texts))]


def _batches_by_length(lengths: Sequence[int]) -> list[list[int]]:
    """Return batches of texts of similar length, as indices, to reduce padding."""
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        if not groups or (len(groups[-1]) + 1) * lengths[index] > _PIECES_AT_ONCE:
            groups.append([])
        groups[-1].append(index)
    return groups


def _network_outputs(network: Network, pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    pad = network.config.pad_token_id
    ids = pad_sequence(list(pieces), batch_first=True, padding_value=pad)
    mask = pad_sequence([torch.ones_like(p) for p in pieces], batch_first=True)
    answers: torch.Tensor = network(input_ids=ids, attention_mask=mask).logits
    return answers.squeeze(-1)


def _with_spread(model: S3Model, held_back: Sequence[_Labelled]) -> S3Target:
    residuals = []
    for name, sample in held_back:
        [predicted] = model.predict(name, [sample.input_text or ""])
        residuals.append(math.log(sample.kv_token_time / predicted.kv_token_time))
    if not residuals:
        return model.target
    p10, p90 = torch.quantile(torch.tensor(residuals), torch.tensor([0.1, 0.9])).tolist()
    return replace(model.target, residual_p10=min(0.0, p10), residual_p90=max(0.0, p90))


def _input_text(config: S3Config, application_class: str, text: str) -> str:
    # Tokenizers reject lone surrogates.
    read = text[:READ_CHARS].encode("utf-8", "replace").decode()
    return f"{application_class}: {read}" if config.names_class else read


@contextmanager
def _deterministic(seed: int) -> Iterator[None]:
    """Run torch with one thread and a fixed random state, so that results can be repeated."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)
