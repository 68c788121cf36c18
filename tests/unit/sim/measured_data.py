"""Where the measured runs are: $JUSTITIA_DATA, or beside the checkout; tests skip without them."""

import os
from pathlib import Path

import pytest

_BESIDE = Path(__file__).parents[4] / "shared" / "data"


def measured_run_path(name: str) -> Path:
    """Return the path of a file of `vtc_runs`, or skip the test."""
    named = os.environ.get("JUSTITIA_DATA")
    path = (Path(named) if named else _BESIDE) / "vtc_runs" / name
    if not path.exists():
        pytest.skip(f"{path} is not there: the measured runs are not part of the repository")
    return path
