"""vLLM's own metrics in Ray's exporter, under the names used by Ray's dashboard for LLMs."""

import re

import httpx
import pytest
from prometheus_client.samples import Sample
from ray.dashboard.modules.metrics.dashboards.serve_llm_dashboard_panels import (
    serve_llm_dashboard_config,
)

from tests.eventually import eventually
from tests.harness.bodies import COMPLETIONS, completion
from tests.harness.exporter import scrape_samples
from tests.harness.service import Service

pytestmark = [pytest.mark.vllm, pytest.mark.asyncio(loop_scope="session")]

WITHIN_S = 90.0
"""Seconds until metrics appear: Ray's workers export them every few seconds."""
_NOT_HERE = re.compile("ray_vllm_(kv_offload|nixl|external|num_requests_swapped).*")
"""Metrics that these tests cannot produce: those of KV connectors, and one that vLLM removed."""


def series_in_rays_dashboard() -> set[str]:
    """Return the vLLM metrics that Ray's dashboard shows."""
    rows = serve_llm_dashboard_config.rows
    targets = [target for row in rows for panel in row.panels for target in panel.targets]
    names = {name for target in targets for name in re.findall(r"ray_vllm_\w+", target.expr)}
    return {name for name in names if not _NOT_HERE.fullmatch(name)}


async def test_rays_llm_dashboard_finds_its_metrics(
    service: Service, http: httpx.AsyncClient
) -> None:
    """Each engine panel of Ray's own dashboard must have data."""
    (replica_id,) = await service.pulling_replicas()
    name = service.config.model.name
    answer = await http.post(COMPLETIONS, json=completion("a b c", 20, ignore_eos=True))
    assert 200 == answer.status_code
    asked = series_in_rays_dashboard()
    assert "ray_vllm_time_to_first_token_seconds_bucket" in asked

    def engine_series(samples: list[Sample]) -> list[Sample]:
        wanted = {"model_name": name, "ReplicaId": replica_id}
        return [sample for sample in samples if wanted.items() <= sample.labels.items()]

    missing: set[str] = asked
    seen: list[Sample] = []

    async def all_series_are_there() -> bool:
        nonlocal missing, seen
        seen = engine_series(await scrape_samples())
        missing = asked - {sample.name for sample in seen}
        return not missing

    try:
        await eventually(all_series_are_there, "the series are exported", WITHIN_S, every_s=0.5)
    except AssertionError as late:
        raise AssertionError(f"{late}; not {sorted(missing)}") from None
    generated = [s.value for s in seen if s.name == "ray_vllm_generation_tokens_total"]
    assert 20 <= sum(generated)
