"""Weights and tokenizer of the S3 predictor: from a directory, from the hub, or random.

Weights are read only from safetensors files; code that comes with the weights is not run.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from tokenizers import Tokenizer
from tokenizers.implementations import BertWordPieceTokenizer
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from transformers import AutoTokenizer
from transformers.models.distilbert.configuration_distilbert import DistilBertConfig
from transformers.models.distilbert.modeling_distilbert import DistilBertForSequenceClassification
from transformers.utils import logging

from justitia_ray.errors import ConfigError
from justitia_ray.lab.s3.config import S3Config

Network: TypeAlias = Any
"""The class DistilBertForSequenceClassification of transformers, which has no type stubs."""


def load_weights(weights: str, config: S3Config) -> tuple[Tokenizer, Network]:
    """Return a pretrained tokenizer, and a pretrained network with a new regression head.

    Args:
        weights: A directory as transformers saves it, with `model.safetensors`; or a name on the
            hub, looked up in the local download cache first, then on the network.
        config: Only its `max_length` is used, not its sizes.

    Raises:
        ConfigError: If the directory is missing or lacks a file, or the hub does not serve the
            name.
    """
    is_path = weights.startswith(("/", ".", "~")) or Path(weights).exists()
    name = str(Path(weights).expanduser()) if is_path else weights
    if is_path and not Path(name).is_dir():
        raise ConfigError(f"weights {weights!r}: must be a directory or a name on the hub")
    try:
        found = _load_pretrained(name, local_files_only=True)
    except _REFUSALS as error:
        if is_path:
            raise ConfigError(
                f"weights {weights!r}: must hold config.json, model.safetensors and a tokenizer of "
                f"a DistilBERT: {_first_line(error)}"
            ) from error
        found = _load_from_hub(weights)
    tokenizer, network = found
    if not len(_SPECIAL) < tokenizer.get_vocab_size() <= network.config.vocab_size:
        raise ConfigError(
            f"weights {weights!r}: must hold the tokenizer of the network, which knows "
            f"{network.config.vocab_size} word pieces; its own has {tokenizer.get_vocab_size()}"
        )
    tokenizer.enable_truncation(min(config.max_length, network.config.max_position_embeddings))
    tokenizer.no_padding()
    return tokenizer, network


def save_weights(directory: Path, tokenizer: Tokenizer, network: Network) -> None:
    """Write weights and tokenizer in the format of transformers, for `load_weights`."""
    with _without_progress_bars():
        network.save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))


def random_weights(config: S3Config, texts: Iterable[str]) -> tuple[Tokenizer, Network]:
    """Return a network with random weights, and a WordPiece tokenizer built from the texts."""
    tokenizer = Tokenizer.from_str(
        BertWordPieceTokenizer(_vocabulary(texts, config.vocabulary), lowercase=True).to_str()
    )
    tokenizer.enable_truncation(config.max_length)
    sizes = {
        "n_layers": config.layers,
        "n_heads": config.heads,
        "dim": config.dim,
        "hidden_dim": config.hidden_dim,
        "vocab_size": config.vocabulary,
        "pad_token_id": tokenizer.token_to_id("[PAD]"),
    }
    return tokenizer, empty_network(sizes)


def _vocabulary(texts: Iterable[str], size: int) -> dict[str, int]:
    """Return the most frequent words, and the most frequent characters to spell other words.

    The library's own training gives another vocabulary each time, even for equal texts
    (huggingface/tokenizers, issue 1794).
    """
    normalizer, splitter = BertNormalizer(lowercase=True), BertPreTokenizer()
    words = Counter[str]()
    for text in texts:
        split = splitter.pre_tokenize_str(normalizer.normalize_str(text))
        words.update(word for word, _ in split)
    characters = Counter[str]()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    pieces = dict.fromkeys(_SPECIAL)
    for character in _by_frequency(characters)[: size // 4]:
        pieces |= {character: None, f"##{character}": None}
    pieces |= dict.fromkeys(_by_frequency(words))
    return {piece: number for number, piece in enumerate(list(pieces)[:size])}


def _by_frequency(counts: Counter[str]) -> list[str]:
    return sorted(counts, key=lambda piece: (-counts[piece], piece))


def empty_network(sizes: dict[str, Any]) -> Network:
    """Return a network of given sizes, initialised by torch.

    Raises:
        ValueError: If the sizes are not those of a DistilBERT.
    """
    return DistilBertForSequenceClassification(DistilBertConfig(**sizes, num_labels=1))


_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""Special word pieces; a tokenizer with no other pieces has lost its file."""
_REFUSALS = (OSError, ValueError, KeyError, RuntimeError)
"""Errors of transformers for files that are missing, unreachable or of another model."""


def _load_from_hub(name: str) -> tuple[Tokenizer, Network]:
    try:
        return _load_pretrained(name, local_files_only=False)
    except _REFUSALS as error:
        raise ConfigError(
            f"weights {name!r}: no such directory, and not to be had from the hub (give a directory"
            f" with config.json, model.safetensors and a tokenizer): {_first_line(error)}"
        ) from error


def _load_pretrained(name: str, *, local_files_only: bool) -> tuple[Tokenizer, Network]:
    # Load the network first: if its file is missing, no tokenizer is requested.
    with _without_progress_bars():
        network = DistilBertForSequenceClassification.from_pretrained(
            name, num_labels=1, use_safetensors=True, local_files_only=local_files_only
        )
    loaded = AutoTokenizer.from_pretrained(
        name, use_fast=True, trust_remote_code=False, local_files_only=local_files_only
    )
    return Tokenizer.from_str(loaded.backend_tokenizer.to_str()), network


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Hide progress bars of a load that takes a second."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    return " ".join(f"{error}".split())[:300]
