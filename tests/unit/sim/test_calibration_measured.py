"""Measured requests: the CSV as it is read and written, and as a workload."""

import gzip
from pathlib import Path

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.sim.calibration.measured import (
    COLUMNS,
    TimedRequest,
    as_workload,
    read_run,
    write_run,
)

HEADER = ",".join(COLUMNS)


def file(directory: Path, *lines: str, name: str = "run.csv", header: str = HEADER) -> Path:
    """Write a file of measured requests."""
    path = directory / name
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_latencies_are_counted_from_the_arrival(tmp_path: Path) -> None:
    """The file has latencies, the measures need instants."""
    run = read_run(file(tmp_path, "7,2.0,256,128,0.5,9.25"))

    assert (TimedRequest("7", 2.0, 256, 128, 2.5, 11.25),) == run.requests
    assert 0.5 == run.requests[0].first_token_latency_s


def test_name_of_the_file_says_the_policy(tmp_path: Path) -> None:
    """`vtc__real.csv.gz` was measured under VTC; a name that says nothing means FCFS."""
    line = "7,2.0,256,128,0.5,9.25"
    named = {name: file(tmp_path, line, name=name) for name in ("vtc__real.csv", "mine__x.csv")}

    assert "vtc" == read_run(named["vtc__real.csv"]).policy
    assert "fcfs" == read_run(named["mine__x.csv"]).policy
    assert "lcf" == read_run(named["vtc__real.csv"], "lcf").policy


def test_packed_file_columns_in_another_order_and_blank_lines_are_read(tmp_path: Path) -> None:
    """The data come packed, and spreadsheets reorder columns."""
    path = tmp_path / "fcfs__a.csv.gz"
    header = ",".join(reversed(COLUMNS))
    path.write_bytes(gzip.compress(f"{header}\n\n9.25,0.5,128,256,2.0,7\n".encode()))

    assert (TimedRequest("7", 2.0, 256, 128, 2.5, 11.25),) == read_run(path).requests


def test_aborted_request_is_counted_and_left_out(tmp_path: Path) -> None:
    """It was refused, so it has no times to be compared."""
    run = read_run(file(tmp_path, "7,2.0,256,128,,", "7,2.0,256,128,0.5,9.25"))

    assert 1 == run.aborted
    assert 1 == len(run.requests)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("7,soon,1,1,1,2", "arrival_s must be a number >= 0, got 'soon'"),
        ("7,-1,1,1,1,2", "arrival_s must be a number >= 0, got '-1'"),
        ("7,nan,1,1,1,2", "arrival_s must be a number >= 0, got 'nan'"),
        ("7,0,0,1,1,2", "prompt_tokens must be a whole number >= 1, got '0'"),
        ("7,0,1,1.5,1,2", "output_tokens must be a whole number >= 1, got '1.5'"),
        ("7,0,1,1,3,2", "latency_s must be at least first_token_latency_s = 3, got 2"),
        ("7,0,1,1,1", "must have 6 fields, got 5"),
    ],
)
def test_wrong_line_is_named_with_field_value_and_what_is_allowed(
    line: str, said: str, tmp_path: Path
) -> None:
    """A file of thousands of lines is mended at the line that the error names."""
    path = file(tmp_path, "7,2.0,256,128,0.5,9.25", line)
    with pytest.raises(ConfigError) as error:
        read_run(path)

    assert f"{path}:3: {said}" == str(error.value)


def test_other_header_and_empty_file_are_refused(tmp_path: Path) -> None:
    """A file of arrivals has no times to fit anything on."""
    arrivals = file(tmp_path, "0,1,1", name="a.csv", header="arrival_s,input_tokens,output_tokens")
    only_aborted = file(tmp_path, "7,2.0,256,128,,", name="b.csv")
    for path, said in (
        (arrivals, f"{arrivals}:1: the header must name {', '.join(COLUMNS)}, each once"),
        (only_aborted, f"{only_aborted}: must hold at least one request with a latency"),
        (tmp_path / "none.csv", f"{tmp_path / 'none.csv'}: cannot be read"),
    ):
        with pytest.raises(ConfigError) as error:
            read_run(path)

        assert str(error.value).startswith(said)


@pytest.mark.parametrize("name", ["live.csv", "live.csv.gz"])
def test_written_requests_are_read_again(tmp_path: Path, name: str) -> None:
    """A live calibration can be repeated from the requests that it kept, packed or not."""
    requests = (TimedRequest("a", 0.25, 16, 64, 1.5, 4.75), TimedRequest("b", 1.0, 8, 1, 2.0, 2.0))
    path = tmp_path / name
    write_run(path, requests)

    assert requests == read_run(path).requests
    assert [name] == [entry.name for entry in tmp_path.iterdir()]


def test_request_becomes_an_application_of_its_client() -> None:
    """VTC compares clients: they are tenants here. Times measured do not go into a prediction."""
    (application,) = as_workload([TimedRequest("c", 3.0, 16, 64, 9.0, 99.0)], 1)

    assert ("c", 3.0) == (application.tenant, application.arrived_at_s)
    assert (17, 64) == (
        application.inferences[0].prompt_tokens,
        application.inferences[0].output_tokens,
    )
