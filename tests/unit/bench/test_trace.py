"""The trace of one inference: how much code it passes, and that the trace sees it."""

import pytest

from scripts import trace_inference
from scripts.bench.trace import trace_granted_submission

MOST_CORE_FILES = 22
"""Bound on the files of the package that a submission passes which is granted at once."""


def test_granted_submission_passes_few_files() -> None:
    """The core is read by following one submission: each file more is a page more to turn."""
    trace = trace_granted_submission()

    assert MOST_CORE_FILES >= len(trace.files)
    assert "core/scheduler.py" in trace.files


def test_trace_of_an_inference_is_printed_by_folder(capsys: pytest.CaptureFixture[str]) -> None:
    """Ingress, scheduler, replica and engine all take part in it."""
    assert 0 == trace_inference.main(["--stream"])

    printed = capsys.readouterr().out
    for folder in ("core", "serve/ingress", "serve/scheduler", "serve/replica", "serve/engines"):
        assert f"\n{folder} " in printed
