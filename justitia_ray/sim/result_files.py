"""A directory of results: summary, records and configuration, written atomically.

    DIR/run.json                    version, seed, configuration; the directory of each policy
    DIR/summary.json                the figures by policy, see `summary`
    DIR/POLICY/applications.jsonl   a row for each application
    DIR/POLICY/inferences.jsonl     a row for each inference

Simulated and live runs write the same files.
"""

import hashlib
import importlib.util
import json
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from justitia_ray import __version__
from justitia_ray.config import describe
from justitia_ray.errors import ConfigError
from justitia_ray.json_lines import read_records
from justitia_ray.sim.results import (
    REFERENCE_POLICY,
    ApplicationResult,
    InferenceResult,
    RunResult,
    Summary,
    ratios_to_reference,
    summarise,
)

RUN = "run.json"
SUMMARY = "summary.json"
APPLICATIONS = "applications.jsonl"
INFERENCES = "inferences.jsonl"

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")

Row = TypeVar("Row", ApplicationResult, InferenceResult)


@dataclass(frozen=True, slots=True)
class StoredResults:
    about: dict[str, Any]
    """Content of `run.json`: version, seed and configuration."""
    summary: dict[str, Summary]
    """Figures by policy, as in `summary.json`."""
    runs: dict[str, RunResult]
    """Result of each policy, in the order of the runs."""


def check_writable(out: Path) -> None:
    """Check that results can be written to a directory; called before a long run.

    Raises:
        ConfigError: If the results cannot be written.
    """
    existing = out
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise ConfigError(f"--out {out}: must be a directory, but {existing} is a file")
    probe = existing / _temporary_name()
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        raise _write_error(out, error) from error


def write_results(
    out: Path, results: Mapping[str, RunResult], about: Mapping[str, Any]
) -> dict[str, Summary]:
    """Write the results of all policies, and return their summary.

    Existing files of the same names are replaced atomically; other files in the directory stay.

    Args:
        out: The directory; created if missing.
        results: Results by policy; the name may be an import path.
        about: JSON values for `run.json`: seed, configuration, and other data needed to repeat the
            run.

    Raises:
        ConfigError: If the directory cannot be written; nothing is changed then, unless the disk
            fails between two renames.
    """
    summary = summarise(results)
    directories = {policy: policy_directory(policy) for policy in results}
    with writing(out) as unfinished:
        for policy, run in results.items():
            directory = unfinished / directories[policy]
            directory.mkdir()
            _write_rows(directory / APPLICATIONS, run.applications, ApplicationResult)
            _write_rows(directory / INFERENCES, run.inferences, InferenceResult)
        told = {"version": __version__, **about, "directories": directories}
        _write_json(unfinished / RUN, told)
        _write_json(unfinished / SUMMARY, summary)
    return summary


def read_results(directory: Path) -> StoredResults:
    """Read results written by `write_results`.

    Raises:
        ConfigError: If a file is missing or wrong; the message names file, line and field.
    """
    about = read_object(directory / RUN)
    summary = read_object(directory / SUMMARY)
    directories = about.get("directories")
    if not isinstance(directories, dict) or not all(
        isinstance(name, str) for name in directories.values()
    ):
        raise ConfigError(
            f"{directory / RUN}: directories must name the directory of each policy,"
            f" got {directories!r:.80}"
        )
    runs = {}
    for policy, name in directories.items():
        figures = summary.get(policy)
        if not isinstance(figures, dict):
            raise ConfigError(f"{directory / SUMMARY}: must have the policy {policy!r} of {RUN}")
        runs[policy] = RunResult(
            applications=_read_rows(directory / name / APPLICATIONS, ApplicationResult),
            inferences=_read_rows(directory / name / INFERENCES, InferenceResult),
            makespan_s=figures.get("makespan_s") or 0.0,
            kv_utilization=figures.get("kv_utilization"),
            preemptions=figures.get("preemptions") or 0,
        )
    return StoredResults(about, summary, runs)


def policy_directory(policy: str) -> str:
    """Return a directory name for a policy: its name, without special characters."""
    if _PLAIN_NAME.fullmatch(policy):
        return policy
    like = re.sub(r"[^A-Za-z0-9_-]+", "-", policy).strip("-")[:60]
    return f"{like}-{hashlib.sha256(policy.encode()).hexdigest()[:8]}".lstrip("-_")


@contextmanager
def writing(out: Path) -> Iterator[Path]:
    """Yield a temporary directory whose files are moved to `out` after success.

    Raises:
        ConfigError: If a file or a directory cannot be written.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # The temporary directory must be on the same file system as `out`.
        unfinished = (out if out.exists() else out.parent) / _temporary_name()
        unfinished.mkdir()
        try:
            yield unfinished
            if out.exists():
                _move_files(unfinished, out)
            else:
                unfinished.rename(out)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise _write_error(out, error) from error


def _move_files(source: Path, target: Path) -> None:
    files = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
    for file in files:
        if (target / file).is_dir():
            raise IsADirectoryError(f"{target / file} is a directory")
        (target / file).parent.mkdir(exist_ok=True)
    for file in files:
        (source / file).replace(target / file)


def _temporary_name() -> str:
    return f".unfinished-{uuid.uuid4().hex}"


def _write_error(out: Path, error: OSError) -> ConfigError:
    return ConfigError(f"--out {out}: cannot be written: {error.strerror or error}")


def _write_rows(path: Path, rows: Iterable[Row], kind: type[Row]) -> None:
    names = [field.name for field in fields(kind)]
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            line = {name: getattr(row, name) for name in names}
            file.write(json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n")


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object that a file holds.

    Raises:
        ConfigError: If the file cannot be read or holds no object; the message names the file.
    """
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: must be a JSON object, got {value!r:.80}")
    return value


def _read_rows(path: Path, kind: type[Row]) -> list[Row]:
    adapter, rows = TypeAdapter(kind), list[Row]()
    for record in read_records(path):
        try:
            rows.append(adapter.validate_python(record.fields))
        except ValidationError as error:
            raise ConfigError(f"{record.where}: {describe(error)}") from error
    return rows


if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMPLETION_TIMES = "completion_times"
RATIOS = "ratios_to_vtc"

_REPEATABLE = {"svg.hashsalt": "justitia_ray"}
"""Settings that make the SVG equal in every run; otherwise ids would be random."""
_NO_DATE = {"Date": None}


def draw_figures(out: Path, results: Mapping[str, RunResult]) -> str | None:
    """Draw the figures as PNG and SVG; return a message if there are none.

    `completion_times`: mean and p90 of each policy. `ratios_to_vtc`: the distribution over
    applications of the completion time relative to `vtc`, if `vtc` and another policy were run.
    Equal results give equal SVG files.

    Raises:
        ConfigError: If the directory cannot be written.
    """
    if importlib.util.find_spec("matplotlib") is None:
        return "no figures: they need matplotlib; pip install 'justitia-ray[figures]'"
    from matplotlib import rc_context

    figures = {COMPLETION_TIMES: _draw_completion_times(results)}
    if REFERENCE_POLICY in results and len(results) > 1:
        figures[RATIOS] = _draw_ratios(results)
    with writing(out) as unfinished, rc_context(_REPEATABLE):
        for name, figure in figures.items():
            figure.savefig(unfinished / f"{name}.png", dpi=120)
            figure.savefig(unfinished / f"{name}.svg", metadata=_NO_DATE)
    return None


def _draw_completion_times(results: Mapping[str, RunResult]) -> "Figure":
    summary = summarise(results)
    figure = _new_figure(height_inches=1.6 + 0.55 * len(results))
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


def _draw_ratios(results: Mapping[str, RunResult]) -> "Figure":
    figure = _new_figure(height_inches=4)
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


def _new_figure(height_inches: float) -> "Figure":
    """Return a figure without pyplot, which would choose a backend and keep every figure open."""
    from matplotlib.figure import Figure

    return Figure(figsize=(8, height_inches), layout="constrained")
