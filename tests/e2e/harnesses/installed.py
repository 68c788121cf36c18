"""Installation of the clients from npm, once, into `.venv/harnesses`."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[3]
_RELEASES = Path(__file__).with_name("package.json")
CACHE = _ROOT / ".venv" / "harnesses"
_WITHIN_S = 600.0


def installed_package(package: str) -> Path:
    """Return the directory of an npm package; the directory's name contains the release.

    The calling test is skipped if npm or its registry is not available.
    """
    release = json.loads(_RELEASES.read_text(encoding="utf-8"))["dependencies"][package]
    directory = CACHE / f"{package.replace('/', '-').removeprefix('@')}-{release}"
    if directory.exists():
        return directory
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed: no harness can be run")
    unfinished = directory.with_name(f"{directory.name}.unfinished-{os.getpid()}")
    unfinished.mkdir(parents=True)
    (unfinished / "package.json").write_text(
        json.dumps({"private": True, "dependencies": {package: release}}), encoding="utf-8"
    )
    options = ("--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error")
    done = subprocess.run(
        [npm, "install", *options],
        cwd=unfinished,
        capture_output=True,
        text=True,
        timeout=_WITHIN_S,
        check=False,
    )
    if done.returncode:
        shutil.rmtree(unfinished)
        pytest.skip(f"npm does not install {package} {release}: {done.stderr[-500:]}")
    if not directory.exists():
        unfinished.rename(directory)
    return directory
