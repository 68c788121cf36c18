"""Engine profiles: the cost of an iteration, the rules of admission and preemption, as YAML files.

    name: my-engine
    kv_tokens: 10000
    prefill: separate
    iteration: {base_s: 0.03, per_context_token_s: 1.2e-6}
    variants:
      tp2: {speedup: 1.7, kv_tokens: 24000}

Keys and their meaning are those of `EngineProfile`; omitted keys have its defaults: an engine with
constant iterations that newly admitted prompts lengthen, which swaps out sequences that overflow
its memory. Shipped profiles are in `profiles/` beside this file. A variant is the same engine on
more GPUs, selected as `my-engine:tp2`, with its speedup and its KV memory. No shipped profile has a
variant, because none was measured. `fitted` lists the runs that a calibrated profile was fitted on.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from justitia_ray.atomic_files import replacing_text
from justitia_ray.cost import PrefillCost
from justitia_ray.errors import ConfigError
from justitia_ray.sim.workload import first_mistake
from justitia_ray.units import Seconds
from justitia_ray.yaml_text import read_yaml

_MAX_FILE_BYTES = 1024**2

_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Factor = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=1, strict=True)]
_CountFrom0 = Annotated[int, Field(ge=0, strict=True)]
_Flag = Annotated[bool, Field(strict=True)]
_STRICT_KEYS = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class IterationCost:
    """Seconds of an engine's iteration: a base time, plus a coefficient for each quantity."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT_KEYS

    base_s: _Amount = 0.03
    per_sequence_s: _Amount = 0.0
    """Time per decoding sequence, in seconds."""
    per_context_token_s: _Amount = 0.0
    """Time per KV token of the decoding sequences, in seconds."""
    per_prefill_token_s: _Amount = 0.0
    """Time per computed prompt token, in seconds."""
    prefill_tile_tokens: _Count = 1
    """Tile size of the GPU: the prompt tokens of an iteration are rounded up to a multiple of it.
    """
    prefill_base_s: _Amount = 0.0
    """Time in seconds added to an iteration that computes any prompt token."""

    def with_times(self, change: Callable[[Seconds], Seconds]) -> "IterationCost":
        names = [key.name for key in fields(self) if key.name.endswith("_s")]
        times: dict[str, Any] = {name: change(getattr(self, name)) for name in names}
        return replace(self, **times)

    def scaled(self, factor: float) -> "IterationCost":
        """Return the cost with all times multiplied by a factor."""
        return self.with_times(lambda time_s: time_s * factor)


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """Rules and costs of an engine, as the keys of a profile.

    By default iterations take constant time.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT_KEYS

    kv_tokens: _Count
    """KV memory M of a replica, in tokens."""
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "constant"
    block_size: _Count = 1
    max_num_seqs: _Count = 256
    iteration: IterationCost = field(default_factory=IterationCost)
    prefill: Literal["mixed", "chunked", "separate"] = "mixed"
    """How prompts are computed: `mixed`, `chunked` or `separate`.

    `mixed`: newly admitted prompts are computed whole, in the iteration of all others (Orca).
    `chunked`: at most `max_batched_tokens` per iteration, running sequences first (vLLM).
    `separate`: a batch of prompts alone, which makes their first tokens (S-LoRA, LightLLM).
    """
    max_batched_tokens: _Count = 8192
    """Largest number of prompt tokens of a `separate` prefill, or of all tokens of a `chunked`
    iteration.
    """
    admission: Literal["prompt", "peak"] = "prompt"
    """Condition for starting an inference.

    `prompt`: the prompt must fit now (vLLM). `peak`: the peak of future KV must fit, too.
    """
    admit_every: _Count = 1
    """Number of iterations between a prefill and the next admission of inferences; an empty replica
    admits at once.
    """
    overflow: Literal["swap", "recompute"] = "swap"
    """Treatment of preempted inferences.

    `swap`: they keep their tokens. `recompute`: prompt and tokens are computed again (vLLM).
    """
    reserved_tokens_per_client: _CountFrom0 = 0
    """KV reserved for each distinct client of the running sequences (S-LoRA: 32, for adapters)."""
    last_token_held: _Flag = True
    """Whether the latest output token takes KV memory at once, or only with the next token
    (S-LoRA). In the second case an inference is charged for one token less.
    """
    prefix_caching: _Flag = False
    """Whether an inference computes only the part of its prompt that is not in the prefix cache."""
    speedup: _Factor = 1.0
    """Speedup by tensor parallelism: all times are divided by it."""

    @property
    def prefill_cost(self) -> PrefillCost:
        """Cost of computing prompts on this engine.

        Raises:
            ConfigError: If the engine's iterations take no time.
        """
        times = self.iteration
        try:
            return PrefillCost.from_step_times(
                self.kv_tokens,
                times.base_s,
                times.per_context_token_s,
                times.per_prefill_token_s,
            )
        except ValueError as error:
            raise ConfigError(f"profile {self.name}: {error}") from error


@dataclass(frozen=True, slots=True)
class FittedRun:
    """Measured run on which a profile was fitted."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT_KEYS

    file: str
    requests: _Count
    speed: _Factor
    """Measured over fitted duration of the run's iterations; below 1 if the machine was faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Measured runs on which a profile was fitted, and the error of the fit."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT_KEYS

    version: str
    """Version of justitia_ray that fitted the profile."""
    added_prompt_tokens: _CountFrom0 = 0
    """Tokens that the engine puts before each prompt and the files do not count (Llama's BOS)."""
    residual: _Amount
    """Root mean square relative error of a request's decode time, after correcting the runs'
    speeds.
    """
    runs: tuple[FittedRun, ...]


@dataclass(frozen=True, slots=True)
class ProfileFile:
    profile: EngineProfile
    fitted: Fitted | None = None


@dataclass(frozen=True, slots=True)
class _VariantKeys:
    __pydantic_config__: ClassVar[ConfigDict] = _STRICT_KEYS

    speedup: _Factor
    kv_tokens: _Count


@dataclass(frozen=True, slots=True)
class _FileKeys(EngineProfile):
    variants: dict[str, _VariantKeys] = field(default_factory=dict)
    fitted: Fitted | None = None


_FILE = TypeAdapter(_FileKeys)
_KEYS = ["name", *(key.name for key in fields(_FileKeys) if key.name != "name")]
"""Keys of a profile file, in the order in which they are written."""
_KINDS = {
    "": _FileKeys,
    "iteration": IterationCost,
    "variants": _VariantKeys,
    "fitted": Fitted,
    "runs": FittedRun,
}


def shipped_profiles() -> list[str]:
    """Return the names of the profiles in this package, sorted."""
    directory = files("justitia_ray.sim") / "profiles"
    return sorted(
        entry.name.removesuffix(".yaml")
        for entry in directory.iterdir()
        if entry.name.endswith(".yaml")
    )


def load_profile(name_or_path: str) -> EngineProfile:
    """Return a shipped profile or the profile of a file; a name may end in `:VARIANT`.

    Raises:
        ConfigError: If there is no such profile, or the file is wrong; the message names file,
            field, value and allowed values.
    """
    return load_profile_file(name_or_path).profile


def load_profile_file(name_or_path: str) -> ProfileFile:
    """Return the profile as `load_profile` does, with the data of its fit.

    Raises:
        ConfigError: As `load_profile`.
    """
    place, _, variant = name_or_path.rpartition(":")
    if not place or Path(name_or_path).exists():
        place, variant = name_or_path, ""
    content = _parse_profile(place, _read_profile(place))
    keys = [key.name for key in fields(EngineProfile)]
    profile = EngineProfile(**{key: getattr(content, key) for key in keys})
    if variant:
        if variant not in content.variants:
            known = ", ".join(content.variants) or "none"
            raise ConfigError(f"{place}: variants has no {variant!r}; it has {known}")
        profile = replace(
            profile, name=f"{content.name}:{variant}", **asdict(content.variants[variant])
        )
    return ProfileFile(profile, content.fitted)


def write_profile(path: Path, content: ProfileFile, head: Sequence[str] = ()) -> None:
    """Write an engine profile to a file, atomically.

    Args:
        path: The file; it is replaced if it exists.
        content: The profile. Defaults are written too, so that other defaults of later versions do
            not change it.
        head: Lines of comment at the top.

    Raises:
        ConfigError: If the file cannot be written.
    """
    values: dict[str, Any] = asdict(content.profile)
    if content.fitted is not None:
        values["fitted"] = asdict(content.fitted)
    ordered = {key: values[key] for key in _KEYS if key in values}
    text = "".join(f"# {line}\n" for line in head) + yaml.safe_dump(
        ordered, sort_keys=False, default_flow_style=None, width=100
    )
    with replacing_text(path) as file:
        file.write(text)


def _read_profile(place: str) -> str:
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


def _parse_profile(place: str, text: str) -> _FileKeys:
    values = read_yaml(text, place)
    if not isinstance(values, dict):
        raise ConfigError(f"{place}: an engine profile is a mapping with `name` and `kv_tokens`")
    if "name" not in values:
        raise ConfigError(f"{place}: name is missing")
    try:
        return _FILE.validate_python(values)
    except ValidationError as error:
        raise ConfigError(f"{place}: {first_mistake(error, _KINDS)}") from error
