"""The lines of `results.jsonl`: each number of a report, with all that it came from."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from justitia_ray.report.chart import Point

Value: TypeAlias = float | int | None
Points: TypeAlias = Sequence[Point]


@dataclass(frozen=True, slots=True)
class Record:
    """One line."""

    experiment: str
    arm: str
    metric: str
    value: Value | Points
    statistic: str = "run"
    """`run`: of one seed; `mean`, `mean_low`, `mean_high`: over the seeds, with the ends of the
    95 % interval; `difference`, `difference_low`, `difference_high`: the same of paired
    differences from `against`; `series`: the points of a figure; `limit`: of a target;
    `published`: of a paper."""
    seed: int | None = None
    against: str | None = None
    """The arm that a difference is taken from."""
    is_relative: bool = False
    """Whether a difference is a share of the other arm's value."""
    of_lines: tuple[int, ...] = ()
    """The runs that an aggregate was made of: their seeds and configurations stand there."""
    unit: str = ""
    source: str | None = None
    """Where a published number stands."""
    is_timing: bool = False
    """Whether it is wall time of this machine, so another the next time."""
    configuration: Mapping[str, Any] = field(default_factory=dict)


class Ledger:
    """The records of a report, in order; a record is known by its line number."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._records: list[Record] = []

    def add(self, record: Record) -> int:
        """Take in a record and return its line number, from 1."""
        self._records.append(record)
        return len(self._records)

    def __getitem__(self, line: int) -> Record:
        """Return the record of a line."""
        return self._records[line - 1]

    def __len__(self) -> int:
        """Return the number of lines."""
        return len(self._records)

    def write(self, path: Path) -> None:
        """Write all lines."""
        with path.open("w", encoding="utf-8") as file:
            for number, record in enumerate(self._records, 1):
                row = {"line": number, **asdict(record), "version": self._version}
                row["value"] = _finite(row["value"])
                file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


def _finite(value: Any) -> Any:
    """Numbers that JSON has not (nan, inf) are None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value
