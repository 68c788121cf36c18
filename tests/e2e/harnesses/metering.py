"""Tokens of a client's calls as counted by its answers, by the service and by the engine."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.harnesses.recorder import RecordedCall


class TokenCounts(NamedTuple):
    prompt: int
    output: int


def tokens_in_answer(exchange: RecordedCall) -> TokenCounts:
    told: dict[str, Any] = {}
    for event in exchange.events:
        for holder in (event, event.get("message"), event.get("response")):
            use = holder.get("usage") if isinstance(holder, dict) else None
            told |= {name: count for name, count in (use or {}).items() if count is not None}
    prompt = told.get("prompt_tokens", told.get("input_tokens", 0))
    return TokenCounts(prompt, told.get("completion_tokens", told.get("output_tokens", 0)))


def sum_tokens(tokens: Iterable[TokenCounts]) -> TokenCounts:
    prompt, output = 0, 0
    for one in tokens:
        prompt, output = prompt + one.prompt, output + one.output
    return TokenCounts(prompt, output)


async def metered_usage(service: str, operator: str, tenant: str) -> tuple[int, int, TokenCounts]:
    """Return a tenant's applications, inferences and tokens from `GET /v1/usage`.

    Args:
        service: URL of the service.
        operator: Key that sees all tenants.
        tenant: The tenant.
    """
    async with httpx.AsyncClient(base_url=service) as http:
        answer = await http.get("/v1/usage", headers={"authorization": f"Bearer {operator}"})
    rows = [row for row in answer.json()["data"] if row["tenant"] == tenant]
    applications, inferences, prompt, output = (
        sum(row[name] for row in rows)
        for name in ("applications", "inferences", "prompt_tokens", "output_tokens")
    )
    return applications, inferences, TokenCounts(prompt, output)


async def engine_tokens(exporter: str, model: str) -> TokenCounts:
    """Return a model's token counts from vLLM's own metrics.

    Args:
        exporter: URL of Ray's metrics.
        model: Name of the model.
    """
    async with httpx.AsyncClient(timeout=60) as http:
        text = (await http.get(exporter)).text
    found = dict.fromkeys(("ray_vllm_prompt_tokens_total", "ray_vllm_generation_tokens_total"), 0.0)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in found and sample.labels.get("model_name") == model:
                found[sample.name] += sample.value
    return TokenCounts(*map(int, found.values()))
