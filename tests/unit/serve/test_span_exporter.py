"""Spans sent to a collector over HTTP with OpenTelemetry's SDK."""

import builtins
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from justitia_ray.config import AppConfig, TracingSection
from justitia_ray.errors import ConfigError
from justitia_ray.observability.call_traces import Span
from justitia_ray.observability.trace_context import TraceContext
from justitia_ray.serve.ops.config_file import check_values
from justitia_ray.serve.span_exporter import (
    SpanExporter,
    check_otel_is_installed,
    read_headers,
    start_span_exporter,
)
from tests.harness.otlp_receiver import otlp_receiver
from tests.pages import ROOT

PARENT = TraceContext(0xFEED, 0xBEEF, is_sampled=True)
LINK = TraceContext(0xCAFE, 0xF00D, is_sampled=True)


def tracing_section(**values: Any) -> TracingSection:
    return TracingSection.parse({"endpoint": "http://127.0.0.1:1/v1/traces"} | values)


async def test_exported_trace_span_is_unchanged() -> None:
    """The ids connect the spans of several processes."""
    child = TraceContext(0xFEED, 0x1, is_sampled=True)
    span = Span(
        "chat small",
        child,
        PARENT,
        1_000,
        "server",
        ended_ns=2_500,
        attributes={"justitia.tenant": "acme", "justitia.attempt": 2},
        links=(LINK,),
        error="QueueFull",
    )
    root = Span("invoke_agent report", PARENT, None, 500, ended_ns=3_000)
    with otlp_receiver() as collector:
        exporter = SpanExporter(tracing_section(endpoint=collector.url), "shop", "ingress", "i-1")
        exporter.export(span)
        exporter.export(root)
        await exporter.stop()
        by_name = {one.name: one for one in collector.spans()}
    told, told_root = by_name["chat small"], by_name["invoke_agent report"]

    ids = (f"{0xFEED:032x}", f"{0x1:016x}", f"{0xBEEF:016x}")
    assert ids == (told.trace_id, told.span_id, told.parent_id)
    assert (ids[0], ids[2], "") == (told_root.trace_id, told_root.span_id, told_root.parent_id)
    assert ((f"{0xCAFE:032x}", f"{0xF00D:016x}"),) == told.links
    assert (1_000, 2_500) == (told.started_ns, told.ended_ns)
    assert {"justitia.tenant": "acme", "justitia.attempt": 2} == told.attributes
    assert (True, False) == (told.is_error, told_root.is_error)
    assert {
        "service.name": "shop",
        "service.instance.id": "i-1",
        "justitia.process": "ingress",
    }.items() <= told.resource.items()


def test_no_thread_is_started_without_tracing() -> None:
    """By default tracing is off, and OpenTelemetry is not even imported."""
    config = AppConfig.parse({"model": {"name": "m", "path": "none"}})

    assert start_span_exporter(config, "ingress", "i-1") is None


def test_trace_export_headers_come_from_the_environment_and_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A secret does not belong in the configuration; the formats are OpenTelemetry's."""
    monkeypatch.setenv("COLLECTOR", "Authorization=Basic%20abc%3D, x-scope=team-a")
    file = tmp_path / "headers"
    file.write_text("x-key = secret==\n\n")

    assert {
        "authorization": "Basic abc=",
        "x-scope": "team-a",
        "x-key": "secret==",
    } == read_headers(tracing_section(headers_env="COLLECTOR", headers_file=str(file)))


@pytest.mark.parametrize(
    ("values", "text", "said"),
    [
        ({"headers_env": "COLLECTOR"}, None, "tracing.headers_env: COLLECTOR is not set"),
        ({"headers_env": "COLLECTOR"}, "a=b,secret", "header 2 is none; name=value is allowed"),
        ({"headers_env": "COLLECTOR"}, "=secret", "header 1 is none"),
        ({"headers_file": "/nowhere/headers"}, None, "headers_file: /nowhere/headers cannot be"),
    ],
)
def test_error_names_the_position_of_an_unreadable_trace_header(
    values: dict[str, str], text: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The content of the header may be a secret."""
    if text is not None:
        monkeypatch.setenv("COLLECTOR", text)
    with pytest.raises(ConfigError, match=said) as raised:
        read_headers(tracing_section(**values))

    assert "secret" not in str(raised.value)


def test_error_names_the_missing_tracing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def import_without_exporter(name: str, *arguments: Any, **more: Any) -> Any:
        if name.startswith("opentelemetry.exporter"):
            raise ImportError(name, name=name)
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", import_without_exporter)
    with pytest.raises(ConfigError, match=r"extra `otel`.*justitia-ray\[otel\]"):
        check_otel_is_installed()


@pytest.mark.parametrize(
    "values",
    [
        {"endpoint": "collector:4318"},
        {"endpoint": "http://collector:4318"},
        {"endpoint": "grpc://collector:4317/"},
        {"sample_ratio": 1.5},
        {"parent": "nobody"},
    ],
)
def test_error_names_the_invalid_tracing_setting(values: dict[str, Any]) -> None:
    """A URL without a path would make the exporter post to `/`, which no collector serves."""
    with pytest.raises(ConfigError, match=next(iter(values))):
        tracing_section(**values)


def test_documented_tracing_example_is_valid() -> None:
    page = (ROOT / "deployments" / "observability.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)

    assert () == check_values(yaml.safe_load(example)).errors
