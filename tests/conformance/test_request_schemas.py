"""The schemas of requests in the package are those of the vLLM that is installed."""

import subprocess
import sys

import pytest


@pytest.mark.vllm
def test_schemas_are_of_the_installed_vllm() -> None:
    """Another release may take other requests: `scripts/write_request_schemas` writes its file.

    In a process of its own: pydantic names equal classes by what was imported before.
    """
    command = [sys.executable, "-m", "scripts.write_request_schemas", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stderr[-2_000:]
