"""Cost of an inference: KV token-time, other cost functions, and the same formulas as meters."""

import importlib
from collections.abc import Callable
from functools import cache

from justitia_ray.errors import ConfigError
from justitia_ray.units import KvTokenTime, Tokens

CostFunction = Callable[[Tokens, Tokens], KvTokenTime]
"""h(p, d): the cost of an inference of p prompt and d output tokens, non-decreasing in both."""


def kv_token_time(prompt_tokens: Tokens, output_tokens: Tokens) -> KvTokenTime:
    """Return the KV memory that an inference holds over its decode, c = p·d + d(d+1)/2.

    The same formula meters: after g of its d tokens an inference has received h(p, g).

    Unit: token·iterations; exact for ints. Source: Justitia (arXiv:2510.17015v1), Sec. IV-A, Eq. 1;
    the paper approximates Σᵢ₌₁..d (p+i) by pd + d²/2, this is the sum itself.

    Raises:
        ValueError: If either count is negative.
    """
    if prompt_tokens < 0 or output_tokens < 0:
        raise ValueError(f"token counts must be >= 0, got p={prompt_tokens}, d={output_tokens}")
    return prompt_tokens * output_tokens + output_tokens * (output_tokens + 1) // 2


def weighted_tokens(prompt_tokens: Tokens, output_tokens: Tokens) -> KvTokenTime:
    """Return p + 2d, the cost of VTC, which is also the compute-centric cost of Justitia/C.

    Unit: tokens. Source: VTC (OSDI 2024), Sec. 3.1 and 5.1 (w_p = 1, w_q = 2).
    """
    return prompt_tokens + 2 * output_tokens


def profiled_quadratic(prompt_tokens: Tokens, output_tokens: Tokens) -> KvTokenTime:
    """Return 2.1 p + d + 0.04 p d + 0.032 d² + 11.46, fitted to Llama-2-7B on an A10G.

    Unit: not given by the paper; time on a machine whose memory is full. Source: VTC, App. B.2.
    """
    p, d = prompt_tokens, output_tokens
    return 2.1 * p + d + 0.04 * p * d + 0.032 * d * d + 11.46


COSTS: dict[str, CostFunction] = {
    "kv_token_time": kv_token_time,
    "compute": weighted_tokens,
    "profiled": profiled_quadratic,
}


@cache
def find_cost(name: str) -> CostFunction:
    """Return a cost function by its name in `COSTS`, or by import path: `package.module:function`.

    Raises:
        ConfigError: If there is no such function.
    """
    if name in COSTS:
        return COSTS[name]
    allowed = f"is not one of {', '.join(COSTS)}, nor the import path of a function, module:name"
    found = find_by_path(name)
    if found is None or not callable(found):
        raise ConfigError(allowed)
    function: CostFunction = found
    return function


def find_by_path(path: str) -> object | None:
    """Return the object that `package.module:name` names, or None if there is none."""
    module, _, attribute = path.partition(":")
    if not module or not attribute:
        return None
    try:
        return getattr(importlib.import_module(module), attribute, None)
    except ImportError:
        return None


def choices_cost(
    cost: CostFunction, prompt_tokens: Tokens, output_tokens: Tokens, choices: int
) -> KvTokenTime:
    """Return the cost of a lease of several sequences, with tokens spread evenly over them.

    Exact for n choices of one prompt with equal lengths. Never decreases as `output_tokens` grows,
    so that it can meter service.

    Args:
        cost: h(p, d) of one sequence.
        prompt_tokens: Prompt tokens of all sequences together.
        output_tokens: Output tokens of all sequences together.
        choices: Number of sequences under the lease (prompts times n), at least 1.
    """
    if choices == 1:
        return cost(prompt_tokens, output_tokens)
    each_prompt = prompt_tokens // choices
    each_output, longer = divmod(output_tokens, choices)
    return (choices - longer) * cost(each_prompt, each_output) + longer * cost(
        each_prompt, each_output + 1
    )


def choices_kv_token_time(
    prompt_tokens: Tokens, output_tokens: Tokens, choices: int
) -> KvTokenTime:
    """Return `choices_cost` of KV token-time: a lower bound if lengths differ (convex in d)."""
    if choices == 1:  # the usual case, evaluated for each lease in each report
        return kv_token_time(prompt_tokens, output_tokens)
    return choices_cost(kv_token_time, prompt_tokens, output_tokens, choices)
