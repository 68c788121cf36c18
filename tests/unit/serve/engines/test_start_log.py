"""The root cause of a failed engine start is read from the log of its processes."""

import subprocess
import sys
from pathlib import Path

import pytest

LINES = """\
(EngineCore pid=7) ERROR 11-28 06:56:23 [core.py:1510]     raise ValueError(
(EngineCore pid=7) ERROR 11-28 06:56:23 [core.py:1510] ValueError: To serve at least one request
(EngineCore pid=7) ERROR 11-28 06:56:36 [multiproc_executor.py:315] Worker proc died unexpectedly
(EngineCore pid=7) INFO 11-28 06:56:36 [multiproc_executor.py:479] [shutdown] Executor: waiting
Process EngineCore:
ValueError: To serve at least one request
"""
"""Shortened log of vLLM 0.32 whose KV memory is too small."""
RANKS = """\
(Worker_TP1 pid=9) ERROR 11-28 06:56:23 [x.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried
"""
REFERS = "Engine core initialization failed. See root cause above. Failed core proc(s): {}"


def reported_cause(folder: Path, before: str, during: str, error: str) -> str:
    """Return the cause that a process reports after its child has logged `during`."""
    program = (
        "import subprocess, sys\n"
        "from justitia_ray.serve.engines.start_log import StartLog\n"
        "_, before, during, error = sys.argv\n"
        "print(before, flush=True)\n"
        "log = StartLog()\n"
        "subprocess.run(['printf', '%s', during], check=True)\n"
        "print(log.cause_of(RuntimeError(error)), file=sys.stderr)\n"
    )
    with (folder / "worker.out").open("w") as out:
        done = subprocess.run(
            [sys.executable, "-c", program, before, during, error],
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            check=True,
        )
    return done.stderr.strip()


@pytest.mark.parametrize(
    ("log", "named"),
    [
        (LINES, "ValueError: To serve at least one request"),
        (RANKS, "torch.OutOfMemoryError: CUDA out of memory. Tried"),
        ("", REFERS),
    ],
)
def test_start_error_that_refers_to_the_log_is_replaced_by_the_logged_error(
    log: str, named: str, tmp_path: Path
) -> None:
    assert named == reported_cause(tmp_path, "", log, REFERS)


def test_logged_error_of_an_earlier_start_is_not_reported(tmp_path: Path) -> None:
    assert REFERS == reported_cause(tmp_path, LINES, "", REFERS)


def test_start_error_with_a_reason_is_reported_in_one_line(tmp_path: Path) -> None:
    """Ray Serve's status shows the last line of an error."""
    assert "1 error Value error, x" == reported_cause(
        tmp_path, "", LINES, "1 error\n  Value error, x\n"
    )
