"""Files of the console's page: pinned modules of others, size, nothing that a policy stops."""

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from justitia_ray.console.files import PAGE as _PAGE
from justitia_ray.console.files import page_files

_VENDOR = _PAGE / "vendor"
_SCRIPTS = sorted([*_PAGE.rglob("*.js"), *_PAGE.rglob("*.mjs")])
_MODULES = json.loads((_VENDOR / "modules.json").read_text(encoding="utf-8"))


def test_each_third_party_file_of_the_console_is_the_pinned_version() -> None:
    pinned = {name: digest for one in _MODULES for name, digest in one["sha256"].items()}
    there = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in _VENDOR.iterdir()
        if file.name != "modules.json"
    }

    assert there == pinned


def test_each_third_party_package_of_the_console_has_its_licence() -> None:
    for one in _MODULES:
        (licence,) = (name for name in one["sha256"] if name.startswith("LICENSE."))
        text = (_VENDOR / licence).read_text(encoding="utf-8")
        assert "Permission is hereby granted" in text or "Apache License" in text


def test_compressed_console_scripts_are_less_than_100_kilobytes() -> None:
    files = page_files()
    sent = sum(len(files[str(script.relative_to(_PAGE))].compressed) for script in _SCRIPTS)

    assert sent < 100_000


@pytest.mark.parametrize("script", _SCRIPTS, ids=lambda script: script.name)
def test_console_scripts_import_only_files_of_the_page(script: Path) -> None:
    """A browser without an import map loads relative paths only."""
    imported = re.findall(
        r'\b(?:from|import)\s*\(?\s*"([^"]+)"', script.read_text(encoding="utf-8")
    )

    assert [] == [path for path in imported if not (script.parent / path).is_file()]
    assert [] == [path for path in imported if not path.startswith(("./", "../"))]


def test_every_script_module_of_the_console_is_imported() -> None:
    text = "".join(script.read_text(encoding="utf-8") for script in _SCRIPTS)
    page = (_PAGE / "index.html").read_text(encoding="utf-8")

    unused = [one.name for one in _SCRIPTS if f'/{one.name}"' not in text + page]
    assert [] == unused


def test_console_page_has_no_inline_script_or_style() -> None:
    page = (_PAGE / "index.html").read_text(encoding="utf-8")

    assert [] == re.findall(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=|javascript:", page)
    assert [] == re.findall(r'(?:src|href)="(?:[a-z]+:)?//', page)


def test_no_file_of_the_console_page_names_another_host() -> None:
    ours = [file for file in _PAGE.rglob("*") if file.is_file() and _VENDOR not in file.parents]

    for file in ours:
        named = set(re.findall(r"https?://[^\s\"'`)]+", file.read_text(encoding="utf-8")))
        assert named <= {"http://www.w3.org/2000/svg"}, file


@pytest.mark.skipif(shutil.which("node") is None, reason="no node on the PATH")
def test_console_scripts_are_valid_modules() -> None:
    """A browser shows an empty page for one syntax error."""
    parse = """
const { readFileSync } = require("fs");
const { SourceTextModule } = require("vm");
for (const path of process.argv.slice(1)) {
  new SourceTextModule(readFileSync(path, "utf8"), { identifier: path });
}
"""
    node = ["node", "--no-warnings", "--experimental-vm-modules", "--eval", parse]
    parsed = subprocess.run([*node, *_SCRIPTS], capture_output=True, text=True, check=False)

    assert 0 == parsed.returncode, parsed.stderr
