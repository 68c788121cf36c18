"""W3C trace contexts, and the trace ids that every ingress derives from an application's id."""

import pytest
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from justitia_ray.observability.trace_context import (
    ApplicationSampler,
    TraceContext,
    read_sampled,
    read_traceparent,
)

TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
HEADER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_traceparent_has_the_w3c_format() -> None:
    context = TraceContext(TRACE, SPAN, is_sampled=True)

    assert context == read_traceparent(HEADER)
    assert HEADER == context.traceparent
    carrier = {"traceparent": HEADER}
    assert TraceContextTextMapPropagator().extract(carrier)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (HEADER[:-2] + "00", False),
        (HEADER[:-2] + "02", False),
        ("01" + HEADER[2:] + "-00", True),
        (HEADER[:-2] + "03", True),
        ("01" + HEADER[2:] + "-what-comes", True),
    ],
    ids=["no flags", "not sampled", "a later version, 00", "other flags", "a later version"],
)
def test_trace_flag_carries_the_sampling_decision_of_the_caller(
    header: str, expected: bool
) -> None:
    """Other flags, and fields of later versions of the format, are ignored."""
    context = TraceContext(TRACE, SPAN, is_sampled=expected)
    assert context == read_traceparent(header)
    assert (context if expected else None) == read_sampled(header)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        HEADER.upper(),
        HEADER + "-more",
        "ff" + HEADER[2:],
        HEADER.replace(f"{SPAN:016x}", "0" * 16),
        HEADER.replace(f"{TRACE:032x}", "0" * 32),
        HEADER[:-1],
    ],
)
def test_malformed_traceparent_header_is_ignored(header: str | None) -> None:
    assert read_traceparent(header) is None
    assert read_sampled(header) is None


def test_two_processes_derive_the_same_trace_id_of_an_application() -> None:
    """Calls of one application reach several ingresses, whose spans belong to one trace."""
    here, there = (
        ApplicationSampler("justitia", "small", 0.5).context("acme|report-17") for _ in range(2)
    )

    assert here == there
    assert here.trace_id
    assert here.span_id
    # the derivation is documented, so users can find the trace of an application id
    assert f"{here.trace_id:032x}" == "d1ff15e18c5fb0f4d8d98839e66d517a"


def test_tenants_and_services_have_separate_traces() -> None:
    """Two tenants may choose the same id, and two services may share a collector."""
    contexts = {
        ApplicationSampler(name, "small", 0.5).context(key).trace_id
        for name in ("justitia", "other")
        for key in ("acme|report-17", "team|report-17", "acme|report-18")
    }

    assert 6 == len(contexts)


def test_application_has_one_trace_and_a_span_per_model() -> None:
    """The application ends separately at each model, so its spans need different ids."""
    small, large = (
        ApplicationSampler("justitia", model, 0.5).context("acme|report-17")
        for model in ("small", "large")
    )

    assert (small.trace_id, small.is_sampled) == (large.trace_id, large.is_sampled)
    assert small.span_id != large.span_id


@pytest.mark.parametrize("ratio", [0.0, 0.01, 0.5, 1.0])
def test_traced_share_of_applications_is_the_configured_ratio(ratio: float) -> None:
    sampler, theirs = ApplicationSampler("justitia", "small", ratio), TraceIdRatioBased(ratio)
    contexts = [sampler.context(f"t|a{number}") for number in range(20_000)]
    sampled = sum(context.is_sampled for context in contexts)

    assert sampled / 20_000 == pytest.approx(ratio, abs=0.02 if 0 < ratio < 1 else 0)
    for context in contexts[:500]:
        decision = theirs.should_sample(None, context.trace_id, "name").decision
        assert context.is_sampled == (decision is Decision.RECORD_AND_SAMPLE)
