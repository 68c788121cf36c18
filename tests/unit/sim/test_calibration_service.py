"""VTC's measures of service: by hand, and the paper's own tables from its measured runs."""

import pytest

from justitia_ray.sim.calibration.measured import TimedRequest, read_run
from justitia_ray.sim.calibration.service import service_over_time
from tests.unit.sim.measured_data import measured_run_path


def test_cost_is_received_evenly_from_the_first_token_to_the_end() -> None:
    """A cost of 100 + 2·250 = 600 over 60 s is 10 a second.

    The clients send for 630 s: instants at 30 + 30·i s, windows of ± 30 s. The request decodes
    from 60 s to 120 s: half of it falls into the window about 60 s, all of it into that about 90 s.
    """
    requests = [
        TimedRequest("a", 0.0, 100, 250, 60.0, 120.0),
        TimedRequest("b", 630.0, 1, 1, 2000.0, 2001.0),
    ]
    service = service_over_time(requests)

    assert ("a", "b") == service.clients
    assert [60.0, 90.0, 120.0, 150.0, 180.0] == pytest.approx(service.ticks_s[:5].tolist())
    assert [5.0, 10.0, 5.0, 0.0, 0.0] == pytest.approx(service.received[0, :5].tolist())
    assert [0.0, 300.0, 600.0, 600.0, 600.0] == pytest.approx(service.accumulated[0, :5].tolist())
    assert 0 == service.received[1].sum()


def test_request_counts_as_requested_when_it_arrives() -> None:
    """600 in a window of 60 s is 10 a second, wherever it is served."""
    requests = [TimedRequest("a", 100.0, 100, 250, 900.0, 960.0)]
    service = service_over_time(requests, span_s=630.0)

    # Windows about 90 and 120 s hold the arrival at 100 s; those about 60 and 150 s do not.
    assert [0.0, 10.0, 10.0, 0.0] == service.requested[0, :4].tolist()


def test_client_that_asked_for_no_more_is_not_behind() -> None:
    """A difference is what a client lacks: no more than it requested and did not receive.

    Both decode from 60 to 120 s; a asks for 600 and b for 6 about then, and both get it: a is
    ahead, and b lacks nothing. If b had asked for 606 in that window, 600 of it in vain, it would
    lack (600 − 6) / 60 = 9.9 a second against a.
    """
    served = [
        TimedRequest("a", 80.0, 100, 250, 60.0, 120.0),
        TimedRequest("b", 80.0, 2, 2, 60.0, 120.0),
    ]
    refused = TimedRequest("b", 80.0, 100, 250, 5000.0, 5060.0)

    assert 0 == pytest.approx(service_over_time(served, 630.0).differences()[1])
    assert 9.9 == pytest.approx(service_over_time([*served, refused], 630.0).differences()[1])
    assert 594 == pytest.approx(service_over_time(served, 630.0).accumulated_differences()[-1])


@pytest.mark.parametrize(
    ("name", "largest", "mean", "tolerance"),
    [
        # Table 2, whose means and variances are of other digits of the times than the file's.
        ("fcfs__real.csv.gz", 759.97, 433.53, 0.003),
        ("vtc__real.csv.gz", 368.40, 251.66, 0.003),
        # Table 5.
        ("vtc__overload.csv.gz", 192.88, 103.77, 0.0001),
    ],
)
def test_tables_of_the_paper_follow_from_its_measured_runs(
    name: str, largest: float, mean: float, tolerance: float
) -> None:
    """The measures are those of the paper, not something of that name."""
    run = read_run(measured_run_path(name))
    differences = service_over_time(run.requests, span_s=600.0).differences()

    assert largest == pytest.approx(differences.max(), rel=1e-4)
    assert mean == pytest.approx(differences.mean(), rel=tolerance)
