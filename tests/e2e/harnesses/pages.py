"""The lines of `deployments/harnesses.md`: what a client's section sets, for one service."""

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[3] / "deployments" / "harnesses.md"
_BLOCK = re.compile(r"(?:`~/(?P<file>[^`]+)`:\n\n)?```(?P<kind>\w+)\n(?P<text>.*?)```\n", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a section of the page sets."""

    variables: dict[str, str]
    files: dict[str, str]
    """Texts by path below the home directory."""


def settings_of(section: str, *, url: str, key: str, model: str) -> Settings:
    """Return a client's settings, as the page gives them.

    Args:
        section: Heading of its section.
        url: In place of the page's service.
        key: In place of `KEY`.
        model: In place of `MODEL`.
    """
    page = PAGE.read_text(encoding="utf-8")
    _, _, rest = page.partition(f"\n## {section}\n")
    assert rest, f"{PAGE.name} has no section {section!r}"
    told = rest.partition("\n## ")[0]
    for placeholder, value in (
        (r"https://llm\.example\.org", url),
        (r"\bKEY\b", key),
        (r"\bMODEL\b", model),
    ):
        told = re.sub(placeholder, value, told)
    settings = Settings({}, {})
    for block in _BLOCK.finditer(told):
        text = block["text"]
        if block["file"] is not None:
            settings.files[block["file"]] = text
        elif block["kind"] == "sh":
            for line in text.splitlines():
                name, equals, value = line.removeprefix("export ").partition("=")
                assert equals, f"{PAGE.name}: no export: {line}"
                settings.variables[name] = value.partition(" #")[0].strip()
    return settings
