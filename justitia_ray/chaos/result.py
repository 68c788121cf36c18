"""The outcome of a run: its JSON document, its table, and what was missed."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from justitia_ray.chaos.counts import Counts
from justitia_ray.chaos.kinds import ABOUT, Kind
from justitia_ray.chaos.notes import Hit
from justitia_ray.chaos.order import OrderMeasure
from justitia_ray.text_table import text_table
from justitia_ray.units import Seconds


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault, and how long it took to recover from it."""

    hit: Hit
    recovery_s: Seconds | None
    elsewhere_s: Seconds | None = None
    """Of a replica or engine: until the last that it ran had begun elsewhere, in its turn."""
    hit_nothing: bool = False
    """There was nothing to recover."""

    @property
    def is_open(self) -> bool:
        """Whether nothing shows that the service came back from it."""
        return self.recovery_s is None and not self.hit_nothing


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that came of one run on one kind of engine."""

    engine: str
    counts: Counts
    order: OrderMeasure
    struck: tuple[Struck, ...]
    leaked: tuple[str, ...]
    began_at: Seconds
    took_s: Seconds

    @property
    def failures(self) -> tuple[str, ...]:
        """In words, everything that must not be."""
        counts, order = self.counts, self.order
        groups = {
            "lost": counts.lost,
            "doubled": counts.doubled,
            "wrong": counts.wrong,
            "cut": counts.cut,
            "broken": counts.broken,
            "leaked": self.leaked,
            "out of order": order.unexplained,
            "tag changed": order.tags_changed,
        }
        return tuple(f"{name}: {told}" for name, all_of in groups.items() for told in all_of)

    @property
    def max_recovery_s(self) -> Seconds | None:
        """Of the faults; what is graceful has nothing to recover from."""
        return max(
            (
                struck.recovery_s
                for struck in self.struck
                if struck.recovery_s is not None and not ABOUT[struck.hit.kind].graceful
            ),
            default=None,
        )


def document(outcome: Outcome) -> dict[str, Any]:
    """Return what the JSON file holds of a run."""
    counts, order = outcome.counts, outcome.order
    return {
        "inferences": counts.inferences,
        "calls": counts.calls,
        "lost": len(counts.lost),
        "doubled": len(counts.doubled),
        "wrong": len(counts.wrong),
        "cut": len(counts.cut),
        "broken": len(counts.broken),
        "leaked": len(outcome.leaked),
        "excused_by_an_ingress": counts.excused,
        "max_recovery_s": _rounded(outcome.max_recovery_s),
        "recovery_by_kind": {
            kind: {"times": len(faults), "median_s": _rounded(median), "max_s": _rounded(most)}
            for kind, faults, median, most in _by_kind(outcome.struck)
        },
        "faults": [
            {
                "kind": struck.hit.kind,
                "strike": struck.hit.strike,
                "at_s": _rounded(struck.hit.struck_at - outcome.began_at),
                "away_s": _rounded(struck.hit.back_at - struck.hit.struck_at),
                "recovery_s": _rounded(struck.recovery_s),
                "elsewhere_s": _rounded(struck.elsewhere_s),
                "nothing_to_recover": struck.hit_nothing,
                "target": struck.hit.target,
            }
            for struck in outcome.struck
        ],
        "order": {
            "pairs": order.pairs,
            "inverted": order.inverted,
            "unexplained": len(order.unexplained),
            "tags": order.tags,
            "tags_changed": len(order.tags_changed),
        },
        "failures": list(outcome.failures),
        "took_s": _rounded(outcome.took_s),
    }


def together(documents: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums and the worst over the engines, which stand beside them in the file."""
    runs = list(documents.values())
    summed = ("inferences", "calls", "lost", "doubled", "wrong", "cut", "broken", "leaked")
    recoveries = [run["max_recovery_s"] for run in runs if run["max_recovery_s"] is not None]
    return {
        **{name: sum(run[name] for run in runs) for name in summed},
        "max_recovery_s": max(recoveries, default=None),
        "faults": [
            {"engine": engine, **fault}
            for engine, run in documents.items()
            for fault in run["faults"]
        ],
    }


def table(outcome: Outcome) -> str:
    """Return a line for each kind of fault: how often, how long, against its target."""
    rows = [("fault", "times", "median s", "max s", "target s", "")]
    for kind, faults, median, most in _by_kind(outcome.struck):
        target = ABOUT[kind].target_s
        times = str(len(faults))
        if idle := sum(fault.hit_nothing for fault in faults):
            times = f"{times} ({idle} with nothing to recover)"
        rows.append(
            (
                f"{kind} (took)" if ABOUT[kind].graceful else kind,
                times,
                _shown(median),
                _shown(most),
                _shown(target),
                _verdict(faults, most, target),
            )
        )
    return text_table(rows, numbers_from=1)


def summary(outcome: Outcome) -> str:
    """Return the counts in a few lines."""
    counts, order = outcome.counts, outcome.order
    began = sorted(s.elsewhere_s for s in outcome.struck if s.elsewhere_s is not None)
    elsewhere = (
        f"\nThe last that a dead replica or engine ran began elsewhere after"
        f" {statistics.median(began):.2f} s (median; most {began[-1]:.2f} s): it waits its turn."
        if began
        else ""
    )
    return (
        f"{counts.inferences} inferences in {counts.calls} calls: lost {len(counts.lost)},"
        f" doubled {len(counts.doubled)}, wrong {len(counts.wrong)}, cut {len(counts.cut)},"
        f" broken {len(counts.broken)}, leaked {len(outcome.leaked)};"
        f" {counts.excused} calls went with an ingress and were made again.\n"
        f"Order: {order.pairs} grants held against what waited, {order.inverted} inverted,"
        f" {len(order.unexplained)} of them without a reason in flight;"
        f" {order.tags} tags across a scheduler's death, {len(order.tags_changed)} changed."
        f"{elsewhere}"
    )


def _verdict(faults: Sequence[Struck], most: Seconds | None, target: Seconds | None) -> str:
    if target is None:
        return ""
    if any(fault.is_open for fault in faults):
        return "MISSED"
    if most is None:
        return ""
    return "MET" if most <= target else "MISSED"


def _by_kind(
    struck: Sequence[Struck],
) -> list[tuple[Kind, list[Struck], Seconds | None, Seconds | None]]:
    rows = []
    for kind in ABOUT:
        faults = [one for one in struck if one.hit.kind is kind]
        known = [fault.recovery_s for fault in faults if fault.recovery_s is not None]
        if faults:
            median = statistics.median(known) if known else None
            rows.append((kind, faults, median, max(known, default=None)))
    return rows


def _rounded(value: Seconds | None) -> Seconds | None:
    return None if value is None else round(value, 3)


def _shown(value: Seconds | None) -> str:
    return "" if value is None else f"{value:.2f}"
