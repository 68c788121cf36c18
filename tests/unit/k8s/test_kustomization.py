"""The renderer used by these tests equals kustomize, as far as k8s/ needs it."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.k8s.chart import KUBECTL, needs_kubectl
from tests.unit.k8s.kustomization import UnsupportedKustomization, render
from tests.unit.k8s.manifests import K8S, NAMES, render_manifests


def by_kind_and_name(found: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(m["kind"], m["metadata"]["name"]): m for m in found}


def write_kustomization(directory: Path, text: str, **files: str) -> Path:
    (directory / "kustomization.yaml").write_text(text)
    for name, content in files.items():
        (directory / f"{name}.yaml").write_text(content)
    return directory


def write_with_components(directory: Path) -> Path:
    """Return a directory whose kustomization adds both components to the base."""
    up = "/".join([".."] * (len(directory.parts) - 1))
    names = ", ".join(f"{up}{K8S}/components/{name}" for name in ("pod-monitor", "alerts"))
    text = f"resources: [{up}{K8S}/base]\ncomponents: [{names}]\n"
    return write_kustomization(directory, text)


@needs_kubectl
@pytest.mark.parametrize("name", [*NAMES, "with-components"])
def test_kustomize_renders_the_manifests_that_the_tests_use(name: str, tmp_path: Path) -> None:
    """The tests must see what `kubectl apply -k` applies."""
    directory = write_with_components(tmp_path) if name == "with-components" else K8S / name
    printed = subprocess.run(
        [str(KUBECTL), "kustomize", str(directory)], check=True, capture_output=True, text=True
    ).stdout

    assert by_kind_and_name(list(yaml.safe_load_all(printed))) == by_kind_and_name(
        render(directory)
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("resources: [a.yaml]\nnamePrefix: x-\n", "namePrefix"),
        (
            "resources: [a.yaml]\npatches:\n  - patch: |-\n      kind: Secret\n      data: {}\n",
            "a merge patch",
        ),
        (
            "resources: [a.yaml]\npatches:\n  - patch: '[]'\n    target: {kind: Secret, name: b}\n",
            "Secret b: 0 of them",
        ),
        ("resources: [a.yaml]\nreplacements:\n  - source: {kind: Secret}\n", "replacements"),
    ],
)
def test_unsupported_kustomization_field_is_an_error(
    text: str, reason: str, tmp_path: Path
) -> None:
    """An ignored field would be tested as if it did not exist."""
    secret = "kind: Secret\nmetadata: {name: a}\ndata: {x: y}\n"
    directory = write_kustomization(tmp_path, text, a=secret)

    with pytest.raises(UnsupportedKustomization, match=reason):
        render(directory)


def test_patch_changes_only_one_of_two_places_with_a_shared_anchor(tmp_path: Path) -> None:
    """Three pods of the base share one environment, and the GPU overlay changes two of them."""
    text = (
        "resources: [a.yaml]\npatches:\n  - patch: |-\n      - {op: add, path: /a/-, value: 3}\n"
        "    target: {kind: Secret, name: a}\n"
    )
    directory = write_kustomization(
        tmp_path, text, a="kind: Secret\nmetadata: {name: a}\na: &shared [1, 2]\nb: *shared\n"
    )

    (found,) = render(directory)

    assert [1, 2, 3] == found["a"]
    assert [1, 2] == found["b"]


def test_kustomize_components_add_to_the_base(tmp_path: Path) -> None:
    """Clusters without Prometheus' operator omit only its resources."""
    found = render(write_with_components(tmp_path))
    added = [
        name
        for name in by_kind_and_name(found)
        if name not in by_kind_and_name(render_manifests("base"))
    ]

    assert len(render_manifests("base")) + 2 == len(found)
    assert [("PodMonitor", "justitia"), ("PrometheusRule", "justitia")] == added
