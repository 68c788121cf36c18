"""The request schemas in the package are those of the installed vLLM."""

import subprocess
import sys

import pytest


@pytest.mark.long
@pytest.mark.vllm
def test_schemas_are_of_the_installed_vllm() -> None:
    """`scripts/write_request_schemas` writes the file for another vLLM release.

    The test runs in a separate process: pydantic names equal classes by earlier imports.
    """
    command = [sys.executable, "-m", "scripts.write_request_schemas", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stderr[-2_000:]
