"""Figures of `scripts/demo`: one load under several policies, and the unused throughput."""

import asyncio
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from justitia_ray.client import JustitiaClient
from justitia_ray.client.transport import Transport
from justitia_ray.core.clock.virtual_clock import VirtualClock
from justitia_ray.cost import kv_token_time
from justitia_ray.lab.workloads.play import ApplicationRecord
from justitia_ray.units import ApplicationId, KvTokenTime, Seconds


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """A run of the load under one policy."""

    policy: str
    records: tuple[ApplicationRecord, ...]
    kv_utilization: float
    """KV memory used by sequences over KV memory available, from first arrival to last end."""
    preemptions: int
    wall_s: Seconds

    @property
    def failed(self) -> int:
        return sum(record.outcome == "failed" for record in self.records)

    def records_of_class(self, application_class: str | None) -> list[ApplicationRecord]:
        """Return the records of a class; None returns all."""
        return [r for r in self.records if application_class in (None, r.application_class)]


def summarise(runs: Sequence[PolicyRun]) -> dict[str, dict[str, Any]]:
    """Return by policy: applications, failed, mean_jct_s, p90_jct_s, kv_utilization and more."""
    return {
        run.policy: {
            "applications": len(run.records),
            "failed": run.failed,
            "mean_jct_s": mean_jct(run.records),
            "p90_jct_s": percentile([r.jct_s for r in run.records], 0.9),
            "max_jct_s": max(r.jct_s for r in run.records),
            "kv_utilization": run.kv_utilization,
            "preemptions": run.preemptions,
            "wall_s": run.wall_s,
            "output_tokens": sum(r.output_tokens for r in run.records),
            "classes": {
                name: {
                    "applications": len(run.records_of_class(name)),
                    "mean_jct_s": mean_jct(run.records_of_class(name)),
                    "p90_jct_s": percentile([r.jct_s for r in run.records_of_class(name)], 0.9),
                }
                for name in application_classes(run.records)
            },
        }
        for run in runs
    }


def fair_sharing_jcts(run: PolicyRun) -> list[Seconds]:
    """Return the completion times under ideal fair sharing, in the order of the run's records.

    GPS (Justitia Sec. IV-B) serves all present applications in equal parts at every instant, at the
    mean rate of this run. It may give the whole rate to one application: stages and prompt sizes do
    not limit it. A failed application costs what was answered of it.
    """
    costs = [true_cost(record) for record in run.records]
    order = sorted(range(len(costs)), key=lambda index: run.records[index].arrived_at_s)
    now = run.records[order[0]].arrived_at_s
    rate = sum(costs) / (max(record.finished_at_s for record in run.records) - now)
    clock = VirtualClock()
    ended_at = [record.arrived_at_s for record in run.records]

    def serve_equally_until(instant: Seconds) -> None:
        """Serve the open applications in equal shares until `instant`."""
        nonlocal now
        while active := [(s.finish, int(name)) for name, s in clock.sessions().items() if s.active]:
            finish, index = min(active)
            needed = (finish - clock.virtual_time) * clock.active_weight
            if now + needed / rate > instant:
                clock.serve((instant - now) * rate)
                break
            clock.serve(needed)
            now += needed / rate
            ended_at[index] = now
        now = instant

    for sequence, index in enumerate(order):
        serve_equally_until(run.records[index].arrived_at_s)
        clock.charge(ApplicationId(str(index)), costs[index], 1.0, sequence)
    serve_equally_until(math.inf)
    return [
        max(0.0, end - record.arrived_at_s)
        for end, record in zip(ended_at, run.records, strict=True)
    ]


def closing_table(ours: PolicyRun, other: PolicyRun, fair: Sequence[Seconds]) -> str:
    """Return a table of completion times under two policies and under ideal fair sharing.

    The largest tenth are the applications of the greatest KV token-time.

    Args:
        ours: The run under the policy that is shown.
        other: The run that it is compared with.
        fair: `fair_sharing_jcts` of `ours`.
    """
    by_size = sorted(range(len(fair)), key=lambda index: true_cost(ours.records[index]))
    largest = by_size[-max(1, len(fair) // 10) :]
    columns = {
        other.policy: [record.jct_s for record in other.records],
        ours.policy: [record.jct_s for record in ours.records],
        "fair sharing": fair,
    }
    header = f"{'completion time, s':<28}" + "".join(f"{name:>14}" for name in columns)
    lines = [header, "-" * len(header)]
    figures: dict[str, Callable[[Sequence[float]], float]] = {
        "mean": statistics.fmean,
        "p90": lambda values: percentile(values, 0.9),
        f"mean of the largest {len(largest)}": lambda values: statistics.fmean(
            values[index] for index in largest
        ),
        "longest": max,
    }
    for label, figure in figures.items():
        lines.append(
            f"{label:<28}" + "".join(f"{figure(values):>14.1f}" for values in columns.values())
        )
    return "\n".join(lines)


def true_cost(record: ApplicationRecord) -> KvTokenTime:
    """Return the KV token-time of an application's inferences."""
    return sum(kv_token_time(call.prompt_tokens, call.output_tokens) for call in record.calls)


def table(runs: Sequence[PolicyRun]) -> str:
    """Return a table by class and policy: count, mean and p90 JCT, failures."""
    columns = ("class", "policy", "count", "mean JCT s", "p90 JCT s", "failed")
    header = "{:<8} {:<10} {:>5} {:>11} {:>10} {:>6}".format(*columns)
    lines = [header, "-" * len(header)]
    for name in [*application_classes(runs[0].records), None]:
        for run in runs:
            records = run.records_of_class(name)
            failed = sum(record.outcome == "failed" for record in records)
            lines.append(
                f"{name or 'all':<8} {run.policy:<10} {len(records):>5} {mean_jct(records):>11.2f}"
                f" {percentile([r.jct_s for r in records], 0.9):>10.2f} {failed:>6}"
            )
    return "\n".join(lines)


def draw_figure(runs: Sequence[PolicyRun], title: str, file: Path) -> None:
    """Write a figure: mean JCT by class, and the distribution of completion times."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    by_class, distribution = figure.subplots(1, 2)
    names = application_classes(runs[0].records)
    width = 0.8 / len(runs)
    for index, run in enumerate(runs):
        places = [place + (index - (len(runs) - 1) / 2) * width for place in range(len(names) + 1)]
        means = [mean_jct(run.records_of_class(name)) for name in [*names, None]]
        bars = by_class.bar(places, means, width, label=run.policy)
        by_class.bar_label(bars, fmt="%.1f", fontsize=8)
        times = sorted(record.jct_s for record in run.records)
        shares = [(rank + 1) / len(times) for rank in range(len(times))]
        distribution.step(times, shares, where="post", label=run.policy)
    counts = {name: len(runs[0].records_of_class(name)) for name in names}
    labels = [*(f"{name} ({counts[name]})" for name in names), "all"]
    by_class.set_xticks(range(len(labels)), labels)
    by_class.set(ylabel="mean completion time of an application (s)")
    distribution.set(
        xlabel="completion time of an application (s)", ylabel="share of applications done", xlim=0
    )
    for axes in (by_class, distribution):
        axes.legend()
        axes.grid(alpha=0.3, axis="y")
    figure.suptitle(title, fontsize=10)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)


def completion_ratios(ours: PolicyRun, other: PolicyRun) -> Mapping[str, float]:
    """Return the ratios of completion times of two runs, application by application.

    Returns:
        `mean_jct_ratio` and `worst_ratio`, ours over the other; `no_later_share`, of all
        applications; `sooner`, the number of applications that finish earlier in ours.
    """
    pairs = list(zip(ours.records, other.records, strict=True))
    return {
        "mean_jct_ratio": mean_jct(ours.records) / mean_jct(other.records),
        "no_later_share": sum(a.jct_s <= b.jct_s for a, b in pairs) / len(pairs),
        "sooner": sum(a.jct_s < b.jct_s for a, b in pairs),
        "worst_ratio": max(a.jct_s / b.jct_s for a, b in pairs),
    }


def application_classes(records: Sequence[ApplicationRecord]) -> list[str]:
    return sorted({record.application_class for record in records})


def mean_jct(records: Sequence[ApplicationRecord]) -> Seconds:
    """Return the mean completion time in seconds; NaN for no records."""
    return statistics.fmean(r.jct_s for r in records) if records else float("nan")


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


_OUTPUT_TOKENS = 120
_NARROW = 10
"""Number of sequences in a small batch, about as many as fit into a replica."""
_WIDE = 40
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class DecodeHeadroom:
    """Decode throughput of a replica with few and with many short sequences in its batch."""

    narrow_sequences: int
    narrow_tokens_per_s: float
    wide_sequences: int
    wide_tokens_per_s: float

    def sentence(self) -> str:
        factor = self.wide_tokens_per_s / self.narrow_tokens_per_s
        return (
            f"{self.narrow_sequences} sequences, about as many as fit at this load's lengths, make"
            f" {self.narrow_tokens_per_s:.0f} tokens/s on a replica, {self.wide_sequences} short"
            f" ones {self.wide_tokens_per_s:.0f}: the CPU could serve {factor:.1f}x if they fitted."
        )


async def measure_headroom(client: JustitiaClient, transport: Transport) -> DecodeHeadroom:
    """Measure an idle service, all replicas at once; the measurement takes some seconds.

    Each batch is one call with that number of choices, so that call overhead does not count.
    """
    answer = await transport.request("GET", "/v1/status", {})
    replicas = len(json.loads(answer.body)["replicas"])
    narrow, wide = [], []
    for _ in range(_ROUNDS):
        narrow.append(await _tokens_per_s(client, _NARROW, replicas))
        wide.append(await _tokens_per_s(client, _WIDE, replicas))
    return DecodeHeadroom(_NARROW, statistics.median(narrow), _WIDE, statistics.median(wide))


async def _tokens_per_s(client: JustitiaClient, sequences: int, replicas: int) -> float:
    """Return the throughput of one replica while all replicas are equally busy."""
    async with client.application("probe", input="") as app:
        started = time.monotonic()
        await asyncio.gather(
            *(
                app.complete(
                    "One two three", max_tokens=_OUTPUT_TOKENS, ignore_eos=True, n=sequences
                )
                for _ in range(replicas)
            )
        )
        return sequences * _OUTPUT_TOKENS / (time.monotonic() - started)
