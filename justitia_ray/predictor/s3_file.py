"""A trained S3 rival as a directory of safetensors and JSON, checksummed, never a pickle.

DIR/config.json, model.safetensors, tokenizer.json    as transformers reads them, so that a
                                                      trained one can be fine-tuned further
DIR/s3.json                                           the rest, and the checksums of all
"""

import hashlib
import json
import math
import shutil
import uuid
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from tokenizers import Tokenizer

from justitia_ray.errors import ConfigError, StoreError
from justitia_ray.predictor.distilbert import S3Model, S3Target
from justitia_ray.predictor.s3_config import S3Config
from justitia_ray.predictor.s3_weights import empty_network

FORMAT = 1
_SIZES = ("n_layers", "n_heads", "dim", "hidden_dim", "vocab_size", "max_position_embeddings")
_CONFIG, _WEIGHTS, _TOKENIZER, _ABOUT = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "s3.json",
)


def save_s3(model: S3Model, directory: Path) -> None:
    """Write a model; the directory is there whole or not at all.

    Raises:
        ConfigError: If the directory holds something already, or cannot be written.
    """
    network = model.network
    files = {
        _CONFIG: _json(network.config.to_diff_dict()),
        _WEIGHTS: safetensors.torch.save(network.state_dict(), {"format": "pt"}),
        _TOKENIZER: model.tokenizer.to_str(pretty=True).encode(),
    }
    about = {
        "format": FORMAT,
        "samples": model.samples,
        "config": model.config.to_dict(),
        "target": asdict(model.target),
        "sizes": {name: getattr(network.config, name) for name in (*_SIZES, "pad_token_id")},
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
    files[_ABOUT] = _json({**about, "checksum": _checksum(about)})
    unfinished = directory.parent / f".{directory.name}.{uuid.uuid4().hex}.part"
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        unfinished.mkdir()
        for name, data in files.items():
            (unfinished / name).write_bytes(data)
        unfinished.rename(directory)
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"{directory}: must be a new or empty directory: {why}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def load_s3(directory: Path) -> S3Model:
    """Return the model that `save_s3` wrote; it predicts the same, bit for bit.

    Raises:
        ConfigError: If there is no such directory, or a file cannot be read.
        StoreError: If a file is missing, damaged or of another form; file and reason are named.
    """
    if not directory.is_dir():
        raise ConfigError(f"{directory}: no such directory")
    about = _about(directory / _ABOUT)
    files = {name: _checked(directory / name, about) for name in (_CONFIG, _WEIGHTS, _TOKENIZER)}
    try:
        config = S3Config.from_dict(about["config"])
        target = _target(about["target"])
        tensors = safetensors.torch.load(files[_WEIGHTS])
        network = empty_network(_fitting(about["sizes"], tensors))
        network.load_state_dict(tensors)
        tokenizer = Tokenizer.from_str(files[_TOKENIZER].decode())
        if tokenizer.get_vocab_size() > network.config.vocab_size:
            raise ValueError(f"{_TOKENIZER} knows more word pieces than {_WEIGHTS}")
        return S3Model(config, tokenizer, network, target, _samples(about))
    except Exception as error:  # tokenizers raises bare Exception
        raise StoreError(
            f"{directory}: no S3 model: {' '.join(str(error).split())[:300]}"
        ) from error


def _about(path: Path) -> dict[str, Any]:
    try:
        about = json.loads(_bytes(path))
        checksum = about.pop("checksum")
        if about["format"] != FORMAT:
            raise StoreError(f"{path}: format is {about['format']!r}: {FORMAT} is allowed")
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise StoreError(f"{path}: not the s3.json of a model: {error!r:.200}") from error
    if checksum != _checksum(about):
        raise StoreError(f"{path}: damaged: its checksum is another")
    return dict(about)


def _checked(path: Path, about: dict[str, Any]) -> bytes:
    data = _bytes(path)
    if hashlib.sha256(data).hexdigest() != about["sha256"].get(path.name):
        raise StoreError(f"{path}: damaged: its checksum is another")
    return data


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise StoreError(f"{path}: missing") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def _fitting(sizes: dict[str, Any], tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Return the sizes if these tensors can be theirs: what is made has the size of the file."""
    embeddings = "distilbert.embeddings.word_embeddings.weight"
    if list(tensors[embeddings].shape) != [sizes["vocab_size"], sizes["dim"]]:
        raise ValueError(f"{embeddings} has another shape than sizes say")
    if sizes["n_layers"] != sum(name.endswith("attention.q_lin.weight") for name in tensors):
        raise ValueError(f"n_layers is {sizes['n_layers']!r}: the file has another number")
    first = "distilbert.transformer.layer.0.ffn.lin1.weight"
    if sizes["hidden_dim"] != len(tensors[first]):
        raise ValueError(f"hidden_dim is {sizes['hidden_dim']!r}: the file has another number")
    positions = "distilbert.embeddings.position_embeddings.weight"
    if sizes["max_position_embeddings"] != len(tensors[positions]):
        raise ValueError(f"{positions} has another shape than sizes say")
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{name} has values that are not finite")
    return {name: sizes[name] for name in (*_SIZES, "pad_token_id")}


def _target(values: dict[str, Any]) -> S3Target:
    if wrong := sorted({field.name for field in fields(S3Target)} ^ set(values)):
        raise ValueError(f"target: fields missing or unknown: {', '.join(wrong)}")
    target = S3Target(**values)
    for name, value in values.items():
        if name != "in_log" and not (isinstance(value, int | float) and math.isfinite(value)):
            raise ValueError(f"target.{name} is {value!r}: a finite number is allowed")
    ordered = 0 < target.low <= target.high and target.residual_p10 <= 0 <= target.residual_p90
    if not ordered or target.deviation <= 0 or type(target.in_log) is not bool:
        raise ValueError("target: 0 < low <= high, p10 <= 0 <= p90, deviation > 0 are allowed")
    return target


def _samples(about: dict[str, Any]) -> int:
    samples = about["samples"]
    if type(samples) is not int or samples < 1:
        raise ValueError(f"samples is {samples!r}: a whole number >= 1 is allowed")
    return samples


def _checksum(about: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _json(values: dict[str, Any]) -> bytes:
    return (json.dumps(values, indent=2, sort_keys=True) + "\n").encode()
