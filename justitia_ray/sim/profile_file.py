"""Engine profiles as YAML files: those shipped beside this file, in `profiles/`, and the user's.

    name: my-engine
    kv_tokens: 10000
    prefill: separate
    iteration: {base_s: 0.03, per_context_token_s: 1.2e-6}
    variants:
      tp2: {speedup: 1.7, kv_tokens: 24000}

Keys and their meaning are those of `EngineProfile`; what is left out has its default there. A
variant is the same engine over more GPUs, chosen as `my-engine:tp2`: it is that much faster and
has that KV memory. No shipped profile has one, for none was measured; a user who knows both
numbers writes them. `fitted` says what a calibrated profile was fitted on.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from justitia_ray.errors import ConfigError
from justitia_ray.replacing import replacing_text
from justitia_ray.sim.engine_profile import EngineProfile, IterationCost
from justitia_ray.units import Tokens

_MAX_FILE_BYTES = 1024**2
_VALUE_CHARACTERS = 80

_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=1, strict=True)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Iteration(_Section):
    base_s: _Amount = 0.03
    per_sequence_s: _Amount = 0.0
    per_context_token_s: _Amount = 0.0
    per_prefill_token_s: _Amount = 0.0
    prefill_tile_tokens: _Count = 1
    prefill_base_s: _Amount = 0.0


class _Variant(_Section):
    speedup: _Factor
    kv_tokens: _Count


class _FittedRun(_Section):
    file: str
    requests: _Count
    speed: _Factor


class _Fitted(_Section):
    version: str
    added_prompt_tokens: Annotated[int, Field(ge=0, strict=True)] = 0
    residual: _Amount
    runs: list[_FittedRun]


class _File(_Section):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    kv_tokens: _Count
    block_size: _Count = 1
    max_num_seqs: _Count = 256
    iteration: _Iteration = _Iteration()
    prefill: Literal["mixed", "chunked", "separate"] = "mixed"
    max_batched_tokens: _Count = 8192
    admission: Literal["prompt", "peak"] = "prompt"
    admit_every: _Count = 1
    overflow: Literal["swap", "recompute"] = "swap"
    reserved_tokens_per_client: Annotated[int, Field(ge=0, strict=True)] = 0
    last_token_held: Annotated[bool, Field(strict=True)] = True
    prefix_caching: Annotated[bool, Field(strict=True)] = False
    speedup: _Factor = 1.0
    variants: dict[str, _Variant] = {}
    fitted: _Fitted | None = None


@dataclass(frozen=True, slots=True)
class FittedRun:
    """A measured run that a profile was fitted on."""

    file: str
    requests: int
    speed: float
    """Time of its iterations over the fit's: below 1, the machine was faster in this run."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """What a profile was fitted on."""

    version: str
    """Of this package."""
    added_prompt_tokens: Tokens
    """What that engine put before each prompt and its files do not count (Llama's BOS)."""
    residual: float
    """Root mean square of the relative error of a request's decode time, speeds apart."""
    runs: tuple[FittedRun, ...]


@dataclass(frozen=True, slots=True)
class ProfileFile:
    """All that a profile's file says."""

    profile: EngineProfile
    fitted: Fitted | None = None


def shipped_profiles() -> list[str]:
    """Return the names of the shipped profiles, in order."""
    directory = files("justitia_ray.sim") / "profiles"
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in directory.iterdir()
        if entry.name.endswith(".yaml")
    )


def load_profile(name_or_path: str) -> EngineProfile:
    """Return a shipped profile or that of a file, `:VARIANT` of it if the name ends so.

    Raises:
        ConfigError: If there is none, or the file is wrong; file, field, value and what is allowed
            are named.
    """
    return load_profile_file(name_or_path).profile


def load_profile_file(name_or_path: str) -> ProfileFile:
    """Return what `load_profile` returns, and what it was fitted on.

    Raises:
        ConfigError: As `load_profile`.
    """
    place, _, variant = name_or_path.rpartition(":")
    if not place or Path(name_or_path).exists():
        place, variant = name_or_path, ""
    content = _parse(place, _read(place))
    if not variant:
        return _profile_file(content)
    if variant not in content.variants:
        known = ", ".join(content.variants) or "none"
        raise ConfigError(f"{place}: variants has no {variant!r}; it has {known}")
    chosen = content.variants[variant]
    base = _profile_file(content)
    profile = replace(
        base.profile,
        name=f"{content.name}:{variant}",
        speedup=chosen.speedup,
        kv_tokens=chosen.kv_tokens,
    )
    return replace(base, profile=profile)


def write_profile(path: Path, content: ProfileFile, head: Sequence[str] = ()) -> None:
    """Write a profile's file, whole or not at all.

    Args:
        path: Replaced if it exists.
        content: Defaults are written too, so that a later version's do not change it.
        head: Lines of comment before it.

    Raises:
        ConfigError: If it cannot be written.
    """
    values: dict[str, Any] = asdict(content.profile)
    if content.fitted is not None:
        values["fitted"] = asdict(content.fitted) | {
            "runs": [asdict(run) for run in content.fitted.runs]
        }
    ordered = {name: values[name] for name in _File.model_fields if name in values}
    text = "".join(f"# {line}\n" for line in head) + yaml.safe_dump(
        ordered, sort_keys=False, default_flow_style=None, width=100
    )
    with replacing_text(path) as file:
        file.write(text)


def _read(place: str) -> str:
    shipped = shipped_profiles()
    if place in shipped:
        return (files("justitia_ray.sim") / "profiles" / f"{place}.yaml").read_text("utf-8")
    path = Path(place)
    if not path.exists():
        raise ConfigError(
            f"engine profile {place!r} is neither a file nor one of those shipped: "
            f"{', '.join(shipped)}"
        )
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ConfigError(
                f"{path}: a profile has at most {_MAX_FILE_BYTES} bytes, this file has "
                f"{path.stat().st_size}"
            )
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error


def _parse(place: str, text: str) -> _File:
    try:
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{place}: is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{place}: an engine profile is a mapping with `name` and `kv_tokens`")
    try:
        return _File.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(f"{place}: {_sentence(first)}") from error


def _sentence(item: Any) -> str:
    field = ".".join(str(part) for part in item["loc"])
    if item["type"] == "missing":
        return f"{field} is missing"
    if item["type"] == "extra_forbidden":
        return f"{field} is not a known key; allowed are {', '.join(_keys_beside(item['loc']))}"
    value = repr(item["input"])
    shown = value if len(value) <= _VALUE_CHARACTERS else value[:_VALUE_CHARACTERS] + "…"
    return f"{field}: {item['msg'].removeprefix('Input ')}, got {shown}"


def _keys_beside(place: Sequence[int | str]) -> list[str]:
    sections: dict[str, type[_Section]] = {
        "iteration": _Iteration,
        "variants": _Variant,
        "fitted": _FittedRun if "runs" in place else _Fitted,
    }
    model = sections[str(place[0])] if len(place) > 1 else _File
    return list(model.model_fields)


def _profile_file(content: _File) -> ProfileFile:
    names = [field.name for field in fields(EngineProfile) if field.name != "iteration"]
    profile = EngineProfile(
        **{name: getattr(content, name) for name in names},
        iteration=IterationCost(**content.iteration.model_dump()),
    )
    if content.fitted is None:
        return ProfileFile(profile)
    fitted = content.fitted
    runs = tuple(FittedRun(run.file, run.requests, run.speed) for run in fitted.runs)
    return ProfileFile(
        profile, Fitted(fitted.version, fitted.added_prompt_tokens, fitted.residual, runs)
    )
