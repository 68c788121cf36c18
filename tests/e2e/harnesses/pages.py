"""Settings of each section of `deployments/harnesses.md`, adapted to one service."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

PAGE = Path(__file__).parents[3] / "deployments" / "harnesses.md"
_BLOCK = re.compile(r"(?:`~/(?P<file>[^`]+)`:\n\n)?```(?P<kind>\w+)\n(?P<text>.*?)```\n", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SectionSettings:
    """A coding agent's settings in one section of `deployments/harnesses.md`."""

    variables: dict[str, str]
    files: dict[str, str]
    """Text of each settings file, by its path below the home directory."""


def settings_on_page(
    section: str, variant: str, *, url: str, key: str, model: str
) -> SectionSettings:
    """Return a coding agent's settings from `deployments/harnesses.md`.

    Args:
        section: Heading of its section.
        variant: Heading of the part whose `diff` changes the section's lines; empty: none.
        url: In place of the page's service.
        key: In place of `KEY`.
        model: In place of `MODEL`.
    """
    told = _section_lines(section, variant)
    for placeholder, value in (
        (r"https://llm\.example\.org", url),
        (r"\bKEY\b", key),
        (r"\bMODEL\b", model),
    ):
        told = re.sub(placeholder, value, told)
    settings = SectionSettings({}, {})
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


def served_model(name: str) -> dict[str, Any]:
    """Return the model configuration in `deployments/harnesses.md`.

    Args:
        name: In place of `MODEL`.
    """
    (block,) = _BLOCK.finditer(_section_lines("The service", ""))
    found: dict[str, Any] = yaml.safe_load(re.sub(r"\bMODEL\b", name, block["text"]))
    return found


def _section_lines(section: str, variant: str) -> str:
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(f"\n## {section}\n")
    assert rest, f"{PAGE.name} has no section {section!r}"
    told, *parts = rest.partition("\n## ")[0].split("\n### ")
    told += "\n"
    if not variant:
        return told
    (part,) = (part for part in parts if part.startswith(f"{variant}\n"))
    (change,) = _BLOCK.finditer(f"{part}\n")
    assert "diff" == change["kind"]
    lines = change["text"].splitlines(keepends=True)
    before, after = ("".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
    assert 1 == told.count(before), f"{PAGE.name}: {variant}: no such lines: {before}"
    return told.replace(before, after)
