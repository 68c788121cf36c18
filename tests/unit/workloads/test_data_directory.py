"""Where the data are: `--data`, else JUSTITIA_DATA."""

from pathlib import Path

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.workloads.data_directory import data_directory


def test_option_goes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is typed is meant; the environment is only the default."""
    given, other = tmp_path / "given", tmp_path / "other"
    given.mkdir()
    other.mkdir()
    monkeypatch.setenv("JUSTITIA_DATA", str(other))

    assert given == data_directory(given, required=True)
    assert other == data_directory(None, required=True)


@pytest.mark.parametrize("value", [None, ""])
def test_no_directory_is_an_error_only_where_one_is_required(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    """A suite can be made up without data, a predictor cannot be trained; empty is not set."""
    if value is None:
        monkeypatch.delenv("JUSTITIA_DATA", raising=False)
    else:
        monkeypatch.setenv("JUSTITIA_DATA", value)

    assert data_directory(None, required=False) is None
    with pytest.raises(
        ConfigError, match=r"^--data must name the data directory, or JUSTITIA_DATA"
    ):
        data_directory(None, required=True)


@pytest.mark.parametrize("required", [False, True])
def test_wrong_directory_is_blamed_on_who_named_it(
    monkeypatch: pytest.MonkeyPatch, required: bool
) -> None:
    """A forgotten variable of the shell is hard to find if the message speaks of the option."""
    monkeypatch.setenv("JUSTITIA_DATA", "/nowhere")

    with pytest.raises(ConfigError, match=r"^JUSTITIA_DATA must be a directory, got '/nowhere'$"):
        data_directory(None, required=required)
    with pytest.raises(ConfigError, match=r"^--data must be a directory, got '/none'$"):
        data_directory(Path("/none"), required=required)
