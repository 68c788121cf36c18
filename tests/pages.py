"""Documentation pages, and the examples on them that tests run."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for pattern in ("*.md", ".github/*.md", "*/**/*.md")
    for page in ROOT.glob(pattern)
    if not any(part in (".venv", "out") for part in page.relative_to(ROOT).parts)
)
WITH_EXAMPLES = (ROOT / "README.md", ROOT / "deployments" / "api.md")

_BLOCK = re.compile(r"<!-- runs: (\w+) -->\n```\w+\n(.*?)```", re.DOTALL)


def examples() -> list[tuple[str, str]]:
    """Return the documentation's runnable examples as (how, text), page by page in order."""
    return [
        (match[1], match[2])
        for page in WITH_EXAMPLES
        for match in _BLOCK.finditer(page.read_text(encoding="utf-8"))
    ]
