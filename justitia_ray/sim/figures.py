"""Figures beside the results: completion times by policy, and ratios to vtc."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from justitia_ray.sim.result_files import writing
from justitia_ray.sim.results import RunResult
from justitia_ray.sim.summary import REFERENCE_POLICY, ratios_to_reference, summarise

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPLETION_TIMES = "completion_times"
RATIOS = "ratios_to_vtc"

_REPEATABLE = {"svg.hashsalt": "justitia_ray"}
"""Without it the ids in an SVG are random."""
_NO_DATE = {"Date": None}


def draw_figures(out: Path, results: Mapping[str, RunResult]) -> str | None:
    """Write the figures into the directory, each as PNG and SVG; return why not, if not.

    `completion_times`: mean and p90 of each policy. `ratios_to_vtc`: over the applications, the
    distribution of completion time against that under `vtc`, if `vtc` is among the policies and
    another one is. The same results give the same SVG.

    Raises:
        ConfigError: If the directory cannot be written.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return "no figures: they need matplotlib; pip install 'justitia-ray[figures]'"
    from matplotlib import rc_context

    figures = {COMPLETION_TIMES: _completion_times(results)}
    if REFERENCE_POLICY in results and len(results) > 1:
        figures[RATIOS] = _ratios(results)
    with writing(out) as unfinished, rc_context(_REPEATABLE):
        for name, figure in figures.items():
            figure.savefig(unfinished / f"{name}.png", dpi=120)
            figure.savefig(unfinished / f"{name}.svg", metadata=_NO_DATE)
    return None


def _completion_times(results: Mapping[str, RunResult]) -> "Figure":
    summary = summarise(results)
    figure = _figure(height_inches=1.6 + 0.55 * len(results))
    axes = figure.subplots()
    for shift, field, label in ((-0.2, "mean_jct_s", "mean"), (0.2, "p90_jct_s", "p90")):
        values = [figures[field] or 0.0 for figures in summary.values()]
        places = [place + shift for place in range(len(summary))]
        bars = axes.barh(places, values, 0.4, label=label)
        axes.bar_label(bars, fmt="%.4g", padding=3, fontsize=8)
    axes.set_yticks(range(len(summary)), list(summary))
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set(xlabel="completion time of an application (s)")
    axes.grid(alpha=0.3, axis="x")
    figure.legend(loc="outside upper right", ncols=2)
    return figure


def _ratios(results: Mapping[str, RunResult]) -> "Figure":
    figure = _figure(height_inches=4)
    axes = figure.subplots()
    for policy, run in results.items():
        if policy == REFERENCE_POLICY:
            continue
        ratios = sorted(r for _, r, _ in ratios_to_reference(run, results[REFERENCE_POLICY]))
        shares = [(rank + 1) / len(ratios) for rank in range(len(ratios))]
        axes.step(ratios, shares, where="post", label=policy)
    axes.axvline(1.0, color="grey", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(
        xlabel=f"completion time, over that under {REFERENCE_POLICY}",
        ylabel="share of applications",
        ylim=(0, 1.02),
    )
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _figure(height_inches: float) -> "Figure":
    """Return a figure without pyplot: no window, no backend to choose, nothing left open."""
    from matplotlib.figure import Figure

    return Figure(figsize=(8, height_inches), layout="constrained")
