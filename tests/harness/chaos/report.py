"""Result of a chaos run: its JSON document, its table, and its failures."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from justitia_ray.cli.text_table import text_table
from justitia_ray.units import Seconds
from tests.harness.chaos.counts import Counts
from tests.harness.chaos.fleet import FleetMeasure
from tests.harness.chaos.order import OrderMeasure
from tests.harness.chaos.plan import FAULTS, FaultKind
from tests.harness.chaos.records import InjectedFault


@dataclass(frozen=True, slots=True)
class FaultOutcome:
    fault: InjectedFault
    recovery_s: Seconds | None
    elsewhere_s: Seconds | None = None
    """Seconds until all runs of a dead replica or engine had begun again on another."""
    had_no_effect: bool = False
    """Whether the fault hit no run, so that the service had nothing to recover from."""

    @property
    def is_open(self) -> bool:
        """Whether no record shows that the service recovered from the fault."""
        return self.recovery_s is None and not self.had_no_effect


@dataclass(frozen=True, slots=True)
class ChaosResult:
    """Result of one chaos run on one kind of engine."""

    engine: str
    counts: Counts
    order: OrderMeasure
    outcomes: tuple[FaultOutcome, ...]
    leaked: tuple[str, ...]
    began_at: Seconds
    took_s: Seconds
    quota: tuple[str, ...] = ()
    """Violations of the quota, and wrong usage figures."""
    fleet: FleetMeasure | None = None
    """Figures about autoscaled replicas; None if their number is fixed."""

    @property
    def failures(self) -> tuple[str, ...]:
        """Descriptions of all violations that the run found."""
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
            "quota": self.quota,
            "fleet": self.fleet.flaws if self.fleet is not None else (),
        }
        return tuple(f"{name}: {told}" for name, all_of in groups.items() for told in all_of)

    @property
    def max_recovery_s(self) -> Seconds | None:
        """Longest recovery from a fault, in seconds, without planned changes."""
        return max(
            (
                one.recovery_s
                for one in self.outcomes
                if one.recovery_s is not None and not FAULTS[one.fault.kind].graceful
            ),
            default=None,
        )


def result_document(outcome: ChaosResult) -> dict[str, Any]:
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
        "max_recovery_s": _rounded_s(outcome.max_recovery_s),
        "recovery_by_kind": {
            kind: {"times": len(faults), "median_s": _rounded_s(median), "max_s": _rounded_s(most)}
            for kind, faults, median, most in _outcomes_by_kind(outcome.outcomes)
        },
        "faults": [
            {
                "kind": one.fault.kind,
                "strike": one.fault.round_number,
                "at_s": _rounded_s(one.fault.injected_at - outcome.began_at),
                "away_s": _rounded_s(one.fault.back_at - one.fault.injected_at),
                "recovery_s": _rounded_s(one.recovery_s),
                "elsewhere_s": _rounded_s(one.elsewhere_s),
                "nothing_to_recover": one.had_no_effect,
                "target": one.fault.target,
            }
            for one in outcome.outcomes
        ],
        "order": {
            "pairs": order.pairs,
            "inverted": order.inverted,
            "unexplained": len(order.unexplained),
            "tags": order.tags,
            "tags_changed": len(order.tags_changed),
        },
        "fleet": None if outcome.fleet is None else asdict(outcome.fleet),
        "failures": list(outcome.failures),
        "took_s": _rounded_s(outcome.took_s),
    }


def combined_document(documents: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sums and maxima over all kinds of engines, for the JSON file."""
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


def recovery_table(outcome: ChaosResult) -> str:
    """Return a table with a row for each kind of fault: count, recovery times, target."""
    rows = [("fault", "times", "median s", "max s", "target s", "")]
    for kind, faults, median, most in _outcomes_by_kind(outcome.outcomes):
        target = FAULTS[kind].target_s
        times = str(len(faults))
        if idle := sum(fault.had_no_effect for fault in faults):
            times = f"{times} ({idle} with nothing to recover)"
        rows.append(
            (
                f"{kind} (took)" if FAULTS[kind].graceful else kind,
                times,
                _formatted_s(median),
                _formatted_s(most),
                _formatted_s(target),
                _target_verdict(faults, most, target),
            )
        )
    return text_table(rows, numbers_from=1)


def summary_text(outcome: ChaosResult) -> str:
    counts, order = outcome.counts, outcome.order
    began = sorted(s.elsewhere_s for s in outcome.outcomes if s.elsewhere_s is not None)
    elsewhere = (
        f"\nThe last that a dead replica or engine ran began elsewhere after"
        f" {statistics.median(began):.2f} s (median; most {began[-1]:.2f} s): it waits its turn."
        if began
        else ""
    )
    fleet = outcome.fleet
    came_and_went = (
        f"\nReplicas: {fleet.fewest} to {fleet.most} ran, {fleet.loaded} loaded,"
        f" {fleet.taken_off} were taken off; {len(fleet.flaws)} flaws."
        if fleet is not None
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
        f"{elsewhere}{came_and_went}"
    )


def _target_verdict(
    faults: Sequence[FaultOutcome], most: Seconds | None, target: Seconds | None
) -> str:
    if target is None:
        return ""
    if any(fault.is_open for fault in faults):
        return "MISSED"
    if most is None:
        return ""
    return "MET" if most <= target else "MISSED"


def _outcomes_by_kind(
    outcomes: Sequence[FaultOutcome],
) -> list[tuple[FaultKind, list[FaultOutcome], Seconds | None, Seconds | None]]:
    rows = []
    for kind in FAULTS:
        faults = [one for one in outcomes if one.fault.kind is kind]
        known = [fault.recovery_s for fault in faults if fault.recovery_s is not None]
        if faults:
            median = statistics.median(known) if known else None
            rows.append((kind, faults, median, max(known, default=None)))
    return rows


def _rounded_s(value: Seconds | None) -> Seconds | None:
    return None if value is None else round(value, 3)


def _formatted_s(value: Seconds | None) -> str:
    return "" if value is None else f"{value:.2f}"
