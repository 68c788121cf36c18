"""A stand-in for a cluster, and the commands of the pages that are run on it."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.harness.kubernetes_api import Store, kubernetes_api
from tests.unit.k8s.kustomization import Manifest
from tests.unit.k8s.manifests import K8S, SCHEMAS
from tests.unit.k8s.schemas import manifest_errors

_UNCHECKED = ("monitoring.coreos.com/v1",)
"""API versions without available schemas."""
_BINARIES = Path(sys.executable).parent


@dataclass(frozen=True, slots=True)
class ClusterStandIn:
    """Stand-in of a Kubernetes API server with its objects, and a folder for commands."""

    store: Store
    folder: Path
    environment: dict[str, str]

    def run_script(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run a bash script that ends at its first failure, and return its output."""
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def run_successfully(self, script: str) -> str:
        """Run a bash script that must succeed and return its standard output."""
        done = self.run_script(script)
        assert 0 == done.returncode, f"{script}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def find_object(self, kind: str, name: str, namespace: str = "justitia") -> Any:
        """Return an object of the stand-in, or None."""
        return next(
            (
                found
                for (_, _, there, named), found in self.store.objects.items()
                if (found["kind"], named, there) == (kind, name, namespace)
            ),
            None,
        )

    def specs_by_name(self) -> dict[tuple[str, str], Any]:
        """Return the objects in `justitia`, except Secrets, without their metadata."""
        return {
            (found["kind"], name): {k: v for k, v in found.items() if k != "metadata"}
            for (_, plural, namespace, name), found in self.store.objects.items()
            if namespace == "justitia" and plural != "secrets"
        }


@contextmanager
def run_cluster(folder: Path) -> Iterator[ClusterStandIn]:
    """Start a stand-in of a cluster with one GPU node, and yield it."""
    (folder / "k8s").symlink_to(K8S)
    (folder / ".docker").mkdir()
    (folder / ".docker" / "config.json").write_text("{}")
    with kubernetes_api(schema_errors) as (store, url):
        node = {"status": {"allocatable": {"nvidia.com/gpu": "8"}}, "metadata": {"name": "gpu-1"}}
        store.objects["v1", "nodes", "", "gpu-1"] = node | {"kind": "Node", "apiVersion": "v1"}
        configuration = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {}}],
            "current-context": "c",
        }
        (folder / "kubeconfig").write_text(yaml.safe_dump(configuration))
        environment = {
            "HOME": str(folder),
            "HF_TOKEN": "hf_example",
            "KUBECONFIG": str(folder / "kubeconfig"),
            "REGISTRY": "registry.example.com",
            "PATH": f"{_BINARIES}:{os.environ['PATH']}",
        }
        yield ClusterStandIn(store, folder, environment)


def schema_errors(written: Manifest) -> list[str]:
    """Return the errors of an object by the schemas of Kubernetes and KubeRay."""
    if written["apiVersion"] in _UNCHECKED or not SCHEMAS.is_dir():
        return []
    return manifest_errors([written])


def shell_blocks(page: Path, kind: str) -> list[str]:
    """Return the shell blocks of a page that are marked with a kind, in order."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"<!-- step: {kind} -->\n```sh\n(.*?)```", text, re.DOTALL)


def indented_blocks(page: Path, heading: str) -> list[str]:
    """Return the indented code blocks of a section, without their indentation."""
    section = page.read_text(encoding="utf-8").split(f"\n{heading}\n")[1].split("\n## ")[0]
    section = re.sub(r"^```.*?^```", "", section, flags=re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"(?:^    .*\n)+", section, re.MULTILINE)
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in blocks]
