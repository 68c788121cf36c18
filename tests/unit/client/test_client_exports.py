"""The package's public names."""

import inspect
import subprocess
import sys

import justitia_ray.client as package


def test_all_names_every_export() -> None:
    """A name that is imported for export and left out of the list would not be documented."""
    public = {
        name
        for name, value in vars(package).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }

    assert public == set(package.__all__)


def test_the_client_needs_neither_ray_nor_vllm() -> None:
    """An agent's own environment has neither."""
    code = (
        "import sys, justitia_ray.client, justitia_ray.workloads;"
        "print({'ray', 'vllm'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "set()"
