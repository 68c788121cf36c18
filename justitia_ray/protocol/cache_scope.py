"""Isolation of tenants in the engines' prefix cache, and which requests can read the cache."""

from typing import Literal

from justitia_ray.protocol.inference_body import InferenceBody

Isolation = Literal["tenant", "top", "shared"]


def cache_scope(isolation: Isolation, tenant: str) -> str:
    """Return the group of tenants that share a tenant's prefix cache; empty: all tenants.

    Args:
        isolation: `engine.cache_isolation`: share within a tenant, within a tree, or with all.
        tenant: The tenant.
    """
    if isolation == "shared":
        return ""
    return tenant.partition("/")[0] if isolation == "top" else tenant


def reads_cache(body: InferenceBody) -> bool:
    """Return whether the engine may read a request's prompts from its prefix cache.

    vLLM does not read the cache if prompt tokens need log probabilities, and for some inputs
    without generation (`SamplingParams.skip_reading_prefix_cache`, vllm/sampling_params.py:622).
    """
    fields = body.fields
    if body.pools or fields.get("prompt_logprobs") is not None:
        return False
    # A chat with `echo` always needs log probabilities of its prompt.
    return not fields.get("echo") or ("messages" not in fields and fields.get("logprobs") is None)
