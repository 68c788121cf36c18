"""The tables of the VTC paper (2 to 6), with Fig. 19, and its Fig. 15 and 16."""

from collections.abc import Callable, Mapping, Sequence

from justitia_ray.report.chart import Chart
from justitia_ray.report.experiment import (
    Arm,
    Comparison,
    Experiment,
    Found,
    Measures,
    Metric,
    Outcomes,
    Scale,
    Task,
)
from justitia_ray.report.experiments import requests
from justitia_ray.sim.client_service import (
    TABLE_SPAN_S,
    TABLE_WARM_UP_S,
    ClientService,
    profiled_service,
)

_REAL_ARMS = ("fcfs", "lcf", "vtc", "vtc-predict", "vtc-oracle", "justitia")
_LIMITS = (5, 20, 30)
_PREDICTORS = ("vtc", "vtc-noisy", "vtc-oracle")
_EIGHT_CLIENTS_COUNT = 1_584
"""Six minutes of arrivals, as the published run had; all clients stay backlogged for ten."""
_AGAINST_VTC = (
    Comparison("most_difference", "vtc"),
    Comparison("mean_difference", "vtc"),
    Comparison("tokens_per_s", "vtc"),
)
_DEFINITION = (
    "Service is p + 2d a second in windows of 60 s; a difference is the sum over clients of "
    "min(what the best served got more, what it asked for but did not get), at 19 instants of ten "
    "minutes."
)


def _arms(
    suite: str,
    names: Sequence[str],
    files: Mapping[str, str],
    *,
    limits: Sequence[int] = (),
    cost: str | None = None,
    count: int | None = None,
) -> Callable[[Scale, int], Mapping[Arm, Task]]:
    """Return the arms of one suite.

    Args:
        suite: Its name.
        names: Of the policies.
        files: Recorded runs by arm.
        limits: Requests a minute of the arms `rpm N`.
        cost: By which the policies charge; by default theirs.
        count: Only so many requests.
    """

    def arms(scale: Scale, seed: int) -> Mapping[Arm, Task]:
        load = requests.load(suite, scale, seed, count)
        return {
            **requests.arms(names, load, seed, cost=cost),
            **requests.limited(limits, load),
            **requests.recorded(scale, files),
        }

    return arms


def _gaps_of(name: str, clients: str) -> Callable[[Scale, Found], list[Chart]]:
    """Return what draws the gaps of the predictors over time (Fig. 19)."""
    title = f"Largest gap in service since the warm-up of 30 s, {clients} clients"

    def charts(_: Scale, found: Found) -> list[Chart]:
        return [requests.gap_chart(name, title, found, _PREDICTORS, TABLE_WARM_UP_S)]

    return charts


_MEMORIES: dict[str, tuple[str, int, int]] = {
    "256 + 256 tokens, M = 35,000": ("two-clients-overload-256", 35_000, 3_600),
    "256 + 256 tokens, M = 65,000": ("two-clients-overload-256", 65_000, 3_600),
    "512 + 512 tokens, M = 35,000": ("two-clients-overload-512", 35_000, 1_500),
    "768 + 768 tokens, M = 35,000": ("two-clients-overload-768", 35_000, 900),
}
"""Suite, memory, and so many requests as keep both clients backlogged for ten minutes."""


def _measured_memories(scale: Scale) -> list[str]:
    names = list(_MEMORIES)
    return list(scale.pick(names, names[::2]))


def _memories(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    arms: dict[Arm, Task] = {}
    for group in _measured_memories(scale):
        suite, kv_tokens, count = _MEMORIES[group]
        load = requests.load(suite, scale, seed, count)
        arms |= requests.arms(("vtc",), load, seed, kv_tokens=kv_tokens, group=group)
    return arms


def _memory_charts(scale: Scale, found: Found) -> list[Chart]:
    renamed = [
        (seed, {Arm("", arm.group): run for arm, run in outcomes.items()})
        for seed, outcomes in found
    ]
    title = "Largest gap in accumulated service under vtc"
    return [requests.gap_chart("vtc-memory", title, renamed, _measured_memories(scale))]


_WEIGHTS = (1, 2, 3, 4)
_SHARES = tuple(
    Metric(f"share{weight}", f"client {weight}’s share", is_share=True, better=None)
    for weight in _WEIGHTS
)


def _weights(scale: Scale, seed: int) -> Mapping[Arm, Task]:
    weighted = requests.load("four-clients-weighted", scale, seed)
    return requests.arms(("vtc", "justitia", "fcfs"), weighted, seed)


def _measure_shares(scale: Scale, outcomes: Outcomes) -> Measures:
    measured: dict[Arm, Mapping[str, float | None]] = {}
    for arm, served in outcomes.items():
        totals = ClientService(served).accumulated([TABLE_SPAN_S], TABLE_WARM_UP_S)[:, 0]
        shares = (totals / totals.sum()).tolist()
        measured[arm] = {f"share{n}": share for n, share in enumerate(shares, 1)}
    return measured


def _weight_charts(scale: Scale, found: Found) -> list[Chart]:
    title = "Received service of clients of weights 1, 2, 3 and 4 under vtc, first seed"
    return [requests.rates_chart("vtc-weights", title, found, "vtc", TABLE_SPAN_S)]


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
        arms=_arms("lmsys", _REAL_ARMS, {"fcfs": "fcfs__real", "vtc": "vtc__real"}, limits=_LIMITS),
        measure=requests.measure_with(),
        metrics=(*requests.TABLE, requests.LATENCY),
        comparisons=_AGAINST_VTC,
        is_drawn=False,
    ),
    Experiment(
        name="vtc-real-profiled",
        title="The real trace under the profiled cost",
        source="VTC, Table 3",
        about="The same, with service by the profiled cost function of App. B.2, in tenths of it.",
        arms=_arms("lmsys", _REAL_ARMS, {"fcfs": "fcfs__real"}, limits=_LIMITS, cost="profiled"),
        measure=requests.measure_with(profiled_service),
        metrics=requests.TABLE,
        comparisons=_AGAINST_VTC,
        is_drawn=False,
    ),
    Experiment(
        name="vtc-overload-profiled",
        title="Two overloaded clients under the profiled cost",
        source="VTC, Table 4",
        about="The load of VTC’s Fig. 3, with service by the profiled cost function.",
        arms=_arms(
            "two-clients-overload",
            ("fcfs", "vtc", "vtc-oracle"),
            {"fcfs": "fcfs__overload"},
            cost="profiled",
        ),
        measure=requests.measure_with(profiled_service),
        metrics=requests.TABLE,
        comparisons=_AGAINST_VTC,
        quick_seeds=1,
    ),
    Experiment(
        name="vtc-prediction-2",
        title="VTC with length prediction, two clients",
        source="VTC, Table 5 and Fig. 19a",
        about="vtc-noisy predicts within 50 % of the length, vtc-oracle knows it.",
        arms=_arms("two-clients-overload", _PREDICTORS, {"vtc": "vtc__overload"}),
        measure=requests.measure_with(),
        metrics=requests.TABLE,
        comparisons=_AGAINST_VTC,
        charts=_gaps_of("vtc-prediction-2", "two"),
        quick_seeds=1,
    ),
    Experiment(
        name="vtc-prediction-8",
        title="VTC with length prediction, eight clients",
        source="VTC, Table 6 and Fig. 19b",
        about="Three clients at 24 and five at 36 requests a minute; all exceed their share.",
        arms=_arms("eight-clients-overload", _PREDICTORS, {}, count=_EIGHT_CLIENTS_COUNT),
        measure=requests.measure_with(),
        metrics=requests.TABLE,
        comparisons=_AGAINST_VTC,
        charts=_gaps_of("vtc-prediction-8", "eight"),
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
        arms=_memories,
        measure=requests.measure_with(),
        metrics=(requests.GAP, requests.MOST, requests.MEAN),
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
        arms=_weights,
        measure=_measure_shares,
        metrics=_SHARES,
        charts=_weight_charts,
        quick_seeds=1,
    ),
)
