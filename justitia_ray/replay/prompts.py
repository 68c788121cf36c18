"""Prompts of a given length, as token ids: exactly that long for every tokenizer."""

import random

from justitia_ray.units import ApplicationId, InferenceId, Tokens

_TOKEN_IDS = range(10, 250)
"""Inside every vocabulary, and beyond the special tokens that most have first."""


def prompt_token_ids(
    application_id: ApplicationId, inference_id: InferenceId, prompt_tokens: Tokens
) -> list[int]:
    """Return a prompt for an inference, the same in every replay.

    No two inferences begin alike: an engine that caches prefixes must compute each prompt, as the
    workload file says nothing of what they share.
    """
    lots = random.Random(f"prompt/{application_id}/{inference_id}")
    return lots.choices(_TOKEN_IDS, k=prompt_tokens)
