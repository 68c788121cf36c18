"""The documentation names what there is, and only that."""

import argparse
import ast
import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from justitia_ray.cli.main import _parser
from justitia_ray.config import AppConfig, SchedulingConfig
from justitia_ray.core.admission import ADMISSIONS
from justitia_ray.core.policies import POLICIES
from justitia_ray.core.policies.options import COMMON
from justitia_ray.serve.http_app import build_http_app
from tests.readme import README, ROOT, blocks

DEPLOYMENTS = (ROOT / "deployments" / "README.md").read_text()
PAGES = sorted(
    page
    for page in [*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob(".github/*.md")]
    if not page.is_relative_to(ROOT / ".venv")
)
LISTED = ("core", "serve")
"""Packages whose files the tree in the README lists one by one."""


def keys(model: type[BaseModel], prefix: str = "") -> dict[str, str]:
    """Return every key of a section and those below it, with its default."""
    found: dict[str, str] = {}
    for name, field in model.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            found |= keys(section, f"{prefix}{name}.")
        else:
            found[prefix + name] = "required" if field.is_required() else written(field.default)
    return found


def written(default: object) -> str:
    """Return a default as YAML says it."""
    return "`null`" if default is None else f"`{default}`"


def rows() -> dict[str, str]:
    """Return the settings that deployments/README.md describes, with the default it gives."""
    found = re.findall(
        r"^\| `([a-z_.]+)` \| (required|`[^|]+`) \| .{20,} \|$", DEPLOYMENTS, re.MULTILINE
    )
    return dict(found)


def tree() -> set[str]:
    """Return the paths in the README's tree."""
    text = README.split("## What is where\n\n```\n")[1].split("```")[0]
    paths: set[str] = set()
    parents: list[str] = []
    for line in text.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0]
        parents = [*parents[:depth], name]
        paths.add("".join(parents))
    return paths


def test_every_setting_is_described_with_its_default() -> None:
    """An operator reads the table, not the schema; a default that moved would mislead."""
    expected = keys(AppConfig) | keys(SchedulingConfig)

    assert expected == rows()


@pytest.mark.parametrize("name", [*POLICIES, *ADMISSIONS, *(option.name for option in COMMON)])
def test_every_choice_is_described(name: str) -> None:
    """A policy or option that nobody can find is not there."""
    assert f"`{name}`" in DEPLOYMENTS


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_has_a_row_in_the_readme(policy: str) -> None:
    """The README promises exactly the policies that this version has."""
    assert f"| `{policy}` |" in README


def test_every_script_is_named() -> None:
    """Scripts are how a newcomer begins."""
    scripts = [path.name for path in (ROOT / "scripts").iterdir() if path.suffix == ""]
    named = README.split("scripts/  ")[1].splitlines()[0]

    assert sorted(scripts) == sorted(re.findall(r"\b(\w+)[,:]", named))


def test_every_deployment_file_is_described() -> None:
    """Each of them is something to run."""
    for file in (ROOT / "deployments").glob("*.yaml"):
        assert f"| `{file.name}` |" in DEPLOYMENTS


def test_every_subcommand_is_named() -> None:
    """So is each command."""
    (subcommands,) = (a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction))
    for name in subcommands.choices:
        assert f"    justitia {name} " in README


def test_tree_shows_the_files_that_there_are() -> None:
    """The tree is the map of the repository; a wrong map is worse than none."""
    package = ROOT / "justitia_ray"
    rooms = [path for path in package.iterdir() if (path / "__init__.py").exists()]
    files = [*package.glob("*.py"), *(f for room in LISTED for f in (package / room).glob("*.py"))]
    expected = {str(f.relative_to(ROOT)) for f in files if f.name != "__init__.py"}
    rooms += [inner.parent for room in LISTED for inner in (package / room).glob("*/__init__.py")]
    expected |= {f"{room.relative_to(ROOT)}/" for room in [package, *rooms]}
    shown = {path for path in tree() if path.startswith("justitia_ray/")}

    assert sorted(expected) == sorted(shown)
    for path in tree() - shown:
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    """A figure or page that is not there is the first thing a reader meets."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize(
    "block", [block for kind, block in blocks() if kind != "sh"], ids=lambda block: block[:20]
)
def test_example_is_python(block: str) -> None:
    """What a reader pastes must at least compile; a test with a cluster runs it."""
    assert ast.parse(block).body


def test_every_path_of_the_service_is_in_the_readme() -> None:
    """The HTTP surface is a promise to callers; what is not written down is not promised."""
    source = Path(build_http_app.__code__.co_filename).read_text()
    paths = re.findall(r'@app\.\w+\("([^"]+)"\)', source)

    assert len(paths) > 4
    for path in paths:
        assert f"{path.replace(':path', '').replace('application_id', 'id')}`" in README, path
