"""Tables and JSON of scripts/bench_recognition."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from justitia_ray.cli.text_table import text_table
from justitia_ray.sim.recognition import RecognitionCounts
from scripts.bench.recognition import REFERENCE, SimulatedLoad, Times
from scripts.bench.recognition_live import HEADER, LivePlays
from scripts.bench.statistics import paired_ratios, spread

_FIGURES = ("mean_s", "p90_s", "worst_s")
_HEADS = ("mean s", "p90 s", "worst s")


def simulated_tables(load: SimulatedLoad) -> str:
    """Return tables of completion times by combination and class, and of recognised calls."""
    title = f"{load.mix}, {load.density:g}x, {len(load.tallies)} seeds, simulated"
    return "\n\n".join(
        (
            title,
            _times_table(load.times, str(REFERENCE)),
            _class_table(load.times),
            _tally_table(load.tallies),
        )
    )


def live_tables(plays: LivePlays) -> str:
    """Return tables of completion times by arm and class, and of the assignment of calls."""
    rows = [["arm", "calls", "follow one", "repeat it", "put right", "put wrong", "counted as"]]
    for arm, placed in plays.placed.items():
        row = [f"{count:,}" for count in asdict(placed).values()]
        counted = sorted(plays.recognised[arm].items())
        rows.append([arm, *row, ", ".join(f"{rule} {count:,}" for rule, count in counted)])
    return "\n\n".join(
        (_times_table(plays.times, HEADER.name), _class_table(plays.times), text_table(rows))
    )


def document(loads: Sequence[SimulatedLoad], plays: LivePlays | None) -> dict[str, Any]:
    return {
        "simulated": [asdict(load) for load in loads],
        "live": None if plays is None else asdict(plays),
    }


def _times_table(times: Mapping[str, Sequence[Times]], reference: str) -> str:
    """Return a table of medians (minimum to maximum), with ratios to the reference."""
    rows = [["", *(text for head in _HEADS for text in (head, "ratio"))]]
    for name, plays in times.items():
        row = [name]
        for figure in _FIGURES:
            ours = [getattr(one, figure) for one in plays]
            theirs = [getattr(one, figure) for one in times[reference]]
            row += [spread(ours).format(1), spread(paired_ratios(ours, theirs)).format(2)]
        rows.append(row)
    return text_table(rows, numbers_from=1)


def _class_table(times: Mapping[str, Sequence[Times]]) -> str:
    classes = sorted({name for plays in times.values() for one in plays for name in one.by_class})
    rows = [["mean s, by class", *classes]]
    for name, plays in times.items():
        row = [name]
        for of in classes:
            means = [one.by_class[of] for one in plays if of in one.by_class]
            row.append(f"{spread(means).median:.1f}")
        rows.append(row)
    return text_table(rows, numbers_from=1)


def _tally_table(tallies: Sequence[Mapping[str, RecognitionCounts]]) -> str:
    totals: dict[str, RecognitionCounts] = {}
    for tally in tallies:
        for name, counted in tally.items():
            for total in (
                totals.setdefault(name, RecognitionCounts()),
                totals.setdefault("all", RecognitionCounts()),
            ):
                total.calls += counted.calls
                total.following += counted.following
                total.recognised += counted.recognised
    rows = [["by conversation", "calls", "follow one", "recognised", "of all", "of those"]]
    for name in sorted(totals):
        one = totals[name]
        rows.append(
            [
                name,
                f"{one.calls:,}",
                f"{one.following:,}",
                f"{one.recognised:,}",
                f"{one.recognised / one.calls:.0%}",
                f"{one.recognised / one.following:.0%}" if one.following else "–",
            ]
        )
    return text_table(rows, numbers_from=1)
