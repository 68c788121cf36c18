"""The `justitia` command itself: version, usage, and missing extras."""

import subprocess
import sys

import pytest

from justitia_ray import __version__
from justitia_ray.cli.main import main
from tests.unit.cli.noting_service import recording_service


def test_version_option_prints_the_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])

    assert 0 == end.value.code
    assert f"justitia {__version__}\n" == capsys.readouterr().out


def test_command_line_without_a_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([])

    assert 2 == end.value.code
    assert "COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("status", 1),
        pytest.param("doctor", 2, id="doctor: nothing is known of it; 1 would say that it is ill"),
    ],
)
def test_unreachable_service_is_reported_in_one_sentence(
    command: str, expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong port, the most common mistake, must not print a traceback."""
    with recording_service((200, {})) as url:
        pass  # the port is free again
    status = main([command, "--url", url])
    [said] = capsys.readouterr().err.splitlines()

    assert expected == status
    assert said.startswith(f"justitia {command}: no connection to 127.0.0.1")


def hide_module(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """Let imports of a module fail as if it were not installed."""
    for name in [name for name in sys.modules if name.startswith("justitia_ray.serve.ops")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [missing, *(name for name in sys.modules if name.startswith(f"{missing}."))]:
        monkeypatch.setitem(sys.modules, name, None)


def test_only_the_requested_command_is_imported() -> None:
    """Running `justitia status` in a loop must not load plotting libraries."""
    program = "import sys; from justitia_ray.cli.main import main; main(['status', '--url', 'x'])"
    program += "; sys.exit('numpy' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)

    assert 0 == ended.returncode


@pytest.mark.parametrize("command", [["shutdown"], ["check-config", "serve.yaml"]])
def test_missing_extra_is_named_in_the_error(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The client installs without Ray, which some commands need."""
    hide_module(monkeypatch, "ray")
    status = main(command)
    said = capsys.readouterr().err

    assert 2 == status
    assert "pip install 'justitia-ray[serve]'" in said
    assert 1 == len(said.splitlines())


def test_error_inside_an_installed_package_is_not_a_missing_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Advice to install an extra would hide an internal error."""
    hide_module(monkeypatch, "justitia_ray.serve.ops.shutdown")
    with pytest.raises(ModuleNotFoundError):
        main(["shutdown"])
