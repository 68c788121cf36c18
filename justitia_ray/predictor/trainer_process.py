"""`python -m justitia_ray.predictor.trainer_process`: one job on stdin, a model's bytes on stdout.

A process of its own, so that training takes no time from a prediction, and what goes wrong in it
(a crash, a hang, memory) goes wrong for it alone. JSON in, array bytes out: nothing is unpickled.
"""

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from justitia_ray.errors import JustitiaError
from justitia_ray.predictor.retraining import TrainingJob, train
from justitia_ray.predictor.sample_record import sample_from_dict, sample_to_dict

COMMAND = (sys.executable, "-m", "justitia_ray.predictor.trainer_process")

_NICENESS = 19
"""Ray's workers run at 15: beside one of them a process of this niceness alone would still get a
third of a core. Hence `SCHED_IDLE`, a twelfth of theirs."""


def job_to_bytes(job: TrainingJob) -> bytes:
    """Return what the process needs of a job, as JSON; texts stay here."""
    samples = [sample_to_dict(sample.without_text()) for sample in job.samples]
    fields = {
        "application_class": job.application_class,
        "samples": samples,
        "seed": job.seed,
        "kind": job.kind,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def job_from_dict(values: Mapping[str, Any]) -> TrainingJob:
    """Return the job that `job_to_bytes` was called on, without the samples held back.

    Raises:
        ValueError: If a sample has another form.
        KeyError: If a field is missing.
    """
    samples = tuple(sample_from_dict(sample) for sample in values["samples"])
    return TrainingJob(
        application_class=values["application_class"],
        samples=samples,
        held_back=(),
        reason="samples",
        seed=values["seed"],
        kind=values["kind"],
    )


def main() -> int:
    """Train the job on stdin; return 1, with a sentence on stderr, if that cannot be done."""
    os.nice(_NICENESS)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    # Only the model goes to stdout, whatever a library prints.
    answer, sys.stdout = sys.stdout.buffer, sys.stderr
    try:
        data = train(job_from_dict(json.load(sys.stdin.buffer)))
    except (JustitiaError, ValueError, KeyError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201  # its only voice
        return 1
    answer.write(data)
    answer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
