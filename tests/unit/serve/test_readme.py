"""Names of files and functions in the service's README exist in the code."""

import re
from importlib import import_module

import pytest

from tests.pages import ROOT

SERVE = ROOT / "justitia_ray" / "serve"
README = (SERVE / "README.md").read_text()
LIFE = README.partition("## The life of an inference")[2].partition("\n## ")[0]
STATIONS = [
    (path, name)
    for path, names in re.findall(r"`([\w./]+\.py)`:\s+((?:`[\w.]+`,?\s*)+)", LIFE)
    for name in re.findall(r"`([\w.]+)`", names)
]


def test_readme_lists_nine_steps_of_an_inference_with_files() -> None:
    steps = re.split(r"(?m)^\d\) ", LIFE)[1:]

    assert 9 == len(steps)
    assert [] == [step for step in steps if ".py`" not in step]
    assert {*re.findall(r"`([\w./]+\.py)`", "".join(steps))} == {path for path, _ in STATIONS}


@pytest.mark.parametrize(("path", "name"), STATIONS)
def test_readme_step_of_an_inference_names_an_existing_function(path: str, name: str) -> None:
    file = (SERVE / path).resolve().relative_to(ROOT)
    found = import_module(".".join(file.with_suffix("").parts))
    for part in name.split("."):
        found = getattr(found, part)


def test_readme_describes_every_folder() -> None:
    folders = {entry.name for entry in SERVE.iterdir() if (entry / "__init__.py").exists()}

    assert folders == set(re.findall(r"^\| \[`(\w+)/`\]", README, re.M))
