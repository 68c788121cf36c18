"""Engine profiles as YAML files: parsing, defaults and error messages."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from justitia_ray.errors import ConfigError
from justitia_ray.sim.engine_profile import (
    EngineProfile,
    Fitted,
    FittedRun,
    IterationCost,
    ProfileFile,
    load_profile,
    load_profile_file,
    shipped_profiles,
    write_profile,
)

SMALL: dict[str, Any] = {"name": "mine", "kv_tokens": 1000}


def profile_file(directory: Path, **values: Any) -> str:
    path = directory / "mine.yaml"
    path.write_text(yaml.safe_dump(SMALL | values))
    return str(path)


def test_omitted_fields_have_the_defaults_of_the_engine(tmp_path: Path) -> None:
    """A profile with only a name and a KV size has iterations of constant length."""
    assert EngineProfile(1000, "mine") == load_profile(profile_file(tmp_path))


def test_profile_survives_writing_and_reading(tmp_path: Path) -> None:
    cost = IterationCost(0.0296, 8.5e-05, 1.16e-06, 0.000232, 128, 0.0161)
    profile = EngineProfile(
        kv_tokens=10_000,
        name="a",
        block_size=16,
        max_num_seqs=1000,
        iteration=cost,
        prefill="separate",
        max_batched_tokens=3072,
        admission="peak",
        admit_every=10,
        overflow="recompute",
        reserved_tokens_per_client=32,
        prefix_caching=True,
        speedup=1.5,
    )
    runs = (FittedRun("fcfs__real.csv.gz", 1500, 0.9876),)
    fitted = Fitted(version="0.1.0", added_prompt_tokens=1, residual=0.0066, runs=runs)
    path = tmp_path / "a.yaml"
    write_profile(path, ProfileFile(profile, fitted), ["Fitted by", "    a command"])

    assert ProfileFile(profile, fitted) == load_profile_file(str(path))
    assert path.read_text().startswith("# Fitted by\n#     a command\nname: a\n")
    assert ["a.yaml"] == [entry.name for entry in tmp_path.iterdir()]


def test_engine_profile_variant_differs_only_in_speed_and_memory(tmp_path: Path) -> None:
    """`name:tp2` selects the same model over two GPUs."""
    path = profile_file(
        tmp_path, admission="peak", variants={"tp2": {"speedup": 1.7, "kv_tokens": 5}}
    )
    variant = load_profile(f"{path}:tp2")

    assert EngineProfile(5, "mine:tp2", admission="peak", speedup=1.7) == variant
    assert EngineProfile(1000, "mine", admission="peak") == load_profile(path)
    path = profile_file(tmp_path, variants={"tp2": {"speedup": 1.7, "kv_tokens": 5}})
    with pytest.raises(ConfigError, match=r"mine\.yaml: variants has no 'tp4'; it has tp2$"):
        load_profile(f"{path}:tp4")


def test_error_of_an_unknown_profile_lists_the_shipped_profiles() -> None:
    with pytest.raises(ConfigError) as error:
        load_profile("h100")

    for name in shipped_profiles():
        assert name in str(error.value)
    assert "'h100' is neither a file nor one of those shipped" in str(error.value)


@pytest.mark.parametrize("name", shipped_profiles())
def test_shipped_profile_names_the_data_of_its_fit(name: str) -> None:
    content = load_profile_file(name)

    assert name == content.profile.name
    assert content.profile.iteration.base_s > 0
    assert content.fitted is not None
    assert sum(run.requests for run in content.fitted.runs) > 0


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"kv_tokens": 0}, "kv_tokens: Input should be greater than or equal to 1, got 0"),
        ({"kv_tokens": "many"}, "kv_tokens: Input should be a valid integer, got 'many'"),
        (
            {"prefill": "late"},
            "prefill: Input should be 'mixed', 'chunked' or 'separate', got 'late'",
        ),
        (
            {"iteration": {"base_s": -1}},
            "iteration.base_s: Input should be greater than or equal to 0, got -1",
        ),
        (
            {"iteration": {"base": 1}},
            "'iteration.base' is not a known key; allowed are base_s, per_sequence_s,"
            " per_context_token_s, per_prefill_token_s, prefill_tile_tokens, prefill_base_s",
        ),
        ({"speedup": float("inf")}, "speedup: Input should be a finite number, got inf"),
        ({"variants": {"tp2": {"speedup": 2.0}}}, "variants.tp2.kv_tokens is missing"),
    ],
)
def test_error_names_file_field_value_and_allowed_values(
    values: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = profile_file(tmp_path, **values)
    with pytest.raises(ConfigError, match=f"^{re.escape(f'{path}: {said}')}$"):
        load_profile(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "an engine profile is a mapping with `name` and `kv_tokens`"),
        (b"- 1", "an engine profile is a mapping with `name` and `kv_tokens`"),
        (b"a: [", "is not YAML"),
        (b"name: x", "kv_tokens is missing"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (None, "cannot be read"),
    ],
)
def test_error_of_a_file_without_a_profile_is_one_sentence(
    content: bytes | None, said: str, tmp_path: Path
) -> None:
    """A wrong file or a directory gives an error message instead of a traceback."""
    path = tmp_path / "x.yaml"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"^{re.escape(str(path))}: {said}"):
        load_profile(str(path))
