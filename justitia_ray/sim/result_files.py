"""A directory of results: summary, rows and what made them, written whole or not at all.

    DIR/run.json                    version, seed, configuration; which directory is which policy's
    DIR/summary.json                the figures by policy, see `summary`
    DIR/POLICY/applications.jsonl   a row for each application
    DIR/POLICY/inferences.jsonl     a row for each inference

Simulated and live runs write the same files.
"""

import hashlib
import json
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from justitia_ray import __version__
from justitia_ray.config import describe
from justitia_ray.errors import ConfigError
from justitia_ray.sim.results import ApplicationResult, InferenceResult, RunResult
from justitia_ray.sim.summary import Summary, summarise

RUN = "run.json"
SUMMARY = "summary.json"
APPLICATIONS = "applications.jsonl"
INFERENCES = "inferences.jsonl"

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")

Row = TypeVar("Row", ApplicationResult, InferenceResult)


@dataclass(frozen=True, slots=True)
class StoredResults:
    """What a directory of results holds."""

    about: dict[str, Any]
    """What made them: version, and whatever the command wrote of seed and configuration."""
    summary: dict[str, Summary]
    """By policy."""
    runs: dict[str, RunResult]
    """By policy, in the order in which they ran: the rows, and of the figures those of the summary.
    Lateness and KV samples are not kept."""


def check_writable(out: Path) -> None:
    """Find out, before an hour of work, whether results can be written there.

    Nothing is left behind.

    Raises:
        ConfigError: If they cannot.
    """
    existing = out
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise ConfigError(f"--out {out}: must be a directory, but {existing} is a file")
    probe = existing / _unfinished_name()
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        raise _unwritable(out, error) from error


def write_results(
    out: Path, results: Mapping[str, RunResult], about: Mapping[str, Any]
) -> dict[str, Summary]:
    """Write the results of all policies, and return their summary.

    Files of the same names are replaced, each at once; all else in the directory stays.

    Args:
        out: The directory; it is made if it is not there.
        results: By policy; the name may be an import path.
        about: For `run.json`: seed, configuration, whatever a reader needs to repeat it. JSON.

    Raises:
        ConfigError: If it cannot be written; then nothing was, unless the disk failed between two
            renames.
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
    """Read what `write_results` wrote.

    Raises:
        ConfigError: If a file is missing or wrong; the message names file, line and field.
    """
    about = _read_object(directory / RUN)
    summary = _read_object(directory / SUMMARY)
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
    """Return the name of a policy's directory: its own, or one like it if that is no plain name."""
    if _PLAIN_NAME.fullmatch(policy):
        return policy
    like = re.sub(r"[^A-Za-z0-9_-]+", "-", policy).strip("-")[:60]
    return f"{like}-{hashlib.sha256(policy.encode()).hexdigest()[:8]}".lstrip("-_")


@contextmanager
def writing(out: Path) -> Iterator[Path]:
    """Yield a directory to write into; leaving it without an error moves its files to `out`.

    Raises:
        ConfigError: If something cannot be written.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # Inside, if it is there already: it may be a file system of its own.
        unfinished = (out if out.exists() else out.parent) / _unfinished_name()
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
        raise _unwritable(out, error) from error


def _move_files(source: Path, target: Path) -> None:
    files = sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())
    for file in files:
        if (target / file).is_dir():
            raise IsADirectoryError(f"{target / file} is a directory")
        (target / file).parent.mkdir(exist_ok=True)
    for file in files:
        (source / file).replace(target / file)


def _unfinished_name() -> str:
    return f".unfinished-{uuid.uuid4().hex}"


def _unwritable(out: Path, error: OSError) -> ConfigError:
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


def _read_object(path: Path) -> dict[str, Any]:
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
    row = TypeAdapter(kind)
    try:
        with path.open("rb") as file:
            return [
                _read_row(row, f"{path}:{number}", line)
                for number, line in enumerate(file, start=1)
                if line.strip()
            ]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error


def _read_row(row: TypeAdapter[Row], where: str, line: bytes) -> Row:
    try:
        return row.validate_json(line)
    except ValidationError as error:
        raise ConfigError(f"{where}: {describe(error)}") from error
