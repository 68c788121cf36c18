"""Traces of applications at a collector: one for each, over two ingress processes."""

import asyncio
from collections import Counter

import httpx
import pytest

from justitia_ray.observability.trace_context import ApplicationSampler, TraceContext
from tests.eventually import eventually
from tests.harness.bodies import CHAT, COMPLETIONS, chat, completion
from tests.harness.open_calls import OpenStream, occupy_all_seats
from tests.harness.otlp_receiver import OtlpReceiver, ReceivedSpan
from tests.harness.service import ENDLESS, MODEL, Service
from tests.integration.two_ingresses.conftest import INGRESSES, NAME

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

CALLS = 16
"""Number of calls: enough for both ingresses to get some."""
SECRET_WORD = "persimmon"
EXPORTED_WITHIN_S = 60.0
"""Seconds until spans arrive: they are sent every 5 s, and later on busy cores."""
CALLER = TraceContext(0xFEED, 0xBEEF, is_sampled=True)


def documented_trace_id(key: str) -> str:
    """Return an application's trace id, computed as the documentation says."""
    return f"{ApplicationSampler(NAME, MODEL, 1.0).context(key).trace_id:032x}"


async def complete_trace(collector: OtlpReceiver, key: str) -> list[ReceivedSpan]:
    """Return an application's trace, once its root span has arrived."""

    def trace_with_root() -> list[ReceivedSpan]:
        spans = collector.trace(documented_trace_id(key))
        return spans if any(not span.parent_id for span in spans) else []

    spans: list[ReceivedSpan] = await eventually(
        trace_with_root, f"the trace of {key} is exported", EXPORTED_WITHIN_S
    )
    return spans


async def test_calls_of_an_application_are_one_trace(
    service: Service, http: httpx.AsyncClient, collector: OtlpReceiver
) -> None:
    """Both ingresses' spans belong to the application's trace."""
    headers = {
        "x-justitia-application": "report-1",
        "x-justitia-tenant": "acme",
        "x-justitia-class": "report",
    }

    async def call_on_new_connection() -> httpx.Response:
        async with service.http() as fresh:  # A connection always leads to the same ingress.
            return await fresh.post(CHAT, json=chat(SECRET_WORD, 3), headers=headers)

    answers = await asyncio.gather(*(call_on_new_connection() for _ in range(CALLS)))
    assert {200} == {answer.status_code for answer in answers}
    (await http.post("/v1/applications/acme|report-1/close")).raise_for_status()
    await complete_trace(collector, "acme|report-1")

    def all_calls() -> list[ReceivedSpan]:
        spans = collector.trace(documented_trace_id("acme|report-1"))
        return spans if 4 * CALLS + 1 == len(spans) else []

    spans = await eventually(all_calls, "all spans are exported", EXPORTED_WITHIN_S)
    by_id = {span.span_id: span for span in spans}
    (root,) = [span for span in spans if not span.parent_id]
    assert {
        "invoke_agent report": 1,
        f"chat {MODEL}": CALLS,
        "justitia.queue": CALLS,
        "justitia.lease": CALLS,
        "justitia.engine": CALLS,
    } == Counter(span.name for span in spans)
    parents = {(span.name, by_id[span.parent_id].name) for span in spans if span is not root}
    assert {
        (f"chat {MODEL}", "invoke_agent report"),
        ("justitia.queue", f"chat {MODEL}"),
        ("justitia.lease", f"chat {MODEL}"),
        ("justitia.engine", "justitia.lease"),
    } == parents
    assert "acme" == root.attributes["justitia.tenant"]
    assert 3 * CALLS == root.attributes["gen_ai.usage.output_tokens"]
    ingresses = {s.resource["service.instance.id"] for s in spans if s.name == f"chat {MODEL}"}
    assert INGRESSES == len(ingresses)
    engines = [span for span in spans if span.name == "justitia.engine"]
    assert {3} == {span.attributes["gen_ai.usage.output_tokens"] for span in engines}
    assert {"replica"} == {span.resource["justitia.process"] for span in engines}
    for span in spans:
        assert root.started_ns <= span.started_ns + 1e9  # the clocks of the ingresses differ
        assert span.started_ns <= span.ended_ns


async def test_trace_collector_receives_configured_headers_and_no_prompt_text(
    http: httpx.AsyncClient, collector: OtlpReceiver
) -> None:
    """Spans may be read by people who must not see users' texts."""
    names = {"x-justitia-application": "quiet", "x-justitia-tenant": "acme"}
    answer = await http.post(CHAT, json=chat(SECRET_WORD, 3), headers=names)
    said = answer.json()["choices"][0]["message"]["content"]
    (await http.post("/v1/applications/acme|quiet/close")).raise_for_status()
    await complete_trace(collector, "acme|quiet")

    assert said.strip()
    assert {"Bearer of-the-collector"} == {one["authorization"] for one in collector.headers}
    for body in collector.bodies:
        assert SECRET_WORD.encode() not in body
        assert said.strip().encode() not in body


async def test_trace_of_a_waiting_call_shows_queue_position_and_reason(
    service: Service, http: httpx.AsyncClient, collector: OtlpReceiver
) -> None:
    """While all seats are taken, the trace shows the number of calls ahead."""
    names = {"x-justitia-application": "late", "x-justitia-tenant": "acme"}

    async def call_has_waited() -> bool:
        known = await http.get("/v1/applications/acme|late")
        return known.status_code == 200 and known.json()["age_s"] > 1.0

    async with occupy_all_seats(service, http):
        call = asyncio.create_task(http.post(COMPLETIONS, json=completion(), headers=names))
        await eventually(call_has_waited, "it has waited for a second")
    assert 200 == (await call).status_code
    (await http.post("/v1/applications/acme|late/close")).raise_for_status()
    spans = await complete_trace(collector, "acme|late")
    (waits,) = [span for span in spans if span.name == "justitia.queue"]

    assert {"justitia.reason", "justitia.position", "justitia.virtual_finish_time"} <= set(
        waits.attributes
    )
    assert "headroom" == waits.attributes["justitia.reason"]
    assert 0 == waits.attributes["justitia.position"]
    waited_s = (waits.ended_ns - waits.started_ns) / 1e9
    assert waits.attributes["justitia.waited_s"] == pytest.approx(waited_s, abs=1.0)


async def test_trace_of_an_application_links_to_the_callers_trace(
    http: httpx.AsyncClient, collector: OtlpReceiver
) -> None:
    """The agent's own trace and the service's trace link to each other."""
    names = {
        "x-justitia-application": "linked",
        "x-justitia-tenant": "acme",
        "traceparent": CALLER.traceparent,
    }
    (await http.post(CHAT, json=chat(), headers=names)).raise_for_status()
    (await http.post("/v1/applications/acme|linked/close")).raise_for_status()
    spans = await complete_trace(collector, "acme|linked")
    (call,) = [span for span in spans if span.name == f"chat {MODEL}"]

    assert ((f"{CALLER.trace_id:032x}", f"{CALLER.span_id:016x}"),) == call.links
    assert [] == collector.trace(f"{CALLER.trace_id:032x}")


async def test_trace_shows_when_a_caller_disconnected(
    service: Service, http: httpx.AsyncClient, collector: OtlpReceiver
) -> None:
    names = {"x-justitia-application": "left", "x-justitia-tenant": "acme"}
    async with service.http() as mine:
        mine.headers.update(names)
        stream = OpenStream(mine, completion(max_tokens=ENDLESS))
        await eventually(stream.has_begun, "it runs", 60.0)
        await stream.close_stream()
    (await http.post("/v1/applications/acme|left/close")).raise_for_status()
    spans = await complete_trace(collector, "acme|left")

    def span_of_error() -> set[str]:
        spans = collector.trace(documented_trace_id("acme|left"))
        return {s.name for s in spans if s.attributes.get("error.type") == "cancelled"}

    assert spans
    wanted = {f"text_completion {MODEL}", "justitia.lease", "justitia.engine"}
    await eventually(lambda: wanted == span_of_error(), "the spans say so", EXPORTED_WITHIN_S)
