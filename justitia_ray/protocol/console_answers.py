"""Answers of the console about one application, and of "what if".

Names and order of the fields are those of the JSON; times as in `protocol.console`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from justitia_ray.protocol.console import QueueRow
from justitia_ray.units import (
    ApplicationId,
    ClientId,
    InferenceId,
    KvTokenTime,
    ReplicaId,
    Seconds,
    Tokens,
)

# --- one application


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSpan:
    """An inference of an application: queue, prefill and decode one after the other."""

    inference_id: InferenceId
    stage: int
    replica_id: ReplicaId | None
    """Replica of the last lease; None: it has had none."""
    submitted_at: Seconds
    started_at: Seconds | None = None
    """Time of the last lease: the queue ends, the prefill begins."""
    first_token_at: Seconds | None = None
    """Time of the report of the first token: decode begins."""
    ended_at: Seconds | None = None
    outcome: str | None = None
    """`finished`, `failed`, `cancelled`, `expired`; None: it has not ended."""
    attempts: int = 0
    """Number of leases."""
    prompt_tokens: Tokens
    cached_prompt_tokens: Tokens | None = None
    """Prompt tokens found in the engine's cache; the others were computed. None: not known yet."""
    output_tokens: Tokens = 0
    predicted_output_tokens: Tokens = 0


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A time between two instants."""

    start: Seconds
    end: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Trace of an application in the operator's tracing system."""

    trace_id: str
    """32 hexadecimal digits."""
    url: str | None
    """Link to the trace; None: `tracing.trace_url` is not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """An application at one model."""

    at: Seconds
    recorded_from: Seconds
    """Time from which calls are recorded; earlier ended calls are only in the sums."""
    application: ApplicationId
    tenant: ClientId
    application_id: ApplicationId
    application_class: str
    recognized_by: str = ""
    state: str
    """`open`, `closing`, or `ended` for some minutes after its end."""
    tier: str
    weight: float
    arrived_at: Seconds
    ended_at: Seconds | None = None
    outcome: str | None = None
    predicted_kv_token_time: KvTokenTime
    """Predicted cost when it arrived, or as raised since."""
    kv_token_time: KvTokenTime
    """Service so far: the true cost, once it has ended."""
    prompt_tokens: Tokens
    """Prompt tokens of ended calls."""
    cached_prompt_tokens: Tokens
    output_tokens: Tokens
    inferences: int
    """Number of ended calls."""
    waiting: int = 0
    running: int = 0
    row: QueueRow | None = None
    """Its place in the queue; None: it does not wait."""
    calls: tuple[CallSpan, ...] = ()
    """Its recorded calls, in the order of submission."""
    tools: tuple[TimeSpan, ...] = ()
    """Times in which it had no call: its caller, or a tool, was at work."""
    left_out: int = 0
    """Number of earlier recorded calls that were dropped."""
    trace: Trace | None = None
    """None: tracing is not configured, or this application is not sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleApplication:
    """Answer of `GET /v1/console/applications/ID`."""

    application_id: ApplicationId
    tenant: ClientId
    models: Mapping[str, Timeline]


# --- what if


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Completion times of some applications, from arrival to end."""

    applications: int
    mean_s: Seconds | None
    """None: there are no applications."""
    p90_s: Seconds | None
    worst_s: Seconds | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Completion times as they are and as they would be, both simulated."""

    before: Times
    after: Times
    mean: float | None
    """Change as a part of 1: -0.25 is a quarter shorter; None: there is nothing to compare."""
    p90: float | None
    worst: float | None
    no_later: float | None
    """Part of the applications that end no later than before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a run is simulated with."""

    policy: str
    weights: Mapping[ClientId, float] = field(default_factory=dict)
    """Weights of tenants that differ from the present ones."""
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfAnswer:
    """Answer of `POST /v1/console/what-if`: an estimate."""

    model: str
    is_estimate: Literal[True] = True
    start: Seconds
    """Start of the replayed time."""
    end: Seconds
    applications: int
    inferences: int
    before: Setting
    after: Setting
    all: Change
    tenants: Mapping[ClientId, Change]
    measured: Times
    """Completion times of the replayed applications that have really ended, to be compared with
    `simulated`."""
    simulated: Times
    """Completion times of the same applications, simulated as they are."""
    notes: tuple[str, ...] = ()
    """What the estimate leaves out, in words."""
    took_s: Seconds
