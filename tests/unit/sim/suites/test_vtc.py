"""The VTC paper's synthetic workloads, against the rates and lengths in its figures."""

from collections import Counter
from itertools import pairwise

import pytest

from justitia_ray.sim.suites import SuiteOptions, build_suite
from justitia_ray.sim.workload import WorkloadApplication


def suite_of(name: str) -> list[WorkloadApplication]:
    return build_suite(name, SuiteOptions(seed=2))


def arrivals_of(applications: list[WorkloadApplication], client: str) -> list[float]:
    return [a.arrived_at_s for a in applications if a.tenant == client]


def requests_per_minute(applications: list[WorkloadApplication], client: str) -> list[int]:
    """Return a client's number of requests in each minute, up to its last one."""
    sent = Counter(int(at // 60) for at in arrivals_of(applications, client))
    return [sent[minute] for minute in range(max(sent) + 1)]


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("two-clients-overload", [90, 180]),
        ("two-clients-overload-256", [180, 360]),
        ("two-clients-overload-512", [90, 180]),
        ("two-clients-overload-768", [60, 120]),
        ("three-clients", [15, 30, 90]),
        ("four-clients-weighted", [24, 48, 72, 96]),
        ("eight-clients-overload", [24, 24, 24, 36, 36, 36, 36, 36]),
    ],
)
def test_steady_clients_send_equally_many_requests_each_minute(name: str, rates: list[int]) -> None:
    """Fig. 3, 4, 15, 16 and 19 of the VTC paper have evenly spaced requests."""
    applications = suite_of(name)

    assert {f"client{n}" for n in range(1, len(rates) + 1)} == {a.tenant for a in applications}
    for number, rate in enumerate(rates, start=1):
        assert [rate] * 10 == requests_per_minute(applications, f"client{number}")
        gaps = [b - a for a, b in pairwise(arrivals_of(applications, f"client{number}"))]
        assert gaps == pytest.approx([60 / rate] * len(gaps), abs=1e-5)


@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        ("two-clients-overload", [(256, 256), (256, 256)]),
        ("two-clients-overload-512", [(512, 512), (512, 512)]),
        ("two-clients-overload-768", [(768, 768), (768, 768)]),
        ("poisson-short-long", [(64, 64), (256, 256)]),
        ("poisson-short-long-2", [(64, 512), (512, 64)]),
    ],
)
def test_request_lengths_equal_the_papers_figures(
    name: str, lengths: list[tuple[int, int]]
) -> None:
    """Fig. 3, 7, 8 and 15 of the VTC paper give the lengths."""
    applications = suite_of(name)

    for number, expected in enumerate(lengths, start=1):
        assert {expected} == {
            (i.prompt_tokens, i.output_tokens)
            for a in applications
            if a.tenant == f"client{number}"
            for i in a.inferences
        }


@pytest.mark.parametrize(
    ("name", "on", "steady"), [("on-off-less", 30, 120), ("on-off-overload", 120, 180)]
)
def test_on_off_client_is_silent_every_other_minute(name: str, on: int, steady: int) -> None:
    """Fig. 5 and 6 of the VTC paper have an ON/OFF client."""
    applications = suite_of(name)

    assert [on, 0, on, 0, on, 0, on, 0, on] == requests_per_minute(applications, "client1")
    assert [steady] * 10 == requests_per_minute(applications, "client2")


def test_poisson_clients_have_their_rates() -> None:
    """Fig. 7 of the VTC paper: 480 and 90 requests a minute over ten minutes."""
    applications = suite_of("poisson-short-long")

    assert {"client1": 4800, "client2": 900} == Counter(a.tenant for a in applications)
    assert 1 < len(set(requests_per_minute(applications, "client1")))


def test_rate_of_the_growing_client_rises_evenly() -> None:
    """The growing client of Fig. 9 of the VTC paper has 660 requests in all.

    Fig. 9: 12 to 120 a minute. Minute m has 12 + 10.8·(m + ½) requests, 660 in all.
    """
    applications = suite_of("increasing")

    expected = [12 + 10.8 * (minute + 0.5) for minute in range(10)]
    assert 660 == round(sum(expected))
    assert expected == pytest.approx(requests_per_minute(applications, "client2"), abs=1)
    assert 660 == sum(requests_per_minute(applications, "client2"))
    assert [30] * 10 == requests_per_minute(applications, "client1")


def test_load_of_the_shift_suite_changes_every_five_minutes() -> None:
    """Fig. 10 of the VTC paper: three phases of five minutes with different clients.

    The rate of client 2 in the first phase is the artifact's, 120; the figure only says overload.
    """
    applications = suite_of("distribution-shift")

    assert [30, 0, 30, 0, 30] + [60] * 5 + [30] * 5 == requests_per_minute(applications, "client1")
    assert [120] * 5 + [60] * 5 + [90] * 5 == requests_per_minute(applications, "client2")


def test_client_weights_equal_the_papers_figures() -> None:
    """Fig. 16 of the VTC paper has weights 1, 2, 3 and 4, all other figures equal ones."""
    assert {("client1", 1.0), ("client2", 2.0), ("client3", 3.0), ("client4", 4.0)} == {
        (a.tenant, a.weight) for a in suite_of("four-clients-weighted")
    }
    assert {1.0} == {a.weight for a in suite_of("eight-clients-overload")}


def test_each_request_is_an_application_of_its_client() -> None:
    """VTC has no applications, so its clients are this project's tenants."""
    applications = suite_of("three-clients")

    assert {1} == {len(a.inferences) for a in applications}
    assert [f"a{n}" for n in range(1350)] == [a.application_id for a in applications]
    whole = suite_of("three-clients")
    short = build_suite("three-clients", SuiteOptions(seed=2, window_s=60, count=5))
    assert 5 == len(short)
    assert [a.arrived_at_s for a in short] == pytest.approx(
        [a.arrived_at_s / 10 for a in whole[:5]], abs=1e-5
    )


def test_seed_changes_the_arrivals_of_a_client() -> None:
    """Five seeds must not give the same run five times."""
    one, other = (build_suite("three-clients", SuiteOptions(seed=seed)) for seed in (1, 2))

    assert arrivals_of(one, "client1") != arrivals_of(other, "client1")
