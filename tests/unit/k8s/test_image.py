"""The Dockerfile is checked as text; no image is built here."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import justitia_ray
from tests.unit.k8s.manifests import K8S, NAMES, pod_templates, ray_service, render_manifests

ROOT = K8S.parent
DOCKERFILE = K8S / "image" / "Dockerfile"
TEXT = DOCKERFILE.read_text(encoding="utf-8")


def run_hadolint(text: str) -> list[str]:
    """Return hadolint's findings; it parses the file and runs shellcheck on each RUN."""
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert program is not None
    done = subprocess.run([program, "-"], input=text, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def test_dockerfile_passes_the_linter() -> None:
    assert [] == run_hadolint(TEXT)


def test_dockerfile_error_is_reported() -> None:
    assert "unexpected" in run_hadolint(TEXT.replace("COPY --from=install-cpu", "COPPY"))[0]
    assert "DL3006" in run_hadolint("FROM python\nUSER 1000\n")[0]


def test_base_image_is_pinned_to_a_supported_python() -> None:
    """A moving tag gives another image, and the package supports certain Python versions only."""
    images = re.findall(r"^ARG \w*IMAGE=(\S+)$", TEXT, re.MULTILINE)
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", TEXT, re.MULTILINE))
    (version,) = re.findall(r"^ARG PYTHON_IMAGE=python:(\d+\.\d+)\.", TEXT, re.MULTILINE)

    assert all(re.search(r":\d+\.\d+\.\d+", image) for image in images)
    assert set(re.findall(r"^FROM (\S+)", TEXT, re.MULTILINE)) - stages == {"${PYTHON_IMAGE}"}
    assert version in ("3.11", "3.12", "3.13")


def test_image_runs_as_the_user_in_the_pod_security_context() -> None:
    """Another user id could not write to the home directory."""
    uids = {
        t.spec["securityContext"]["runAsUser"]
        for t in pod_templates(render_manifests("base"))
        if t.component != "redis"
    }

    assert uids == {int(uid) for uid in re.findall(r"^USER (\d+)", TEXT, re.MULTILINE)}
    assert uids == {int(uid) for uid in re.findall(r"useradd --uid (\d+)", TEXT)}


def test_files_copied_into_the_image_exist_and_are_not_ignored() -> None:
    """.dockerignore lists the image's sources, and a missing one stops the build."""
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", TEXT, re.MULTILINE)
        for source in line.split()[:-1]
        if not source.startswith("--")
    }
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()

    assert copied == {line[1:] for line in ignored if line.startswith("!")}
    # the package itself is left out, because CI also tests the wheel without the sources
    assert [] == [s for s in copied - {"justitia_ray"} if not (ROOT / s).exists()]
    assert "*" in ignored


def test_image_targets_and_tags_match_the_manifests() -> None:
    """The commands in the Dockerfile's header build the images used by the pods."""
    made = set(re.findall(r"docker build .* --target (\w+) -t (\S+) \.", TEXT))
    wanted = {
        t.container["image"]
        for name in NAMES
        for t in pod_templates(render_manifests(name))
        if t.component != "redis"
    }

    assert {(tag.rpartition("-")[2], tag) for tag in wanted} == made
    assert {f"justitia-ray:{justitia_ray.__version__}-{t}" for t in ("cpu", "gpu")} == wanted


def test_ray_version_of_the_image_matches_the_manifests() -> None:
    """The operator selects the autoscaler's protocol by this version."""
    told = ray_service(render_manifests("base"))["spec"]["rayClusterConfig"]["rayVersion"]
    (wanted,) = re.findall(r'"ray\[serve\]>=([\d.]+),', (ROOT / "pyproject.toml").read_text())

    assert told.startswith(f"{wanted}.")


@pytest.mark.parametrize("program", ["leave-node", "engine-ready"])
def test_programs_that_pods_start_are_in_the_image(program: str) -> None:
    """The preStop hook and a probe of the worker pods start the programs by name."""
    copied = rf"^COPY .*k8s/image/{program} /usr/local/bin/{program}$"

    assert re.search(copied, TEXT, re.MULTILINE)
    assert (K8S / "image" / program).stat().st_mode & 0o111
