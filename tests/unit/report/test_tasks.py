"""What an arm does: a recorded run is read as the tables of the paper were made of it."""

from pathlib import Path

import pytest

from justitia_ray.errors import ConfigError
from justitia_ray.report.tasks import Recording
from justitia_ray.sim.calibration.measured import COLUMNS, TimedRequest


def test_aborted_requests_are_not_served(tmp_path: Path) -> None:
    """A request with no latency was refused: it received nothing, and is no request of the run."""
    path = tmp_path / "run.csv"
    path.write_text(f"{','.join(COLUMNS)}\n3,1.5,10,20,0.5,2.0\n4,2.5,10,20,,\n")

    assert [TimedRequest("3", 1.5, 10, 20, 2.0, 3.5)] == list(Recording(path, "run").run())


def test_missing_recording_is_a_sentence(tmp_path: Path) -> None:
    """The page then says which file an arm lacks, and the rest of it is made."""
    with pytest.raises(ConfigError, match=r"run\.csv: cannot be read"):
        Recording(tmp_path / "run.csv", "run").run()
