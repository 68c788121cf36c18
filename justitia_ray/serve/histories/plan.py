"""What a seed decides before a history begins: who takes part, what is asked, what goes wrong."""

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from justitia_ray.units import Seconds, Tokens

_WORDS = ("sun", "sea", "hill", "road", "tree", "bird", "rain", "wind", "lamp", "door")
_FAULTS_FROM_S: Seconds = 0.5
_FAULTS_UNTIL_S: Seconds = 14.0


class FaultKind(StrEnum):
    """What can go wrong."""

    SCHEDULER_CRASH = "scheduler_crash"
    SCHEDULER_STALL = "scheduler_stall"
    TWO_SCHEDULERS = "two_schedulers"
    """One that was taken for dead comes back beside its successor."""
    REPLICA_CRASH = "replica_crash"
    REPLICA_STALL = "replica_stall"
    REPLICA_DRAIN = "replica_drain"
    ENGINE_DEATH = "engine_death"
    INGRESS_CRASH = "ingress_crash"
    INGRESS_STALL = "ingress_stall"
    PARTITION = "partition"
    STORM = "storm"
    """Calls are lost, executed without an answer, executed twice, and slow."""
    STORE_AWAY = "store_away"
    STORE_EMPTIED = "store_emptied"
    STORE_SLOW = "store_slow"
    SETTINGS = "settings"
    """The policy is changed; no fault, but it has to survive them."""


class Ending(StrEnum):
    """What the owner of an application does when it has its answers."""

    CLOSE = "close"
    CANCEL = "cancel"
    LEAVE = "leave"
    """Nothing: it ends by idle time."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong."""

    kind: FaultKind
    at_s: Seconds
    """After the beginning of the history."""
    for_s: Seconds
    """How long: until it is whole again, or until a successor starts."""
    party: int = 0
    """Which replica or ingress."""
    other: int = 0
    """For a partition: 0 is the scheduler, else a replica."""
    loses: bool = False
    """What is sent in a partition is lost; otherwise it arrives late."""
    jump_s: Seconds = 0.0
    """By how much the successor's wall clock differs."""


@dataclass(frozen=True, slots=True)
class PlannedInference:
    """One call of a client."""

    name: str
    prompt: str
    max_tokens: Tokens
    stream: bool
    choices: int = 1
    leaves_after_s: Seconds | None = None
    """Its caller disconnects then."""
    reads_every_s: Seconds = 0.0
    """Its caller takes so long for each chunk of the stream."""


@dataclass(frozen=True, slots=True)
class PlannedApplication:
    """One application: stages of calls, one stage after the other."""

    application_id: str | None
    """None: each call is an application of its own."""
    tenant: str
    at_s: Seconds
    opens: bool
    """By a call of its own; otherwise by its first inference."""
    stages: tuple[tuple[PlannedInference, ...], ...]
    gap_s: Seconds
    """Between its stages."""
    ending: Ending


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is decided before a history begins."""

    seed: int
    ingresses: int
    replicas: int
    kv_tokens: Tokens
    max_num_seqs: int
    iteration_s: Seconds
    policy: str
    options: dict[str, Any]
    admission: str
    heartbeat_s: Seconds
    report_s: Seconds
    shuffled: bool
    """Whether callbacks of one instant run in an order drawn by lot."""
    applications: tuple[PlannedApplication, ...]
    faults: tuple[Fault, ...]

    @property
    def inferences(self) -> int:
        """Calls of clients."""
        return sum(len(stage) for a in self.applications for stage in a.stages)

    @property
    def fault_free(self) -> bool:
        """Whether nothing goes wrong."""
        return all(fault.kind is FaultKind.SETTINGS for fault in self.faults)


def draw_plan(seed: int) -> Plan:
    """Return the plan of a seed."""
    lots = random.Random(f"plan {seed}")
    replicas, ingresses = lots.randint(1, 4), lots.randint(1, 3)
    kv_tokens = lots.choice((60, 120, 300))
    policy = lots.choices(
        ("justitia", "fcfs", "app-fcfs", "sjf", "srjf", "vtc", "mlfq"), (12, 1, 1, 1, 1, 2, 1)
    )[0]
    fair = policy == "justitia" and lots.random() < 0.25
    wanted, applications = lots.randint(5, 30), list[PlannedApplication]()
    leavers = lots.random() < 0.1
    while wanted > 0:
        application = _application(lots, len(applications), wanted, kv_tokens, leavers=leavers)
        applications.append(application)
        wanted -= sum(len(stage) for stage in application.stages)
    return Plan(
        seed=seed,
        ingresses=ingresses,
        replicas=replicas,
        kv_tokens=kv_tokens,
        max_num_seqs=lots.choice((1, 3, 16)),
        iteration_s=lots.choice((0.05, 0.1, 0.2)),
        policy=policy,
        options={"fairness": "tenant"} if fair else {},
        admission=lots.choice(("peak", "peak", "prompt")),
        heartbeat_s=lots.choice((1.0, 2.0)),
        report_s=lots.choice((0.25, 0.5, 1.0)),
        shuffled=lots.random() < 0.5,
        applications=tuple(applications),
        faults=_faults(lots, replicas, ingresses),
    )


def _application(
    lots: random.Random, number: int, most: int, kv_tokens: Tokens, *, leavers: bool
) -> PlannedApplication:
    stages, left = [], most
    for stage in range(lots.choice((1, 1, 2, 3))):
        if left <= 0:
            break
        size = min(left, lots.randint(1, 5))
        left -= size
        stages.append(
            tuple(_inference(lots, f"a{number}.{stage}.{k}", kv_tokens) for k in range(size))
        )
    endings = (Ending.CLOSE, Ending.CLOSE, Ending.CANCEL, Ending.LEAVE if leavers else Ending.CLOSE)
    return PlannedApplication(
        application_id=None if lots.random() < 0.2 else f"a{number}",
        tenant=lots.choice(("t1", "t2")),
        at_s=lots.uniform(0.0, 9.0),
        opens=lots.random() < 0.5,
        stages=tuple(stages),
        gap_s=lots.choice((0.0, 0.2, 3.0)),
        ending=lots.choice(endings),
    )


def _inference(lots: random.Random, name: str, kv_tokens: Tokens) -> PlannedInference:
    words = lots.randint(1, min(40, kv_tokens // 2))
    choices = 2 if lots.random() < 0.1 else 1
    stream = lots.random() < 0.4
    most = min(25, (kv_tokens // choices - words) - 1)
    return PlannedInference(
        name=name,
        prompt=" ".join([name, *lots.choices(_WORDS, k=words - 1)]),
        max_tokens=lots.randint(1, max(1, most)),
        stream=stream,
        choices=choices,
        leaves_after_s=lots.uniform(0.0, 6.0) if lots.random() < 0.12 else None,
        reads_every_s=lots.uniform(0.2, 0.8) if stream and lots.random() < 0.3 else 0.0,
    )


def _faults(lots: random.Random, replicas: int, ingresses: int) -> tuple[Fault, ...]:
    """Return what goes wrong; in one history of ten nothing does."""
    kinds = list(FaultKind)
    count = 0 if lots.random() < 0.1 else lots.randint(1, 6)
    faults = [
        Fault(
            kind=(kind := lots.choice(kinds)),
            at_s=lots.uniform(_FAULTS_FROM_S, _FAULTS_UNTIL_S),
            for_s=_length(lots, kind),
            party=lots.randrange(ingresses if kind.startswith("ingress") else replicas),
            other=lots.randrange(replicas + 1),
            loses=lots.random() < 0.5,
            jump_s=lots.choice((0.0, 0.0, -5.0, 30.0)),
        )
        for _ in range(count)
    ]
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _length(lots: random.Random, kind: FaultKind) -> Seconds:
    if kind in (FaultKind.SCHEDULER_CRASH, FaultKind.INGRESS_CRASH):
        return lots.choice((0.1, 1.0, 4.0))
    if kind is FaultKind.INGRESS_STALL:
        return lots.choice((0.5, 1.5, 5.0, 5.0, 40.0))
    return lots.choice((0.3, 1.5, 5.0, 9.0))
