"""The request schemas in the package are those of the installed vLLM."""

import subprocess
import sys

import pytest


@pytest.mark.long
@pytest.mark.vllm
def test_request_schemas_belong_to_the_installed_vllm() -> None:
    """Run `scripts/write_request_schemas` after an update of vLLM.

    The test runs in a separate process: pydantic names equal classes by earlier imports.
    """
    command = [sys.executable, "-m", "scripts.write_request_schemas", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stderr[-2_000:]
