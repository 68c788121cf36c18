"""Cost functions of an inference: KV token-time, the cost of computing its prompt, and others.

The same formulas meter service.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from justitia_ray.errors import ConfigError
from justitia_ray.units import KvTokenTime, Seconds, Tokens

CostFunction = Callable[[Tokens, Tokens], KvTokenTime]
"""Cost function h(p, d) of p prompt and d output tokens, non-decreasing in both."""


def kv_token_time(prompt_tokens: Tokens, output_tokens: Tokens) -> KvTokenTime:
    """Return the KV memory an inference holds over its decode steps, c = p·d + d(d+1)/2.

    The same formula measures service: after g of its d tokens an inference has received h(p, g).

    Unit: token·iterations; exact for ints. Source: Justitia (arXiv:2510.17015v1), Sec. IV-A, Eq. 1;
    the paper approximates Σᵢ₌₁..d (p+i) by pd + d²/2; this function returns the exact sum.

    Raises:
        ValueError: If either count is negative.
    """
    if prompt_tokens < 0 or output_tokens < 0:
        raise ValueError(f"token counts must be >= 0, got p={prompt_tokens}, d={output_tokens}")
    return prompt_tokens * output_tokens + output_tokens * (output_tokens + 1) // 2


def weighted_tokens(prompt_tokens: Tokens, output_tokens: Tokens) -> KvTokenTime:
    """Return p + 2d, the cost used by VTC and by Justitia/C (the compute-centric variant).

    Unit: tokens. Source: VTC (OSDI 2024), Sec. 3.1 and 5.1 (w_p = 1, w_q = 2).
    """
    return prompt_tokens + 2 * output_tokens


def profiled_quadratic(prompt_tokens: Tokens, output_tokens: Tokens) -> KvTokenTime:
    """Return 2.1 p + d + 0.04 p d + 0.032 d² + 11.46, VTC's fit to Llama-2-7B on an A10G.

    Unit: a time on a machine with full memory; the paper does not give the unit. Source: VTC, App.
    B.2.
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
    """Return the object at an import path, `package.module:name`; None if it does not exist.

    Raises:
        ConfigError: If the module is there and fails when it is imported.
    """
    module, _, attribute = path.partition(":")
    if not module or not attribute:
        return None
    try:
        return getattr(importlib.import_module(module), attribute, None)
    except (ImportError, TypeError, ValueError):  # the path names no module
        return None
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{path!r} cannot be imported: {reason}") from error


def choices_cost(
    cost: CostFunction, prompt_tokens: Tokens, output_tokens: Tokens, choices: int
) -> KvTokenTime:
    """Return the cost of several choices with output tokens spread evenly over them.

    Exact for n choices of one prompt with equal lengths. Never decreases as `output_tokens` grows,
    so that it can measure service.

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
    """Return the KV token-time of several choices, a lower bound if their lengths differ."""
    if choices == 1:  # One choice is the usual case, computed for every lease of every report.
        return kv_token_time(prompt_tokens, output_tokens)
    return choices_cost(kv_token_time, prompt_tokens, output_tokens, choices)


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """Cost of computing prompt tokens, κ·u + κ₁·u·(p − u/2), in the unit of KV token-time.

    U is the number of computed tokens at the end of a prompt of p tokens.

    A replica with M tokens of KV memory, half of them in use, takes a + c·M/2 seconds for an
    iteration, in which it serves M token·iterations at most. Computing a prompt token takes b
    seconds, in which the replica would have served κ = M·b/(a + c·M/2). The second term is
    attention: each computed token reads all tokens before it.
    """

    per_token: float
    """Cost κ of each computed prompt token, in token·iterations."""
    per_pair: float = 0.0
    """Cost κ₁ of each pair of a computed prompt token and an earlier token, in token·iterations."""

    def of(self, computed_tokens: Tokens, prompt_tokens: Tokens) -> int:
        """Return the cost of computing the last tokens of a prompt, rounded to an integer.

        The cost is a whole number, so that charges and refunds cancel exactly. Never decreases as
        `computed_tokens` grows.

        Args:
            computed_tokens: Number of the prompt's tokens that are not cached, at most all.
            prompt_tokens: Length of the prompt.
        """
        pairs = computed_tokens * (prompt_tokens - computed_tokens / 2) if self.per_pair else 0
        return round(self.per_token * computed_tokens + self.per_pair * pairs)

    @classmethod
    def from_step_times(
        cls,
        kv_tokens: Tokens,
        step_s: Seconds,
        context_token_s: Seconds,
        computed_token_s: Seconds,
        pair_s: Seconds = 0.0,
    ) -> "PrefillCost":
        """Return the prefill cost on an engine, derived from its measured step times.

        Args:
            kv_tokens: KV memory M of the engine.
            step_s: Fixed time a of a step.
            context_token_s: Time c for each token of context that a step reads.
            computed_token_s: Time b for each prompt token that a step computes.
            pair_s: Time for each pair of a computed token and an earlier token.

        Raises:
            ValueError: If a step takes no time.
        """
        usual_s = step_s + context_token_s * kv_tokens / 2
        if not usual_s > 0:
            raise ValueError(f"a step takes {usual_s} s: a time above 0 is allowed")
        return cls(kv_tokens * computed_token_s / usual_s, kv_tokens * pair_s / usual_s)
