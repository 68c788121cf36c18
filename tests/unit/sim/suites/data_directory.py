"""Data directories for tests: small ones written by hand, and the real one where there is one."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

_BESIDE = Path(__file__).parents[5] / "shared" / "data"
REAL = Path(os.environ.get("JUSTITIA_DATA") or _BESIDE)

needs_real_data = pytest.mark.skipif(
    not (REAL / "recorded").is_dir(), reason="needs the data directory: set JUSTITIA_DATA"
)


def write_lines(file: Path, *objects: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(item) + "\n" for item in objects), encoding="utf-8")


def write_text(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
