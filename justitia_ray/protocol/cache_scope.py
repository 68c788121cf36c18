"""Which callers share what the engines' prefix caches hold, and which requests read of it."""

from typing import Literal

from justitia_ray.protocol.inference_body import InferenceBody

Isolation = Literal["tenant", "top", "shared"]


def cache_scope(isolation: Isolation, tenant: str) -> str:
    """Return the name of the callers with which a tenant shares a cache; empty: all of them.

    Args:
        isolation: `engine.cache_isolation`: those of one tenant, of one tree, or all.
        tenant: The tenant.
    """
    if isolation == "shared":
        return ""
    return tenant.partition("/")[0] if isolation == "top" else tenant


def reads_cache(body: InferenceBody) -> bool:
    """Return whether prompts of a request may find anything in a cache.

    vLLM reads none where a token of the prompt needs its probability, and for inputs that are only
    read (`SamplingParams.skip_reading_prefix_cache`, vllm/sampling_params.py:622).
    """
    fields = body.fields
    if body.pools or fields.get("prompt_logprobs") is not None:
        return False
    # A chat that is echoed has them computed whatever else it asks for.
    return not fields.get("echo") or ("messages" not in fields and fields.get("logprobs") is None)
