"""What the experiments of the VTC paper share: clients' requests on an A10G, measures, charts.

A request is an application of one inference, a client its tenant; policies compare tenants.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from statistics import fmean

import numpy as np

from justitia_ray.cost import weighted_tokens
from justitia_ray.report.chart import Chart, Series
from justitia_ray.report.experiment import Arm, Found, Measures, Metric, Outcomes, Scale, Task
from justitia_ray.report.loads import LimitedLoad, Load, SuiteLoad
from justitia_ray.report.tasks import Recording, ServedRequests, Simulation
from justitia_ray.sim.calibration.measured import TimedRequest
from justitia_ray.sim.client_service import (
    TABLE_SPAN_S,
    ClientService,
    Floats,
    ServiceFunction,
    table_instants,
    tokens_per_s,
)
from justitia_ray.sim.engine_profile import EngineProfile
from justitia_ray.sim.profile_file import load_profile
from justitia_ray.units import Seconds

PROFILE = "a10g-llama2-7b"
SIMULATED = ""
"""The group of simulated arms."""
RECORDED = "measured on an A10G"
"""The group of arms that the authors of VTC measured."""

_UNIT = ("unit", "tenant")
POLICIES: dict[str, tuple[str, tuple[tuple[str, object], ...]]] = {
    "fcfs": ("fcfs", ()),
    "lcf": ("lcf", (_UNIT,)),
    "vtc": ("vtc", (_UNIT,)),
    "vtc-predict": ("vtc-predict", (_UNIT,)),
    "vtc-oracle": ("vtc-oracle", (_UNIT,)),
    "vtc-noisy": ("vtc-noisy", (_UNIT,)),
    "justitia": ("justitia", (("fairness", "tenant"),)),
}
"""Policy and options by the name of an arm."""

MOST = Metric("most_difference", "max diff", unit="service/s")
MEAN = Metric("mean_difference", "avg diff", unit="service/s")
VARIANCE = Metric("difference_variance", "diff var", digits=0)
THROUGHPUT = Metric("tokens_per_s", "throughput", digits=0, unit="tokens/s", better="high")
GAP = Metric("largest_gap", "largest gap in accumulated service", digits=0)
LATENCY = Metric("mean_latency_s", "mean first-token latency", unit="s")
TABLE = (MOST, MEAN, VARIANCE, THROUGHPUT)

_CHART_STEPS = 60
_COSTED = {"vtc", "lcf", "vtc-predict", "vtc-oracle", "vtc-noisy"}
"""Policies that charge by a cost function."""


def client_latency(number: int) -> Metric:
    """Return the column of one client's mean first-token latency."""
    return Metric(f"client{number}_latency_s", f"client {number}: first token after", unit="s")


def load(suite: str, scale: Scale, seed: int, count: int | None = None) -> SuiteLoad:
    """Return a suite as it is: a shorter one would not reach the state that the paper shows."""
    return SuiteLoad(suite, seed, scale.data_dir, count=count)


def arms(
    names: Sequence[str],
    load: Load,
    seed: int,
    *,
    kv_tokens: int | None = None,
    cost: str | None = None,
    group: str = SIMULATED,
) -> dict[Arm, Task]:
    """Return one arm for each name of `POLICIES`.

    Args:
        names: Of the arms.
        load: On what.
        seed: Of noise in predictions.
        kv_tokens: Another memory than the profile's.
        cost: By which the policies charge that charge by one; by default theirs.
        group: Of the arms.

    Raises:
        ConfigError: If there is no profile of that name.
    """
    engine = _a10g()
    if kv_tokens is not None:
        batched = max(kv_tokens // 6, engine.max_batched_tokens)
        engine = replace(engine, kv_tokens=kv_tokens, max_batched_tokens=batched)
    found: dict[Arm, Task] = {}
    for name in names:
        policy, options = POLICIES[name]
        if name == "vtc-noisy":
            options = (*options, ("seed", seed))
        if cost is not None and name in _COSTED:
            options = (*options, ("cost", cost))
        found[Arm(group, name)] = ServedRequests(
            Simulation(load, policy, options, engine=engine, needs_inferences=True)
        )
    return found


def limited(limits: Sequence[int], load: Load) -> dict[Arm, Task]:
    """Return an arm `rpm N` for each limit: fcfs on what is within it; the rest is refused."""
    found: dict[Arm, Task] = {}
    for limit in limits:
        within = arms(("fcfs",), LimitedLoad(load, limit), seed=0)
        found[Arm(SIMULATED, f"rpm {limit}")] = within[Arm(SIMULATED, "fcfs")]
    return found


def recorded(scale: Scale, files: Mapping[str, str]) -> dict[Arm, Task]:
    """Return the recorded runs; files of `vtc_runs` by the names of arms."""
    directory = scale.data_dir / "vtc_runs"
    return {
        Arm(RECORDED, name): Recording(directory / f"{file}.csv.gz", file)
        for name, file in files.items()
    }


def measure_with(
    cost: ServiceFunction = weighted_tokens,
) -> Callable[[Scale, Outcomes], Measures]:
    """Return a measure of every arm: the tables' columns, the largest gap, latencies."""

    def measure(_: Scale, outcomes: Outcomes) -> Measures:
        return {arm: _measured(served, cost) for arm, served in outcomes.items()}

    return measure


@cache
def _a10g() -> EngineProfile:
    return load_profile(PROFILE)


def _measured(served: Sequence[TimedRequest], cost: ServiceFunction) -> dict[str, float | None]:
    at = table_instants()
    service = ClientService(served, cost)
    differences = service.differences(at)
    measured: dict[str, float | None] = {
        "most_difference": float(differences.max()),
        "mean_difference": float(differences.mean()),
        "difference_variance": float(differences.var()),
        "tokens_per_s": tokens_per_s(served),
        "largest_gap": float(ClientService(served).gaps(at, at[0]).max()),
        "mean_latency_s": fmean(r.first_token_latency_s for r in served),
    }
    for number, client in enumerate(service.clients, 1):
        own = [r.first_token_latency_s for r in served if r.client == client]
        measured[f"client{number}_latency_s"] = fmean(own)
    return measured


def gap_chart(
    name: str, title: str, found: Found, names: Sequence[str], from_s: Seconds = 0.0
) -> Chart:
    """Return the gap in accumulated service between clients over time, mean over the seeds."""
    at = from_s + _chart_instants(TABLE_SPAN_S - from_s)
    series = []
    for arm in names:
        rows = [
            ClientService(outcomes[Arm(SIMULATED, arm)]).gaps(at, from_s) for _, outcomes in found
        ]
        series.append(_series(arm, at, np.mean(rows, axis=0)))
    return Chart(name, title, "time (s)", "gap in accumulated service", series)


def rates_chart(
    name: str, title: str, found: Found, arm: str, span_s: Seconds, group: str = SIMULATED
) -> Chart:
    """Return every client's received service over time, on the first seed."""
    service = ClientService(found[0][1][Arm(group, arm)])
    at = _chart_instants(span_s)
    rows = zip(service.clients, service.rates(at), strict=True)
    series = [_series(client, at, row) for client, row in rows]
    return Chart(name, title, "time (s)", "service/s", series)


def latency_chart(name: str, title: str, found: Found, arm: str, span_s: Seconds) -> Chart:
    """Return every client's first-token latency over time, on the first seed."""
    service = ClientService(found[0][1][Arm(SIMULATED, arm)])
    at = _chart_instants(span_s)
    rows = zip(service.clients, service.response_times(at), strict=True)
    series = [_series(client, at, row) for client, row in rows]
    return Chart(name, title, "time (s)", "first-token latency (s)", series)


def _chart_instants(span_s: Seconds) -> Floats:
    """Return evenly spaced instants, the last of them at the end of the span."""
    return span_s * np.arange(1, _CHART_STEPS + 1) / _CHART_STEPS


def _series(label: str, at: Floats, values: Floats) -> Series:
    """Return a curve without the points that have no value."""
    points = zip(at.tolist(), values.tolist(), strict=True)
    return Series(label, [(t, value) for t, value in points if not math.isnan(value)])
