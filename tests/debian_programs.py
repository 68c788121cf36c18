"""Programs of Debian packages: without one, its tests are skipped, or fail in CI."""

import os
import shutil

import pytest


def debian_program(name: str, package: str) -> str:
    """Return a program's path. If it is missing, skip the test, or fail where `CI` is set.

    Args:
        name: The program.
        package: Debian's package that has it, which `.ci/run` installs.
    """
    path = shutil.which(name)
    if path is not None:
        return path
    reason = f"no {name} on the PATH; Debian's package `{package}` has it"
    if os.environ.get("CI"):
        pytest.fail(f"{reason}: .ci/run installs it")
    pytest.skip(reason)
