"""The core's README agrees with the code, and the core imports none of its observers."""

import ast
import re
from pathlib import Path

import pytest

import justitia_ray.core
from justitia_ray.core.states import APPLICATION_TRANSITIONS

CORE = Path(justitia_ray.core.__file__).parent
PAGE = (CORE / "README.md").read_text("utf-8")


@pytest.mark.parametrize("example", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_worked_example_of_the_core_readme_is_correct(example: str) -> None:
    """The page prints the order and the virtual times that the core computes."""
    exec(compile(example, "core/README.md", "exec"), {})


def test_every_file_of_the_core_is_in_the_readme_table() -> None:
    """The page must lead a reader to each file of the core."""
    policies = CORE / "policies"
    guarded = {path.stem for path in (policies / "guarded").glob("*.py")} - {"__init__"}
    names = {path.stem for path in CORE.rglob("*.py") if not path.is_relative_to(policies)}
    names -= {"__init__", "meter", "bound"}  # files that the page names by their folder
    page_of_guarded = (policies / "guarded" / "README.md").read_text("utf-8")

    assert set() == {name for name in names if f"`{name}`" not in PAGE}
    assert set() == {name for name in guarded if f"`{name}`" not in page_of_guarded}


def test_application_states_in_the_readme_diagram_equal_the_transition_table() -> None:
    drawn = re.findall(r"^    (\w+) --> (\w+): (.*)$", PAGE, re.MULTILINE)
    table = [(start, finish, when) for (start, finish), when in APPLICATION_TRANSITIONS.items()]

    assert table == drawn


def test_core_does_not_import_the_lag_meter() -> None:
    """The lag meter only observes the accounts, and is optional."""
    importers = {
        path.relative_to(CORE).as_posix()
        for path in CORE.rglob("*.py")
        if path.parent.name != "lag"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("justitia_ray.core.lag.")
    }

    assert set() == importers
