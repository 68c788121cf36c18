"""Training in a process of its own: one job at a time, niced, with a time limit."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress

from justitia_ray.errors import JustitiaError
from justitia_ray.predictor.retraining import TrainingJob
from justitia_ray.predictor.trainer_process import COMMAND, job_to_bytes
from justitia_ray.store.redis_binary import dying_with_parent
from justitia_ray.units import Seconds

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_LAST_CHARS = 300


class TrainingFailed(JustitiaError):
    """The process that trains crashed, hung or gave no model; the message says how."""


class Trainer:
    """Trains models in processes that end with their job, and with this one."""

    def __init__(self, timeout_s: Seconds, command: Sequence[str] = COMMAND) -> None:
        """Prepare.

        Args:
            timeout_s: A process that takes longer is killed.
            command: What to run: a job on stdin, a model on stdout.
        """
        self._timeout_s = timeout_s
        self._command = (*dying_with_parent(), *command)

    async def train(self, job: TrainingJob) -> bytes:
        """Return the bytes of the job's model; other tasks go on meanwhile.

        Raises:
            TrainingFailed: If there is none.
        """
        told = await asyncio.to_thread(job_to_bytes, job)
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=os.environ | _ONE_THREAD,
            )
        except OSError as error:
            raise TrainingFailed(f"the process does not start: {error}") from error
        try:
            answer, complaint = await asyncio.wait_for(process.communicate(told), self._timeout_s)
        except TimeoutError:
            raise TrainingFailed(f"no model after {self._timeout_s:g} s") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode != 0 or not answer:
            last = complaint.decode(errors="replace").strip()[-_LAST_CHARS:]
            raise TrainingFailed(f"the process ended with {process.returncode}: {last}")
        return answer
