"""`justitia workload`: arguments in, a file and one line out."""

import argparse
from pathlib import Path

import pytest

from justitia_ray.cli import workload
from justitia_ray.errors import ConfigError
from justitia_ray.sim.suites import SUITES
from justitia_ray.sim.workload_file import read_workload
from tests.unit.sim.suites.data_directory import REAL, needs_real_data


def run(*arguments: str) -> int:
    """Run the command as `justitia` does, but let its errors through."""
    parser = argparse.ArgumentParser()
    workload.add_to(parser.add_subparsers())
    options = parser.parse_args(["workload", *arguments])
    return int(options.run(options))


@pytest.fixture(autouse=True)
def _no_data_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUSTITIA_DATA", raising=False)


def test_file_is_written_and_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three clients for ten minutes: 1,350 requests of 256 + 256 tokens."""
    out = tmp_path / "w.jsonl"

    assert 0 == run("--suite", "three-clients", "--out", str(out))

    assert 1350 == len(read_workload(out))
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith(
        f"{out}: 1,350 applications, 1,350 inferences, 345,600 prompt and 345,600 output tokens,"
        " arriving from "
    )


def test_options_reach_the_suite(tmp_path: Path) -> None:
    """Each says something about what is written."""
    out = tmp_path / "w.jsonl"
    options = "--count 8 --window-s 80 --seed 3 --arrivals uniform --mix SC=1 --tenants 2"

    run("--suite", "nine-class", *options.split(), "--sc-samples", "3", "--out", str(out))

    read = read_workload(out)
    assert [10.0 * number for number in range(8)] == [a.arrived_at_s for a in read]
    assert {"SC"} == {a.application_class for a in read}
    assert {3} == {len(a.inferences) for a in read}
    assert {"t0", "t1"} == {a.tenant for a in read}


def test_same_arguments_write_the_same_bytes(tmp_path: Path) -> None:
    """And another seed writes others."""
    files = [tmp_path / name for name in ("a", "b", "c")]

    for file, seed in zip(files, ("1", "1", "2"), strict=True):
        run("--suite", "nine-class", "--count", "30", "--seed", seed, "--out", str(file))

    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[0].read_bytes() != files[2].read_bytes()


def test_trace_is_imported_and_what_was_left_out_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user compares the number with that of the log."""
    trace, out = tmp_path / "t.csv", tmp_path / "w.jsonl"
    trace.write_text("arrival_s,input_tokens,output_tokens\n5,10,1\n6,20,0\n7,30,3\n")

    run("--from", str(trace), "--out", str(out))

    assert capsys.readouterr().out == (
        f"{out}: 2 applications, 2 inferences, 40 prompt and 4 output tokens, arriving from 0.0 s"
        " to 2.0 s; left out 1 requests without output\n"
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--suite", "nine"], "suite must be one of nine-class, "),
        (["--suite", "nine-class", "--count", "0"], "count must be a whole number >= 1, got 0"),
        (["--suite", "nine-class", "--data", "/nowhere"], "must be a directory, got '/nowhere'"),
        (["--from", "/nowhere"], "/nowhere: cannot be read"),
        (["--from", "/nowhere", "--data", "/"], "--data goes with --suite, not with --from"),
    ],
)
def test_mistake_writes_nothing(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    """One sentence, and no file that might be taken for a workload."""
    with pytest.raises(ConfigError, match=complaint):
        run(*arguments, "--out", str(tmp_path / "w.jsonl"))

    assert [] == list(tmp_path.iterdir())


def test_every_suite_is_named_by_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """The help is where a user looks for them; argparse would also choke on a `%` here."""
    with pytest.raises(SystemExit):
        run("--help")

    text = capsys.readouterr().out
    assert [] == [
        name for name, suite in SUITES.items() if f"  {name}" not in text or suite.about not in text
    ]


@needs_real_data
def test_data_directory_may_be_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the same as `--data`."""
    arguments = ["--suite", "nine-class", "--count", "20", "--out"]
    run(*arguments, str(tmp_path / "a"), "--data", str(REAL))

    monkeypatch.setenv("JUSTITIA_DATA", str(REAL))
    run(*arguments, str(tmp_path / "b"))

    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
