"""The training process: its answer, failures and end, tested with stand-in programs."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from justitia_ray.predictor.training import TrainingJob
from justitia_ray.serve.predictor.training import Trainer, TrainingFailed
from tests.eventually import eventually
from tests.unit.predictor.builders import sample_of

JOB = TrainingJob("EV", (sample_of(5),), (), "first", seed=0)


def trainer_of(program: str, timeout_s: float = 10.0) -> Trainer:
    return Trainer(timeout_s, (sys.executable, "-S", "-c", program))


def sleeping_program(said: Path) -> str:
    return f"import os, time; open({str(said)!r}, 'w').write(str(os.getpid())); time.sleep(600)"


def assert_process_ended(said: Path) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(int(said.read_text()), 0)


async def test_output_of_the_training_process_is_the_model() -> None:
    """The process reads its job from its standard input."""
    program = "import sys; d = sys.stdin.buffer.read(); sys.stdout.buffer.write(b'\\xff' + d[:1])"

    assert b"\xff{" == await trainer_of(program).train(JOB)


@pytest.mark.parametrize(
    ("program", "complaint"),
    [
        ("import sys; sys.exit('no such kind')", "ended with 1: no such kind"),
        ("import os; os.kill(os.getpid(), 9)", "ended with -9"),
        ("pass", "ended with 0"),
    ],
)
async def test_training_process_without_an_output_is_a_failure(
    program: str, complaint: str
) -> None:
    """Every failure of the process has the same error class."""
    with pytest.raises(TrainingFailed, match=complaint):
        await trainer_of(program).train(JOB)


@pytest.mark.slow
async def test_training_process_that_hangs_is_killed(tmp_path: Path) -> None:
    said = tmp_path / "pid"

    with pytest.raises(TrainingFailed, match="no model after"):
        await trainer_of(sleeping_program(said), timeout_s=0.5).train(JOB)
    assert_process_ended(said)


async def test_training_process_ends_with_its_caller(tmp_path: Path) -> None:
    """A service that shuts down must leave no process behind."""
    said = tmp_path / "pid"
    training = asyncio.create_task(trainer_of(sleeping_program(said)).train(JOB))
    await eventually(lambda: said.exists() and bool(said.read_text()), "it runs", 10.0)
    training.cancel()

    with pytest.raises(asyncio.CancelledError):
        await training
    assert_process_ended(said)


async def test_missing_training_program_is_a_failure() -> None:
    with pytest.raises(TrainingFailed):
        await Trainer(1.0, ("/no/such/program",)).train(JOB)
