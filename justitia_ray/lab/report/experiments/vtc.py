"""Experiments of the VTC paper: Fig. 3 to 10, 15, 16 and 19, Tables 2 to 6.

Each request is an application of one inference on an A10G, each client a tenant; policies compare
tenants.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from statistics import fmean
from types import MappingProxyType

import numpy as np

from justitia_ray.cost import weighted_tokens
from justitia_ray.lab.report.experiment import (
    Arm,
    Arms,
    Chart,
    Charts,
    Experiment,
    Found,
    Measure,
    PairedComparison,
    ReportMetric,
    Scale,
    Series,
    Target,
    Task,
    compare_with,
    measure_each,
)
from justitia_ray.lab.report.tasks import (
    ChangedLoad,
    ExperimentLoad,
    PolicyOptions,
    Recording,
    ServedRequests,
    SimulatedRun,
    SuiteLoad,
    requests_per_minute,
)
from justitia_ray.sim.calibration.measured import TimedRequest
from justitia_ray.sim.client_service import (
    TABLE_SPAN_S,
    TABLE_WARM_UP_S,
    ClientService,
    Floats,
    ServiceFunction,
    profiled_service,
    table_instants,
    tokens_per_s,
)
from justitia_ray.sim.engine_profile import EngineProfile, load_profile
from justitia_ray.units import Seconds

_RECORDED = "measured on an A10G"

_COSTED = ("vtc", "lcf", "vtc-predict", "vtc-oracle", "vtc-noisy")
_OPTIONS: dict[str, PolicyOptions] = {
    **dict.fromkeys(_COSTED, (("unit", "tenant"),)),
    "justitia": (("fairness", "tenant"),),
}
"""Options that make each policy treat tenants as the VTC paper's clients."""

_MOST = ReportMetric("most_difference", "max diff", unit="service/s")
_MEAN = ReportMetric("mean_difference", "avg diff", unit="service/s")
_VARIANCE = ReportMetric("difference_variance", "diff var", digits=0)
_THROUGHPUT = ReportMetric("tokens_per_s", "throughput", digits=0, unit="tokens/s", better="high")
_GAP = ReportMetric("largest_gap", "largest gap in accumulated service", digits=0)
_LATENCY = ReportMetric("mean_latency_s", "mean first-token latency", unit="s")
_TABLE = (_MOST, _MEAN, _VARIANCE, _THROUGHPUT)

_CHART_STEPS = 60

_CLIENTS = tuple(
    ReportMetric(f"client{number}_latency_s", f"client {number}: first token after", unit="s")
    for number in (1, 2, 3)
)
_GAPS = (_GAP, _MOST, _MEAN, _THROUGHPUT)
_JUSTITIA = (
    "justitia is with fairness: tenant, and known lengths; vtc knows none, so it is not a fair "
    "fight: beside it stands what knowing them is worth."
)
_BOUND = 2 * 2 * 10_000
"""Bound 2·max(w_p·L_input, w_q·M) of VTC's Theorem 4.4, with M = 10,000 and w_q = 2."""


def _arms_of_suite(
    suite: str,
    names: Sequence[str],
    files: Mapping[str, str],
    *,
    limits: Sequence[int] = (),
    cost: str | None = None,
    count: int | None = None,
    quick_count: int | None = None,
) -> Arms:
    """Return the runs of one of the VTC paper's workloads, at full length.

    Args:
        suite: Name of the suite.
        names: Policies of the arms; they compare tenants as clients.
        files: Files of recorded runs, by arm.
        limits: Requests per minute of the arms `rpm N`, which run fcfs on the requests within the
            limit and refuse the others.
        cost: Cost function of the policies that have one; None: their default.
        count: Number of requests; None: all.
        quick_count: Number of requests in a quick report; None: `count`.
    """

    def arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
        most = quick_count if scale.is_quick and quick_count else count
        load = SuiteLoad(suite, seed, scale.data_dir, count=most)
        found: dict[Arm, Task] = {}
        for name in names:
            options = _OPTIONS.get(name, ())
            if name == "vtc-noisy":
                options = (*options, ("seed", seed))
            if cost is not None and name in _COSTED:
                options = (*options, ("cost", cost))
            found[Arm("", name)] = _served_task(load, name, options)
        for limit in limits:
            limited = ChangedLoad(load, requests_per_minute, limit)
            found[Arm("", f"rpm {limit}")] = _served_task(limited, "fcfs")
        for name, file in files.items():
            path = scale.data_dir / "vtc_runs" / f"{file}.csv.gz"
            found[Arm(_RECORDED, name)] = Recording(path, file)
        return found

    return arms


def _served_task(
    load: ExperimentLoad,
    policy: str,
    options: PolicyOptions = (),
    engine: EngineProfile | None = None,
) -> ServedRequests:
    return ServedRequests(SimulatedRun(load, policy, options, engine=engine or _a10g_engine()))


@cache
def _a10g_engine() -> EngineProfile:
    return load_profile("a10g-llama2-7b")


def _vtc_table_columns(cost: ServiceFunction = weighted_tokens) -> Measure:
    """Return a function that computes the columns of the VTC paper's tables."""

    def measured(served: Sequence[TimedRequest]) -> Mapping[str, float | None]:
        at = table_instants()
        service = ClientService(served, cost)
        differences = service.differences(at)
        figures: dict[str, float | None] = {
            "most_difference": float(differences.max()),
            "mean_difference": float(differences.mean()),
            "difference_variance": float(differences.var()),
            "tokens_per_s": tokens_per_s(served),
            "largest_gap": float(ClientService(served).gaps(at, at[0]).max()),
            "mean_latency_s": fmean(r.first_token_latency_s for r in served),
        }
        for number, client in enumerate(service.clients, 1):
            own = [r.first_token_latency_s for r in served if r.client == client]
            figures[f"client{number}_latency_s"] = fmean(own)
        return figures

    return measure_each(measured)


def _gap_chart(
    name: str, title: str, found: Found, names: Sequence[str], from_s: Seconds = 0.0
) -> Chart:
    """Return a chart of the gap in accumulated service between clients, averaged over seeds."""
    at = from_s + _chart_instants(TABLE_SPAN_S - from_s)
    series = []
    for arm in names:
        served = [ClientService(outcomes[Arm("", arm)]) for _, outcomes in found]
        rows = [service.gaps(at, from_s) for service in served]
        series.append(_without_missing(arm, at, np.mean(rows, axis=0)))
    return Chart(name, title, "time (s)", "gap in accumulated service", series)


_CLIENT_CURVES = {
    "rates": ("service/s", ClientService.rates),
    "latency": ("first-token latency (s)", ClientService.response_times),
}


def _clients_chart(
    kind: str, name: str, title: str, found: Found, arm: str, span_s: Seconds
) -> Chart:
    """Return a chart of each client's service rate or latency over time, with the first seed."""
    service = ClientService(found[0][1][Arm("", arm)])
    at = _chart_instants(span_s)
    y_label, curves = _CLIENT_CURVES[kind]
    rows = zip(service.clients, curves(service, at), strict=True)
    return Chart(
        name, title, "time (s)", y_label, [_without_missing(who, at, row) for who, row in rows]
    )


def _chart_instants(span_s: Seconds) -> Floats:
    return span_s * np.arange(1, _CHART_STEPS + 1) / _CHART_STEPS


def _without_missing(label: str, at: Floats, values: Floats) -> Series:
    points = zip(at.tolist(), values.tolist(), strict=True)
    return Series(label, [(t, value) for t, value in points if not math.isnan(value)])


def _suite_experiment(
    name: str,
    suite: str,
    arms: Sequence[str],
    title: str,
    source: str,
    about: str,
    metrics: tuple[ReportMetric, ...],
    comparisons: tuple[PairedComparison, ...],
    targets: tuple[Target, ...] = (),
    *,
    gaps: bool = False,
    rates_of: Sequence[str] = (),
    latency_of: Sequence[str] = (),
    files: Mapping[str, str] = MappingProxyType({}),
    span_s: float = 600.0,
    count: int | None = None,
    quick_count: int | None = None,
) -> Experiment:
    def charts(_: Scale, found: Found) -> list[Chart]:
        drawn = []
        if gaps:
            heading = "Largest gap between clients in accumulated service"
            drawn.append(_gap_chart(f"{name}-gap", heading, found, arms))
        for kind, what, names in (
            ("rates", "Received service", rates_of),
            ("latency", "First-token latency", latency_of),
        ):
            for arm in names:
                heading = f"{what} of each client under {arm}, first seed"
                file = f"{name}-{kind}-{arm}"
                drawn.append(_clients_chart(kind, file, heading, found, arm, span_s))
        return drawn

    return Experiment(
        name=name,
        title=title,
        source=source,
        about=about,
        arms=_arms_of_suite(suite, arms, files, count=count, quick_count=quick_count),
        measure=_vtc_table_columns(),
        metrics=metrics,
        comparisons=comparisons,
        targets=targets,
        charts=charts,
        quick_seeds=1,
    )


_GAP_AGAINST_VTC = compare_with("vtc", "largest_gap", "tokens_per_s")
_FIRST_AGAINST_FCFS = compare_with("fcfs", "client1_latency_s", "client2_latency_s")

VTC_FIGURES: tuple[Experiment, ...] = (
    _suite_experiment(
        "vtc-overload",
        "two-clients-overload",
        ("fcfs", "vtc", "justitia"),
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
        gaps=True,
        rates_of=("vtc",),
        files={"fcfs": "fcfs__overload", "vtc": "vtc__overload"},
    ),
    _suite_experiment(
        "vtc-proportional",
        "three-clients",
        ("fcfs", "vtc", "justitia"),
        "Two clients below their share, one above",
        "VTC, Fig. 4",
        "15, 30 and 90 requests a minute. The first two are to be served at once, the third gets "
        "the rest.",
        (*_CLIENTS, _THROUGHPUT),
        _FIRST_AGAINST_FCFS,
        rates_of=("vtc",),
        latency_of=("fcfs", "vtc"),
        files={"fcfs": "fcfs__proportional", "vtc": "vtc__proportional"},
    ),
    _suite_experiment(
        "vtc-on-off",
        "on-off-less",
        ("fcfs", "vtc", "justitia"),
        "ON/OFF below the share",
        "VTC, Fig. 5",
        "Client 1 sends 30 a minute in ON minutes only, client 2 120 a minute always. When the one "
        "is off, the other has everything.",
        (*_CLIENTS[:2], _THROUGHPUT),
        _FIRST_AGAINST_FCFS,
        rates_of=("vtc",),
        latency_of=("vtc",),
        files={"fcfs": "fcfs__on_off_less"},
    ),
    _suite_experiment(
        "vtc-on-off-overload",
        "on-off-overload",
        ("fcfs", "lcf", "vtc", "justitia"),
        "ON/OFF above the share",
        "VTC, Fig. 6",
        "Client 1 sends 120 a minute in ON minutes, so that it is backlogged in OFF minutes too; "
        "client 2 180 a minute. Both are to receive as much.",
        _GAPS,
        _GAP_AGAINST_VTC,
        gaps=True,
        rates_of=("vtc",),
        files={"fcfs": "fcfs__on_off_overload"},
    ),
    _suite_experiment(
        "vtc-poisson",
        "poisson-short-long",
        ("fcfs", "vtc", "justitia"),
        "Poisson arrivals, short against long requests",
        "VTC, Fig. 7",
        "480 requests a minute of 64 + 64 tokens beside 90 of 256 + 256. justitia shares KV "
        "token-time, of which one of the second has 16 times as much as one of the first, and 4 "
        "times as much service as VTC counts it: measured in the latter it must lose.",
        _GAPS,
        _GAP_AGAINST_VTC,
        gaps=True,
        files={"fcfs": "fcfs__poisson_short_long"},
        quick_count=1_900,
    ),
    _suite_experiment(
        "vtc-poisson-2",
        "poisson-short-long-2",
        ("fcfs", "vtc", "justitia"),
        "Poisson arrivals, long outputs against long prompts",
        "VTC, Fig. 8",
        "480 requests a minute of 64 + 512 tokens beside 90 of 512 + 64, for 7.5 minutes, "
        "which keeps both backlogged for ten. justitia shares KV token-time, of "
        "which one of the first has 4.7 times as much as one of the second, and 1.7 times as much "
        "service as VTC counts it: measured in the latter it must lose.",
        _GAPS,
        _GAP_AGAINST_VTC,
        gaps=True,
        count=4_275,
        quick_count=1_425,
    ),
    _suite_experiment(
        "vtc-isolation",
        "increasing",
        ("fcfs", "vtc", "justitia"),
        "Isolation from an ill-behaved client",
        "VTC, Fig. 9",
        "Client 1 sends 30 a minute, client 2 more and more. Client 1’s latency is to stay as it "
        "is.",
        (*_CLIENTS[:2], _THROUGHPUT),
        _FIRST_AGAINST_FCFS,
        rates_of=("vtc",),
        latency_of=("fcfs", "vtc"),
        files={"fcfs": "fcfs__increase"},
    ),
    _suite_experiment(
        "vtc-shift",
        "distribution-shift",
        ("lcf", "vtc", "justitia"),
        "Distribution shift",
        "VTC, Fig. 10",
        "Five minutes ON/OFF, five of overload by both, five of overload by one. In the second "
        "phase both clients are to get as much; LCF favours client 1 for what it missed before. "
        "Measures are over the first 600 s.",
        _GAPS,
        compare_with("vtc", "mean_difference", "largest_gap"),
        rates_of=("vtc", "lcf"),
        span_s=900.0,
    ),
)


_REAL_ARMS = ("fcfs", "lcf", "vtc", "vtc-predict", "vtc-oracle", "justitia")
_LIMITS = (5, 20, 30)
_PREDICTORS = ("vtc", "vtc-noisy", "vtc-oracle")
_EIGHT_CLIENTS_COUNT = 1_584
"""Number of requests in six minutes, which keep all clients waiting for ten minutes."""
_AGAINST_VTC = compare_with("vtc", "most_difference", "mean_difference", "tokens_per_s")
_DEFINITION = (
    "Service is p + 2d a second in windows of 60 s; a difference is the sum over clients of "
    "min(what the best served got more, what it asked for but did not get), at 19 instants of ten "
    "minutes."
)


def _predictor_gap_chart(name: str, clients: str) -> Charts:
    """Return a function that charts the service gap over time for each predictor (Fig. 19)."""
    title = f"Largest gap in service since the warm-up of 30 s, {clients} clients"
    return lambda _, found: [_gap_chart(name, title, found, _PREDICTORS, TABLE_WARM_UP_S)]


_MEMORIES: dict[str, tuple[str, int, int]] = {
    "256 + 256 tokens, M = 35,000": ("two-clients-overload-256", 35_000, 3_600),
    "256 + 256 tokens, M = 65,000": ("two-clients-overload-256", 65_000, 3_600),
    "512 + 512 tokens, M = 35,000": ("two-clients-overload-512", 35_000, 1_500),
    "768 + 768 tokens, M = 35,000": ("two-clients-overload-768", 35_000, 900),
}
"""Workload, KV memory, and a number of requests that keeps both clients waiting for ten minutes."""


def _measured_memories(scale: Scale) -> Sequence[str]:
    return scale.pick(list(_MEMORIES), list(_MEMORIES)[::2])


def _memory_arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    arms: dict[Arm, Task] = {}
    for group in _measured_memories(scale):
        suite, kv_tokens, count = _MEMORIES[group]
        load = SuiteLoad(suite, seed, scale.data_dir, count=count)
        batched = max(kv_tokens // 6, _a10g_engine().max_batched_tokens)
        engine = replace(_a10g_engine(), kv_tokens=kv_tokens, max_batched_tokens=batched)
        arms[Arm(group, "vtc")] = _served_task(load, "vtc", _OPTIONS["vtc"], engine)
    return arms


def _memory_charts(scale: Scale, found: Found) -> list[Chart]:
    renamed = [
        (seed, {Arm("", arm.group): run for arm, run in outcomes.items()})
        for seed, outcomes in found
    ]
    title = "Largest gap in accumulated service under vtc"
    return [_gap_chart("vtc-memory", title, renamed, _measured_memories(scale))]


def _service_shares(served: Sequence[TimedRequest]) -> Mapping[str, float | None]:
    totals = ClientService(served).accumulated([TABLE_SPAN_S], TABLE_WARM_UP_S)[:, 0]
    shares = (totals / totals.sum()).tolist()
    return {f"share{n}": share for n, share in enumerate(shares, 1)}


def _weight_charts(scale: Scale, found: Found) -> list[Chart]:
    title = "Received service of clients of weights 1, 2, 3 and 4 under vtc, first seed"
    return [_clients_chart("rates", "vtc-weights", title, found, "vtc", TABLE_SPAN_S)]


VTC_TABLES: tuple[Experiment, ...] = (
    Experiment(
        name="vtc-real",
        title="A real trace of 27 clients",
        source="VTC, Table 2",
        about=(
            f"1,500 requests of the LMSYS trace in ten minutes. {_DEFINITION} rpm N "
            "refuses what exceeds N requests a minute of a client, as in the paper, and serves the "
            "rest by fcfs; this project’s policy rpm lets it wait instead."
        ),
        arms=_arms_of_suite(
            "lmsys", _REAL_ARMS, {"fcfs": "fcfs__real", "vtc": "vtc__real"}, limits=_LIMITS
        ),
        measure=_vtc_table_columns(),
        metrics=(*_TABLE, _LATENCY),
        comparisons=_AGAINST_VTC,
        is_drawn=False,
    ),
    Experiment(
        name="vtc-real-profiled",
        title="The real trace under the profiled cost",
        source="VTC, Table 3",
        about="The same, with service by the profiled cost function of App. B.2, in tenths of it.",
        arms=_arms_of_suite(
            "lmsys", _REAL_ARMS, {"fcfs": "fcfs__real"}, limits=_LIMITS, cost="profiled"
        ),
        measure=_vtc_table_columns(profiled_service),
        metrics=_TABLE,
        comparisons=_AGAINST_VTC,
        is_drawn=False,
    ),
    Experiment(
        name="vtc-overload-profiled",
        title="Two overloaded clients under the profiled cost",
        source="VTC, Table 4",
        about="The load of VTC’s Fig. 3, with service by the profiled cost function.",
        arms=_arms_of_suite(
            "two-clients-overload",
            ("fcfs", "vtc", "vtc-oracle"),
            {"fcfs": "fcfs__overload"},
            cost="profiled",
        ),
        measure=_vtc_table_columns(profiled_service),
        metrics=_TABLE,
        comparisons=_AGAINST_VTC,
        quick_seeds=1,
    ),
    Experiment(
        name="vtc-prediction-2",
        title="VTC with length prediction, two clients",
        source="VTC, Table 5 and Fig. 19a",
        about="vtc-noisy predicts within 50 % of the length, vtc-oracle knows it.",
        arms=_arms_of_suite("two-clients-overload", _PREDICTORS, {"vtc": "vtc__overload"}),
        measure=_vtc_table_columns(),
        metrics=_TABLE,
        comparisons=_AGAINST_VTC,
        charts=_predictor_gap_chart("vtc-prediction-2", "two"),
        quick_seeds=1,
    ),
    Experiment(
        name="vtc-prediction-8",
        title="VTC with length prediction, eight clients",
        source="VTC, Table 6 and Fig. 19b",
        about="Three clients at 24 and five at 36 requests a minute; all exceed their share.",
        arms=_arms_of_suite("eight-clients-overload", _PREDICTORS, {}, count=_EIGHT_CLIENTS_COUNT),
        measure=_vtc_table_columns(),
        metrics=_TABLE,
        comparisons=_AGAINST_VTC,
        charts=_predictor_gap_chart("vtc-prediction-8", "eight"),
        quick_seeds=1,
    ),
    Experiment(
        name="vtc-memory",
        title="Memory and request length",
        source="VTC, Fig. 15",
        about=(
            "Two overloaded clients under vtc, with more memory and with longer requests. The "
            "paper has Llama-2-13B on an A100; here it is the A10G’s pace with that much memory, "
            "so shapes are to be compared and not seconds."
        ),
        arms=_memory_arms,
        measure=_vtc_table_columns(),
        metrics=(_GAP, _MOST, _MEAN),
        charts=_memory_charts,
        quick_seeds=1,
    ),
    Experiment(
        name="vtc-weights",
        title="Weighted clients",
        source="VTC, Fig. 16",
        about=(
            "Four overloaded clients of weights 1, 2, 3, 4: their shares of the service are to be "
            "10, 20, 30 and 40 %. fcfs serves by request rate, which is in that proportion too."
        ),
        arms=_arms_of_suite("four-clients-weighted", ("vtc", "justitia", "fcfs"), {}),
        measure=measure_each(_service_shares),
        metrics=tuple(
            ReportMetric(f"share{weight}", f"client {weight}’s share", is_share=True, better=None)
            for weight in (1, 2, 3, 4)
        ),
        charts=_weight_charts,
        quick_seeds=1,
    ),
)
