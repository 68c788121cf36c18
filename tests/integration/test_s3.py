"""S3, the papers' baseline predictor: it learns from text, is bounded and deterministic."""

import importlib
import math
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from justitia_ray.errors import ConfigError
from justitia_ray.lab.s3 import model as distilbert
from justitia_ray.lab.s3 import weights as s3_weights
from justitia_ray.lab.s3.config import S3Config
from justitia_ray.lab.s3.model import S3Model, S3Target, train_s3
from justitia_ray.predictor.input_features import READ_CHARS
from justitia_ray.predictor.observation import Sample

SMALL = S3Config(
    layers=1,
    heads=2,
    dim=16,
    hidden_dim=16,
    vocabulary=120,
    max_length=24,
    epochs=8,
    batch_size=8,
    learning_rate=1e-2,
)
Samples = dict[str, list[Sample]]


def _make_sample(cost: float, text: str | None) -> Sample:
    return Sample(cost, inferences=1, output_tokens=10, features=None, input_text=text)


def _make_samples() -> Samples:
    """Return samples of two classes: claims cost about 1e4, documents about 1e7."""
    rng = random.Random(7)
    return {
        name: [
            _make_sample(cost * rng.uniform(0.8, 1.25), f"{words} {rng.choice('abcdefgh')}")
            for _ in range(30)
        ]
        for name, cost, words in (
            ("FV", 1e4, "is this claim true"),
            ("DM", 1e7, "merge these documents"),
        )
    }


def predicted_cost(model: S3Model, application_class: str, text: str) -> float:
    [predicted] = model.predict(application_class, [text])
    return predicted.kv_token_time


@pytest.fixture(scope="module")
def model() -> S3Model:
    return train_s3(_make_samples(), config=SMALL, seed=3)


@pytest.fixture
def saved(model: S3Model, tmp_path: Path) -> Path:
    s3_weights.save_weights(tmp_path / "s3", model.tokenizer, model.network)
    return tmp_path / "s3"


@pytest.mark.parametrize(
    ("application_class", "text", "cost"),
    [("FV", "is this claim true b", 1e4), ("DM", "merge these documents b", 1e7)],
)
def test_s3_model_distinguishes_classes_by_their_texts(
    model: S3Model, application_class: str, text: str, cost: float
) -> None:
    """S3 has one model for all classes and sees only the text; class costs differ 1,000-fold.

    A tenth of each class is held back for the spread, which on training data is too small.
    """
    assert predicted_cost(model, application_class, text) == pytest.approx(cost, rel=0.5)
    assert 2 * 27 == model.samples
    assert model.target.residual_p10 < 0 < model.target.residual_p90


def test_repeated_training_with_one_seed_gives_an_equal_model(model: S3Model) -> None:
    """Comparisons of predictors must give equal figures on every run."""
    again, other = (train_s3(_make_samples(), config=SMALL, seed=seed) for seed in (3, 4))

    texts = ["is this claim true b", "something else"]
    assert model.predict("FV", texts) == again.predict("FV", texts)
    assert model.predict("FV", texts) != other.predict("FV", texts)


def test_training_keeps_torchs_random_state_and_threads() -> None:
    torch.manual_seed(5)
    expected, threads = torch.rand(1), torch.get_num_threads()
    torch.manual_seed(5)
    train_s3(_make_samples(), config=replace(SMALL, epochs=1), seed=3)

    assert expected == torch.rand(1)
    assert threads == torch.get_num_threads()


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "\0\x07",
        "\ud800",
        "日本語のテキスト",
        "[PAD] [CLS] [MASK]",
        "a" * 10_000,
        "b " * 500_000,
    ],
    ids=["empty", "blank", "control", "surrogate", "japanese", "special", "one word", "1 MB"],
)
def test_predicted_cost_of_any_text_is_bounded(model: S3Model, text: str) -> None:
    [predicted] = model.predict("FV", [text])

    assert 0.8e4 / 10 <= predicted.p10 <= predicted.kv_token_time
    assert predicted.kv_token_time <= predicted.p90 <= 1.25e7 * 10


def test_long_text_is_truncated_before_tokenization(model: S3Model) -> None:
    """Splitting 1 MB into word pieces takes a second, and the model reads only 24 pieces."""
    asked: list[int] = []

    class CountingTokenizer:
        def encode_batch(self, texts: list[str]) -> Any:
            asked.extend(len(text) for text in texts)
            return model.tokenizer.encode_batch(texts)

    counting: Any = CountingTokenizer()
    S3Model(SMALL, counting, model.network, model.target, 1).predict("FV", ["a b " * 250_000])

    assert [READ_CHARS] == asked


def test_prediction_head_reads_the_cls_token(model: S3Model) -> None:
    """Without the token [CLS], the model would read only the first word."""
    assert ["[CLS]", "[SEP]"] == model.tokenizer.encode("").tokens


def test_batches_group_texts_of_similar_length_and_keep_their_order(model: S3Model) -> None:
    """A long input must not slow fifteen short ones, and answers keep their inputs' order."""
    assert [[1, 3], [0, 2]] == distilbert._batches_by_length([1024, 10, 1024, 12])
    assert [[0], [1]] == distilbert._batches_by_length([3000, 3000])

    texts = ["merge these documents " * 9, "is this claim true", "", "merge"]
    together, alone = model.predict("FV", texts), [model.predict("FV", [t])[0] for t in texts]
    assert [a.kv_token_time for a in alone] == pytest.approx([a.kv_token_time for a in together])
    assert [] == model.predict("FV", [])


def test_class_name_is_an_input_of_the_s3_model_only_if_configured(model: S3Model) -> None:
    """The papers' S3 sees only the text; a variant that also sees the class name is compared."""
    samples = {
        name: [_make_sample(cost, "the same words") for _ in range(20)]
        for name, cost in (("FV", 1e4), ("DM", 1e7))
    }
    named = train_s3(samples, config=replace(SMALL, names_class=True, epochs=16), seed=3)

    assert model.predict("FV", ["merge"]) == model.predict("DM", ["merge"])
    claim, document = (predicted_cost(named, name, "the same words") for name in ("FV", "DM"))
    assert 100 * claim < document


def test_network_output_is_converted_to_a_cost() -> None:
    """Output 0 is the mean of ln(cost) or of the cost, output 1 a standard deviation more."""
    log = S3Target(True, math.log(1000), 2.0, 1.0, 1e6, math.log(0.5), math.log(3))
    plain = S3Target(False, 1000, 500, 1.0, 1e6)

    cost = log.prediction(1.0)
    assert cost.kv_token_time == pytest.approx(1000 * math.exp(2))
    assert cost.p10 == pytest.approx(cost.kv_token_time / 2)
    assert cost.p90 == pytest.approx(cost.kv_token_time * 3)
    assert 1500 == plain.prediction(1.0).kv_token_time


@pytest.mark.parametrize("answer", [-1e9, 1e9, math.nan], ids=["low", "high", "nan"])
def test_network_output_is_clamped_to_the_bounds(answer: float) -> None:
    """A badly trained network must not produce an infinite charge."""
    for target in (S3Target(True, 7.0, 2.0, 10.0, 1e6), S3Target(False, 1e3, 5e2, 10.0, 1e6)):
        assert target.prediction(answer).kv_token_time in (10.0, 1e6)


def test_s3_model_can_be_trained_on_costs_without_logarithm() -> None:
    """The papers may have used the cost itself, with which small classes lose accuracy."""
    plain = train_s3(_make_samples(), config=replace(SMALL, target="cost"), seed=3)

    assert predicted_cost(plain, "DM", "merge these documents b") == pytest.approx(1e7, rel=0.5)
    assert plain.target.in_log is False


def test_vocabulary_has_characters_and_frequent_words() -> None:
    """An unseen word is spelt in characters; ties are broken alphabetically."""
    texts = ["merge these documents"] * 3 + ["merge claims"]
    tokenizer, _ = s3_weights.random_weights(SMALL, texts)

    encoded = tokenizer.encode("Merge ease 7")
    assert ["[CLS]", "merge", "e", "##a", "##s", "##e", "[UNK]", "[SEP]"] == encoded.tokens
    words = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])[-4:]
    assert ["merge", "documents", "these", "claims"] == [word for word, _ in words]


def test_class_with_equal_costs_can_be_predicted() -> None:
    """Equal costs have no standard deviation to divide by."""
    same = train_s3({"A": [_make_sample(500.0, f"text {i}") for i in range(12)]}, config=SMALL)

    assert predicted_cost(same, "A", "text 3") == pytest.approx(500, rel=1e-3)


def test_samples_without_text_are_skipped() -> None:
    """The service keeps no texts by default, so S3 reports that it has nothing to learn from."""
    samples = {"A": [_make_sample(10.0, None)] * 50 + [_make_sample(10.0, "text")] * 9}

    with pytest.raises(ConfigError, match=r"samples with a text must be 10 or more .* got 8"):
        train_s3(samples, config=SMALL)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layers", 0),
        ("epochs", 1.5),
        ("max_length", 513),
        ("held_back", 0.6),
        ("learning_rate", math.nan),
        ("target", "ln"),
        ("names_class", 1),
    ],
)
def test_error_names_an_invalid_s3_setting(field: str, value: Any) -> None:
    """A wrong size is refused by its option's name instead of by torch during a run."""
    with pytest.raises(ValueError, match=rf"\n{field}\n.*input_value={value!r}"):
        replace(SMALL, **{field: value})


def test_pretrained_weights_are_loaded_from_a_directory(model: S3Model, saved: Path) -> None:
    """Sizes and tokenizer of the directory override the settings."""
    samples = {"A": [_make_sample(500.0 + i, f"is this claim {i}") for i in range(12)]}
    config = replace(SMALL, layers=3, dim=32, epochs=1)
    tuned = train_s3(samples, weights=str(saved), config=config)

    assert (16, 1) == (tuned.network.config.dim, tuned.network.config.n_layers)
    assert model.tokenizer.get_vocab() == tuned.tokenizer.get_vocab()
    assert model.network.state_dict().keys() == tuned.network.state_dict().keys()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_error_for_a_missing_weights_file_names_the_file(saved: Path, name: str) -> None:
    """One sentence replaces a page of text by transformers."""
    (saved / name).unlink()
    if name == "model.safetensors":
        (saved / "pytorch_model.bin").write_bytes(b"a pickle, which is never opened")

    with pytest.raises(ConfigError, match=r"s3': must hold (config.json, model|the tokenizer)"):
        s3_weights.load_weights(str(saved), SMALL)


def test_unreachable_model_hub_raises_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The local cache of models is tried first."""
    asked: list[bool] = []

    def pretrained_model(name: str, *, local_files_only: bool) -> Any:
        asked.append(local_files_only)
        raise OSError("We couldn't connect\nto the hub")

    monkeypatch.setattr(s3_weights, "_load_pretrained", pretrained_model)
    with pytest.raises(
        ConfigError, match="'distilbert-base': no such directory, and not to be had"
    ):
        s3_weights.load_weights("distilbert-base", SMALL)

    assert [True, False] == asked


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_error_for_a_missing_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for module in (distilbert, s3_weights):
        monkeypatch.delitem(sys.modules, module.__name__)

    with pytest.raises(ConfigError, match=rf"{package}: pip install 'justitia-ray\[lab\]'"):
        importlib.import_module(distilbert.__name__)
