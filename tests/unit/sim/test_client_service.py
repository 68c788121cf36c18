"""VTC's measures of service: by hand, and the paper's own tables from its measured runs."""

import math

import pytest

from justitia_ray.sim.calibration.measured import TimedRequest, read_run
from justitia_ray.sim.client_service import (
    ClientService,
    served_requests,
    table_instants,
    tokens_per_s,
)
from justitia_ray.sim.results import ApplicationResult, InferenceResult, RunResult
from tests.unit.sim.data_directory import measured_run_path

_A = TimedRequest("a", 0.0, 40, 30, 10.0, 20.0)
"""Request of client a: service 40 + 2·30 = 100, at 10 per second from 10 to 20 s."""
_B = TimedRequest("b", 0.0, 20, 40, 15.0, 35.0)
"""Request of client b: service 100, at 5 per second from 15 to 35 s."""
_BOTH = ClientService([_B, _A])


def test_service_of_a_request_is_spread_evenly_from_first_token_to_end() -> None:
    a, b = _BOTH.rates([-12.0, 48.0]).tolist()

    assert ("a", "b") == _BOTH.clients
    assert [80 / 60, 20 / 60, 15 / 60, 85 / 60] == pytest.approx([*a, *b])


def test_request_that_ends_at_its_first_token_counts_as_served() -> None:
    """A request that ends at its first token has a service without duration.

    The service 30 + 2·15 = 60 counts once at 75 s, in the later of the two adjacent windows.
    """
    service = ClientService([TimedRequest("a", 0.0, 30, 15, 75.0, 75.0)])

    assert [[0.0, 1.0]] == service.rates([45.0, 105.0]).tolist()
    assert [[0.0, 60.0]] == service.accumulated([74.9, 75.1], 0.0).tolist()


def test_greatest_service_gap_compares_accumulated_service() -> None:
    assert [50.0, 0.0] == _BOTH.gaps([15.0, 35.0], from_s=0.0).tolist()
    assert [[50.0], [100.0]] == _BOTH.accumulated([35.0], from_s=15.0).tolist()
    assert [50.0] == _BOTH.gaps([35.0], from_s=15.0).tolist()


def test_response_time_is_shown_at_the_first_token() -> None:
    (early, none), (nothing, too) = _BOTH.response_times([-18.0, 50.0]).tolist()

    assert 10.0 == early
    assert all(math.isnan(value) for value in (none, nothing, too))


def test_request_counts_as_demand_from_its_arrival() -> None:
    service = ClientService([TimedRequest("a", 100.0, 100, 250, 900.0, 960.0)])

    assert [[0.0, 10.0, 10.0, 0.0]] == service.demands([60.0, 90.0, 120.0, 150.0]).tolist()


def test_client_that_received_its_whole_demand_has_no_service_difference() -> None:
    """A client that received all it requested is not behind a client that received more.

    At 13 s, window 60 (−17 to 43): each received 100/60 and requested 100/60. At 45 s (15 to 75): a
    received 50/60 and b 100/60, and both requested nothing: a's |r − s| = 50/60 ties with the
    best's lead, b is the best. So the sums are 0 and 50/60.
    """
    assert [0.0, 50 / 60] == pytest.approx(_BOTH.differences([13.0, 45.0]).tolist())


def test_unserved_demand_counts_as_a_service_difference() -> None:
    """Client a requests a hundred times as much as client b.

    Both decode from 60 to 120 s; a requests 600 and b 6 about then, and both receive it.

    If b had requested 606 in that window, 600 of it unserved, it would lack (600 − 6) / 60 = 9.9
    per second against a.
    """
    served = [
        TimedRequest("a", 80.0, 100, 250, 60.0, 120.0),
        TimedRequest("b", 80.0, 2, 2, 60.0, 120.0),
    ]
    refused = TimedRequest("b", 80.0, 100, 250, 5000.0, 5060.0)

    assert [0.0] == pytest.approx(ClientService(served).differences([90.0]).tolist())
    assert [9.9] == pytest.approx(ClientService([*served, refused]).differences([90.0]).tolist())


def test_throughput_counts_prompt_and_output_tokens() -> None:
    assert 130 / 35 == pytest.approx(tokens_per_s([_A, _B]))


def test_unfinished_inference_counts_as_unserved() -> None:
    """Only inferences with a first token and an end have times to measure."""
    application = ApplicationResult("x", "request", "t1", 1.5, 3.5, 2.0, 0, 0, None, None, "done")
    ended = InferenceResult("x", "0", 0, 1.5, None, 2.0, 3.5, 10, 20)
    refused = InferenceResult("x", "1", 0, 1.5, None, None, None, 10, 20)
    result = RunResult(applications=[application], inferences=[ended, refused])

    assert [TimedRequest("t1", 1.5, 10, 20, 2.0, 3.5)] == served_requests(result)


@pytest.mark.parametrize(
    ("name", "largest", "mean", "tolerance", "throughput"),
    [
        # Table 2, whose means and variances use more digits of the times than the file has
        ("fcfs__real.csv.gz", 759.97, 433.53, 0.003, 777),
        ("vtc__real.csv.gz", 368.40, 251.66, 0.003, 779),
        # Table 5 of the paper.
        ("vtc__overload.csv.gz", 192.88, 103.77, 0.0001, 893),
    ],
)
def test_tables_of_the_vtc_paper_follow_from_its_measured_runs(
    name: str, largest: float, mean: float, tolerance: float, throughput: float
) -> None:
    """The implemented measures are exactly those of the paper."""
    requests = read_run(measured_run_path(name)).requests
    differences = ClientService(requests).differences(table_instants())

    assert largest == pytest.approx(differences.max(), rel=1e-4)
    assert mean == pytest.approx(differences.mean(), rel=tolerance)
    assert throughput == pytest.approx(tokens_per_s(requests), rel=0.002)
