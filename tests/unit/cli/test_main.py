"""The `justitia` command itself: version, usage, a missing extra."""

import importlib
import subprocess
import sys
from types import ModuleType

import pytest

from justitia_ray import __version__
from justitia_ray.cli.main import main


def test_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    """The first question of every report of an error."""
    with pytest.raises(SystemExit) as end:
        main(["--version"])

    assert 0 == end.value.code
    assert f"justitia {__version__}\n" == capsys.readouterr().out


def test_command_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    """Without one there is nothing to do, and the usage says what there is."""
    with pytest.raises(SystemExit) as end:
        main([])

    assert 2 == end.value.code
    assert "COMMAND" in capsys.readouterr().err


def refuse_serve(monkeypatch: pytest.MonkeyPatch, error: ModuleNotFoundError) -> None:
    """Let imports of `justitia_ray.serve` fail."""
    import_module = importlib.import_module

    def refusing(name: str) -> ModuleType:
        if name.startswith("justitia_ray.serve"):
            raise error
        return import_module(name)

    monkeypatch.setattr(importlib, "import_module", refusing)


def test_only_the_command_that_is_asked_for_is_imported() -> None:
    """`status` in a loop should not load what draws figures."""
    program = "import sys; from justitia_ray.cli.main import main; main(['status', '--url', 'x'])"
    program += "; sys.exit('numpy' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)

    assert 0 == ended.returncode


@pytest.mark.parametrize("command", [["shutdown"], ["check-config", "serve.yaml"]])
def test_missing_extra_is_one_sentence(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The client alone installs without Ray; its user is told what to install."""
    refuse_serve(monkeypatch, ModuleNotFoundError("No module named 'ray'", name="ray"))
    status = main(command)
    said = capsys.readouterr().err

    assert 2 == status
    assert "pip install 'justitia-ray[serve]'" in said
    assert 1 == len(said.splitlines())


def test_broken_package_is_not_taken_for_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Telling the user to install an extra would hide a bug of ours."""
    error = ModuleNotFoundError("No module named 'justitia_ray.x'", name="justitia_ray.x")
    refuse_serve(monkeypatch, error)
    with pytest.raises(ModuleNotFoundError):
        main(["shutdown"])
