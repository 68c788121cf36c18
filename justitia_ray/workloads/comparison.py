"""What became of one load under several policies: a table, a summary, a figure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from justitia_ray.units import Seconds
from justitia_ray.workloads.play import ApplicationRecord


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """One play of a load under one policy."""

    policy: str
    records: tuple[ApplicationRecord, ...]
    kv_utilization: float
    """KV memory held by sequences over KV memory there, from the first arrival to the last end."""
    preemptions: int
    wall_s: Seconds

    @property
    def failed(self) -> int:
        """Applications that failed."""
        return sum(record.outcome == "failed" for record in self.records)

    def of_class(self, application_class: str | None) -> list[ApplicationRecord]:
        """Return the records of a class, or all."""
        return [r for r in self.records if application_class in (None, r.application_class)]


def summarise(runs: Sequence[PolicyRun]) -> dict[str, dict[str, Any]]:
    """Return, by policy: applications, failed, mean_jct_s, p90_jct_s, kv_utilization and more."""
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
                    "applications": len(run.of_class(name)),
                    "mean_jct_s": mean_jct(run.of_class(name)),
                    "p90_jct_s": percentile([r.jct_s for r in run.of_class(name)], 0.9),
                }
                for name in classes_of(run.records)
            },
        }
        for run in runs
    }


def table(runs: Sequence[PolicyRun]) -> str:
    """Return class x policy: count, mean and p90 JCT, failures."""
    columns = ("class", "policy", "count", "mean JCT s", "p90 JCT s", "failed")
    header = "{:<8} {:<10} {:>5} {:>11} {:>10} {:>6}".format(*columns)
    lines = [header, "-" * len(header)]
    for name in [*classes_of(runs[0].records), None]:
        for run in runs:
            records = run.of_class(name)
            failed = sum(record.outcome == "failed" for record in records)
            lines.append(
                f"{name or 'all':<8} {run.policy:<10} {len(records):>5} {mean_jct(records):>11.2f}"
                f" {percentile([r.jct_s for r in records], 0.9):>10.2f} {failed:>6}"
            )
    return "\n".join(lines)


def draw(runs: Sequence[PolicyRun], title: str, file: Path) -> None:
    """Write a figure: mean JCT by class, and the share of applications done within a time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    by_class, distribution = figure.subplots(1, 2)
    names = classes_of(runs[0].records)
    width = 0.8 / len(runs)
    for index, run in enumerate(runs):
        places = [place + (index - (len(runs) - 1) / 2) * width for place in range(len(names) + 1)]
        means = [mean_jct(run.of_class(name)) for name in [*names, None]]
        bars = by_class.bar(places, means, width, label=run.policy)
        by_class.bar_label(bars, fmt="%.1f", fontsize=8)
        times = sorted(record.jct_s for record in run.records)
        shares = [(rank + 1) / len(times) for rank in range(len(times))]
        distribution.step(times, shares, where="post", label=run.policy)
    counts = {name: len(runs[0].of_class(name)) for name in names}
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


def ratios(ours: PolicyRun, other: PolicyRun) -> Mapping[str, float]:
    """Return how two plays of one load compare, application by application."""
    pairs = list(zip(ours.records, other.records, strict=True))
    return {
        "mean_jct_ratio": mean_jct(ours.records) / mean_jct(other.records),
        "no_later_share": sum(a.jct_s <= b.jct_s for a, b in pairs) / len(pairs),
        "worst_ratio": max(a.jct_s / b.jct_s for a, b in pairs),
    }


def classes_of(records: Sequence[ApplicationRecord]) -> list[str]:
    """Return the classes there are, in alphabetical order."""
    return sorted({record.application_class for record in records})


def mean_jct(records: Sequence[ApplicationRecord]) -> Seconds:
    """Return the mean completion time; not a number if there are none."""
    return statistics.fmean(r.jct_s for r in records) if records else float("nan")


def percentile(values: Sequence[float], share: float) -> float:
    """Return the least value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]
