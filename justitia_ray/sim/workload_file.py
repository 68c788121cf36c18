"""The workload file: JSON lines, one application a line, all times in seconds.

    {"application_id": "a17", "application_class": "KBQAV", "tenant": "t1", "weight": 1.0,
     "arrived_at_s": 12.3, "input": "…", "inferences": [{"inference_id": "0", "prompt_tokens": 621,
     "output_tokens": 68, "after": [], "delay_s": 0.0}, …]}

on one line. `tenant`, `weight`, `input` and `delay_s` may be missing. Applications may stand in any
order: results keep that of the file, and the simulator goes by `arrived_at_s`, then by line.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from justitia_ray.errors import ConfigError
from justitia_ray.replacing import replacing_text
from justitia_ray.sim.workload import WorkloadApplication, WorkloadInference
from justitia_ray.workloads.json_lines import Record, read_records

_APPLICATION_NEEDS = ("application_id", "application_class", "arrived_at_s", "inferences")
_APPLICATION_MAY = ("tenant", "weight", "input")
_INFERENCE_NEEDS = ("inference_id", "prompt_tokens", "output_tokens", "after")
_INFERENCE_MAY = ("delay_s",)


def read_workload(path: Path) -> list[WorkloadApplication]:
    """Return the applications of a workload file, in the order of its lines.

    A file whose name ends in `.gz` is unpacked. Lines are read one by one; blank ones are left out.

    Raises:
        ConfigError: If anything is wrong; the message names file, line, field, value and what is
            allowed. The first line that is wrong is reported.
    """
    applications: list[WorkloadApplication] = []
    lines: dict[str, str] = {}
    for record in read_records(path):
        application = _application(record)
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
    """Write a workload file, whole or not at all; one whose name ends in `.gz` is packed.

    The same applications give the same bytes.

    Raises:
        ConfigError: If the file cannot be written.
    """
    with replacing_text(path, packed=path.suffix == ".gz") as file:
        for application in applications:
            file.write(json.dumps(_fields(application)))
            file.write("\n")


def _application(record: Record) -> WorkloadApplication:
    fields = record.fields
    _check_keys(record, "", fields, _APPLICATION_NEEDS, _APPLICATION_MAY)
    inferences = fields["inferences"]
    if not isinstance(inferences, list):
        raise record.error("inferences", "a list of objects", inferences)
    application = WorkloadApplication(
        application_id=record.text("application_id"),
        application_class=record.text("application_class"),
        arrived_at_s=fields["arrived_at_s"],
        inferences=tuple(_inference(record, i, item) for i, item in enumerate(inferences)),
        tenant=record.text("tenant") if "tenant" in fields else "default",
        weight=fields.get("weight", 1.0),
        input=fields.get("input", ""),
    )
    if not isinstance(application.input, str):
        raise record.error("input", "a text", application.input)
    try:
        application.check()
    except ConfigError as error:
        raise ConfigError(f"{record.where}: {error}") from error
    return application


def _inference(record: Record, index: int, fields: object) -> WorkloadInference:
    name = f"inferences[{index}]"
    if not isinstance(fields, dict):
        raise record.error(name, "an object", fields)
    _check_keys(record, f"{name}.", fields, _INFERENCE_NEEDS, _INFERENCE_MAY)
    inference_id, after = fields["inference_id"], fields["after"]
    if not isinstance(inference_id, str) or not inference_id.strip():
        raise record.error(f"{name}.inference_id", "a text that is not blank", inference_id)
    if not isinstance(after, list) or not all(isinstance(item, str) for item in after):
        raise record.error(f"{name}.after", "a list of inference_ids", after)
    if len(set(after)) < len(after):
        raise record.error(f"{name}.after", "a list that names each inference once", after)
    return WorkloadInference(
        inference_id=inference_id,
        prompt_tokens=fields["prompt_tokens"],
        output_tokens=fields["output_tokens"],
        after=tuple(after),
        delay_s=fields.get("delay_s", 0.0),
    )


def _check_keys(
    record: Record,
    prefix: str,
    fields: Mapping[str, Any],
    needs: Collection[str],
    may: Collection[str],
) -> None:
    for name in needs:
        if name not in fields:
            raise ConfigError(
                f"{record.where}: {prefix}{name} is missing; {', '.join(needs)} must be there"
            )
    for name in fields:
        if name not in needs and name not in may:
            raise ConfigError(
                f"{record.where}: {f'{prefix}{name}'!r:.80} is not a known key; allowed are "
                f"{', '.join((*needs, *may))}"
            )


def _fields(application: WorkloadApplication) -> dict[str, Any]:
    return {
        "application_id": application.application_id,
        "application_class": application.application_class,
        "tenant": application.tenant,
        "weight": application.weight,
        "arrived_at_s": application.arrived_at_s,
        **({"input": application.input} if application.input else {}),
        "inferences": [
            {
                "inference_id": inference.inference_id,
                "prompt_tokens": inference.prompt_tokens,
                "output_tokens": inference.output_tokens,
                "after": inference.after,
                "delay_s": inference.delay_s,
            }
            for inference in application.inferences
        ],
    }
