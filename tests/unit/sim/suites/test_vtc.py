"""The VTC paper's synthetic workloads, against the rates and lengths in its figures."""

from collections import Counter
from itertools import pairwise

import pytest

from justitia_ray.sim.suites import SuiteOptions, build_suite
from justitia_ray.sim.workload import WorkloadApplication


def built(name: str) -> list[WorkloadApplication]:
    return build_suite(name, SuiteOptions(seed=2))


def instants(applications: list[WorkloadApplication], client: str) -> list[float]:
    return [a.arrived_at_s for a in applications if a.tenant == client]


def minutes(applications: list[WorkloadApplication], client: str) -> list[int]:
    """Return a client's number of requests in each minute, without silent minutes at the end."""
    sent = Counter(int(at // 60) for at in instants(applications, client))
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
def test_steady_clients_send_as_much_each_minute(name: str, rates: list[int]) -> None:
    """Fig. 3, 4, 15, 16, 19: evenly spaced requests, for ten minutes."""
    applications = built(name)

    assert {f"client{n}" for n in range(1, len(rates) + 1)} == {a.tenant for a in applications}
    for number, rate in enumerate(rates, start=1):
        assert [rate] * 10 == minutes(applications, f"client{number}")
        gaps = [b - a for a, b in pairwise(instants(applications, f"client{number}"))]
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
def test_lengths_are_those_of_the_figure(name: str, lengths: list[tuple[int, int]]) -> None:
    """Fig. 3, 7, 8, 15."""
    applications = built(name)

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
    """Fig. 5 and 6."""
    applications = built(name)

    assert [on, 0, on, 0, on, 0, on, 0, on] == minutes(applications, "client1")
    assert [steady] * 10 == minutes(applications, "client2")


def test_poisson_clients_send_their_rate_irregularly() -> None:
    """Fig. 7: 480 and 90 a minute over ten minutes, with different numbers per minute."""
    applications = built("poisson-short-long")

    assert {"client1": 4800, "client2": 900} == Counter(a.tenant for a in applications)
    assert 1 < len(set(minutes(applications, "client1")))


def test_growing_client_ends_at_its_rate() -> None:
    """Fig. 9: 12 to 120 a minute. Minute m has 12 + 10.8·(m + ½) requests, 660 in all."""
    applications = built("increasing")

    expected = [12 + 10.8 * (minute + 0.5) for minute in range(10)]
    assert 660 == round(sum(expected))
    assert expected == pytest.approx(minutes(applications, "client2"), abs=1)
    assert 660 == sum(minutes(applications, "client2"))
    assert [30] * 10 == minutes(applications, "client1")


def test_distribution_shifts_every_five_minutes() -> None:
    """Fig. 10: ON/OFF at 30 beside a steady client, then 60 and 60, then 30 and 90.

    The rate of client 2 in the first phase is the artifact's, 120; the figure only says overload.
    """
    applications = built("distribution-shift")

    assert [30, 0, 30, 0, 30] + [60] * 5 + [30] * 5 == minutes(applications, "client1")
    assert [120] * 5 + [60] * 5 + [90] * 5 == minutes(applications, "client2")


def test_weights_are_those_of_the_figure() -> None:
    """Fig. 16: weights 1, 2, 3 and 4; in all other figures the weights are equal."""
    assert {("client1", 1.0), ("client2", 2.0), ("client3", 3.0), ("client4", 4.0)} == {
        (a.tenant, a.weight) for a in built("four-clients-weighted")
    }
    assert {1.0} == {a.weight for a in built("eight-clients-overload")}


def test_each_request_is_an_application_of_its_client() -> None:
    """VTC has no applications: with `unit: tenant` its clients are our tenants."""
    applications = built("three-clients")

    assert {1} == {len(a.inferences) for a in applications}
    assert [f"a{n}" for n in range(1350)] == [a.application_id for a in applications]
    whole = built("three-clients")
    short = build_suite("three-clients", SuiteOptions(seed=2, window_s=60, count=5))
    assert 5 == len(short)
    assert [a.arrived_at_s for a in short] == pytest.approx(
        [a.arrived_at_s / 10 for a in whole[:5]], abs=1e-5
    )


def test_seeds_shift_the_clients_against_each_other() -> None:
    """Five seeds must not give the same run five times."""
    one, other = (build_suite("three-clients", SuiteOptions(seed=seed)) for seed in (1, 2))

    assert instants(one, "client1") != instants(other, "client1")
