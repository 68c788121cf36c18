"""Tests of the arrival times of applications."""

import random
from itertools import pairwise
from pathlib import Path

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.sim.suites.options import ARRIVALS, arrival_times, thinned_arrivals
from tests.unit.sim.data_directory import REAL, needs_real_data, write_text

HEADER = "arrival_s,input_tokens,output_tokens\n"


def drawn_arrivals(
    kind: str, count: int, window_s: float, data_dir: Path | None = None
) -> list[float]:
    return arrival_times(kind, count, window_s, random.Random("0"), data_dir)


def test_first_rows_of_a_trace_are_stretched_to_the_window(tmp_path: Path) -> None:
    rows = "10,1,1\n11,1,1\n14,1,1\n99,1,1\n"
    write_text(tmp_path / "arrivals" / "azure_conv_2023.csv", HEADER + rows)

    assert [0.0, 10.0, 40.0] == drawn_arrivals("azure-conv", 3, 40, tmp_path)
    write_text(tmp_path / "arrivals" / "azure_code_2023.csv", HEADER + "7,1,1\n")
    assert [0.0] == drawn_arrivals("azure-code", 1, 60, tmp_path)


def test_short_arrival_trace_is_repeated(tmp_path: Path) -> None:
    write_text(tmp_path / "arrivals" / "lmsys_vtc_arrivals.csv", HEADER + "0,1,1\n1,1,1\n")

    assert [0.0, 10.0, 20.0, 30.0] == drawn_arrivals("lmsys", 4, 30, tmp_path)


def test_equal_timestamps_of_the_mooncake_trace_are_spread(tmp_path: Path) -> None:
    """Up to 28 requests of the trace share a timestamp and would arrive as one batch."""
    rows = "0,1,1\n" * 50 + "3,1,1\n" * 50
    write_text(tmp_path / "arrivals" / "mooncake_arrivals.csv", HEADER + rows)

    instants = drawn_arrivals("mooncake", 100, 6, tmp_path)

    assert 100 == len(set(instants))
    assert 0.0 == instants[0] < instants[-1] == 6.0
    # Half of the rows come before 3 s, and stretching 5.9 s to 6 s moves few of them.
    assert 50 == pytest.approx(sum(at < 3 for at in instants), abs=3)


def test_thinned_trace_keeps_its_arrival_pattern(tmp_path: Path) -> None:
    """Nine in ten rows arrive in the first hundred seconds, before and after thinning."""
    rows = "".join(f"{5 + at / 9},1,1\n" for at in range(900))
    rows += "".join(f"{105 + at},1,1\n" for at in range(100))
    path = tmp_path / "arrivals" / "azure_code_2023.csv"
    write_text(path, HEADER + rows)

    instants = thinned_arrivals("azure-code", 200, random.Random("0"), tmp_path)

    assert 200 == len(instants)
    assert 0.0 == instants[0]
    assert sorted(instants) == instants
    assert 180 == pytest.approx(sum(at < 100 for at in instants), abs=15)
    with pytest.raises(ConfigError, match=r"must hold at least 1001 arrivals, has 1000"):
        thinned_arrivals("azure-code", 1_001, random.Random("0"), tmp_path)


@pytest.mark.parametrize("kind", ARRIVALS)
def test_arrival_window_scales_the_arrivals(kind: str, tmp_path: Path) -> None:
    """The paper's 1x and 3x loads differ only in density."""
    for name in ("mooncake_arrivals", "azure_conv_2023", "azure_code_2023", "lmsys_vtc_arrivals"):
        rows = "".join(f"{number**1.5},1,1\n" for number in range(20))
        write_text(tmp_path / "arrivals" / f"{name}.csv", HEADER + rows)

    sparse, dense = (
        drawn_arrivals(kind, 20, 1080, tmp_path),
        drawn_arrivals(kind, 20, 360, tmp_path),
    )

    assert sparse == pytest.approx([3 * at for at in dense], abs=1e-5)
    assert sorted(dense) == dense
    assert 0 <= dense[0] < dense[-1] <= 360


def test_uniform_arrivals_are_evenly_spaced() -> None:
    assert [0.0, 2.0, 4.0, 6.0] == drawn_arrivals("uniform", 4, 8)


def test_poisson_gaps_have_a_coefficient_of_variation_of_one() -> None:
    instants = drawn_arrivals("poisson", 4000, 4000)

    gaps = [later - earlier for earlier, later in pairwise(instants)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert deviation / mean == pytest.approx(1.0, abs=0.08)


def test_trace_without_directory_or_rows_is_refused(tmp_path: Path) -> None:
    """The error lists the available traces."""
    with pytest.raises(ConfigError, match=r"'mooncake' are a recorded trace.* poisson, uniform"):
        drawn_arrivals("mooncake", 3, 60)
    write_text(tmp_path / "arrivals" / "azure_code_2023.csv", HEADER)
    with pytest.raises(ConfigError, match=r"azure_code_2023\.csv: must hold at least one arrival"):
        drawn_arrivals("azure-code", 1, 60, tmp_path)


@needs_real_data
@pytest.mark.parametrize("kind", ["mooncake", "azure-conv", "azure-code", "lmsys"])
def test_arrivals_of_real_traces_fill_the_window(kind: str) -> None:
    """The paper plays 300 applications in six minutes."""
    instants = drawn_arrivals(kind, 300, 360, REAL)

    assert 300 == len(instants)
    assert (0.0, 360.0) == (instants[0], instants[-1])
    assert sorted(instants) == instants
