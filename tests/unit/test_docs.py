"""The documentation names what there is, and only that."""

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from fastapi.routing import APIRoute
from pydantic import BaseModel

from justitia_ray.app_args import AppArgs, AppSettings, ModelEntry
from justitia_ray.cli.main import _parser
from justitia_ray.config import parse_app_config
from justitia_ray.core.admission import ADMISSIONS
from justitia_ray.core.policies import POLICIES
from justitia_ray.core.policies.options import COMMON
from justitia_ray.serve.http_app import build_http_app
from justitia_ray.serve.models import ServedModel, ServedModels
from tests.readme import README, ROOT, blocks

DEPLOYMENTS = (ROOT / "deployments" / "README.md").read_text()
PAGES = sorted(
    page
    for page in [
        *ROOT.glob("*.md"),
        *ROOT.glob("*/*.md"),
        *ROOT.glob("deployments/*/*.md"),
        *ROOT.glob(".github/*.md"),
    ]
    if not page.is_relative_to(ROOT / ".venv")
)
LISTED = ("core", "serve")
"""Packages whose files the tree in the README lists one by one."""


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield every key of a section and those below it, with its default."""
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        if section is not None:
            yield from keys(section, f"{prefix}{name}.")
        elif field.is_required():
            yield prefix + name, "required"
        else:
            yield prefix + name, written(field.get_default(call_default_factory=True))


def section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the section that a key holds, be it required or not; None if it holds a value."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return None if get_args(annotation)[1:] == (...,) else kind
    return None


def written(default: object) -> str:
    """Return a default as YAML says it."""
    if default is None:
        return "`null`"
    return f"`{list(default) if isinstance(default, tuple) else default}`"


def rows() -> list[tuple[str, str]]:
    """Return the settings that deployments/README.md describes, with the default it gives."""
    return re.findall(
        r"^\| `([a-z_.]+)` \| (required|`[^|]+`) \| .{20,} \|$", DEPLOYMENTS, re.MULTILINE
    )


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
    expected = [*keys(AppArgs), *keys(AppSettings)]

    assert sorted(expected) == sorted(rows())


def test_every_key_of_one_of_several_models_is_described() -> None:
    """Its keys have no rows of their own: they are those of `model`, and sections."""
    section = DEPLOYMENTS.split("## Several models\n")[1].split("\n## ")[0]
    named = section.split("An entry takes the keys of ")[1].split(";")[0]

    assert sorted(ModelEntry.model_fields) == sorted({*re.findall(r"`(\w+)`", named)} - {"model"})


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


def test_table_names_the_paths_that_are_served() -> None:
    """The HTTP surface is a promise to callers; what is not written down is not promised."""
    config = parse_app_config({"model": {"name": "m", "path": "none"}})
    # Paths are added from what a model has; its parts are asked when a request comes.
    model = ServedModel(config, *(cast(Any, object()) for _ in range(4)))
    served = {
        route.path.replace("{application_id:path}", "{id}")
        .replace("application_class", "class")
        .replace("{name:path}", "{name}")
        for route in build_http_app(ServedModels([model])).routes
        if isinstance(route, APIRoute)
    }
    table = README.split("## HTTP\n\n")[1].split("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines()]

    named = {path for cell in cells for path in re.findall(r"`(?:[A-Z]+ )?(/[^`]+)`", cell)}

    assert sorted(served) == sorted(named)


def test_every_example_is_listed() -> None:
    """Who looks for an example reads the list, not the folders."""
    examples = ROOT / "examples"
    listed = (examples / "README.md").read_text()
    missing = [
        path.name
        for path in examples.glob("*/*.py")
        if f"`{path.relative_to(examples)}`" not in listed
    ]

    assert [] == missing
