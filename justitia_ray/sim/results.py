"""What a run showed, of each application and each inference: the rows of the result files.

The fields are those of the files, in their order; times are seconds from the start of the workload.
A live replay writes the same rows, so that a simulated and a real run can be compared.
"""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from justitia_ray.units import (
    ApplicationId,
    InferenceId,
    KvTokenTime,
    Seconds,
    Tokens,
    VirtualTime,
)


@dataclass(slots=True)
class InferenceResult:
    """A row of `inferences.jsonl`; None where it did not happen, or is not known."""

    application_id: ApplicationId
    inference_id: InferenceId
    replica: int | str | None
    submitted_at_s: Seconds
    dispatched_at_s: Seconds | None
    first_token_at_s: Seconds | None
    finished_at_s: Seconds | None
    prompt_tokens: Tokens
    output_tokens: Tokens
    preemptions: int = 0


@dataclass(slots=True)
class ApplicationResult:
    """A row of `applications.jsonl`."""

    application_id: ApplicationId
    application_class: str
    tenant: str
    arrived_at_s: Seconds
    finished_at_s: Seconds | None
    jct_s: Seconds | None
    kv_token_time: KvTokenTime
    predicted_kv_token_time: KvTokenTime
    virtual_finish_time: VirtualTime | None
    gps_finished_at_s: Seconds | None
    """When V reached the final tag: its end under GPS, fed with the service of this very run."""
    outcome: str


@dataclass(slots=True)
class Lateness:
    """How late one application was against GPS, and how late it might have been, in seconds."""

    lag_s: Seconds
    bound_s: Seconds | None


@dataclass(slots=True)
class RunResult:
    """All that one run of one policy showed."""

    applications: list[ApplicationResult] = field(default_factory=list)
    """In the order of the workload."""
    inferences: list[InferenceResult] = field(default_factory=list)
    """In the order of the workload."""
    lateness: dict[ApplicationId, Lateness] = field(default_factory=dict)
    """Where it is known."""
    makespan_s: Seconds = 0.0
    """From the first arrival to the last end."""
    kv_utilization: float | None = None
    """Mean share of all replicas' KV memory that was held, over the makespan."""
    preemptions: int = 0
    front_end_s: Seconds = 0.0
    """How long calls took to pass the front end one way, in the mean."""
    decisions: int = 0
    """Events that the core handled."""
    kv_samples: list[tuple[Seconds, ApplicationId, Tokens]] = field(default_factory=list)
    """KV held by an application from then on, where samples were asked for (Justitia Fig. 3)."""


def mean_jct_s(applications: Iterable[ApplicationResult]) -> Seconds | None:
    """Return the mean completion time of those that have ended; None if none has."""
    ended = [one.jct_s for one in applications if one.jct_s is not None]
    return statistics.fmean(ended) if ended else None
