"""Code in what a model writes."""

import re

_FENCE = re.compile(r"```(?:python|py)?\s*\n(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)


def code_of(answer: str) -> str:
    """Return the code of an answer: of its first fenced block, or all of it if it has none."""
    found = _FENCE.search(answer)
    return (found[1] if found else answer).strip("\n")
