"""Data directories for tests: small ones written by the test, and the real one if it exists."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

_BESIDE = Path(__file__).parents[4] / "shared" / "data"
REAL = Path(os.environ.get("JUSTITIA_DATA") or _BESIDE)

needs_real_data = pytest.mark.skipif(
    not (REAL / "recorded").is_dir(), reason="needs the data directory: set JUSTITIA_DATA"
)


def measured_run_path(name: str) -> Path:
    """Return the path of a measured run of the VTC paper; skip the test if it is missing."""
    path = REAL / "vtc_runs" / name
    if not path.exists():
        pytest.skip(f"{path} is not there: the measured runs are not part of the repository")
    return path


def write_lines(file: Path, *objects: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as lines:
        lines.writelines(json.dumps(item) + "\n" for item in objects)


def write_text(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
