"""Plan of a chaos run: the kinds of faults, their criteria of recovery, and seeded rounds."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from justitia_ray.errors import ConfigError
from justitia_ray.units import Seconds


class FaultKind(StrEnum):
    SCHEDULER_KILLED = "scheduler-killed"
    SCHEDULER_STOPPED = "scheduler-stopped"
    REPLICA_KILLED = "replica-killed"
    ENGINE_KILLED = "engine-killed"
    ENGINE_STOPPED = "engine-stopped"
    INGRESS_KILLED = "ingress-killed"
    PREDICTOR_KILLED = "predictor-killed"
    REDIS_KILLED = "redis-killed"
    REDIS_STOPPED = "redis-stopped"
    REDIS_EMPTIED = "redis-emptied"
    REDIS_READ_ONLY = "redis-read-only"
    CALLERS_LEFT = "callers-left"
    GCS_KILLED = "gcs-killed"
    SCALED = "scaled"
    REDEPLOYED = "redeployed"
    REPLICA_CUT = "replica-cut"
    INGRESS_CUT = "ingress-cut"
    SCHEDULER_CUT = "scheduler-cut"
    REPLICA_BUSY = "replica-busy"
    REPLICA_HALF_OPEN = "replica-half-open"
    INGRESS_HALF_OPEN = "ingress-half-open"
    PORT_BLOCKED = "port-blocked"
    WRONG_SECRETS = "wrong-secrets"
    SLOW_READER = "slow-reader"
    ACCOUNTS_KILLED = "accounts-killed"
    POISON = "poison"
    LOADING_KILLED = "loading-replica-killed"
    DRAINING_KILLED = "draining-replica-killed"
    ALL_REPLICAS_KILLED = "all-replicas-killed"
    CONTROLLER_KILLED = "controller-killed"
    CONTROLLER_KILLED_IN_DRAIN = "controller-killed-in-drain"


OF_A_SCALED_FLEET = (
    FaultKind.REPLICA_KILLED,
    FaultKind.LOADING_KILLED,
    FaultKind.DRAINING_KILLED,
    FaultKind.ALL_REPLICAS_KILLED,
    FaultKind.SCHEDULER_KILLED,
    FaultKind.SCHEDULER_STOPPED,
    FaultKind.INGRESS_KILLED,
    FaultKind.CONTROLLER_KILLED,
    FaultKind.CONTROLLER_KILLED_IN_DRAIN,
)
"""Kinds of faults for autoscaled replicas."""
OF_A_FIXED_FLEET = tuple(
    kind
    for kind in FaultKind
    if kind
    not in (
        FaultKind.LOADING_KILLED,
        FaultKind.DRAINING_KILLED,
        FaultKind.ALL_REPLICAS_KILLED,
        FaultKind.CONTROLLER_KILLED,
        FaultKind.CONTROLLER_KILLED_IN_DRAIN,
    )
)
"""Kinds of faults for a fixed number of replicas."""

HALF_OPEN_S: Seconds = 7.0
"""Seconds for which a process is suspended: it misses five pings, so that its peers test whether
its machine is alive.
"""
BUSY_S: Seconds = 15.0
"""Seconds for which an event loop is blocked: three times the silence that peers tolerate."""
ENGINE_STOPPED_S: Seconds = 12.0
"""Seconds for which an engine is stopped: 2 s longer than the detection of a stall."""


@dataclass(frozen=True, slots=True)
class FaultInfo:
    """Description of a kind of fault: its injection, and the event that ends its recovery."""

    done: str
    recovered: str
    """Event that ends the recovery, in words."""
    target_s: Seconds | None = None
    """Longest acceptable recovery time in seconds; None without a target."""
    graceful: bool = False
    """Whether the fault is a planned change, in which no process dies unexpectedly."""


FAULTS: Mapping[FaultKind, FaultInfo] = {
    FaultKind.SCHEDULER_KILLED: FaultInfo(
        "SIGKILL of the scheduler's process", "first run under a lease of the new epoch", 5.0
    ),
    FaultKind.SCHEDULER_STOPPED: FaultInfo(
        "SIGSTOP of the scheduler, SIGCONT later", "first run begun after SIGCONT"
    ),
    FaultKind.REPLICA_KILLED: FaultInfo(
        "SIGKILL of a replica's process", "the scheduler can lease its work to others", 5.0
    ),
    FaultKind.ENGINE_KILLED: FaultInfo(
        "the engine inside a living replica dies",
        "the scheduler can lease its work to others",
        5.0,
    ),
    FaultKind.ENGINE_STOPPED: FaultInfo(
        f"the engine of a replica makes no steps for {ENGINE_STOPPED_S:g} s (SIGSTOP), and lives",
        "first run begun there after it went on",
    ),
    FaultKind.INGRESS_KILLED: FaultInfo(
        "SIGKILL of one of the ingress processes", "first answer to a call made after it"
    ),
    FaultKind.PREDICTOR_KILLED: FaultInfo(
        "SIGKILL of the predictor", "the slowest of the next three openings of applications"
    ),
    FaultKind.REDIS_KILLED: FaultInfo(
        "SIGKILL of Redis, started again with its data", "the next save after it answers again"
    ),
    FaultKind.REDIS_STOPPED: FaultInfo(
        "SIGSTOP of Redis, SIGCONT later", "the next save after SIGCONT"
    ),
    FaultKind.REDIS_EMPTIED: FaultInfo(
        "SIGKILL of Redis, started again without its data",
        "it holds the epoch and the clock again",
    ),
    FaultKind.REDIS_READ_ONLY: FaultInfo(
        "Redis becomes the copy of a master that is not there, and is master again later; its"
        " connections stay",
        "the next save after it takes writes again",
    ),
    FaultKind.CALLERS_LEFT: FaultInfo(
        "half of the callers disconnect, and call again", "the last run of theirs has ended", 1.0
    ),
    FaultKind.GCS_KILLED: FaultInfo(
        "SIGKILL of Ray's GCS, started again from its Redis",
        "it and Serve's controller answer",
    ),
    FaultKind.SCALED: FaultInfo("one replica less, then one more", "both done", graceful=True),
    FaultKind.REDEPLOYED: FaultInfo(
        "serve deploy of a changed version", "it is whole", graceful=True
    ),
    FaultKind.REPLICA_CUT: FaultInfo(
        "all connections of a replica are cut", "first run begun there"
    ),
    FaultKind.INGRESS_CUT: FaultInfo(
        "all connections of an ingress to scheduler and replicas are cut",
        "first answer to a call made after it",
    ),
    FaultKind.SCHEDULER_CUT: FaultInfo(
        "all connections to the scheduler are cut", "first run begun after it"
    ),
    FaultKind.REPLICA_BUSY: FaultInfo(
        f"the event loop of a replica stands still for {BUSY_S:g} s: its connections stay",
        "first run begun there after it went on",
    ),
    FaultKind.REPLICA_HALF_OPEN: FaultInfo(
        f"SIGSTOP of a replica, SIGCONT {HALF_OPEN_S:g} s later: its connections stay",
        "first run begun there after SIGCONT",
    ),
    FaultKind.INGRESS_HALF_OPEN: FaultInfo(
        f"SIGSTOP of an ingress, SIGCONT {HALF_OPEN_S:g} s later: those to replicas stay",
        "first answer to a call made after SIGCONT",
    ),
    FaultKind.PORT_BLOCKED: FaultInfo(
        "a replica takes no connections and loses those it has, then listens again",
        "first run begun there when it listens again",
    ),
    FaultKind.WRONG_SECRETS: FaultInfo(
        "a stranger connects to scheduler and replicas with a wrong key and with garbage",
        "first answer to a call made after it began",
    ),
    FaultKind.SLOW_READER: FaultInfo(
        "a caller stops reading its stream, and goes on",
        "first answer to a call made after it stopped",
    ),
    FaultKind.ACCOUNTS_KILLED: FaultInfo(
        "the accounts of quotas are killed", "their successors are ready", 5.0
    ),
    FaultKind.POISON: FaultInfo(
        "a call of which its engine dies, and the next one, too; or its replica's process crashes",
        "it is answered with 502",
    ),
    FaultKind.LOADING_KILLED: FaultInfo(
        "SIGKILL of a replica that is loading", "as many run as Serve wants"
    ),
    FaultKind.DRAINING_KILLED: FaultInfo(
        "SIGKILL of a replica that drains, and runs something if any of those does",
        "the scheduler can lease its work to others",
        5.0,
    ),
    FaultKind.ALL_REPLICAS_KILLED: FaultInfo(
        "SIGKILL of all replicas at once", "first run begun after it"
    ),
    FaultKind.CONTROLLER_KILLED: FaultInfo(
        "SIGKILL of Serve's controller", "its successor says how many replicas there are to be"
    ),
    FaultKind.CONTROLLER_KILLED_IN_DRAIN: FaultInfo(
        "SIGKILL of Serve's controller while a replica drains",
        "its successor says how many replicas there are to be",
    ),
}


EARLIEST_S: Seconds = 0.8
LATEST_S: Seconds = 1.8
"""Latest time of a fault, in seconds after the first arrival of its phase: by then all seats are
taken and calls wait.
"""

_ALONE = frozenset({FaultKind.SCALED, FaultKind.REDEPLOYED})
"""Changes by Serve that take many seconds, so that no other fault is injected with them."""
_EXCLUSIVE = (
    frozenset(
        {
            FaultKind.REDIS_KILLED,
            FaultKind.REDIS_STOPPED,
            FaultKind.REDIS_EMPTIED,
            FaultKind.REDIS_READ_ONLY,
        }
    ),
    frozenset({FaultKind.SCHEDULER_KILLED, FaultKind.SCHEDULER_STOPPED}),
    # A lost scheduler together with an empty Redis would lose the order of applications.
    frozenset({FaultKind.SCHEDULER_KILLED, FaultKind.REDIS_EMPTIED}),
    frozenset(
        {
            FaultKind.ACCOUNTS_KILLED,
            FaultKind.REDIS_KILLED,
            FaultKind.REDIS_STOPPED,
            FaultKind.REDIS_EMPTIED,
            FaultKind.REDIS_READ_ONLY,
        }
    ),
    # A prompt that kills its engine runs on two engines before it is refused.
    frozenset({FaultKind.POISON, FaultKind.REPLICA_KILLED}),
    frozenset({FaultKind.POISON, FaultKind.ENGINE_KILLED}),
    # An ingress death would repeat the killing prompt and restart its count.
    frozenset({FaultKind.POISON, FaultKind.INGRESS_KILLED}),
    frozenset({FaultKind.POISON, FaultKind.INGRESS_HALF_OPEN}),
    # Faults that wait for a loading or draining replica would delay each other.
    frozenset(
        {
            FaultKind.LOADING_KILLED,
            FaultKind.DRAINING_KILLED,
            FaultKind.REPLICA_KILLED,
            FaultKind.ALL_REPLICAS_KILLED,
            FaultKind.CONTROLLER_KILLED,
            FaultKind.CONTROLLER_KILLED_IN_DRAIN,
        }
    ),
)
"""Kinds of faults that are never injected together: they hit the same process, or all copies of the
state.
"""


@dataclass(frozen=True, slots=True)
class FaultRound:
    """Faults that are injected at one instant."""

    number: int
    """Number of the load's phase, from 0."""
    kinds: tuple[FaultKind, ...]
    after_s: Seconds
    """Seconds between the first arrival of the round's phase and the faults."""
    draw: float
    """Random number in [0, 1) that selects the victim."""


def draw_plan(
    seed: int, kinds: Sequence[FaultKind], times: int = 1, pairs: int = 0
) -> tuple[FaultRound, ...]:
    """Return a run's fault rounds in random order: each kind alone, and pairs of kinds.

    Args:
        seed: The same seed and arguments give the same plan.
        kinds: Which to draw from; their order does not matter.
        times: How often each rounds alone.
        pairs: Strikes of two kinds at once; no pair comes twice.

    Raises:
        ConfigError: If a kind is named twice, or the kinds do not make so many pairs.
    """
    if len(set(kinds)) != len(kinds):
        raise ConfigError(f"kinds are {', '.join(kinds)}: each may be named once")
    random_source = random.Random(f"plan {seed}")
    chosen = [kind for kind in FAULTS if kind in kinds]
    possible = possible_pairs(chosen)
    if pairs > len(possible):
        raise ConfigError(f"pairs is {pairs}: these kinds make {len(possible)} at most")
    rounds: list[tuple[FaultKind, ...]] = [(kind,) for kind in chosen for _ in range(times)]
    rounds += random_source.sample(possible, pairs)
    random_source.shuffle(rounds)
    return tuple(
        FaultRound(
            number,
            kinds_at_once,
            random_source.uniform(EARLIEST_S, LATEST_S),
            random_source.random(),
        )
        for number, kinds_at_once in enumerate(rounds)
    )


def possible_pairs(kinds: Sequence[FaultKind]) -> list[tuple[FaultKind, FaultKind]]:
    """Return every pair of kinds that can be injected together."""
    return [
        (one, other)
        for i, one in enumerate(kinds)
        for other in kinds[i + 1 :]
        if _can_be_paired(one, other)
    ]


def _can_be_paired(one: FaultKind, other: FaultKind) -> bool:
    if {one, other} & _ALONE:
        return False
    return not any({one, other} <= group for group in _EXCLUSIVE)
