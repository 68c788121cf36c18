"""Storage of the built-in random models, tested without building a real one."""

import sys
from pathlib import Path

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.serve.engines import random_models
from justitia_ray.serve.engines.random_models import materialise_model


@pytest.mark.parametrize("path", ["some/hub-model", "relative/dir", "/absolute/dir"])
def test_path_of_a_real_model_is_returned_unchanged(path: str, tmp_path: Path) -> None:
    assert materialise_model(path, tmp_path / "cache") == path
    assert not (tmp_path / "cache").exists()


def test_unknown_random_model_is_refused_with_the_allowed_names(tmp_path: Path) -> None:
    """A misspelt name must not be requested from the model hub."""
    with pytest.raises(
        ConfigError,
        match=r"random:huge.*allowed: random:llama-2-7b, random:llama-3-8b, random:small-llama, ",
    ):
        materialise_model("random:huge", tmp_path)


def test_random_model_is_built_once_per_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build takes ten seconds, and every start of a replica requests the model."""
    built: list[Path] = []

    def build_model(directory: Path) -> None:
        built.append(directory)
        (directory / "config.json").write_text("{}")

    monkeypatch.setitem(random_models._BUILDERS, "tiny-llama", build_model)

    first = materialise_model("random:tiny-llama", tmp_path)
    second = materialise_model("random:tiny-llama", tmp_path)

    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert first == second == str(tmp_path / f"tiny-llama-{version}")
    assert len(built) == 1
    assert [path.name for path in tmp_path.iterdir()] == [f"tiny-llama-{version}"]


def test_concurrent_builders_of_a_random_model_use_the_first_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two replicas of a node may start at once, and neither may read half a model."""

    def build_after_another(directory: Path) -> None:
        (directory / "config.json").write_text("loser")
        winner = directory.parent / directory.name.removeprefix(".").rsplit("-", 1)[0]
        winner.mkdir()
        (winner / "config.json").write_text("winner")

    monkeypatch.setitem(random_models._BUILDERS, "tiny-llama", build_after_another)

    model = Path(materialise_model("random:tiny-llama", tmp_path))

    assert (model / "config.json").read_text() == "winner"
    assert list(tmp_path.iterdir()) == [model]


@pytest.mark.vllm
def test_random_llama_2_has_the_shape_of_the_real_model(tmp_path: Path) -> None:
    """Llama 2 7B has 6.74 billion weights and a text for each token that may be sampled."""
    # imports torch, which no other test here needs
    from transformers import AutoConfig, AutoTokenizer

    path = materialise_model("random:llama-2-7b", tmp_path)

    config = AutoConfig.from_pretrained(path)
    attention, mlp = 4 * config.hidden_size, 3 * config.intermediate_size
    layers = config.num_hidden_layers * config.hidden_size * (attention + mlp + 2)
    weights = layers + config.hidden_size * (2 * config.vocab_size + 1)
    assert 6_738_415_616 == weights
    assert config.vocab_size == len(AutoTokenizer.from_pretrained(path))
    assert not list(Path(path).glob("*.safetensors"))


@pytest.mark.vllm
def test_random_llama_3_has_a_quarter_as_many_kv_heads_as_attention_heads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Llama 3 8B has 8.03 billion weights and 131,072 bytes of KV memory per token."""
    from transformers import AutoConfig  # imports torch, which no other test here needs

    # Training the tokenizer is the slow part.
    monkeypatch.setattr(random_models, "_SHAPE_VOCABULARY", 300)

    config = AutoConfig.from_pretrained(materialise_model("random:llama-3-8b", tmp_path))
    kv_size = config.num_key_value_heads * config.head_dim
    attention = 2 * config.hidden_size + 2 * kv_size
    mlp = 3 * config.intermediate_size
    layers = config.num_hidden_layers * config.hidden_size * (attention + mlp + 2)
    assert 8_030_261_248 == layers + config.hidden_size * (2 * config.vocab_size + 1)
    assert 131_072 == config.num_hidden_layers * 2 * kv_size * 2


def test_failed_build_of_a_random_model_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a full disk, the next start must not take a partial folder for a model."""

    def fail_half_way(directory: Path) -> None:
        (directory / "config.json").write_text("half")
        raise OSError("no space left")

    monkeypatch.setitem(random_models._BUILDERS, "tiny-llama", fail_half_way)

    with pytest.raises(OSError, match="no space left"):
        materialise_model("random:tiny-llama", tmp_path)
    assert list(tmp_path.iterdir()) == []
