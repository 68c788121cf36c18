"""The VTC paper's measures: by hand on two requests, and on its own recorded runs."""

import csv
import gzip
import os
from pathlib import Path

import pytest

from justitia_ray.report import service
from justitia_ray.report.service import Served
from justitia_ray.report.tasks import Recording

_A = Served("a", 0.0, 10.0, 20.0, 40, 30)
"""Service 40 + 2·30 = 100, 10 a second from 10 to 20 s."""
_B = Served("b", 0.0, 15.0, 35.0, 20, 40)
"""Service 100, 5 a second from 15 to 35 s."""


def test_service_counts_evenly_from_first_token_to_end() -> None:
    """In (8, 18) a receives 8 s of 10 a second, b 3 s of 5; in (18, 28) 2 s and 10 s of them."""
    rates = service.service_rates([_A, _B], [13.0, 23.0], window_s=10.0)

    assert [8.0, 2.0] == rates["a"]
    assert [1.5, 5.0] == rates["b"]


def test_gap_is_between_accumulated_services() -> None:
    """By 15 s a has 50 and b 0; by 35 s both have their 100."""
    assert [50.0, 0.0] == service.accumulated_gap([_A, _B], [15.0, 35.0])


def test_what_came_before_does_not_accumulate() -> None:
    """From 15 s on a receives 50 of its 100 and b all: a table leaves its warm-up out."""
    assert [50.0] == service.accumulated_gap([_A, _B], [35.0], from_s=15.0)


def test_response_time_is_at_the_first_token() -> None:
    """The first token of a is at 10 s, after 10 s; around 50 s there is none, and that is no 0."""
    found = service.response_times([_A, _B], [10.0, 50.0], window_s=4.0)

    assert [10.0, None] == found["a"]
    assert [None, None] == found["b"]


def test_difference_is_bounded_by_what_was_asked_for() -> None:
    """A client that asked for no more than it got is not behind one that got more.

    At 13 s, window 60 (−17 to 43): each got 100/60 and asked for 100/60. At 45 s (15 to 75): a got
    50/60 and b 100/60, both asked for nothing: a's |r − s| = 50/60 ties with the best's lead, b is
    the best. So the sums are 0 and 50/60.
    """
    found = service.service_difference([_A, _B], [13.0, 45.0])

    assert found.most == pytest.approx(50 / 60)
    assert found.mean == pytest.approx(25 / 60)
    assert found.variance == pytest.approx((25 / 60) ** 2)


def test_throughput_counts_prompt_and_output() -> None:
    """70 and 60 tokens in the 35 s from the first submission to the last end."""
    assert service.throughput([_A, _B]) == pytest.approx(130 / 35)


def test_table_instants_are_those_of_the_paper() -> None:
    """19 instants, 28.5 s apart after a warm-up of 30 s: the last 28.5 s before the ten minutes."""
    at = service.table_instants()

    assert 19 == len(at)
    assert (58.5, 571.5) == (at[0], at[-1])


_LATENCIES = ("first_token_latency_s", "latency_s")


def _data() -> Path:
    places = [os.environ.get("JUSTITIA_DATA"), Path(__file__).parents[4] / "shared" / "data"]
    for place in places:
        if place and (Path(place) / "vtc_runs").is_dir():
            return Path(place)
    pytest.skip("needs the data directory, in JUSTITIA_DATA")


@pytest.mark.parametrize(
    ("file", "most", "mean", "throughput"),
    [
        ("fcfs__real", 759.97, 433.53, 777),
        ("vtc__real", 368.40, 251.66, 779),
        ("vtc__overload", 192.88, 103.77, 893),
    ],
)
def test_recorded_runs_give_the_published_tables(
    file: str, most: float, mean: float, throughput: float
) -> None:
    """Tables 2 and 5 come out of the authors' own recordings: so the definitions are theirs.

    The recordings' times are rounded, which moves a figure by some tenths of a percent.
    """
    run = Recording(_data() / "vtc_runs" / f"{file}.csv.gz", file).run()
    served = service.served_requests(run)
    found = service.service_difference(served, service.table_instants())

    assert found.most == pytest.approx(most, rel=0.001)
    assert found.mean == pytest.approx(mean, rel=0.003)
    assert service.throughput(served) == pytest.approx(throughput, rel=0.002)


def test_aborted_requests_are_not_served(tmp_path: Path) -> None:
    """A request with no latency was refused: it received nothing, and is no request of the run."""
    path = tmp_path / "run.csv.gz"
    with gzip.open(path, "wt", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["client", "arrival_s", "prompt_tokens", "output_tokens", *_LATENCIES])
        rows.writerow([3, 1.5, 10, 20, 0.5, 2.0])
        rows.writerow([4, 2.5, 10, 20, "", ""])

    assert [Served("3", 1.5, 2.0, 3.5, 10, 20)] == service.served_requests(
        Recording(path, "run").run()
    )
