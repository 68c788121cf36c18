"""Operators' view of a running service: metrics in Ray's own exporter, and log lines."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
import ray
from prometheus_client.samples import Sample

from justitia_ray.core.actions import Grant
from justitia_ray.core.events import (
    ApplicationArrived,
    InferenceCancelled,
    InferenceSubmitted,
    NackReason,
)
from justitia_ray.observability import metrics as m
from justitia_ray.observability.metrics import TABLE, Metric
from justitia_ray.serve.transport.handshake import Offer
from tests.eventually import eventually
from tests.harness.bodies import COMPLETIONS, completion
from tests.harness.chaos.stranger import Attacker, OpenPort, keep_connecting
from tests.harness.exporter import scrape_samples
from tests.harness.open_calls import OpenStream, cancel_calls
from tests.harness.service import Service, Serving
from tests.integration.raw_ingress import grants_in, raw_ingress, wait_for_open_pull

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session")]

KV_TOKENS = 2_000
LONG = 1_500
"""Output length so large that two calls do not fit the memory together and the engine preempts one.
"""
_QUOTAS = [
    {"unit": "tokens", "limit": 1_000_000, "per": "day"},
    {"unit": "applications", "limit": 1, "per": "day", "on_exhausted": "shadow"},
]
WITHIN_S = 90.0
"""Seconds until metrics appear: Ray's workers export them every few seconds."""

STILL = {
    m.BOUND_VIOLATIONS_TOTAL,  # rises only by a defect of the core
    m.TRAININGS_TOTAL,  # training needs more applications than this test runs
    m.MODEL_VERSION,  # stays 0 for a class that is predicted by its mean
    m.ENGINE_FAILURES_TOTAL,  # no engine fails or stalls in this test
    m.STALLED_SECONDS,
    m.WAITING_CLAIMS,  # quota reservations take only milliseconds
    m.PREDICTOR_MISSED_TOTAL,  # the predictor misses deadlines only on a busy machine
    m.WORKING_SET_CONTEXT_TOKENS,  # no application is idle between two inferences
    m.CONTEXT_RETURNS_TOTAL,
}
"""Metrics that cannot rise in this test; unit tests show that they rise."""
OF_OPTIONS = {
    m.TARGET_DRAIN_SECONDS,  # `autoscaling`
    m.HELD_CONTEXTS,  # `engine.hold_contexts`
    m.HELD_KV_TOKENS,
    m.HOST_KV_TOKENS,  # `engine.host_kv_gib`
    m.HOST_KV_CAPACITY_TOKENS,
}
"""Metrics that are absent while their options are off."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def service(serving: Serving) -> AsyncIterator[Service]:
    """Application with one replica of little memory, overcommitted as vLLM does by default."""
    async with serving.deployed_service(
        "measured",
        replicas=1,
        user_config={"admission": "prompt", "tenants": {"team-a": {"quotas": _QUOTAS}}},
        fake={"kv_tokens": KV_TOKENS, "max_model_len": KV_TOKENS},
        scheduler={"lease_timeout_s": 2.0, "lag_meter": True},
        metrics={"interval_s": 0.5},
        log_encoding="JSON",
    ) as service:
        yield service


def metric_values(samples: list[Sample], metric: Metric, **labels: str) -> list[float]:
    """Return the values of a metric's series with these labels; for a histogram, its counts."""
    name = metric.exported[-1]
    return [
        sample.value
        for sample in samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]


def _check_buckets(samples: list[Sample], metric: Metric, count: int, **labels: str) -> None:
    """Check that a histogram's series have Prometheus's form for all buckets."""
    bucket, total, _ = metric.exported
    ours = [one for one in samples if labels.items() <= one.labels.items()]
    upper_ends = {float(one.labels["le"]): one.value for one in ours if one.name == bucket}
    assert sorted(upper_ends) == [*metric.buckets, math.inf]
    assert sorted(upper_ends.values()) == [upper_ends[le] for le in sorted(upper_ends)]
    assert count == upper_ends[math.inf]
    assert 0 <= next(one.value for one in ours if one.name == total)


async def _application_samples(application: str) -> list[Sample]:
    """Return the current samples of one Serve application from every node's exporter."""
    return [one for one in await scrape_samples() if one.labels.get("application") == application]


async def _finish_one_application(http: httpx.AsyncClient, name: str) -> None:
    opening = {
        "application_id": name,
        "application_class": "vote",
        "tenant": "team-a",
        "input": "What is 6 times 7?",
    }
    (await http.post("/v1/applications", json=opening)).raise_for_status()
    headers = {"x-justitia-application": name, "x-justitia-tenant": "team-a"}
    answer = await http.post(COMPLETIONS, json=completion(), headers=headers)
    answer.raise_for_status()
    (await http.post(f"/v1/applications/team-a|{name}/close")).raise_for_status()


async def _repeat_small_calls_until_lagging(http: httpx.AsyncClient) -> httpx.Response:
    """Repeat calls that GPS would serve at once but that must wait for running calls."""
    while True:
        (await http.post(COMPLETIONS, json=completion())).raise_for_status()


async def _miss_a_deadline(http: httpx.AsyncClient) -> None:
    """Send calls with a deadline of 0.1 s until one misses it, then with a long one."""
    statuses = set[int]()
    while statuses < {200, 504}:
        deadline_s = "0.1" if 504 not in statuses else "600"
        headers = {"x-justitia-deadline-s": deadline_s, "x-justitia-tenant": "team-a"}
        answer = await http.post(COMPLETIONS, json=completion(), headers=headers)
        statuses.add(answer.status_code)


async def _cancel_running_stream(http: httpx.AsyncClient) -> None:
    """Cancel the application of a running stream, so that its next call is refused."""
    head, said = {"x-justitia-application": "cancelled"}, ""
    body = completion(max_tokens=LONG, stream=True)
    async with http.stream("POST", COMPLETIONS, json=body, headers=head) as answer:
        async for text in answer.aiter_text():
            if not said:
                (await http.delete("/v1/applications/cancelled")).raise_for_status()
            said += text
    again = await http.post(COMPLETIONS, json=completion(), headers=head)

    assert '"code": "application_closed"' in said
    assert said.endswith("\n\n")
    assert "[DONE]" not in said
    assert (409, "false") == (again.status_code, again.headers["x-should-retry"])


def _failures_in_serve(samples: list[Sample], error: str) -> float:
    """Return the number of calls that failed in Serve with an error of the given class."""
    return sum(
        sample.value
        for sample in samples
        if sample.name.startswith("ray_serve_deployment_error_counter")
        and error in sample.labels.values()
    )


async def _leave_lease_unused(service: Service) -> None:
    """Obtain a lease like an ingress, give it back, and let the next one expire."""
    async with raw_ingress(service) as raw:
        application, request = f"{raw.name}-b", f"{raw.name}-q"
        items = (
            InferenceSubmitted(request, "of nobody", "0", raw.name, 3, 4, 4),
            ApplicationArrived(application, "raw", "team-b", 1.0, 10.0, raw.name),
            InferenceSubmitted(
                request, application, "0", raw.name, 3, 4, 4, remaining_kv_token_time=1e6
            ),
        )

        async def granted_lease() -> Grant | None:
            return next(iter(grants_in(await raw.send_batch(*items))), None)

        await raw.nack_lease(await eventually(granted_lease, "it is leased"), NackReason.LEASE)

        async def inference_is_waiting(**state: int) -> bool:
            known = await service.scheduler().application.remote(application)
            return bool(state.items() <= known.items())

        await eventually(lambda: inference_is_waiting(running=1), "the next lease is granted", 30.0)
        await eventually(lambda: inference_is_waiting(waiting=1, running=0), "it lapses", 30.0)
        await raw.send_batch(InferenceCancelled(request))
        await service.scheduler().cancel_application.remote(application)


async def _wait_until_risen(service: Service, wanted: set[Metric]) -> list[Sample]:
    """Scrape until each of these metrics has been above 0; return the last scrape."""
    left, last = set(wanted), list[Sample]()

    async def none_is_left() -> bool:
        nonlocal last
        last = await _application_samples(service.name)
        left.difference_update([x for x in left if any(v > 0 for v in metric_values(last, x))])
        return not left

    try:
        await eventually(none_is_left, "all have risen", WITHIN_S, every_s=0.2)
    except AssertionError as late:
        raise AssertionError(f"{late}; not {sorted(x.name for x in left)}") from None
    return last


async def test_every_exported_metric_rises_under_load(
    service: Service, http: httpx.AsyncClient
) -> None:
    """The exported metrics are those of the documented table, and each rises."""
    by_restart = {m.EPOCH_CHANGES_TOTAL}
    for number in range(3):
        await _finish_one_application(http, f"vote-{number}")
    await _cancel_running_stream(http)
    await _leave_lease_unused(service)
    body = completion(max_tokens=LONG)
    calls: list[asyncio.Task[Any]] = [
        asyncio.create_task(http.post(COMPLETIONS, json=body)) for _ in range(16)
    ]
    calls.append(asyncio.create_task(_repeat_small_calls_until_lagging(http)))
    calls.append(asyncio.create_task(_miss_a_deadline(http)))
    try:
        seen = await _wait_until_risen(service, set(TABLE) - STILL - by_restart - OF_OPTIONS)
    finally:
        await cancel_calls(calls)

    vote = {"application_class": "vote", "tenant": "team-a"}
    assert [3] == metric_values(seen, m.COMPLETION_SECONDS, **vote)
    assert [3] == metric_values(seen, m.QUEUE_WAIT_SECONDS, **vote)
    _check_buckets(seen, m.QUEUE_WAIT_SECONDS, 3, **vote)
    assert [3] == metric_values(seen, m.APPLICATION_OUTCOMES_TOTAL, outcome="finished", **vote)
    assert [1] == metric_values(seen, m.LEASES_TOTAL, event="nacked")
    # If the expiry is noticed late, the next lease of the inference expires, too.
    assert 1 <= metric_values(seen, m.LEASES_TOTAL, event="expired")[0]
    assert [1] == metric_values(seen, m.SETTLEMENTS_TOTAL, rule="expected")
    assert 1 <= metric_values(seen, m.REFUSALS_TOTAL, reason="unknown_application")[0]
    assert {service.config.model.name} == {
        sample.labels["model"] for sample in seen if sample.name.startswith("ray_justitia_")
    }
    assert not any(metric_values(seen, metric) for metric in OF_OPTIONS)
    assert 1 == _failures_in_serve(await scrape_samples(), "ApplicationCancelled")
    assert [1] == metric_values(seen, m.FAILED_STREAMS_TOTAL, failed_with="4xx")
    for metric in STILL:
        assert metric_values(seen, metric), f"{metric.name} is not exported"

    await service.until_idle()
    before = max(metric_values(seen, m.EPOCH))
    ray.kill(service.scheduler(), no_restart=False)
    await service.until(lambda s: s["epoch"] > before, "the next scheduler is in office")
    after = await _wait_until_risen(service, by_restart)

    assert [1] == metric_values(after, m.EPOCH_CHANGES_TOTAL)


def _log_events(files: str, event: str) -> list[dict[str, Any]]:
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    found = []
    for file in (session / "logs").glob(files):
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        found += [json.loads(line) for line in lines if f'"{event}"' in line]
    return [line for line in found if line["message"] == event]


async def test_ended_application_writes_one_json_line_to_the_log(http: httpx.AsyncClient) -> None:
    """The scheduler is no Serve replica, so its line is in a Ray worker's log."""
    name = f"logged-{uuid4().hex[:8]}"
    await _finish_one_application(http, name)

    def event_lines() -> list[dict[str, Any]]:
        ended = _log_events("worker-*.err", "application.ended")
        return [line for line in ended if line["application_id"] == f"team-a|{name}"]

    (line,) = await eventually(event_lines, "it is logged")
    assert ("vote", "team-a", "finished") == tuple(
        line[key] for key in ("application_class", "tenant", "outcome")
    )
    assert line["kv_token_time"] > 0 < line["predicted_kv_token_time"]
    assert 0 <= line["waited_s"] <= line["completion_s"]
    assert {"virtual_finish_time", "gps_lag_s", "epoch", "model", "inferences"} <= line.keys()


async def test_processes_without_the_shared_secret_are_refused_and_counted(
    service: Service, http: httpx.AsyncClient
) -> None:
    """Processes without the secret key must not disturb other connections."""
    stranger = Attacker()
    offer: Offer = await service.scheduler().link.remote()
    await wait_for_open_pull(service)
    async with raw_ingress(service) as raw:
        grant = await raw.submit()
        doors = [
            OpenPort(address, name, offer.key.key_id)
            for address, name in (
                (offer.address, offer.target),
                (raw.addresses[grant.replica_id], grant.replica_id),
            )
        ]
    knocking = asyncio.create_task(keep_connecting(stranger, doors))
    while stranger.refused < 50:
        await _finish_one_application(http, f"beside-{uuid4().hex[:8]}")
    knocking.cancel()

    for files in ("worker-*.err", "serve/replica_measured_Replica_*.log"):
        refused = _log_events(files, "connection.refused")
        assert 8 <= max(line["refused_so_far"] for line in refused)
        reasons = " ".join(line["reason"] for line in refused)
        assert "does not know key" in reasons
        assert "the other side ended the handshake" in reasons  # the peer's secret was wrong
        assert offer.key.secret.hex() not in reasons


async def test_log_lines_of_an_ingress_have_ray_serves_fields(
    service: Service, http: httpx.AsyncClient
) -> None:
    """By the fields of Serve, an operator finds one request's lines in several processes."""
    stream = OpenStream(http, completion(max_tokens=LONG))
    await eventually(stream.has_begun, "the stream has begun", 60.0)
    (replica_id,) = (await service.status())["replicas"]
    service.kill_replica(replica_id)
    lines = await eventually(
        lambda: _log_events("serve/replica_measured_Ingress_*.log", "lease.unusable"),
        "the lease that was lost is logged",
        30.0,
    )
    await stream.end()

    assert replica_id == lines[0]["replica_id"]
    assert {"lease_id", "reason", "request_id", "replica", "deployment"} <= lines[0].keys()
