"""Fit an engine's step times: step = a + b·(new tokens) + c·(context tokens) + attention.

The samples are of an engine that does nothing else: whole prompts, each alone, and iterations that
only decode. The attention term, which grows with the pairs of a computed token and a token before
it, is fitted only if the samples show it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from justitia_ray.cost import PrefillCost
from justitia_ray.units import Seconds, Tokens

_LEAST_ATTENTION = 0.1
"""Ratio of attention time to other time of the longest prompt, below which attention counts as
noise.
"""


class PromptTime(NamedTuple):
    """Time that an engine took to compute one whole prompt."""

    prompt_tokens: Tokens
    seconds: Seconds


class DecodeTime(NamedTuple):
    """Time of an engine's iteration that only decodes."""

    context_tokens: Tokens
    """Tokens of context that all sequences of the iteration hold."""
    seconds: Seconds


def fit_prefill_cost(
    kv_tokens: Tokens, prompts: Sequence[PromptTime], decodes: Sequence[DecodeTime]
) -> PrefillCost | None:
    """Return an engine's cost of computing prompts; None: the samples contradict the model.

    Args:
        kv_tokens: M, the engine's KV memory in tokens.
        prompts: The least time of each of two or three lengths, the shortest first.
        decodes: The least times of iterations with the fewest and with the most context.
    """
    few, many = decodes[0], decodes[-1]
    context_token_s = 0.0
    if many.context_tokens > few.context_tokens:
        more = many.context_tokens - few.context_tokens
        context_token_s = max(0.0, (many.seconds - few.seconds) / more)
    step_s = few.seconds - context_token_s * few.context_tokens
    token_s, pair_s = _fit_prompt_times(prompts)
    if token_s < 0 or not step_s > 0:
        return None
    return PrefillCost.from_step_times(kv_tokens, step_s, context_token_s, token_s, pair_s)


def _fit_prompt_times(prompts: Sequence[PromptTime]) -> tuple[Seconds, Seconds]:
    """Return b and c of the prompt time t = o + b·p + c·p²/2, whatever the overhead o of a call."""
    first, last = prompts[0], prompts[-1]
    slope = _slope(first, last)
    if len(prompts) < 3:
        return slope, 0.0
    middle = prompts[1]
    half_pair_s = (_slope(middle, last) - _slope(first, middle)) / (
        last.prompt_tokens - first.prompt_tokens
    )
    token_s = _slope(first, middle) - half_pair_s * (first.prompt_tokens + middle.prompt_tokens)
    if token_s <= 0 or half_pair_s * last.prompt_tokens < _LEAST_ATTENTION * token_s:
        return slope, 0.0
    return token_s, 2 * half_pair_s


def _slope(one: PromptTime, other: PromptTime) -> Seconds:
    return (other.seconds - one.seconds) / (other.prompt_tokens - one.prompt_tokens)
