"""The trace of a call continues inside vLLM, whose own span is a child of the engine's."""

import httpx
import pytest

from justitia_ray.observability.trace_context import ApplicationSampler
from tests.eventually import eventually
from tests.harness.bodies import COMPLETIONS, completion
from tests.harness.otlp_receiver import OtlpReceiver, ReceivedSpan
from tests.harness.service import Service

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

WITHIN_S = 90.0
"""Seconds until spans arrive: the exporters send every 5 s, and later on busy cores."""
VLLM_SPAN = "llm_request"


async def test_vllms_trace_span_is_a_child_of_the_leases_span(
    service: Service, http: httpx.AsyncClient, collector: OtlpReceiver
) -> None:
    name = "traced-in-vllm"
    headers = {"x-justitia-application": name}
    answer = await http.post(COMPLETIONS, json=completion("a b c", 20), headers=headers)
    assert 200 == answer.status_code
    (await http.post(f"/v1/applications/{name}/close")).raise_for_status()
    key = f"agents|{name}"
    sampler = ApplicationSampler(service.config.name, service.config.model.name, 1.0)
    trace_id = f"{sampler.context(key).trace_id:032x}"

    def trace_with_vllm() -> dict[str, ReceivedSpan]:
        spans = {span.name: span for span in collector.trace(trace_id)}
        return spans if len(spans) == 6 else {}

    spans = await eventually(trace_with_vllm, "the trace is exported", WITHIN_S, every_s=0.5)
    parents = {span.span_id: span.name for span in spans.values()}

    assert "justitia.engine" == parents[spans[VLLM_SPAN].parent_id]
    assert "justitia.lease" == parents[spans["justitia.engine"].parent_id]
    assert 20 == spans[VLLM_SPAN].attributes["gen_ai.usage.completion_tokens"]
    assert 20 == spans["justitia.engine"].attributes["gen_ai.usage.output_tokens"]
    await service.until_idle()
