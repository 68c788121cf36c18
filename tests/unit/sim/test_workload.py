"""Workload files: written and read back, and error messages with file, line and field."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from justitia_ray import json_lines
from justitia_ray.errors import ConfigError
from justitia_ray.sim.workload import (
    WorkloadApplication,
    WorkloadInference,
    read_workload,
    write_workload,
)

APPLICATION: dict[str, Any] = {
    "application_id": "a17",
    "application_class": "KBQAV",
    "tenant": "t1",
    "weight": 2.0,
    "arrived_at_s": 12.3,
    "input": "Wer weiß?",
    "inferences": [
        {
            "inference_id": "0",
            "prompt_tokens": 621,
            "output_tokens": 68,
            "after": [],
            "delay_s": 0.0,
        },
        {
            "inference_id": "1",
            "prompt_tokens": 9,
            "output_tokens": 1,
            "after": ["0"],
            "delay_s": 1.1,
        },
    ],
}
READ = WorkloadApplication(
    "a17",
    "KBQAV",
    12.3,
    (WorkloadInference("0", 621, 68), WorkloadInference("1", 9, 1, ("0",), 1.1)),
    tenant="t1",
    weight=2.0,
    input="Wer weiß?",
)


def changed_application(**fields: Any) -> dict[str, Any]:
    return {**APPLICATION, **fields}


def application_without(name: str) -> dict[str, Any]:
    return {key: value for key, value in APPLICATION.items() if key != name}


def with_inferences(*changes: dict[str, Any]) -> dict[str, Any]:
    """Return the application with other inferences, each after the previous one."""
    pairs = zip(APPLICATION["inferences"], changes, strict=True)
    return changed_application(inferences=[{**inference, **change} for inference, change in pairs])


def error_of(tmp_path: Path, *lines: Any) -> str:
    """Return the error of reading a file with these lines, after `FILE:`."""
    file = tmp_path / "w.jsonl"
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    file.write_text("\n".join(texts) + "\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_workload(file)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{file}:")
    return message.removeprefix(f"{file}:")


def test_documented_workload_line_is_read(tmp_path: Path) -> None:
    (tmp_path / "w.jsonl").write_text(json.dumps(APPLICATION), encoding="utf-8")

    assert [READ] == read_workload(tmp_path / "w.jsonl")


def test_optional_workload_fields_have_defaults(tmp_path: Path) -> None:
    """Only `tenant`, `weight`, `input` and `delay_s` are optional."""
    line = {
        "application_id": "a",
        "application_class": "x",
        "arrived_at_s": 0,
        "inferences": [{"inference_id": "0", "prompt_tokens": 1, "output_tokens": 1, "after": []}],
    }
    (tmp_path / "w.jsonl").write_text(json.dumps(line), encoding="utf-8")

    [read] = read_workload(tmp_path / "w.jsonl")

    assert ("default", 1.0, "") == (read.tenant, read.weight, read.input)
    assert 0.0 == read.inferences[0].delay_s


@pytest.mark.parametrize("name", ["w.jsonl", "w.jsonl.gz"])
def test_written_workload_is_read_back(tmp_path: Path, name: str) -> None:
    """The order is kept at any arrival times, gzipped or not."""
    other = WorkloadApplication(
        "a2", "CC", 0.1 + 0.2, (WorkloadInference("x", 5, 6),), input="\ud800"
    )
    file = tmp_path / name

    write_workload(file, [READ, other])

    assert [READ, other] == read_workload(file)
    assert [name] == os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (application_without("application_id"), "application_id is missing"),
        (
            changed_application(colour="red"),
            "'colour' is not a known key; allowed are application_id, ",
        ),
        (changed_application(application_id=""), "application_id: must not be blank, got ''"),
        (
            changed_application(application_id=17),
            "application_id: Input should be a valid string, got 17",
        ),
        (changed_application(tenant=" "), "tenant: must not be blank, got ' '"),
        (
            changed_application(arrived_at_s=-1),
            "arrived_at_s: Input should be greater than or equal to 0, got -1",
        ),
        (
            changed_application(arrived_at_s=1e308),
            "arrived_at_s: Input should be less than or equal to 10000000000, got 1e+308",
        ),
        (
            changed_application(arrived_at_s="1"),
            "arrived_at_s: Input should be a valid number, got '1'",
        ),
        (
            changed_application(arrived_at_s=float("nan")),
            "arrived_at_s: Input should be a finite number, got nan",
        ),
        (changed_application(weight=0), "weight: Input should be greater than 0, got 0"),
        (changed_application(weight=True), "weight: Input should be a valid number, got true"),
        (changed_application(inferences={}), "inferences: Input should be a valid tuple, got {}"),
        (changed_application(inferences=[]), "inferences: Tuple should have at least 1 item"),
        (changed_application(inferences=[1]), "inferences[0]: Input should be a dictionary"),
        (
            with_inferences({}, {"prompt_tokens": -5}),
            "inferences[1].prompt_tokens: Input should be greater than or equal to 1, got -5",
        ),
        (
            with_inferences({"output_tokens": 0}, {}),
            "inferences[0].output_tokens: Input should be greater than or equal to 1, got 0",
        ),
        (
            with_inferences({"output_tokens": 6.0}, {}),
            "inferences[0].output_tokens: Input should be a valid integer, got 6.0",
        ),
        (
            with_inferences({}, {"delay_s": -1}),
            "inferences[1].delay_s: Input should be greater than or equal to 0, got -1",
        ),
        (with_inferences({}, {"tool": 1}), "'inferences[1].tool' is not a known key; allowed are "),
        (
            changed_application(
                inferences=[{"inference_id": "0", "prompt_tokens": 1, "output_tokens": 1}]
            ),
            "inferences[0].after is missing",
        ),
        (
            with_inferences({}, {"inference_id": "0", "after": []}),
            "inferences[1].inference_id must be unique in its application, got '0' again",
        ),
        (with_inferences({}, {"after": "0"}), "inferences[1].after: Input should be a valid tuple"),
        (
            with_inferences({}, {"after": ["0", "0"]}),
            "inferences[1].after must name inferences of its application, each once",
        ),
        (
            with_inferences({}, {"after": ["7"]}),
            "inferences[1].after must name inferences of its application, each once, got ['7']",
        ),
        (
            with_inferences({"after": ["1"]}, {}),
            "inferences: `after` must have no cycle, but '0', '1' wait for each other",
        ),
        ('{"application_id": ', "not JSON: "),
        ("[" * 100_000, "not JSON: "),
        ("[1]", "must be a JSON object, got '[1]'"),
    ],
)
def test_error_names_line_field_value_and_allowed_values(
    tmp_path: Path, line: Any, complaint: str
) -> None:
    """Blank lines count in the line number."""
    assert error_of(tmp_path, APPLICATION, "", line).startswith(f"3: {complaint}")


def test_second_application_with_one_id_is_refused(tmp_path: Path) -> None:
    """Results are joined by the application's id."""
    complaint = error_of(tmp_path, APPLICATION, application_without("weight"))

    first = f"{tmp_path / 'w.jsonl'}:1"
    assert f"2: application_id must be unique, and {first} has it already, got 'a17'" == complaint


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_empty_workload_file_is_refused(tmp_path: Path, content: bytes) -> None:
    """A simulation of an empty file would succeed."""
    (tmp_path / "w.jsonl").write_bytes(content)

    with pytest.raises(ConfigError, match="must hold at least one application, is empty"):
        read_workload(tmp_path / "w.jsonl")


def test_error_of_an_unreadable_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(json.dumps(APPLICATION).encode() + b"\n\xff")
    (tmp_path / "broken.gz").write_bytes(gzip.compress(b"{" * 1000)[:20])
    (tmp_path / "plain.gz").write_bytes(b"{}")

    for name, complaint in [
        ("missing", "missing: cannot be read: .*No such file"),
        (".", "cannot be read: .*directory"),
        ("bytes", "bytes:2: cannot be read: not UTF-8"),
        ("broken.gz", "broken.gz: cannot be read: "),
        ("plain.gz", "plain.gz: cannot be read: Not a gzipped file"),
    ]:
        with pytest.raises(ConfigError, match=complaint):
            read_workload(tmp_path / name)


def test_workload_file_of_two_gigabytes_is_refused_without_reading(tmp_path: Path) -> None:
    """Reading a file of this size would take minutes and gigabytes before the error."""
    file = tmp_path / "w.jsonl"
    with file.open("wb") as sparse:
        sparse.truncate(2 * 1024**3)

    with pytest.raises(ConfigError, match=r"w\.jsonl: must be at most 1 GiB, unpacked"):
        read_workload(file)


def test_endless_workload_lines_and_archives_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small archive can unpack to any size, so unpacked bytes are counted."""
    monkeypatch.setattr(json_lines, "MAX_LINE_BYTES", 2 * 1024**2)
    monkeypatch.setattr(json_lines, "MAX_FILE_BYTES", 3 * 1024**2)
    (tmp_path / "line.gz").write_bytes(gzip.compress(b"\n" + b" " * (2 * 1024**2 + 1)))
    (tmp_path / "lines.gz").write_bytes(gzip.compress((b" " * 1023 + b"\n") * 3073))

    with pytest.raises(ConfigError, match=r"line\.gz:2: a line must be at most 2 MiB long"):
        read_workload(tmp_path / "line.gz")
    with pytest.raises(ConfigError, match=r"lines\.gz: must be at most"):
        read_workload(tmp_path / "lines.gz")
