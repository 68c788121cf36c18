"""Plan of a simulation, drawn from its seed: processes, clients, faults."""

import random
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from justitia_ray.core.policies import policy_path
from justitia_ray.units import Seconds, Tokens
from tests.harness.planned import KILLER, PlannedInference
from tests.harness.simulation.network import CutKind
from tests.harness.simulation.tenants import draw_tenants

_POLICIES = ("justitia", "fcfs", "app-fcfs", "sjf", "srjf", "vtc", policy_path("mlfq"))
_WORDS = ("sun", "sea", "hill", "road", "tree", "bird", "rain", "wind", "lamp", "door")
_FAULTS_FROM_S: Seconds = 0.5
_FAULTS_UNTIL_S: Seconds = 14.0
_WITH_KILLER = 0.15
"""Share of simulations with a call that kills engines."""
_WITH_QUOTAS = 0.35
"""Share of simulations with quotas, which take twice as long as others."""


class FaultKind(StrEnum):
    SCHEDULER_CRASH = "scheduler_crash"
    SCHEDULER_STALL = "scheduler_stall"
    TWO_SCHEDULERS = "two_schedulers"
    """A scheduler believed dead continues beside its successor."""
    REPLICA_CRASH = "replica_crash"
    REPLICA_STALL = "replica_stall"
    REPLICA_DRAIN = "replica_drain"
    ENGINE_DEATH = "engine_death"
    ENGINE_STALL = "engine_stall"
    """A living engine makes no steps."""
    INGRESS_CRASH = "ingress_crash"
    INGRESS_STALL = "ingress_stall"
    PARTITION = "partition"
    HALF_OPEN = "half_open"
    """Open connections between two processes lose everything, in one direction or both."""
    PORT_BLOCKED = "port_blocked"
    """A process cannot reach the port of another process, although Ray reaches both."""
    STORM = "storm"
    """Connections break, and calls are slow, lost, unanswered or executed twice."""
    STORE_AWAY = "store_away"
    STORE_EMPTIED = "store_emptied"
    STORE_SLOW = "store_slow"
    SETTINGS = "settings"
    """The policy is changed: this is no fault, but the change must survive faults."""
    ACCOUNTS_CRASH = "accounts_crash"
    ACCOUNTS_STALL = "accounts_stall"
    TWO_ACCOUNTS = "two_accounts"
    """A quota service believed dead continues beside its successor."""
    ACCOUNTS_UNREACHED = "accounts_unreached"
    """The link between a scheduler and the quota service is cut."""
    ACCOUNTS_STORE_AWAY = "accounts_store_away"
    ACCOUNTS_STORE_EMPTIED = "accounts_store_emptied"
    ACCOUNTS_STORE_SLOW = "accounts_store_slow"


OF_ACCOUNTS = tuple(kind for kind in FaultKind if "accounts" in kind.value)
"""Kinds of faults that hit the quota service."""
_DRAWN_APART = (FaultKind.ENGINE_STALL,)
"""Kinds with a random source of their own, so that their addition left earlier seeds unchanged."""
_OF_MODELS = tuple(kind for kind in FaultKind if kind not in (*OF_ACCOUNTS, *_DRAWN_APART))
_WITH_STALLS = 0.2
"""Share of the simulations with faults in which engines stall."""


class Ending(StrEnum):
    """Last action of an application's client after the answers."""

    CLOSE = "close"
    CANCEL = "cancel"
    LEAVE = "leave"
    """No action: the application ends by idle timeout."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a simulation's plan, with its time and its victim."""

    kind: FaultKind
    at_s: Seconds
    """Seconds from the start of the simulation to the fault."""
    for_s: Seconds
    """Seconds until the fault is undone, or until a successor starts."""
    party: int = 0
    """Number of the replica or ingress that is hit."""
    other: int = 0
    """Kind of link: 0 replica to scheduler, 1 ingress to scheduler, otherwise ingress to replica.
    """
    cut: CutKind = CutKind.LATE
    """Effect of a network partition on open connections."""
    both: bool = False
    """Whether a half-open link is silent in both directions, or a blocked port refuses at once."""
    jump_s: Seconds = 0.0
    """Difference of the successor's wall clock, in seconds."""


@dataclass(frozen=True, slots=True)
class PlannedApplication:
    """Application of a simulation's plan: stages of calls, one stage after the other."""

    application_id: str | None
    """Id of the application; None if each call is an application of its own."""
    tenant: str
    at_s: Seconds
    opens: bool
    """Whether a separate call opens the application; otherwise its first inference does."""
    stages: tuple[tuple[PlannedInference, ...], ...]
    gap_s: Seconds
    """Pause between two stages, in seconds."""
    ending: Ending


@dataclass(frozen=True, slots=True)
class Plan:
    """All random choices of a simulation, made before it begins."""

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
    """Whether simultaneous callbacks run in random order."""
    applications: tuple[PlannedApplication, ...]
    faults: tuple[Fault, ...]
    holds_contexts: bool = False
    """Whether engines hold contexts between two inferences of an application."""
    tenants: dict[str, Any] = field(default_factory=dict)
    """Tenant tree as in the settings; empty without quotas."""
    midnight_s: Seconds | None = None
    """Time at which a UTC day begins; None if no day begins during the simulation."""
    other: "Plan | None" = None
    """Plan of a second model with the same quota service, but its own queue and processes."""

    @property
    def plans_of_models(self) -> "tuple[Plan, ...]":
        return (self,) if self.other is None else (self, self.other)

    @property
    def inferences(self) -> int:
        applications = [a for plan in self.plans_of_models for a in plan.applications]
        return sum(len(stage) for a in applications for stage in a.stages)

    @property
    def has_killer(self) -> bool:
        """Whether a call of this model kills engines."""
        stages = (stage for application in self.applications for stage in application.stages)
        return any(inference.kills_engine for stage in stages for inference in stage)

    @property
    def fault_free(self) -> bool:
        faults = [fault for plan in self.plans_of_models for fault in plan.faults]
        return all(fault.kind is FaultKind.SETTINGS for fault in faults)


def draw_plan(seed: int) -> Plan:
    """Return the random plan of a seed: one model, or two models whose tenants have quotas."""
    plan = _draw_model_plan(seed)
    has_quotas = random.Random(f"quotas {seed}").random() < _WITH_QUOTAS
    return draw_quotas(plan) if has_quotas else plan


def draw_quotas(plan: Plan) -> Plan:
    """Return a plan with a second model, and with quotas on both."""
    rng = random.Random(f"tenants {plan.seed}")
    other = _draw_model_plan(plan.seed + 1_000_000)
    names = {"t1": "o/t1", "t2": "o/t2"} if rng.random() < 0.5 else {"t1": "t1", "t2": "t2"}
    accounts = () if plan.fault_free else _draw_faults_of(rng, OF_ACCOUNTS, rng.randint(0, 3), 1, 1)
    tenants = draw_tenants(rng, tuple(names.values()))
    plan, other = (
        replace(
            one,
            applications=tuple(replace(a, tenant=names[a.tenant]) for a in one.applications),
            tenants=tenants,
        )
        for one in (plan, other)
    )
    if plan.fault_free:
        other = replace(other, faults=())
    faults = tuple(sorted((*plan.faults, *accounts), key=lambda fault: fault.at_s))
    midnight_s = rng.uniform(2.0, 30.0) if rng.random() < 0.5 else None
    other = replace(other, midnight_s=midnight_s)
    return replace(plan, faults=faults, midnight_s=midnight_s, other=other)


def _draw_model_plan(seed: int) -> Plan:
    rng = random.Random(f"plan {seed}")
    replicas, ingresses = rng.randint(1, 4), rng.randint(1, 3)
    kv_tokens = rng.choice((60, 120, 300))
    policy = rng.choices(_POLICIES, (12, 1, 1, 1, 1, 2, 1))[0]
    fair = policy == "justitia" and rng.random() < 0.25
    wanted, applications = rng.randint(5, 30), list[PlannedApplication]()
    leavers = rng.random() < 0.1
    while wanted > 0:
        application = _draw_application(rng, len(applications), wanted, kv_tokens, leavers=leavers)
        applications.append(application)
        wanted -= sum(len(stage) for stage in application.stages)
    plan = Plan(
        seed=seed,
        ingresses=ingresses,
        replicas=replicas,
        kv_tokens=kv_tokens,
        max_num_seqs=rng.choice((1, 3, 16)),
        iteration_s=rng.choice((0.05, 0.1, 0.2)),
        policy=policy,
        options={"fairness": "tenant"} if fair else {},
        admission=rng.choice(("peak", "peak", "prompt")),
        heartbeat_s=rng.choice((1.0, 2.0)),
        report_s=rng.choice((0.25, 0.5, 1.0)),
        shuffled=rng.random() < 0.5,
        applications=tuple(applications),
        faults=_draw_faults(rng, replicas, ingresses),
    )
    has_killer = random.Random(f"killer {seed}").random() < _WITH_KILLER
    return with_killer_call(plan) if has_killer else plan


def with_held_contexts(plan: Plan) -> Plan:
    """Return a plan whose engines hold contexts, under a policy that plans with them."""
    other = None if plan.other is None else with_held_contexts(plan.other)
    return replace(plan, policy="justitia", options={}, holds_contexts=True, other=other)


def with_killer_call(plan: Plan) -> Plan:
    """Return a plan in which a call kills engines and its client waits for the answer."""

    def may_become_killer(inference: PlannedInference) -> bool:
        waits = inference.leaves_after_s is None and inference.deadline_s is None
        return waits and inference.choices == 1 and " " in inference.prompt

    def replace_call(application: PlannedApplication, name: str) -> PlannedApplication:
        stages = tuple(
            tuple(
                replace(one, prompt=f"{one.prompt.rpartition(' ')[0]} {KILLER}")
                if one.name == name
                else one
                for one in stage
            )
            for stage in application.stages
        )
        return replace(application, stages=stages)

    names = [
        inference.name
        for application in plan.applications
        for stage in application.stages
        for inference in stage
        if application.ending is not Ending.CANCEL and may_become_killer(inference)
    ]
    if not names:
        return plan
    name = random.Random(f"killer's name {plan.seed}").choice(names)
    return replace(plan, applications=tuple(replace_call(one, name) for one in plan.applications))


def _draw_application(
    rng: random.Random, number: int, most: int, kv_tokens: Tokens, *, leavers: bool
) -> PlannedApplication:
    stages, left = [], most
    for stage in range(rng.choice((1, 1, 2, 3))):
        if left <= 0:
            break
        size = min(left, rng.randint(1, 5))
        left -= size
        stages.append(
            tuple(_draw_inference(rng, f"a{number}.{stage}.{k}", kv_tokens) for k in range(size))
        )
    endings = (Ending.CLOSE, Ending.CLOSE, Ending.CANCEL, Ending.LEAVE if leavers else Ending.CLOSE)
    return PlannedApplication(
        application_id=None if rng.random() < 0.2 else f"a{number}",
        tenant=rng.choice(("t1", "t2")),
        at_s=rng.uniform(0.0, 9.0),
        opens=rng.random() < 0.5,
        stages=tuple(stages),
        gap_s=rng.choice((0.0, 0.2, 3.0)),
        ending=rng.choice(endings),
    )


def _draw_inference(rng: random.Random, name: str, kv_tokens: Tokens) -> PlannedInference:
    words = rng.randint(1, min(40, kv_tokens // 2))
    choices = 2 if rng.random() < 0.1 else 1
    stream = rng.random() < 0.4
    most = min(25, (kv_tokens // choices - words) - 1)
    return PlannedInference(
        name=name,
        prompt=" ".join([name, *rng.choices(_WORDS, k=words - 1)]),
        max_tokens=rng.randint(1, max(1, most)),
        stream=stream,
        choices=choices,
        leaves_after_s=rng.uniform(0.0, 6.0) if rng.random() < 0.12 else None,
        reads_every_s=rng.uniform(0.2, 0.8) if stream and rng.random() < 0.3 else 0.0,
        deadline_s=_draw_deadline(f"{name} {words} {choices} {most}"),
    )


def _draw_deadline(drawn: str) -> Seconds | None:
    """Return the random deadline of a call; one call in ten has one."""
    rng = random.Random(f"deadline {drawn}")
    return rng.choice((0.3, 1.5, 4.0)) if rng.random() < 0.1 else None


def _draw_faults(rng: random.Random, replicas: int, ingresses: int) -> tuple[Fault, ...]:
    """Return the random faults of a plan; one simulation in ten has none."""
    count = 0 if rng.random() < 0.1 else rng.randint(1, 6)
    faults = _draw_faults_of(rng, _OF_MODELS, count, replicas, ingresses)
    apart = random.Random(f"apart {faults}")
    if faults and apart.random() < _WITH_STALLS:
        stalls = _draw_faults_of(apart, (FaultKind.ENGINE_STALL,), apart.randint(1, 3), replicas, 1)
        faults = tuple(sorted((*faults, *stalls), key=lambda fault: fault.at_s))
    return faults


def _draw_faults_of(
    rng: random.Random, kinds: tuple[FaultKind, ...], count: int, replicas: int, ingresses: int
) -> tuple[Fault, ...]:
    faults = [
        Fault(
            kind=(kind := rng.choice(kinds)),
            at_s=rng.uniform(_FAULTS_FROM_S, _FAULTS_UNTIL_S),
            for_s=_draw_duration(rng, kind),
            party=rng.randrange(ingresses if kind.startswith("ingress") else replicas),
            other=rng.randrange(replicas + 1),
            cut=rng.choice(list(CutKind)),
            both=rng.random() < 0.5,
            jump_s=rng.choice((0.0, 0.0, -5.0, 30.0)),
        )
        for _ in range(count)
    ]
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _draw_duration(rng: random.Random, kind: FaultKind) -> Seconds:
    if kind in (FaultKind.SCHEDULER_CRASH, FaultKind.INGRESS_CRASH, FaultKind.ACCOUNTS_CRASH):
        return rng.choice((0.1, 1.0, 4.0))
    if kind is FaultKind.PORT_BLOCKED:
        return rng.choice((1.5, 5.0, 20.0, 40.0))
    if kind is FaultKind.ENGINE_STALL:
        return rng.choice((1.0, 4.0, 9.0, 60.0))
    if kind is FaultKind.INGRESS_STALL:
        return rng.choice((0.5, 1.5, 5.0, 5.0, 40.0))
    return rng.choice((0.3, 1.5, 5.0, 9.0))
