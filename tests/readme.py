"""The README, and the examples in it that tests run."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()

_BLOCK = re.compile(r"<!-- runs: (\w+) -->\n```\w+\n(.*?)```", re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    """Return the examples that run as they stand: (how, text), in their order."""
    return [(match[1], match[2]) for match in _BLOCK.finditer(README)]
