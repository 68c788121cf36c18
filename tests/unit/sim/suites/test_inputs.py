"""Tests of the data directory and of the users' texts in it."""

from pathlib import Path

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.lab.workloads.play import WORKLOADS
from justitia_ray.sim.suites.inputs import Input, data_directory, load_inputs


def test_data_option_overrides_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, other = tmp_path / "given", tmp_path / "other"
    given.mkdir()
    other.mkdir()
    monkeypatch.setenv("JUSTITIA_DATA", str(other))

    assert given == data_directory(given, required=True)
    assert other == data_directory(None, required=True)


@pytest.mark.parametrize("value", [None, ""])
def test_missing_data_directory_is_an_error_only_where_required(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    """A suite can be generated without data, but a predictor cannot be trained without it."""
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
def test_wrong_directory_error_names_the_option_or_variable(
    monkeypatch: pytest.MonkeyPatch, required: bool
) -> None:
    """An exported but forgotten environment variable must be named in the message."""
    monkeypatch.setenv("JUSTITIA_DATA", "/nowhere")

    with pytest.raises(ConfigError, match=r"^JUSTITIA_DATA must be a directory, got '/nowhere'$"):
        data_directory(None, required=required)
    with pytest.raises(ConfigError, match=r"^--data must be a directory, got '/none'$"):
        data_directory(Path("/none"), required=required)


def _write_inputs(data_dir: Path, *lines: str) -> None:
    (data_dir / "apps").mkdir()
    (data_dir / "apps" / "SC.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_recorded_inputs_are_read_in_file_order(tmp_path: Path) -> None:
    """Unknown fields are ignored, and a Unicode line separator in a text does not end the line."""
    second = '{"input": "b\u2028c", "id": "2"}'
    _write_inputs(tmp_path, '{"id": "1", "class": "SC", "input": "a", "meta": {}}', "", second)

    assert load_inputs(tmp_path, "SC") == [Input("1", "a"), Input("2", "b\u2028c")]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", r"SC\.jsonl:2: not JSON"),
        ("[1]", r"SC\.jsonl:2: must be a JSON object"),
        ('{"id": "2"}', r"SC\.jsonl:2: input must be a text .*, got None"),
        ('{"id": 2, "input": "a"}', r"SC\.jsonl:2: id must be a text .*, got 2"),
        ('{"id": "2", "input": " "}', r"SC\.jsonl:2: input must be a text .*, got ' '"),
    ],
)
def test_error_names_the_wrong_input_line(tmp_path: Path, line: str, said: str) -> None:
    """The message names file, line, field, value and the allowed values."""
    _write_inputs(tmp_path, '{"id": "1", "input": "a"}', line)

    with pytest.raises(ConfigError, match=said):
        load_inputs(tmp_path, "SC")


def test_missing_and_empty_input_files_are_refused(tmp_path: Path) -> None:
    """The usual cause is a wrong data directory."""
    with pytest.raises(ConfigError, match=r"apps/SC\.jsonl: cannot be read"):
        load_inputs(tmp_path, "SC")
    _write_inputs(tmp_path)
    with pytest.raises(ConfigError, match="at least one input"):
        load_inputs(tmp_path, "SC")


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_package_has_texts_for_every_class(name: str) -> None:
    """The demo and the tests run without the data directory."""
    inputs = load_inputs(None, name)

    assert inputs == load_inputs(None, name)
    assert len(inputs) == len({item.text for item in inputs}) >= 20
    assert all(item.text.strip() for item in inputs)


def test_class_without_texts_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"one of SC, KBQAV, MRS, .*, got 'XY'"):
        load_inputs(None, "XY")
