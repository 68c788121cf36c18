"""`justitia workload`: arguments, the written file and the summary line."""

from pathlib import Path

import pytest

from justitia_ray.cli.main import main
from justitia_ray.sim.suites import SUITES
from justitia_ray.sim.workload import read_workload
from tests.unit.sim.data_directory import REAL, needs_real_data


def run_workload(*arguments: str) -> int:
    return main(["workload", *arguments])


@pytest.fixture(autouse=True)
def _unset_data_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUSTITIA_DATA", raising=False)


def test_workload_file_is_written_and_summarised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "w.jsonl"

    assert 0 == run_workload("--suite", "three-clients", "--out", str(out))

    assert 1350 == len(read_workload(out))
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith(
        f"{out}: 1,350 applications, 1,350 inferences, 345,600 prompt and 345,600 output tokens,"
        " arriving from "
    )


def test_command_line_options_reach_the_suite(tmp_path: Path) -> None:
    """Every option must change the file, and equal arguments must write equal bytes."""
    files = [tmp_path / name for name in "abc"]
    options = "--count 8 --window-s 80 --arrivals uniform --mix SC=1 --tenants 2 --sc-samples 3"

    for file, seed in zip(files, "334", strict=True):
        run_workload("--suite", "nine-class", *options.split(), "--seed", seed, "--out", str(file))

    first, again, other = (file.read_bytes() for file in files)
    assert first == again != other
    read = read_workload(files[0])
    assert [10.0 * number for number in range(8)] == [a.arrived_at_s for a in read]
    assert {"SC"} == {a.application_class for a in read}
    assert {3} == {len(a.inferences) for a in read}
    assert {"t0", "t1"} == {a.tenant for a in read}


def test_trace_import_reports_the_skipped_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user can compare the number of skipped lines with the log."""
    trace, out = tmp_path / "t.csv", tmp_path / "w.jsonl"
    trace.write_text("arrival_s,input_tokens,output_tokens\n5,10,1\n6,20,0\n7,30,3\n")

    run_workload("--from", str(trace), "--out", str(out))

    assert capsys.readouterr().out == (
        f"{out}: 2 applications, 2 inferences, 40 prompt and 4 output tokens, arriving from 0.0 s"
        " to 2.0 s; left out 1 requests without output\n"
    )


def test_help_names_every_suite(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_workload("--help")

    text = capsys.readouterr().out
    assert [] == [
        name for name, suite in SUITES.items() if f"  {name}" not in text or suite.about not in text
    ]


@needs_real_data
def test_data_directory_may_be_set_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--suite", "nine-class", "--count", "20", "--out"]
    run_workload(*arguments, str(tmp_path / "a"), "--data", str(REAL))

    monkeypatch.setenv("JUSTITIA_DATA", str(REAL))
    run_workload(*arguments, str(tmp_path / "b"))

    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
