"""Answers of the console about one application, and to what-if questions.

Names and order of the fields are those of the JSON; times are as in `protocol.console`.
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
    """Phases of one inference: queue, prefill, decode."""

    inference_id: InferenceId
    stage: int
    replica_id: ReplicaId | None
    """Replica that last ran the inference; None if none has."""
    submitted_at: Seconds
    started_at: Seconds | None = None
    """Time of the latest lease of the inference, where its queue ends and its prefill begins."""
    first_token_at: Seconds | None = None
    """Time of the report of the inference's first token, where its decode begins."""
    ended_at: Seconds | None = None
    outcome: str | None = None
    """How the inference ended: `finished`, `failed`, `cancelled` or `expired`; None if it has not
    ended.
    """
    attempts: int = 0
    """Number of leases that the inference has had so far."""
    prompt_tokens: Tokens
    cached_prompt_tokens: Tokens | None = None
    """Prompt tokens found in the engine's prefix cache; None if not known yet."""
    output_tokens: Tokens = 0
    predicted_output_tokens: Tokens = 0


@dataclass(frozen=True, slots=True)
class TimeSpan:
    start: Seconds
    end: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Link to an application's trace in the operator's tracing system."""

    trace_id: str
    """Trace id as 32 hexadecimal digits."""
    url: str | None
    """URL of the trace; None without `tracing.trace_url`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    at: Seconds
    recorded_from: Seconds
    """Time from which inferences are recorded; earlier ones count only in the totals."""
    application: ApplicationId
    tenant: ClientId
    application_id: ApplicationId
    application_class: str
    recognized_by: str = ""
    state: str
    """State of the application: `open`, `closing`, or `ended` for some minutes after its end."""
    tier: str
    weight: float
    arrived_at: Seconds
    ended_at: Seconds | None = None
    outcome: str | None = None
    predicted_kv_token_time: KvTokenTime
    """Predicted cost of the application at arrival, or a later prediction that was higher."""
    kv_token_time: KvTokenTime
    """Service that the application has received so far; its true cost once it has ended."""
    prompt_tokens: Tokens
    """Prompt tokens of the application's ended inferences."""
    cached_prompt_tokens: Tokens
    output_tokens: Tokens
    inferences: int
    """Number of ended inferences of the application."""
    waiting: int = 0
    running: int = 0
    row: QueueRow | None = None
    """The application's row in the queue; None if the application does not wait."""
    calls: tuple[CallSpan, ...] = ()
    """Recorded inferences of the application in the order of submission."""
    tools: tuple[TimeSpan, ...] = ()
    """Intervals without an inference, while the agent or a tool was working."""
    left_out: int = 0
    """Number of earlier inferences that are no longer recorded."""
    trace: Trace | None = None
    """Link to the trace; None if tracing is off or the application is not sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleApplication:
    """Answer of `GET /v1/console/applications/ID`."""

    application_id: ApplicationId
    tenant: ClientId
    models: Mapping[str, Timeline]


# --- what if


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Completion times of applications, from arrival to end."""

    applications: int
    mean_s: Seconds | None
    """Mean completion time of applications in seconds; None without applications."""
    p90_s: Seconds | None
    worst_s: Seconds | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Simulated completion times with the present and with the changed settings."""

    before: Times
    after: Times
    mean: float | None
    """Relative change of the mean completion time: -0.25 is a quarter shorter. None without
    applications.
    """
    p90: float | None
    worst: float | None
    no_later: float | None
    """Share of the applications that end no later with the changed settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Settings of a what-if simulation."""

    policy: str
    weights: Mapping[ClientId, float] = field(default_factory=dict)
    """Weights of tenants that the simulation changes."""
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfAnswer:
    """Answer of `POST /v1/console/what-if`, an estimate."""

    model: str
    is_estimate: Literal[True] = True
    start: Seconds
    """Time at which the replayed history starts."""
    end: Seconds
    applications: int
    inferences: int
    before: Setting
    after: Setting
    all: Change
    tenants: Mapping[ClientId, Change]
    measured: Times
    """Measured completion times of the replayed applications that have ended, to compare with
    `simulated`.
    """
    simulated: Times
    """Simulated completion times of the replayed applications with the present settings."""
    notes: tuple[str, ...] = ()
    """Limits of the what-if estimate, in words."""
    took_s: Seconds
