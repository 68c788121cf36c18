"""The synthetic workloads of the VTC paper: Fig. 3 to 10."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from justitia_ray.report.chart import Chart
from justitia_ray.report.experiment import (
    Arm,
    Comparison,
    Experiment,
    Found,
    Metric,
    Scale,
    Target,
    Task,
)
from justitia_ray.report.experiments import requests

_CLIENTS = (requests.client_latency(1), requests.client_latency(2))
_GAPS = (requests.GAP, requests.MOST, requests.MEAN, requests.THROUGHPUT)
_JUSTITIA = (
    "justitia is with fairness: tenant, and known lengths; vtc knows none, so it is not a fair "
    "fight: beside it stands what knowing them is worth."
)
_BOUND = 2 * 2 * 10_000
"""2·max(w_p·L_input, w_q·M) of VTC's Theorem 4.4, with M = 10,000 and w_q = 2."""


@dataclass(frozen=True, slots=True)
class _Figure:
    """One suite and what is drawn of it."""

    name: str
    suite: str
    arms: Sequence[str]
    gaps: bool = False
    rates_of: Sequence[str] = ()
    latency_of: Sequence[str] = ()
    files: Mapping[str, str] | None = None
    """Recorded runs by arm."""
    span_s: float = 600.0
    count: int | None = None
    """Only so many requests."""
    quick_count: int | None = None
    """In a quick report, where all of them take too long."""

    def tasks(self, scale: Scale, seed: int) -> Mapping[Arm, Task]:
        """Return the arms."""
        count = self.quick_count if scale.is_quick and self.quick_count else self.count
        load = requests.load(self.suite, scale, seed, count)
        return {
            **requests.arms(self.arms, load, seed),
            **requests.recorded(scale, self.files or {}),
        }

    def charts(self, _: Scale, found: Found) -> list[Chart]:
        """Return what the paper draws."""
        charts = []
        if self.gaps:
            title = "Largest gap between clients in accumulated service"
            charts.append(requests.gap_chart(f"{self.name}-gap", title, found, self.arms))
        for arm in self.rates_of:
            title = f"Received service of each client under {arm}, first seed"
            charts.append(
                requests.rates_chart(f"{self.name}-rates-{arm}", title, found, arm, self.span_s)
            )
        for arm in self.latency_of:
            title = f"First-token latency of each client under {arm}, first seed"
            charts.append(
                requests.latency_chart(f"{self.name}-latency-{arm}", title, found, arm, self.span_s)
            )
        return charts


def _experiment(
    figure: _Figure,
    title: str,
    source: str,
    about: str,
    metrics: tuple[Metric, ...],
    comparisons: tuple[Comparison, ...],
    targets: tuple[Target, ...] = (),
) -> Experiment:
    return Experiment(
        name=figure.name,
        title=title,
        source=source,
        about=about,
        arms=figure.tasks,
        measure=requests.measure_with(),
        metrics=metrics,
        comparisons=comparisons,
        targets=targets,
        charts=figure.charts,
        quick_seeds=1,
    )


_GAP_AGAINST_VTC = (Comparison("largest_gap", "vtc"), Comparison("tokens_per_s", "vtc"))
_FIRST_AGAINST_FCFS = (
    Comparison("client1_latency_s", "fcfs"),
    Comparison("client2_latency_s", "fcfs"),
)

VTC_FIGURES: tuple[Experiment, ...] = (
    _experiment(
        _Figure(
            "vtc-overload",
            "two-clients-overload",
            ("fcfs", "vtc", "justitia"),
            gaps=True,
            rates_of=("vtc",),
            files={"fcfs": "fcfs__overload", "vtc": "vtc__overload"},
        ),
        "Two overloaded clients",
        "VTC, Fig. 3",
        "90 and 180 requests a minute of 256 + 256 tokens, both above their share. VTC keeps the "
        f"gap between clients below 2·max(w_p·L, w_q·M) = {_BOUND:,}, FCFS lets it grow. "
        f"{_JUSTITIA} The recorded run of vtc ends its arrivals after 360 s. The engine is fitted "
        "to recorded runs of fcfs only.",
        _GAPS,
        _GAP_AGAINST_VTC,
        (
            Target(
                "VTC’s gap within its Theorem 4.4",
                Arm("", "vtc"),
                "largest_gap",
                at_most=float(_BOUND),
            ),
        ),
    ),
    _experiment(
        _Figure(
            "vtc-proportional",
            "three-clients",
            ("fcfs", "vtc", "justitia"),
            rates_of=("vtc",),
            latency_of=("fcfs", "vtc"),
            files={"fcfs": "fcfs__proportional", "vtc": "vtc__proportional"},
        ),
        "Two clients below their share, one above",
        "VTC, Fig. 4",
        "15, 30 and 90 requests a minute. The first two are to be served at once, the third gets "
        "the rest.",
        (*_CLIENTS, requests.client_latency(3), requests.THROUGHPUT),
        _FIRST_AGAINST_FCFS,
    ),
    _experiment(
        _Figure(
            "vtc-on-off",
            "on-off-less",
            ("fcfs", "vtc", "justitia"),
            rates_of=("vtc",),
            latency_of=("vtc",),
            files={"fcfs": "fcfs__on_off_less"},
        ),
        "ON/OFF below the share",
        "VTC, Fig. 5",
        "Client 1 sends 30 a minute in ON minutes only, client 2 120 a minute always. When the one "
        "is off, the other has everything.",
        (*_CLIENTS, requests.THROUGHPUT),
        _FIRST_AGAINST_FCFS,
    ),
    _experiment(
        _Figure(
            "vtc-on-off-overload",
            "on-off-overload",
            ("fcfs", "lcf", "vtc", "justitia"),
            gaps=True,
            rates_of=("vtc",),
            files={"fcfs": "fcfs__on_off_overload"},
        ),
        "ON/OFF above the share",
        "VTC, Fig. 6",
        "Client 1 sends 120 a minute in ON minutes, so that it is backlogged in OFF minutes too; "
        "client 2 180 a minute. Both are to receive as much.",
        _GAPS,
        _GAP_AGAINST_VTC,
    ),
    _experiment(
        _Figure(
            "vtc-poisson",
            "poisson-short-long",
            ("fcfs", "vtc", "justitia"),
            gaps=True,
            files={"fcfs": "fcfs__poisson_short_long"},
            quick_count=1_900,
        ),
        "Poisson arrivals, short against long requests",
        "VTC, Fig. 7",
        "480 requests a minute of 64 + 64 tokens beside 90 of 256 + 256. justitia shares KV "
        "token-time, of which one of the second has 16 times as much as one of the first, and 4 "
        "times as much service as VTC counts it: measured in the latter it must lose.",
        _GAPS,
        _GAP_AGAINST_VTC,
    ),
    _experiment(
        _Figure(
            "vtc-poisson-2",
            "poisson-short-long-2",
            ("fcfs", "vtc", "justitia"),
            gaps=True,
            count=4_275,
            quick_count=1_425,
        ),
        "Poisson arrivals, long outputs against long prompts",
        "VTC, Fig. 8",
        "480 requests a minute of 64 + 512 tokens beside 90 of 512 + 64, for 7.5 minutes, "
        "which keeps both backlogged for ten. justitia shares KV token-time, of "
        "which one of the first has 4.7 times as much as one of the second, and 1.7 times as much "
        "service as VTC counts it: measured in the latter it must lose.",
        _GAPS,
        _GAP_AGAINST_VTC,
    ),
    _experiment(
        _Figure(
            "vtc-isolation",
            "increasing",
            ("fcfs", "vtc", "justitia"),
            rates_of=("vtc",),
            latency_of=("fcfs", "vtc"),
            files={"fcfs": "fcfs__increase"},
        ),
        "Isolation from an ill-behaved client",
        "VTC, Fig. 9",
        "Client 1 sends 30 a minute, client 2 more and more. Client 1’s latency is to stay as it "
        "is.",
        (*_CLIENTS, requests.THROUGHPUT),
        _FIRST_AGAINST_FCFS,
    ),
    _experiment(
        _Figure(
            "vtc-shift",
            "distribution-shift",
            ("lcf", "vtc", "justitia"),
            rates_of=("vtc", "lcf"),
            span_s=900.0,
        ),
        "Distribution shift",
        "VTC, Fig. 10",
        "Five minutes ON/OFF, five of overload by both, five of overload by one. In the second "
        "phase both clients are to get as much; LCF favours client 1 for what it missed before. "
        "Measures are over the first 600 s.",
        _GAPS,
        (Comparison("mean_difference", "vtc"), Comparison("largest_gap", "vtc")),
    ),
)
