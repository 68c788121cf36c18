"""What an inference costs: KV token-time, and the same formula as a meter."""

from collections.abc import Callable

from justitia_ray.units import KvTokenTime, Tokens

CostFunction = Callable[[Tokens, Tokens], KvTokenTime]
"""h(p, d): the cost of an inference of p prompt and d output tokens, non-decreasing in both."""


def kv_token_time(prompt_tokens: Tokens, output_tokens: Tokens) -> KvTokenTime:
    """Return the KV memory an inference holds over its decode, c = p·d + d(d+1)/2.

    The same formula meters: after g of its d tokens an inference has received h(p, g).

    Unit: token·iterations; exact for ints. Source: Justitia (arXiv:2510.17015v1), Sec. IV-A,
    Eq. 1; the paper approximates Σᵢ₌₁..d (p+i) by pd + d²/2, this is the sum itself.

    Raises:
        ValueError: If either count is negative.
    """
    if prompt_tokens < 0 or output_tokens < 0:
        raise ValueError(f"token counts must be >= 0, got p={prompt_tokens}, d={output_tokens}")
    return prompt_tokens * output_tokens + output_tokens * (output_tokens + 1) // 2


def choices_kv_token_time(
    prompt_tokens: Tokens, output_tokens: Tokens, choices: int
) -> KvTokenTime:
    """Return the KV token-time of a lease of several sequences, spread evenly over them.

    Exact for n choices of one prompt with equal lengths, a lower bound otherwise: the cost is
    convex in d. Never falls as `output_tokens` grows, so that it serves as a meter.

    Args:
        prompt_tokens: Prompt tokens of all sequences together.
        output_tokens: Output tokens of all sequences together.
        choices: Sequences that run under the lease (prompts times n), at least 1.
    """
    each_prompt = prompt_tokens // choices
    each_output, longer = divmod(output_tokens, choices)
    return (choices - longer) * kv_token_time(each_prompt, each_output) + longer * kv_token_time(
        each_prompt, each_output + 1
    )
