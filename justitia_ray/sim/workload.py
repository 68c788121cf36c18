"""Workloads: applications, their arrival times and inferences; and the workload file.

The file is JSON lines, one application per line, all times in seconds:

    {"application_id": "a17", "application_class": "KBQAV", "tenant": "t1", "weight": 1.0,
     "arrived_at_s": 12.3, "input": "…", "inferences": [{"inference_id": "0",
     "prompt_tokens": 621, "output_tokens": 68, "after": [], "delay_s": 0.0}, …]}

on one line. `tenant`, `weight`, `input` and `delay_s` may be missing. Applications may be in any
order: results keep the order of the file, and the simulator uses `arrived_at_s`, then the line.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from justitia_ray.atomic_files import replacing_text
from justitia_ray.cost import CostFunction, kv_token_time
from justitia_ray.errors import ConfigError, shown_short
from justitia_ray.json_lines import read_records
from justitia_ray.units import ApplicationId, InferenceId, KvTokenTime, Seconds, Tokens

TokensField: TypeAlias = Annotated[Tokens, Field(ge=1, strict=True)]
_LONGEST_S: Seconds = 1e10
"""Largest time or delay in seconds; it allows times since 1970.

Later an iteration is shorter than the resolution of a float, and simulated time would stand still.
"""
DurationField: TypeAlias = Annotated[
    Seconds, Field(ge=0, le=_LONGEST_S, allow_inf_nan=False, strict=True)
]
_NOT_BLANK_PATTERN = r"\S"
_NOT_BLANK = Field(pattern=_NOT_BLANK_PATTERN)
# Objects that a program creates are not checked until `checked_application` is called.
_CHECKED = ConfigDict(extra="forbid", revalidate_instances="always")


@dataclass(frozen=True, slots=True)
class WorkloadInference:
    """An inference of a simulated application."""

    __pydantic_config__: ClassVar[ConfigDict] = _CHECKED

    inference_id: Annotated[InferenceId, _NOT_BLANK]
    prompt_tokens: TokensField
    output_tokens: TokensField
    after: tuple[InferenceId, ...] = ()
    """Ids of the inferences that must finish before this one is submitted; empty: it is submitted
    on arrival.
    """
    delay_s: DurationField = 0.0
    """Seconds from the end of the predecessors, or from the arrival, to the submission."""


@dataclass(frozen=True, slots=True)
class WorkloadApplication:
    """A simulated application with at least one inference."""

    __pydantic_config__: ClassVar[ConfigDict] = _CHECKED

    application_id: Annotated[ApplicationId, _NOT_BLANK]
    application_class: Annotated[str, _NOT_BLANK]
    arrived_at_s: DurationField
    inferences: Annotated[tuple[WorkloadInference, ...], Field(min_length=1)]
    tenant: Annotated[str, _NOT_BLANK] = "default"
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)] = 1.0
    input: str = ""
    """Text that the user submitted, if the workload has texts; predictors use it."""

    def cost(self, h: CostFunction = kv_token_time) -> KvTokenTime:
        """Return the true cost: h(p, d) summed over all inferences."""
        return sum(h(i.prompt_tokens, i.output_tokens) for i in self.inferences)


_APPLICATION = TypeAdapter(WorkloadApplication)


def checked_application(values: object) -> WorkloadApplication:
    """Return an application from a line of a workload file, or check an existing one.

    Raises:
        ConfigError: If anything is wrong; the message names field, value and allowed values.
    """
    try:
        application = _APPLICATION.validate_python(values)
    except ValidationError as error:
        kinds = {"": WorkloadApplication, "inferences": WorkloadInference}
        raise ConfigError(first_mistake(error, kinds)) from error
    known: set[InferenceId] = set()
    for number, inference in enumerate(application.inferences):
        if inference.inference_id in known:
            raise ConfigError(
                f"inferences[{number}].inference_id must be unique in its application, got "
                f"{inference.inference_id!r} again"
            )
        known.add(inference.inference_id)
    for number, inference in enumerate(application.inferences):
        after = inference.after
        if len(set(after)) < len(after) or not known.issuperset(after):
            raise ConfigError(
                f"inferences[{number}].after must name inferences of its application, each once,"
                f" got {shown_short(list(after))}"
            )
    try:
        TopologicalSorter({i.inference_id: i.after for i in application.inferences}).prepare()
    except CycleError as error:
        stuck = ", ".join(repr(name) for name in sorted(set(error.args[1])))
        raise ConfigError(
            f"inferences: `after` must have no cycle, but {stuck} wait for each other"
        ) from error
    return application


def first_mistake(error: ValidationError, kinds: Mapping[str, type[Any]]) -> str:
    """Return a message about the first wrong field: place, allowed values, value.

    Args:
        error: Error of the schema.
        kinds: Dataclass of each field that contains objects, and of the whole object under ""; the
            message about an unknown key lists the known keys of its class.
    """
    item = error.errors(include_url=False)[0]
    place = item["loc"]
    name = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in place).lstrip(".")
    if item["type"] == "unexpected_keyword_argument":
        holder = next((p for p in reversed(place[:-1]) if p in kinds), "")
        allowed = ", ".join(field.name for field in fields(kinds[str(holder)]))
        return f"{shown_short(name)} is not a known key; allowed are {allowed}"
    if item["type"] == "missing":
        return f"{name} is missing"
    is_blank = item.get("ctx", {}).get("pattern") == _NOT_BLANK_PATTERN
    allowed = "must not be blank" if is_blank else item["msg"]
    return f"{name}: {allowed}, got {shown_short(item['input'])}"


def check_sizes(
    applications: Sequence[WorkloadApplication],
    most: Tokens,
    what: str = "the KV memory of a replica",
) -> None:
    """Raise ConfigError if the prompt and output of an inference exceed `most` tokens."""
    for application in applications:
        for inference in application.inferences:
            total = inference.prompt_tokens + inference.output_tokens
            if total > most:
                raise ConfigError(
                    f"application {application.application_id!r}, inference "
                    f"{inference.inference_id!r}: prompt_tokens + output_tokens = {total} must be "
                    f"at most {what}, {most} tokens"
                )


def read_workload(path: Path) -> list[WorkloadApplication]:
    """Return the applications of a workload file, in the order of its lines.

    A file whose name ends in `.gz` is unpacked. Lines are read one by one; blank lines are skipped.

    Raises:
        ConfigError: If a line is wrong; the message names file, line, field, value and allowed
            values of the first such line.
    """
    applications: list[WorkloadApplication] = []
    lines: dict[str, str] = {}
    for record in read_records(path):
        try:
            application = checked_application(record.fields)
            for number, inference in enumerate(record.fields["inferences"]):
                if (
                    "after" not in inference
                ):  # A default value of `after` would hide a forgotten dependency.
                    raise ConfigError(f"inferences[{number}].after is missing")
        except ConfigError as error:
            raise ConfigError(f"{record.where}: {error}") from error
        first = lines.setdefault(application.application_id, record.where)
        if first != record.where:
            raise record.error(
                "application_id",
                f"unique, and {first} has it already",
                application.application_id,
            )
        applications.append(application)
    if not applications:
        raise ConfigError(f"{path}: must hold at least one application, is empty")
    return applications


def write_workload(path: Path, applications: Iterable[WorkloadApplication]) -> None:
    """Write a workload file atomically; it is packed if its name ends in `.gz`.

    Equal applications give equal bytes.

    Raises:
        ConfigError: If the file cannot be written.
    """
    with replacing_text(path, packed=path.suffix == ".gz") as file:
        for application in applications:
            line = {
                "application_id": application.application_id,
                "application_class": application.application_class,
                "tenant": application.tenant,
                "weight": application.weight,
                "arrived_at_s": application.arrived_at_s,
                **({"input": application.input} if application.input else {}),
                "inferences": [asdict(inference) for inference in application.inferences],
            }
            file.write(json.dumps(line) + "\n")
