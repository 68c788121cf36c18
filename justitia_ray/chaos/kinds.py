"""The kinds of faults, and what counts as recovered from each."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from justitia_ray.units import Seconds


class Kind(StrEnum):
    """What strikes."""

    SCHEDULER_KILLED = "scheduler-killed"
    SCHEDULER_STOPPED = "scheduler-stopped"
    REPLICA_KILLED = "replica-killed"
    ENGINE_KILLED = "engine-killed"
    INGRESS_KILLED = "ingress-killed"
    PREDICTOR_KILLED = "predictor-killed"
    REDIS_KILLED = "redis-killed"
    REDIS_STOPPED = "redis-stopped"
    REDIS_EMPTIED = "redis-emptied"
    CALLERS_LEFT = "callers-left"
    GCS_KILLED = "gcs-killed"
    SCALED = "scaled"
    REDEPLOYED = "redeployed"


@dataclass(frozen=True, slots=True)
class About:
    """What is done, and what is waited for."""

    done: str
    recovered: str
    """The instant at which the time to recover ends."""
    target_s: Seconds | None = None
    """DESIGN.md, 6; None: it names none."""
    graceful: bool = False
    """Nothing dies: the time is how long it took, and no recovery."""


ABOUT: Mapping[Kind, About] = {
    Kind.SCHEDULER_KILLED: About(
        "SIGKILL of the scheduler's process", "first run under a lease of the new epoch", 5.0
    ),
    Kind.SCHEDULER_STOPPED: About(
        "SIGSTOP of the scheduler, SIGCONT later", "first run begun after SIGCONT"
    ),
    Kind.REPLICA_KILLED: About(
        "SIGKILL of a replica's process", "the scheduler can lease its work to others", 5.0
    ),
    Kind.ENGINE_KILLED: About(
        "the engine inside a living replica dies",
        "the scheduler can lease its work to others",
        5.0,
    ),
    Kind.INGRESS_KILLED: About(
        "SIGKILL of one of the ingress processes", "first answer to a call made after it"
    ),
    Kind.PREDICTOR_KILLED: About(
        "SIGKILL of the predictor", "the slowest of the next three openings of applications"
    ),
    Kind.REDIS_KILLED: About(
        "SIGKILL of Redis, started again with its data", "the next save after it answers again"
    ),
    Kind.REDIS_STOPPED: About("SIGSTOP of Redis, SIGCONT later", "the next save after SIGCONT"),
    Kind.REDIS_EMPTIED: About(
        "SIGKILL of Redis, started again without its data",
        "it holds the epoch and the clock again",
    ),
    Kind.CALLERS_LEFT: About(
        "half of the callers disconnect, and call again", "the last run of theirs has ended", 1.0
    ),
    Kind.GCS_KILLED: About(
        "SIGKILL of Ray's GCS, started again from its Redis",
        "it and Serve's controller answer",
    ),
    Kind.SCALED: About("one replica less, then one more", "both done", graceful=True),
    Kind.REDEPLOYED: About("serve deploy of a changed version", "it is whole", graceful=True),
}
