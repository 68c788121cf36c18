"""Where users' texts come from."""

from pathlib import Path

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.workloads import WORKLOADS, Input, load_inputs


def _write(data_dir: Path, *lines: str) -> None:
    (data_dir / "apps").mkdir()
    (data_dir / "apps" / "SC.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_inputs_are_read_in_order(tmp_path: Path) -> None:
    """Other fields are the file's own business; a line separator inside a text ends no line."""
    second = '{"input": "b\u2028c", "id": "2"}'
    _write(tmp_path, '{"id": "1", "class": "SC", "input": "a", "meta": {}}', "", second)

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
def test_a_wrong_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    """File, line, field, value and what is allowed: enough to mend it."""
    _write(tmp_path, '{"id": "1", "input": "a"}', line)

    with pytest.raises(ConfigError, match=said):
        load_inputs(tmp_path, "SC")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """Most often the directory is not the one that was meant."""
    with pytest.raises(ConfigError, match=r"apps/SC\.jsonl: cannot be read"):
        load_inputs(tmp_path, "SC")


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    """A load needs something to draw from."""
    _write(tmp_path)

    with pytest.raises(ConfigError, match="at least one input"):
        load_inputs(tmp_path, "SC")


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_machine_has_texts_for_every_class(name: str) -> None:
    """The demo and the tests run without any data of ours."""
    inputs = load_inputs(None, name)

    assert inputs == load_inputs(None, name)
    assert len(inputs) == len({item.text for item in inputs}) >= 20
    assert all(item.text.strip() for item in inputs)


def test_documents_are_long_and_questions_short() -> None:
    """What makes MRS a large application and SC not."""
    assert min(len(item.text) for item in load_inputs(None, "MRS")) >= 5_000
    assert max(len(item.text) for item in load_inputs(None, "SC")) < 3_000


def test_a_class_without_texts_is_refused() -> None:
    """By name, with those that are allowed."""
    with pytest.raises(ConfigError, match=r"one of SC, KBQAV, MRS, .*, got 'XY'"):
        load_inputs(None, "XY")
