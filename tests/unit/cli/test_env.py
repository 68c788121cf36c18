"""`justitia env`: environment variables for a shell, an env file and a container."""

import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from justitia_ray.cli.main import main
from justitia_ray.serve.ops.config_file import most_callers

_MAXCONN = "RAY_SERVE_HAPROXY_MAXCONN"


@pytest.fixture(autouse=True)
def _pretend_haproxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that HAProxy is installed; the tests do not start it."""
    monkeypatch.setenv("RAY_SERVE_HAPROXY_BINARY_PATH", "/bin/sh")


def write_serve_file(
    directory: Path, ingress: str = "", models: int = 1, outstanding: int = 400
) -> Path:
    """Write a Serve configuration file with additional settings of its ingress."""
    named = ", ".join(f"{{name: m{i}, path: none}}" for i in range(models))
    file = directory / "serve.yaml"
    file.write_text(
        f"""
applications:
  - name: demo
    import_path: justitia_ray.serve.app:build
    args: {{models: [{named}], engine: {{kind: fake}}, ingress: {{max_outstanding: {outstanding}}}}}
    deployments: [{{name: Ingress{ingress}}}]
"""
    )
    return file


def print_env(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert 0 == main(["env", *words])
    return capsys.readouterr().out


@pytest.mark.skipif(shutil.which("sh") is None, reason="needs a shell")
def test_printed_variables_can_be_sourced_by_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    """Reasons are printed as shell comments, which must not swallow the next variable."""
    told = print_env(capsys, "--descriptors", "20000")
    script = f'eval "$1"; echo "${_MAXCONN} $RAY_SERVE_METRICS_EXPORT_INTERVAL_MS"'
    said = subprocess.run(["sh", "-c", script, "sh", told], capture_output=True, check=True)

    assert "7897 2000\n" == said.stdout.decode()


def test_comment_with_the_reason_precedes_each_printed_variable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = print_env(capsys, "--format", "dotenv").splitlines()

    for before, line in pairwise(lines):
        assert line.startswith(("# ", "RAY_SERVE_", "JUSTITIA_HAPROXY_BINARY="))
        assert line.startswith("# ") or before.startswith("# ")


def test_yaml_output_is_the_env_list_of_a_container(capsys: pytest.CaptureFixture[str]) -> None:
    variables = yaml.safe_load(print_env(capsys, "--format", "yaml", "--descriptors", "20000"))

    assert {"name": _MAXCONN, "value": "7897"} in variables
    assert {str} == {type(variable["value"]) for variable in variables}


@pytest.mark.parametrize(
    ("ingress", "models", "callers"),
    [("", 1, 400), (", num_replicas: 3", 1, 1_200), ("", 2, 800), (", num_replicas: auto", 1, 400)],
    ids=["one", "processes", "models", "unknown number"],
)
def test_number_of_callers_is_summed_over_ingresses_and_models(
    tmp_path: Path, ingress: str, models: int, callers: int
) -> None:
    """All ingresses may have their callers at the same HAProxy."""
    assert callers == most_callers(write_serve_file(tmp_path, ingress, models))


def test_connection_limit_follows_from_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = print_env(capsys, str(write_serve_file(tmp_path)), "--descriptors", "20000")

    assert f"export {_MAXCONN}=656\n" in told


def test_configuration_with_tls_gets_no_haproxy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """HAProxy would serve plain text, so a configuration with TLS is refused with HAProxy."""
    file = write_serve_file(tmp_path)
    certificate = "http_options: {ssl_keyfile: key.pem, ssl_certfile: certificate.pem}"
    file.write_text(f"{file.read_text()}\n{certificate}\n")
    told = print_env(capsys, str(file), "--format", "dotenv")

    assert "# Serve's own proxy is the front: http_options.ssl_certfile asks for TLS" in told
    assert ["RAY_SERVE_METRICS_EXPORT_INTERVAL_MS=2000"] == [
        line for line in told.splitlines() if not line.startswith("# ")
    ]


def test_http_options_other_than_tls_allow_haproxy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_serve_file(tmp_path)
    file.write_text(f"{file.read_text()}\nhttp_options: {{port: 8001}}\n")

    assert _MAXCONN in print_env(capsys, str(file))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--descriptors", "0"], "--descriptors is 0: 1 or more is allowed"),
        (["none.yaml"], "none.yaml: No such file"),
    ],
    ids=["descriptors", "file"],
)
def test_error_of_an_invalid_argument_names_the_argument(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An invalid number would end HAProxy later, far from its cause."""
    assert 2 == main(["env", *words])
    assert said in capsys.readouterr().err


def test_error_of_an_invalid_environment_variable_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing binary would end Serve's front without an error message."""
    monkeypatch.setenv("RAY_SERVE_HAPROXY_BINARY_PATH", "/nowhere")

    assert 2 == main(["env"])
    assert "RAY_SERVE_HAPROXY_BINARY_PATH is '/nowhere'" in capsys.readouterr().err
