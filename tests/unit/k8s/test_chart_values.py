"""The chart's values: each has an effect, and mistakes in them are refused with the place."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.chart_values import parameters, parameters_table, values_schema
from tests.unit.k8s.chart import (
    CHART,
    by_kind_and_name,
    needs_helm,
    refusal_of_values,
    render_chart,
)
from tests.unit.k8s.manifests import manifests_of_kind

DIGEST = f"sha256:{'a' * 64}"
SAMPLES: dict[str, Any] = {
    "image.variant": "cpu",
    "image.pullPolicy": "Always",
    "serve.port": 8001,
    "ray.clusterDeletionDelaySeconds": 901,
    "serve.args": {"log_encoding": "JSON"},
    "serve.userConfig": {"policy": "vtc"},
    "front.maxConnections": 32102,
    "cpu.replicas": 2,
    "engines.replicas": 13,
    "engines.minReplicas": 12,
    "engines.maxReplicas": 14,
    "engines.gpus": 1,
    "autoscaler.idleTimeoutSeconds": 904,
    "head.objectStoreMemory": 100_000_005,
    "cpu.objectStoreMemory": 100_000_006,
    "engines.objectStoreMemory": 100_000_007,
    "cpu.terminationGracePeriodSeconds": 1068,
    "engines.terminationGracePeriodSeconds": 1069,
    "modelCache.accessModes": ["ReadOnlyMany"],
    "modelCache.mountPath": "/x-models",
    "redis.image.pullPolicy": "Never",
    "redis.maxmemory": "913mb",
    "monitoring.podMonitor.interval": "914s",
    "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x-{{ 1 }}"}}],
    "imagePullSecrets": [{"name": "x-registry"}],
}
"""Sample values for parameters that do not accept every value."""
APART = {
    "image.digest": DIGEST,  # replaces the tag
    "serve.config": "x-serve-config",  # replaces args
    "ray.upgradeStrategy": "NewCluster",
    "nameOverride": "x-short",
    "redis.externalAddress": "x-redis:6380",
    "redis.externalUrl": "redis://x-other:1/2",
    "modelCache.existingClaim": "x-claim",
}
"""Values that hide another parameter's effect, so that each is rendered separately."""


def sample_value(path: str, default: Any) -> Any:
    """Return a value for a parameter that can be recognised in the output."""
    word = "x-" + path.replace(".", "-").lower()
    if path in SAMPLES:
        return SAMPLES[path]
    if path.endswith("resources"):
        return {"limits": {word: "1"}}
    if isinstance(default, str):
        return word
    if isinstance(default, list):
        return [{"name": word}]
    return {word: f"{word}-value"}


def set_value(values: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    *sections, name = path.split(".")
    place = values
    for section in sections:
        place = place.setdefault(section, {})
    place[name] = value
    return values


def write_values_file(folder: Path, values: dict[str, Any]) -> list[str]:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    return ["--values", str(file)]


def sample_words(value: Any) -> list[str]:
    """Return the texts by which a sample is recognised."""
    if isinstance(value, dict):
        return [word for key, part in value.items() for word in (key, *sample_words(part))]
    if isinstance(value, list):
        return [word for part in value for word in sample_words(part)]
    return [str(value).replace("{{ 1 }}", "1")]


def boolean_parameters() -> list[str]:
    return [p.path for p in parameters() if isinstance(p.default, bool)]


@needs_helm
def test_every_chart_value_is_used_in_an_object(tmp_path: Path) -> None:
    """A value that no template reads would be ignored without an error."""
    values: dict[str, Any] = {}
    for parameter in parameters():
        if parameter.path not in APART:
            on = isinstance(parameter.default, bool)
            value = True if on else sample_value(parameter.path, parameter.default)
            set_value(values, parameter.path, value)
    text = yaml.safe_dump_all(render_chart(*write_values_file(tmp_path, values)), width=1_000_000)
    missing = {
        p.path: word
        for p in parameters()
        if p.path not in APART and not isinstance(p.default, bool)
        for word in sample_words(sample_value(p.path, p.default))
        if word not in text
    }

    assert {} == missing


@needs_helm
@pytest.mark.parametrize("path", APART)
def test_chart_value_that_replaces_other_values_is_used_in_an_object(
    path: str, tmp_path: Path
) -> None:
    values = set_value({}, path, APART[path])
    if path.startswith("redis."):
        values |= {"redis": {"enabled": False, "externalAddress": "r:1"} | values["redis"]}
    if path == "ray.upgradeStrategy":
        set_value(values, "serve.args.name", "justitia-2")

    assert APART[path] in yaml.safe_dump_all(
        render_chart(*write_values_file(tmp_path, values)), width=1_000_000
    )


@needs_helm
@pytest.mark.parametrize("path", boolean_parameters())
def test_each_boolean_chart_value_changes_an_object(path: str, tmp_path: Path) -> None:
    default = next(p.default for p in parameters() if p.path == path)
    values = set_value({}, path, not default)
    if path == "redis.enabled":
        set_value(values, "redis.externalAddress", "r:1")

    assert render_chart() != render_chart(*write_values_file(tmp_path, values))


def test_every_schema_object_is_closed_or_listed_as_open() -> None:
    """A section that allows unknown keys accepts a misspelled one."""

    def open_sections(schema: dict[str, Any], path: str) -> list[str]:
        here = [path] if "properties" in schema and schema.get("additionalProperties", 1) else []
        parts = schema.get("properties", {}).items()
        return here + [p for name, part in parts for p in open_sections(part, f"{path}.{name}")]

    schema = values_schema()
    open_definitions = [p for n, d in schema["$defs"].items() for p in open_sections(d, n)]

    assert [] == open_sections(schema, "values") + open_definitions


def test_every_chart_value_is_in_the_readme_table() -> None:
    page = (CHART / "README.md").read_text(encoding="utf-8")

    assert parameters_table() in page
    assert all(len(parameter.description) > 3 for parameter in parameters())


MISPLACED = {
    "image.tagg=1": "at '/image': additional properties 'tagg' not allowed",
    "replicas=2": "additional properties 'replicas' not allowed",
    "engines.replicas=two": "at '/engines/replicas': got string, want integer",
    "engines.gpus=-1": "at '/engines/gpus': minimum: got -1, want 0",
    "image.variant=tpu": "at '/image/variant': value must be one of 'cpu', 'gpu'",
    "image.digest=abc": "at '/image/digest': 'abc' does not match pattern",
    "redis.passwordSecret=": "at '/redis/passwordSecret': minLength: got 0, want 1",
    "redis.externalUrl=redis://:secret@host:1": "at '/redis/externalUrl'",
    "networkPolicies.callerNamespaceLabels=null": "missing property 'callerNamespaceLabels'",
    "serve.args.store.redis_ulr=x": "at '/serve/args/store': additional properties 'redis_ulr'",
    "serve.args.models[0].name=x": "at '/serve/args': additional properties 'models' not allowed",
    "serve.args.scheduler.recovery_s=-1": "at '/serve/args/scheduler/recovery_s'",
    "serve.userConfig.tenant_weights.a=0": "at '/serve/userConfig/tenant_weights/a'",
    "serve.userConfig.polcy=fcfs": "additional properties 'polcy' not allowed",
}
"""Settings that the schema refuses, and part of its error."""
CONTRADICTORY = {
    "engines.maxReplicas=1": "engines: minReplicas 1, replicas 2, maxReplicas 1",
    "engines.gpus=2": "engines.gpus is 2, and serve.args.engine.vllm_args needs 1",
    "cpu.replicas=3": "front.maxConnections is 24200, and 33000 callers may wait",
    "serve.args.metrics.enabled=false": "engine pods would never be ready",
    "ray.upgradeStrategy=NewCluster": "give serve.args.name another value",
    "cpu.replicas=1": "a budget of cpu.replicas 1 would block every drain",
    "redis.enabled=false": "redis.externalAddress: host:port of your Redis is needed",
}
"""Settings that a template refuses, and part of its error."""


@pytest.fixture(scope="module")
def errors_of_misplaced_settings() -> str:
    """Return the schema's errors of all misplaced settings."""
    return refusal_of_values(*(word for setting in MISPLACED for word in ("--set", setting)))


@needs_helm
@pytest.mark.parametrize("setting", MISPLACED)
def test_chart_schema_names_the_place_of_a_misplaced_setting(
    setting: str, errors_of_misplaced_settings: str
) -> None:
    assert MISPLACED[setting] in errors_of_misplaced_settings


@needs_helm
@pytest.mark.parametrize("setting", CONTRADICTORY)
def test_contradictory_chart_values_are_refused(setting: str) -> None:
    assert CONTRADICTORY[setting] in refusal_of_values("--set", setting)


@needs_helm
def test_null_in_a_chart_value_removes_a_key() -> None:
    """A model of another kind must not inherit the default's options."""
    arguments = ["--set", "serve.args.engine.vllm_args.max_model_len=null"]

    assert "max_model_len" not in yaml.safe_dump_all(render_chart(*arguments))


@needs_helm
def test_existing_service_accounts_are_used() -> None:
    found = render_chart("--set", "serviceAccounts.create=false")

    assert [] == manifests_of_kind(found, "ServiceAccount")
    assert "serviceAccountName: justitia-worker" in yaml.safe_dump_all(found)


@needs_helm
def test_chart_renders_large_whole_numbers_without_exponent() -> None:
    """Helm reads numbers of values as floats, and 1.6777216e+07 is no number of bytes."""
    found = by_kind_and_name(render_chart("--set", "serve.args.ingress.max_body_bytes=16777216"))
    text = found["RayService", "justitia"]["spec"]["serveConfigV2"]

    assert "max_body_bytes: 16777216\n" in text
