"""Trace of one inference: the code that it executes, and that the trace records it."""

import pytest

from scripts import trace_inference as command
from scripts.bench.trace import trace_granted_submission, trace_inference

MOST_CORE_FILES = 23
"""Upper bound on package files executed by an immediately granted submission."""


def test_granted_submission_executes_few_files() -> None:
    """A reader who follows one submission has to open each of these files."""
    trace = trace_granted_submission()

    assert MOST_CORE_FILES >= len(trace.files)
    assert "core/scheduler.py" in trace.files


MOST_UNARY_FUNCTIONS = 377
"""Upper bound on the service's functions in a unary call; it may only be lowered."""


def test_unary_call_executes_few_functions() -> None:
    """Background work during the call (reports, checkpoints, pings) counts as well."""
    functions = trace_inference().service_functions
    folders = {file.rpartition("/")[0] for file, _ in functions}

    assert MOST_UNARY_FUNCTIONS >= len(functions)
    assert {"core", "serve/ingress", "serve/scheduler", "serve/replica"} <= folders
    assert not any("engine_model" in folder for folder in folders)


def test_trace_of_an_inference_is_printed_by_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == command.main(["--stream"])

    printed = capsys.readouterr().out
    for folder in ("core", "serve/ingress", "serve/scheduler", "serve/replica", "serve/engines"):
        assert f"\n{folder} " in printed
