"""Parameters of the Helm chart, read from the comments of `k8s/chart/values.yaml`.

A key below a comment that starts with `# -- ` is a parameter, with the comment as its description.
A key without one is a section of parameters. `scripts/write_tables` writes the table of the chart's
README and `values.schema.json` from them, and the chart's copies of files outside its folder.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from justitia_ray.config import AppArgs, AppSettings

_ROOT = Path(__file__).parents[1]
CHART = _ROOT / "k8s" / "chart"
_DASHBOARD = _ROOT / "justitia_ray" / "observability" / "dashboard.json"
_ALERTS = _ROOT / "deployments" / "monitoring" / "alerts.yml"

_KEY = re.compile(r"( *)([\w-]+):( |$)")
_MARK = "# -- "
_TYPES = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
_DEFAULT_CHARACTERS = 40
"""Length of the longest default that the table shows."""

_COUNT = {"minimum": 1}
_PULL_POLICY = {"enum": ["Always", "IfNotPresent", "Never"]}
_PULL_SECRETS = {
    "items": {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string"}},
        "additionalProperties": False,
    }
}
_RESOURCES = {
    "properties": {
        name: {"type": "object", "additionalProperties": {"type": ["string", "number"]}}
        for name in ("requests", "limits")
    },
    "additionalProperties": False,
}
_BYTES = {"minimum": 80 * 1024 * 1024}
"""Schema of a size in bytes that Ray accepts for its object store (at least 75 MiB)."""
_GRACE = {"minimum": 120}
_SECRET_NAME = {"pattern": r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$"}
_LABELS = {"additionalProperties": {"type": "string"}}
_NARROWED: dict[str, dict[str, Any]] = {
    "nameOverride": {"maxLength": 40},
    "fullnameOverride": {"maxLength": 40, "pattern": "^([a-z]([a-z0-9-]*[a-z0-9])?)?$"},
    "commonLabels": _LABELS,
    "image.repository": {"minLength": 1},
    "image.variant": {"enum": ["cpu", "gpu"]},
    "image.digest": {"pattern": "^(sha256:[0-9a-f]{64})?$"},
    "image.pullPolicy": _PULL_POLICY,
    "imagePullSecrets": _PULL_SECRETS,
    "redis.imagePullSecrets": _PULL_SECRETS,
    "serve.port": {"minimum": 1024, "maximum": 65535},
    "front.maxConnections": _COUNT,
    "access.keysSecret": _SECRET_NAME,
    "ray.upgradeStrategy": {"enum": ["None", "NewCluster"]},
    "ray.clusterDeletionDelaySeconds": {"minimum": 0},
    "autoscaler.idleTimeoutSeconds": _COUNT,
    "cpu.replicas": _COUNT,
    "cpu.terminationGracePeriodSeconds": _GRACE,
    "engines.replicas": _COUNT,
    "engines.minReplicas": _COUNT,
    "engines.maxReplicas": _COUNT,
    "engines.gpus": {"minimum": 0},
    "engines.terminationGracePeriodSeconds": _GRACE,
    "modelCache.accessModes": {
        "items": {"enum": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"]},
        "minItems": 1,
    },
    "modelCache.mountPath": {"pattern": "^/"},
    "hub.tokenSecret": _SECRET_NAME,
    "redis.externalAddress": {"pattern": r"^([^:/\s]+:\d+)?$"},
    "redis.externalUrl": {"pattern": r"^(rediss?(\+\w+)?://[^@\s]+)?$"},
    "redis.passwordSecret": _SECRET_NAME | {"minLength": 1},
    "redis.image.pullPolicy": _PULL_POLICY,
    "redis.maxmemory": {"pattern": r"^\d+(b|kb|mb|gb)?$"},
    "networkPolicies.callerNamespaceLabels": _LABELS | {"minProperties": 1},
    "monitoring.podMonitor.interval": {"pattern": r"^\d+(ms|s|m)$"},
    **{f"monitoring.{kind}.labels": _LABELS for kind in ("podMonitor", "prometheusRule")},
    "monitoring.dashboard.labels": _LABELS,
    **{f"{of}.resources": _RESOURCES for of in ("autoscaler", "head", "cpu", "engines", "redis")},
    **{f"{of}.objectStoreMemory": _BYTES for of in ("head", "cpu", "engines")},
    **{f"{of}.podLabels": _LABELS for of in ("head", "cpu", "engines")},
    **{f"{of}.podAnnotations": _LABELS for of in ("head", "cpu", "engines", "redis")},
    **{f"{of}.nodeSelector": _LABELS for of in ("head", "cpu", "engines", "redis")},
}
"""Restrictions of parameters beyond the type of their defaults."""
_REQUIRED = ("networkPolicies.callerNamespaceLabels",)
"""Parameters that must not be `null`: a network policy without labels admits every namespace."""
_LISTS_OF_TEXTS = ("modelCache.accessModes",)
_APPLICATION: Mapping[str, type[BaseModel]] = {
    "serve.args": AppArgs,
    "serve.userConfig": AppSettings,
}
"""Parameters whose schema is that of the application's own settings."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A documented value of the chart."""

    path: str
    """Keys from the root, joined by dots."""
    default: Any
    description: str


def parameters() -> list[Parameter]:
    """Return the chart's parameters in the order of values.yaml.

    Raises:
        ValueError: If a value belongs to no parameter.
    """
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    values = yaml.safe_load(text)
    found = [
        Parameter(path, _value_at(values, path), description)
        for path, description in _documented_keys(text)
    ]
    stray = {path for path, _ in _leaf_values(values)} - {
        path
        for parameter in found
        for path, _ in _leaf_values(parameter.default, parameter.path)
        if parameter.path
    }
    if stray:
        raise ValueError(f"values.yaml: no comment `{_MARK}…` describes {sorted(stray)}")
    return found


def parameters_table() -> str:
    """Return a table with a row for every parameter."""
    rows = [
        f"| `{p.path}` | {_as_yaml(p.default)} | {p.description.replace('|', chr(92) + '|')} |"
        for p in parameters()
    ]
    return "\n".join(["| value | default | meaning |", "|---|---|---|", *rows])


def files() -> dict[Path, str]:
    """Return the texts of the chart's generated files: its schema, and copies of other files.

    The copy of the dashboard is compact, because each release of Helm contains the chart.
    """
    dashboard = json.loads(_DASHBOARD.read_text(encoding="utf-8"))
    alerts = _ALERTS.read_text(encoding="utf-8")
    compact = json.dumps(dashboard, separators=(",", ":"), ensure_ascii=False) + "\n"
    return {
        CHART / "values.schema.json": schema_text(),
        CHART / "files" / "dashboard.json": compact,
        CHART / "files" / "alerts.yaml": alerts[alerts.index("groups:\n") :],
    }


def schema_text() -> str:
    """Return the text of the chart's values.schema.json."""
    return json.dumps(values_schema(), indent=1) + "\n"


def values_schema() -> dict[str, Any]:
    """Return the JSON schema of the chart's values, in which unknown keys are errors."""
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Values of the chart justitia",
        "type": "object",
        "properties": {
            "global": {"type": "object", "description": "Values that Helm adds; unused."}
        },
        "additionalProperties": False,
        "$defs": {},
    }
    for parameter in parameters():
        *sections, name = parameter.path.split(".")
        place = schema
        for section in sections:
            place = place["properties"].setdefault(
                section, {"type": "object", "properties": {}, "additionalProperties": False}
            )
        place["properties"][name] = _schema_of_value(parameter, schema["$defs"])
        if parameter.path in _REQUIRED:
            place["required"] = [*place.get("required", []), name]
    return schema


def _schema_of_value(parameter: Parameter, definitions: dict[str, Any]) -> dict[str, Any]:
    model = _APPLICATION.get(parameter.path)
    if model is not None:
        own = model.model_json_schema()
        definitions |= own.pop("$defs")
        if model is AppArgs:  # The chart has one `Replica`, so several models need `serve.config`.
            del own["properties"]["models"]
        return own | {"description": parameter.description}
    schema: dict[str, Any] = {
        "type": _TYPES[type(parameter.default)],
        "description": parameter.description,
    }
    if schema["type"] == "array" and parameter.path not in _LISTS_OF_TEXTS:
        schema["items"] = {"type": "object"}
    return schema | _NARROWED.get(parameter.path, {})


def _documented_keys(text: str) -> Iterator[tuple[str, str]]:
    """Yield path and description of every documented key of values.yaml."""
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith(_MARK):
            comment = [stripped.removeprefix(_MARK)]
        elif stripped.startswith("# ") and comment:
            comment.append(stripped[2:])
        elif key := _KEY.match(line):
            depth = len(key[1])
            path = [*(entry for entry in path if entry[0] < depth), (depth, key[2])]
            if comment:
                yield ".".join(name for _, name in path), " ".join(comment)
            comment = []
        else:
            comment = []


def _leaf_values(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of every value that is not a mapping with keys."""
    if isinstance(value, dict) and value:
        for name, part in value.items():
            yield from _leaf_values(part, f"{path}.{name}" if path else name)
    else:
        yield path, value


def _value_at(values: Any, path: str) -> Any:
    for name in path.split("."):
        values = values[name]
    return values


def _as_yaml(default: Any) -> str:
    """Return a default as one line of YAML; for a long one, a reference to values.yaml."""
    text = json.dumps(default)
    return f"`{text}`" if len(text) <= _DEFAULT_CHARACTERS else "see values.yaml"
