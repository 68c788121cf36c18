"""Helm renders k8s/chart: the presets that equal the kustomizations, and the errors."""

import os
import shutil
import subprocess
import sys
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.k8s.kustomization import Manifest
from tests.unit.k8s.manifests import K8S

CHART = K8S / "chart"
_PATH = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
HELM = shutil.which("helm", path=_PATH)
KUBECTL = shutil.which("kubectl", path=_PATH)
_OPTIONAL = not os.environ.get("CI")
needs_helm = pytest.mark.skipif(
    _OPTIONAL and HELM is None, reason="needs Helm: scripts/install_helm"
)
needs_kubectl = pytest.mark.skipif(
    _OPTIONAL and KUBECTL is None, reason="needs kubectl: scripts/install_helm"
)

PRESETS = {
    "base": ("values-cpu.yaml",),
    "overlays/local": ("values-cpu.yaml", "values-local.yaml"),
    "overlays/gpu": (),
    "overlays/gpu-tp": ("values-gpu-tp.yaml",),
}
"""Values files that render the objects of each kustomization."""

_RELEASE_LABELS = (
    *(f"app.kubernetes.io/{name}" for name in ("name", "instance", "version", "managed-by")),
    "helm.sh/chart",
)
"""Labels that only objects of a Helm release have."""


def run_helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Helm in the chart's folder and return its output, whatever the status."""
    return subprocess.run(
        [str(HELM), *arguments], cwd=CHART, capture_output=True, text=True, check=False
    )


def render_chart(*arguments: str) -> list[Manifest]:
    """Return the objects of the release `justitia` in the namespace `justitia`."""
    return render_release("justitia", *arguments)


def render_release(release: str, *arguments: str) -> list[Manifest]:
    """Return the objects of a release in the namespace `justitia`."""
    return deepcopy(_render_cached(release, arguments))


@cache
def _render_cached(release: str, arguments: tuple[str, ...]) -> list[Manifest]:
    done = run_helm("template", release, ".", "--namespace", "justitia", *arguments)
    assert 0 == done.returncode, done.stderr
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def refusal_of_values(*arguments: str) -> str:
    """Return the error with which Helm refuses the values."""
    done = run_helm("template", "justitia", ".", *arguments)
    assert 0 != done.returncode
    return done.stderr


def preset_arguments(name: str) -> list[str]:
    """Return the Helm arguments that render the objects of a kustomization."""
    files = [argument for file in PRESETS[name] for argument in ("--values", file)]
    return ["--set", "namespace.create=true", *files]


def without_release_labels(manifest: Manifest) -> Manifest:
    """Return an object without the labels and the annotation that only a release has."""
    kept = deepcopy(manifest)
    metadata = kept["metadata"]
    for key, names in (("labels", _RELEASE_LABELS), ("annotations", ("helm.sh/resource-policy",))):
        rest = {name: v for name, v in metadata.pop(key, {}).items() if name not in names}
        if rest:
            metadata[key] = rest
    return kept


def with_parsed_configuration(manifest: Manifest) -> Manifest:
    """Return an object whose Serve configuration is values in place of text."""
    parsed = deepcopy(manifest)
    if parsed["kind"] == "RayService":
        parsed["spec"]["serveConfigV2"] = yaml.safe_load(parsed["spec"]["serveConfigV2"])
    return parsed


def by_kind_and_name(found: list[Manifest]) -> dict[tuple[str, str], Any]:
    names = {(m["kind"], m["metadata"]["name"]): m for m in found}
    assert len(names) == len(found)
    return names
