"""`tests/README.md` lists every module with long tests, and what was dropped for another test."""

import re

from tests.pages import ROOT

_TESTS = ROOT / "tests"
_PAGE = (_TESTS / "README.md").read_text(encoding="utf-8")
_SECTION = _PAGE.partition("## Long tests\n")[2].partition("\n## ")[0]


def test_every_module_with_long_tests_is_documented() -> None:
    rows = [line.split("|")[1] for line in _SECTION.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`(\w[\w/]*\.py)`", row)}
    marked = {
        str(file.relative_to(_TESTS))
        for file in _TESTS.rglob("test_*.py")
        if "pytest.mark." + "long" in file.read_text(encoding="utf-8")
    }

    assert marked == listed


def test_documented_replacement_of_each_dropped_test_exists() -> None:
    for path, name in re.findall(r"`([\w/]+\.py)::(\w+)`", _SECTION):
        assert f"def {name}(" in (_TESTS / path).read_text(encoding="utf-8")
