"""Report of scripts/bench_core: tables, growth, verdicts on the targets, JSON."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean, median
from typing import Any

from justitia_ray.lab.core_load import ARRIVAL, COMPLETION, GRANT, PULL, SUBMIT, WAITING_EACH
from scripts.bench.core import LINEAR, Cell, Memory
from scripts.bench.statistics import Verdict, spread

JUDGED = "justitia"
JUDGED_KINDS = (ARRIVAL, SUBMIT, PULL, GRANT, COMPLETION)
MOST_P99_US = 100.0
MOST_BYTES = 2048
JUDGED_SIZE = 10_000
_WIDTH = 37

WHAT = {
    "arrival": "an application opens",
    "submit": "an inference joins the ten that wait of its application",
    "pull": "a replica of about 220 leases reports them all; some finished, as many granted;"
    " a decision is a report, a completion or a grant",
    "grant": "the first pull of an empty replica, all of it grants",
    "completion": "a pull of a one-seat replica: one completion and one grant, and all that a pull"
    " costs besides",
    "cancel": "a waiting inference is cancelled, and what came after it is looked at",
    "close": "an application's owner closes it",
}


def slope(points: Sequence[tuple[int, float]]) -> float | None:
    """Return d log(time) / d log(size) by least squares; None for fewer than two sizes."""
    if len(points) < 2:
        return None
    xs = [math.log(size) for size, _ in points]
    ys = [math.log(time) for _, time in points]
    x_mean, y_mean = fmean(xs), fmean(ys)
    covariance = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    return covariance / sum((x - x_mean) ** 2 for x in xs)


def logarithmic_slope(sizes: Sequence[int]) -> float | None:
    """Return the slope of a time proportional to log N over these sizes; None for fewer than 2."""
    return slope([(size, math.log(size)) for size in sizes])


def p50_slope(cells: Sequence[Cell], kind: str) -> float | None:
    """Return the slope of one policy's median time for one kind of event."""
    return slope(
        [
            (cell.applications, median(f.p50 for f in cell.windows[kind]))
            for cell in cells
            if kind in cell.windows
        ]
    )


def table(cells: Sequence[Cell]) -> str:
    """Return a table for each policy: mean, p50 and p99 in µs per decision, at each size.

    Each figure is the median of the repeats; p99 also has minimum and maximum.
    """
    sizes = sorted({cell.applications for cell in cells})
    lines = []
    for policy in dict.fromkeys(cell.policy for cell in cells):
        ours = [cell for cell in cells if cell.policy == policy]
        heads = "".join(f"{f'{size:,} applications':>{_WIDTH}}" for size in sizes)
        columns = f"{'mean':>9}{'p50':>8}{'p99 (least-most)':>20}"
        lines += [f"{policy:12}{heads}", f"{'':12}{columns * len(sizes)}  slope"]
        for kind in dict.fromkeys(kind for cell in ours for kind in cell.windows):
            found = p50_slope(ours, kind)
            shown = f"{found:7.2f}" if found is not None else f"{'-':>7}"
            row = "".join(_format_cell_figures(cell, kind) for cell in ours)
            lines.append(f"  {kind:10}{row}{shown}")
        lines.append("")
    return "\n".join(lines)


def memory_table(found: Sequence[Memory]) -> str:
    lines = [
        f"{'bytes':14}{'applications':>13}{'an inference':>14}{'an application':>16}"
        f"{'all, for each inference, after a window':>41}"
    ]
    lines += [
        f"{m.policy:14}{m.applications:13,}{m.bytes_per_inference:14,.0f}"
        f"{m.bytes_per_application:16,.0f}{m.bytes_after_churn:41,.0f}"
        for m in found
    ]
    return "\n".join(lines)


def comparison(cells: Sequence[Cell]) -> str:
    """Return a table that compares the cost of a grant by linear scan with a grant by the core.

    The core's figure is for an empty replica's first pull and includes lease, accounts and
    placement; the scan's figure is the scan only.
    """
    lines = [f"{'a grant, mean µs':16}{LINEAR:>14}{'policy':>14}{'core':>10}{'scan / core':>14}"]
    for scan in cells:
        if scan.policy != LINEAR:
            continue
        for cell in cells:
            if cell.policy in (JUDGED, "vtc") and cell.applications == scan.applications:
                theirs, ours = (_median_mean_us(c, GRANT) for c in (scan, cell))
                lines.append(
                    f"{scan.applications:16,}{theirs:14.1f}{cell.policy:>14}{ours:10.1f}"
                    f"{theirs / ours:13.2f}x"
                )
    return "\n".join(lines)


def verdicts(cells: Sequence[Cell], memory: Sequence[Memory]) -> list[Verdict]:
    """Return a verdict for each measured target."""
    ours = [cell for cell in cells if cell.policy == JUDGED]
    judged = []
    for cell in ours:
        if cell.applications == JUDGED_SIZE:
            for kind in JUDGED_KINDS:
                p99 = spread([f.p99 for f in cell.windows[kind]])
                target = f"{JUDGED}, {JUDGED_SIZE:,} applications: {kind} p99 <= 0.1 ms a decision"
                judged.append(Verdict(target, p99.median <= MOST_P99_US, f"{p99.format(1)} us"))
    most = logarithmic_slope([cell.applications for cell in ours])
    if most is not None:
        for kind in JUDGED_KINDS:
            found = p50_slope(ours, kind)
            if found is not None:
                target = f"{JUDGED}: {kind} grows as log N (slope <= {most:.2f})"
                judged.append(Verdict(target, found <= most, f"slope {found:.2f}"))
    for used in memory:
        if used.policy == JUDGED:
            most_used = max(used.bytes_per_inference, used.bytes_after_churn)
            target = f"{JUDGED}: memory <= {MOST_BYTES:,} bytes per waiting inference"
            figure = f"{most_used:,.0f} bytes, its share of the application included"
            judged.append(Verdict(target, most_used <= MOST_BYTES, figure))
    return judged


def document(
    cells: Sequence[Cell], memory: Sequence[Memory], judged: Sequence[Verdict]
) -> Mapping[str, Any]:
    return {
        "waiting_inferences_each": WAITING_EACH,
        "unit": "microseconds a decision",
        "cells": [asdict(cell) for cell in cells],
        "memory": [asdict(used) for used in memory],
        "verdicts": [asdict(verdict) for verdict in judged],
    }


def _format_cell_figures(cell: Cell, kind: str) -> str:
    if kind not in cell.windows:
        return f"{'-':>{_WIDTH}}"
    windows = cell.windows[kind]
    tail = spread([f.p99 for f in windows])
    mean, p50 = median(f.mean for f in windows), median(f.p50 for f in windows)
    ends = f"({_format_microseconds(tail.low)}-{_format_microseconds(tail.high)})"
    longest = f"{_format_microseconds(tail.median)} {ends:>13}"
    return f"{_format_microseconds(mean):>9}{_format_microseconds(p50):>8}{longest:>20}"


def _format_microseconds(us: float) -> str:
    return f"{us:.1f}" if us < 100 else f"{us:.0f}"


def _median_mean_us(cell: Cell, kind: str) -> float:
    return median(f.mean for f in cell.windows[kind])
