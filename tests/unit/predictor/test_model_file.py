"""Models as bytes: valid files are read back equal, and all others refused."""

import random
import re
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
from safetensors import numpy as safetensors

from justitia_ray.errors import StoreError
from justitia_ray.predictor.input_features import BUCKETS, features_of
from justitia_ray.predictor.model_file import model_from_bytes, model_to_bytes
from justitia_ray.predictor.trained_model import TrainedModel
from justitia_ray.predictor.training import KINDS, train
from tests.unit.predictor.builders import (
    bytes_of_removed_kind,
    checked_file,
    file_with_parts,
    made_up_samples,
    parts_of,
    quick_networks,
)

__all__ = ["quick_networks"]

pytestmark = pytest.mark.usefixtures("quick_networks")


@cache
def model_of_kind(kind: str) -> TrainedModel:
    return train(made_up_samples(12), kind=kind)


@cache
def file_of(kind: str) -> bytes:
    return model_to_bytes(model_of_kind(kind))


def changed_file(
    kind: str, name: str, array: object = None, *, fill: object = None, about: object = None
) -> bytes:
    """Return a model's file after changing, filling or dropping an array, or changing a field."""
    metadata, arrays = parts_of(file_of(kind))
    if name in metadata:
        metadata[name] = about
    elif fill is not None:
        arrays[name] = np.full_like(arrays[name], fill)
    elif array is None:
        del arrays[name]
    else:
        arrays[name] = np.asarray(array)
    return file_with_parts(metadata, arrays)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_model_read_from_its_file_predicts_the_same(kind: str) -> None:
    """One process trains a model, others use it, also after restarts."""
    inputs = [s.features for s in made_up_samples(40, seed=9) if s.features is not None]
    written, read = model_of_kind(kind), model_from_bytes(file_of(kind), "here")

    assert (written.kind, 12) == (read.kind, read.samples)
    assert written.predict(inputs) == read.predict(inputs)
    assert file_of(kind) == model_to_bytes(read)


def test_reading_a_model_needs_neither_torch_nor_scikit_learn() -> None:
    """A predictor and the simulator must start quickly and use little memory."""
    code = (
        "import sys; from justitia_ray.predictor.model_file import model_from_bytes;"
        "from justitia_ray.predictor.input_features import features_of;"
        "model = model_from_bytes(sys.stdin.buffer.read(), 'stdin');"
        "print(model.predict([features_of('alpha beta slow.')])[0].kv_token_time.hex(),"
        " [name for name in ('torch', 'sklearn', 'pickle5') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=file_of("mlp"), capture_output=True, check=True
    )
    here = model_from_bytes(file_of("mlp"), "here").predict([features_of("alpha beta slow.")])

    assert f"{here[0].kv_token_time.hex()} []" == done.stdout.decode().strip()


def test_every_flipped_bit_of_a_model_file_is_noticed() -> None:
    """A slightly wrong model would mislead the scheduler for weeks."""
    good = file_of("mlp")
    rng = random.Random(0)
    for place in [0, 15, 20, 90, *(rng.randrange(len(good)) for _ in range(100))]:
        bad = bytearray(good)
        bad[place] ^= 1 << rng.randrange(8)
        with pytest.raises(StoreError, match=r"^models/KBQAV: "):
            model_from_bytes(bytes(bad), "models/KBQAV")


@pytest.mark.parametrize("length", [0, 1, 40, 81, 200, -1])
def test_truncated_model_file_is_refused(length: int) -> None:
    """A full disk leaves truncated files."""
    with pytest.raises(StoreError, match="not a model that can be used"):
        model_from_bytes(file_of("mlp")[:length], "here")


def test_error_of_a_later_model_format_names_the_format() -> None:
    """After a downgrade the operator must learn why a model is not used."""
    with pytest.raises(StoreError, match=r"format b'2': 1 is allowed"):
        model_from_bytes(file_of("mlp").replace(b"model 1", b"model 2", 1), "here")


HOSTILE = {
    "array missing": lambda: changed_file("mlp", "design.idf"),
    "buckets out of range": lambda: changed_file("mlp", "design.buckets", np.array([5, BUCKETS])),
    "buckets that do not ascend": lambda: changed_file("mlp", "design.buckets", np.array([5, 5])),
    "terms that weigh nothing": lambda: changed_file("mlp", "design.idf", fill=0.0),
    "no scale": lambda: changed_file("mlp", "design.scale", fill=0.0),
    "weights too few": lambda: changed_file("mlp", "0.weights0", np.ones((8, 3, 16))),
    "weights not finite": lambda: changed_file("mlp", "0.biases0", fill=np.nan),
    "weights of another type": lambda: changed_file(
        "mlp", "0.biases3", np.ones((8, 1, 1), dtype=np.float32)
    ),
    "weights that overflow": lambda: changed_file("mlp", "0.biases0", fill=1e300),
    "unit not finite": lambda: changed_file("paper", "0.log_unit", fill=np.inf),
    "layers that do not fit": lambda: changed_file("mlp", "0.weights1", np.ones((8, 3, 16))),
    "last layer missing": lambda: changed_file("mlp", "0.weights3"),
    "more networks than memory": lambda: changed_file("mlp", "0.weights0", np.ones((10**4, 1, 1))),
    "kind with a newline": lambda: changed_file("mlp", "kind", about="mlp\nINFO"),
    "no samples": lambda: changed_file("mlp", "samples", about=0),
    "weight not finite": lambda: changed_file("mlp", "weights", about=[float("inf")]),
    "unknown function": lambda: changed_file("mlp", "regressors", about=["eval"]),
    "function not a text": lambda: changed_file("mlp", "regressors", about=[[]]),
    "another version's measures": lambda: changed_file("mlp", "measures", about=["chars"]),
    "calibration of another form": lambda: changed_file("mlp", "calibration", about={}),
    "no safetensors": lambda: checked_file(b"\x80\x04cposix\nsystem\n"),
    "header of any length": lambda: checked_file(b"\xff" * 8 + b"{}"),
    "no metadata": lambda: checked_file(safetensors.save({"a": np.ones(1)})),
    "metadata not ours": lambda: checked_file(
        safetensors.save({"a": np.ones(1)}, {"justitia": "[[]]"})
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_model_file_is_refused(what: str) -> None:
    """A client that can write to Redis can also write a valid checksum, so content is checked."""
    with pytest.raises(StoreError, match=r"^here: not a model that can be used: "):
        model_from_bytes(HOSTILE[what](), "here")


def test_model_of_a_removed_kind_is_refused() -> None:
    """The service then predicts the mean of the class until a new model is trained."""
    with pytest.raises(StoreError, match=r"^v3: .*and the class needs a new training"):
        model_from_bytes(bytes_of_removed_kind(), "v3")


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("regressors", ["eval"], "regressors are ('eval',): ('network',) is allowed"),
        ("regressors", ["linear"], "kinds auto, ridge, forest and median were removed"),
        ("weights", [0.5, 0.25], "weights are (0.5, 0.25): (1.0,) is allowed"),
        ("kind", "mlp\nINFO", r"kind is 'mlp\nINFO': "),
    ],
)
def test_error_of_damaged_model_metadata_shows_the_stored_value(
    field: str, value: object, told: str
) -> None:
    """The log must show the value in the file, not only the allowed ones."""
    with pytest.raises(StoreError, match=re.escape(told)):
        model_from_bytes(changed_file("mlp", field, about=value), "here")
