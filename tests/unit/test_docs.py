"""The documentation names every policy, key, command, path and file that exists, and no other."""

import argparse
import ast
import re
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from starlette.routing import Route

from justitia_ray.cli.main import command_parser
from justitia_ray.config import AppConfig, ModelEntry, RecognitionSection
from justitia_ray.config.service import SchedulerSection
from justitia_ray.core.admission import ADMISSIONS
from justitia_ray.core.outlook import WHAT_WOULD_HELP
from justitia_ray.core.policies import POLICIES, find_policy
from justitia_ray.core.policies.options import COMMON
from justitia_ray.core.queue_profile import MAXIMUM_PLACES
from justitia_ray.cost import COSTS
from justitia_ray.serve.ingress.door import DEFAULT_TENANT, Door
from justitia_ray.serve.ingress.http_app import build_http_app
from justitia_ray.serve.ingress.models import ServedModel, ServedModels
from justitia_ray.serve.ingress.recognition import ApplicationFinder
from justitia_ray.serve.ingress.submission import ApplicationSpecCache
from scripts import check_prose
from tests.pages import PAGES, ROOT, examples

README = (ROOT / "README.md").read_text(encoding="utf-8")
SETTINGS = (ROOT / "deployments" / "README.md").read_text(encoding="utf-8")
API = (ROOT / "deployments" / "api.md").read_text(encoding="utf-8")
SUBCOMMANDS = next(
    action for action in command_parser()._actions if isinstance(action, argparse._SubParsersAction)
).choices


def relative_path(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_docstrings_can_be_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert check_prose.main() == 0


@pytest.mark.parametrize("name", [*POLICIES, *ADMISSIONS, *(option.name for option in COMMON)])
def test_every_choice_of_a_setting_is_documented(name: str) -> None:
    assert f"`{name}`" in SETTINGS
    assert name not in POLICIES or f"`{name}`" in README


def options_by_stage() -> dict[str, set[str]]:
    page = (ROOT / "justitia_ray" / "core" / "policies" / "README.md").read_text(encoding="utf-8")
    section = page.split("## What is stable\n")[1].split("\n## ")[0]
    found: dict[str, set[str]] = {}
    for options, stage in re.findall(r"^\| (`.*?) \| (\w+)[^|]* \|", section, re.MULTILINE):
        found.setdefault(stage, set()).update(re.findall(r"`([^`]+)`", options))
    return found


@pytest.mark.parametrize(
    "name",
    [
        *POLICIES,
        *COSTS,
        *(option.name for option in COMMON),
        *sorted({option.name for policy in POLICIES for option in find_policy(policy).OPTIONS}),
    ],
)
def test_table_of_maturity_stages_has_every_policy_and_option(name: str) -> None:
    listed = set[str]().union(*options_by_stage().values())
    assert name in {part for option in listed for part in option.split(": ")}


def test_table_of_maturity_stages_has_every_cost_setting() -> None:
    listed = set[str]().union(*options_by_stage().values())
    costs = get_args(SchedulerSection.model_fields["cost"].annotation)

    assert {f"scheduler.cost: {cost}" for cost in costs} <= listed


def test_documentation_and_settings_agree_on_experimental_options() -> None:
    """A setting is experimental as a whole, or with one of its values."""
    rows = re.findall(r"^\| `([\w.]+)` \| [^|]* \| (.*) \|$", SETTINGS, re.MULTILINE)
    whole = {key for key, text in rows if text.startswith("Experimental")}
    values = {
        f"{key}: {value}"
        for key, text in rows
        for value in re.findall(r"`(\w+)` \(experimental\)", text)
    }

    assert whole | values == {name for name in options_by_stage()["experimental"] if "." in name}


def test_every_key_of_a_model_entry_is_documented() -> None:
    section = SETTINGS.split("## Several models\n")[1].split("\n## ")[0]
    listed = section.split("An entry takes the keys of ")[1].split(";")[0]

    assert sorted(ModelEntry.model_fields) == sorted({*re.findall(r"`(\w+)`", listed)} - {"model"})


def test_every_deployment_file_is_documented() -> None:
    for file in (ROOT / "deployments").glob("*.yaml"):
        assert f"| `{file.name}` |" in SETTINGS


@pytest.mark.parametrize("command", SUBCOMMANDS)
def test_every_subcommand_is_documented(command: str) -> None:
    assert any(f"justitia {command}" in page.read_text(encoding="utf-8") for page in PAGES)


@pytest.mark.parametrize("page", PAGES, ids=relative_path)
def test_documented_commands_exist(page: Path) -> None:
    """A removed command must be found before a reader pastes it."""
    if page.name == "CHANGELOG.md":
        pytest.skip("names commands of earlier releases")
    text = page.read_text(encoding="utf-8")
    verbs = set(re.findall(r"(?:^ +|`|\$ )justitia ([a-z][\w-]+)", text, re.MULTILINE))
    scripts = set(re.findall(r"(?<![\w/.])scripts/(\w+)(?![\w/.])", text))

    assert verbs <= {*SUBCOMMANDS}
    assert [] == [name for name in sorted(scripts) if not (ROOT / "scripts" / name).exists()]


@pytest.mark.parametrize("page", PAGES, ids=relative_path)
def test_documentation_links_have_targets(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def heading_anchors(page: Path) -> set[str]:
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=relative_path)
def test_anchors_of_documentation_links_are_headings(page: Path) -> None:
    links = r"\]\((?!https?:)([^)#]*)#([^)]+)\)"
    for target, anchor in re.findall(links, page.read_text(encoding="utf-8")):
        linked = page.parent / target if target else page
        assert linked.suffix != ".md" or anchor in heading_anchors(linked), f"{target}#{anchor}"


def test_folder_map_names_the_existing_folders() -> None:
    rows = README.split("## What is where\n\n```\n")[1].split("```")[0].splitlines()
    listed = [
        name
        for row in rows
        for name in re.split(r",? +", row.split("   ")[0].strip())
        if name.endswith("/")
    ]
    package = {f"justitia_ray/{name}" if name == "doctor/" else name for name in listed}
    there = {
        f"{path.relative_to(ROOT)}/"
        for parent in (ROOT, ROOT / "justitia_ray")
        for path in parent.iterdir()
        if path.is_dir() and not path.name.startswith((".", "__")) and path.name != "out"
    }

    assert there - {"justitia_ray/"} == package
    assert len(listed) == len(package)  # each folder once


@pytest.mark.parametrize(
    "example", [text for how, text in examples() if how != "sh"], ids=lambda text: text[:20]
)
def test_documented_example_is_valid_python(example: str) -> None:
    """Pasted examples must at least compile; a test with a cluster runs them."""
    assert ast.parse(example).body


def test_documented_table_of_paths_names_the_served_paths() -> None:
    config = AppConfig.parse({"model": {"name": "m", "path": "none"}})
    # Paths follow from the model's configuration; its parts are only used by requests.
    model = ServedModel(config, *(cast(Any, object()) for _ in range(4)))
    served = {
        route.path.replace("{application_id:path}", "{id}")
        .replace("application_class", "class")
        .replace("{name:path}", "{name}")
        for route in build_http_app(
            ServedModels([model]),
            ApplicationSpecCache(60.0, 10),
            Door(None, DEFAULT_TENANT),
            ApplicationFinder(RecognitionSection()),
        ).routes
        if isinstance(route, Route)
    }
    cells = [row.split("|")[1] for row in API.splitlines() if row.startswith("| `")]
    listed = {path for cell in cells for path in re.findall(r"`(?:[A-Z]+ )?(/[^`]+)`", cell)}

    assert sorted(served) == sorted(listed)


def test_every_example_file_is_listed() -> None:
    """Readers search the list of examples, not the folders."""
    folder = ROOT / "deployments" / "examples"
    listed = (folder / "README.md").read_text(encoding="utf-8")

    assert [] == [
        path.name for path in folder.glob("*/*.py") if f"`{path.relative_to(folder)}`" not in listed
    ]


def test_documented_waiting_reasons_match_the_code() -> None:
    """Each reason must have the same remedy in the code and in the documentation."""
    page = (ROOT / "deployments" / "why-and-when.md").read_text(encoding="utf-8")
    section = page.split("## Reasons\n")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE))

    assert {reason.value: text for reason, text in WHAT_WOULD_HELP.items()} == rows
    assert f"{MAXIMUM_PLACES:,}" in page
