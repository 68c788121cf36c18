"""Inspection of a service: the state of each part as that part sees it, for comparison.

It is the answer of `GET /v1/examination`, which `justitia doctor` reads, and contains ids, sizes
and ages, but no texts. Each part reports only its own state, so that disagreements are visible. All
ages are in seconds. Tables that could grow without bound are truncated, and `left_out` counts the
entries left out.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from justitia_ray.protocol.status import read_answer
from justitia_ray.units import (
    ApplicationId,
    Epoch,
    IngressId,
    KvTokenTime,
    LeaseId,
    ReplicaId,
    RequestId,
    Seconds,
    Tokens,
    VirtualTime,
)

MAX_ENTRIES = 10_000
"""Maximum entries of each table; 10,000 entries are 2 MB of JSON."""
MAX_LISTED_APPLICATIONS = 1_000
"""Maximum applications in one status; 1,000 take the scheduler a tenth of a second, mostly for
lags."""


class _InspectionModel(BaseModel):
    """A part of an inspection; fields of other versions are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ApplicationFacts(_InspectionModel):
    """State of a live application in the scheduler."""

    state: str
    ingress_id: IngressId
    """The ingress that opened the application."""
    finish: VirtualTime
    """Virtual finish time F in GPS; while withdrawn, excluding what the next submission adds."""
    clock: VirtualTime
    """Virtual time V that F refers to; with `fairness: tenant` the tenant's own."""
    active: bool
    """Whether GPS still serves the application (F > V)."""
    withdrawn: bool
    charged: KvTokenTime
    attained: KvTokenTime
    age_s: Seconds
    idle_s: Seconds | None
    """Time without a queued or running inference; None while there is one."""
    idle_limit_s: Seconds | None = None
    """Idle time after which the application ends; None: `SilenceLimits.application_s`."""
    waiting: int
    in_flight: int


class InferenceFacts(_InspectionModel):
    """State of an unfinished inference in the scheduler."""

    application_id: ApplicationId
    ingress_id: IngressId
    state: str


class LeaseFacts(_InspectionModel):
    """State of a lease in the scheduler."""

    request_id: RequestId
    replica_id: ReplicaId
    state: str
    age_s: Seconds


class ReplicaFacts(_InspectionModel):
    """State of a replica in the scheduler."""

    unclaimed: tuple[LeaseId, ...] = ()
    """Leases granted by an earlier scheduler that no ingress has claimed yet."""
    address: str = ""
    """Host and port for calls, from its last pull; empty before the first pull."""
    silent_s: Seconds
    draining_s: Seconds | None = None
    """Time since the replica started to drain; None if it is not draining."""
    stalled_s: Seconds | None = None
    """Time since the replica first reported that its engine makes no steps; None if it does."""
    kv_tokens: Tokens
    block_size: Tokens = 1
    unexplained_kv_tokens: Tokens = 0
    """KV tokens in use at the last pull that none of the replica's leases accounts for."""
    leases: int = 0
    unread: int = 0
    """Number of messages to the replica that it has not acknowledged."""
    next_unread: int | None = None
    """Number of the first unacknowledged message; None if there is none."""
    free_for_first: bool = False
    """True if the replica is idle although the first inference in order would fit on it."""


class IngressFacts(_InspectionModel):
    """State of an ingress in the scheduler."""

    silent_s: Seconds
    unread: int = 0


class StoreFacts(_InspectionModel):
    """State of the scheduler's store."""

    kind: Literal["embedded", "redis", "none"]
    trouble: str | None = None
    saves: int = 0
    saved_s_ago: Seconds | None = None
    """Time since the last save; None before the first."""
    save_interval_s: Seconds


class SilenceLimits(_InspectionModel):
    """Limits for ages and silences; exceeding one indicates a fault."""

    lease_s: Seconds
    replica_s: Seconds
    heartbeat_s: Seconds
    ingress_s: Seconds
    long_poll_s: Seconds
    application_s: Seconds


class ScalingFacts(_InspectionModel):
    """Number of replicas that the scheduler requests, and the settings that apply."""

    wanted: int
    asked: int
    """Requested number of replicas before `minimum` and `maximum` are applied."""
    minimum: int
    maximum: int | None
    load_s: Seconds
    """Time to load a replica, measured or as configured."""
    asked_s_ago: Seconds | None
    """Time since the autoscaler last polled; None if never or beyond the timeout."""
    downscale_delay_s: Seconds | None
    """Configured delay of a scale-down; None: Serve does not scale."""
    is_serves: bool
    """Whether Serve is configured to scale to the requested number."""


class SchedulerReport(_InspectionModel):
    """State of the scheduler."""

    ready: bool
    degraded: str | None = None
    epoch: Epoch = 0
    version: str | None = None
    pid: int | None = None
    virtual_time: VirtualTime = 0
    recovering: bool = False
    waiting: int = 0
    held_back: int = 0
    """Number of applications waiting to be stored; their inferences are omitted until then."""
    first: RequestId | None = None
    """The first inference in order; None if no waiting inference may be granted."""
    limits: SilenceLimits | None = None
    store: StoreFacts | None = None
    applications: dict[ApplicationId, ApplicationFacts] = {}
    ended: tuple[ApplicationId, ...] = ()
    """Ended applications that GPS still serves; they are stored too."""
    inferences: dict[RequestId, InferenceFacts] = {}
    leases: dict[LeaseId, LeaseFacts] = {}
    replicas: dict[ReplicaId, ReplicaFacts] = {}
    ingresses: dict[IngressId, IngressFacts] = {}
    scaling: ScalingFacts | None = None
    """None while unknown, and for schedulers that do not size replicas."""
    broken_rules: tuple[str, ...] = ()
    """Violated invariants of the scheduler's state, with details."""
    unchecked_rules: str | None = None
    """Why the invariants were not checked; None if they were."""
    left_out: dict[str, int] = {}
    """Number of entries left out, by table name."""


class HeldLeaseReport(_InspectionModel):
    """State of a lease that a replica holds."""

    state: str
    age_s: Seconds
    aborted: bool


class ReplicaReport(_InspectionModel):
    """State of a replica."""

    epoch: Epoch
    draining: bool
    engine: str | None
    """Why the engine cannot continue; None if the engine is healthy."""
    stalled_s: Seconds | None = None
    """Time without an engine step although there is work; None if the engine is not stalled."""
    kv_tokens: Tokens
    free_kv_tokens: Tokens
    held: dict[LeaseId, HeldLeaseReport] = {}
    unconfirmed: tuple[LeaseId, ...] = ()
    """Ended leases whose end the scheduler has not confirmed."""


class FrontFacts(_InspectionModel):
    """Serve's HTTP front end: its kind and its connection limits."""

    kind: Literal["haproxy", "serve"]
    """HAProxy, or Serve's own proxy."""
    max_connections: int | None = None
    """Connection limit of each HAProxy; None: Serve's proxy, which has no limit."""
    wanted_descriptors: int | None = None
    """File descriptors that HAProxy needs for its limit; with fewer allowed it does not start."""
    descriptors: int
    """Limit of open file descriptors per process on the ingress's machine."""
    fitting_connections: int
    """Connections that HAProxy could hold with this descriptor limit."""
    haproxy_can_run: bool
    splices: bool = False
    """Whether HAProxy splices bodies; a unary call then runs to its end if its caller disconnects.
    """


class ProxyFacts(_InspectionModel):
    """Addresses of the cluster to which HTTP calls of a process would go by a proxy."""

    variable: str
    """Environment variable that names the proxy."""
    addresses: tuple[str, ...]


class IngressReport(_InspectionModel):
    """State of the ingress that answered."""

    ingress_id: IngressId
    epoch: Epoch
    open_applications: int
    max_outstanding: int | None = None
    """Maximum number of callers of this model that may wait at each ingress."""
    front: FrontFacts | None = None
    """HTTP proxy in front of the ingress (HAProxy or Serve's), by its environment."""
    proxied: ProxyFacts | None = None
    """None: calls to the cluster's nodes go directly."""
    tickets: dict[RequestId, bool] = {}
    """Pending inferences of the ingress, and whether each waits for a lease."""
    left_out: int = 0


class ServeReplica(_InspectionModel):
    """State of a replica process in Ray Serve."""

    state: str
    pid: int | None = None
    node_ip: str | None = None


class DeploymentFacts(_InspectionModel):
    """State of a deployment in Ray Serve."""

    status: str
    """Serve's status: `UPDATING` until every replica has the deployed configuration."""
    target: int
    """Number of replicas that Serve keeps."""
    running: int
    starting: int = 0
    stopping: int = 0
    starting_s: Seconds = 0.0
    """Time since the first of the starting replicas was created."""
    unplaced: int = 0
    """Number of starting replicas without a node."""
    unplaced_s: Seconds = 0.0
    """Time since the first replica without a node was created."""
    unchanged_s: Seconds = 0.0
    """Time since the last deployment, or since the last of the running replicas was created."""
    needs: str = ""
    """Resources that a replica requests, as text."""
    fitting_nodes: int = 0
    """Number of nodes that offer these resources, free or used."""
    failed_starts: int = 0
    """Number of replicas that ended since the deployment before they ran; 0 once it is complete."""
    failed_log: str | None = None
    """Log file and node of the last of them."""


class ServeReport(_InspectionModel):
    """State of the application in Ray Serve, and the size of the cluster."""

    nodes: int
    replicas: dict[ReplicaId, ServeReplica]
    ingresses: int
    """Number of ingress processes that accept requests."""
    predictors: int
    """Number of predictor processes that respond."""
    front: Literal["haproxy", "serve"] | None = None
    """Front end that Serve's controller runs; None: unknown."""
    tls: bool | None = None
    """Whether Serve's HTTP options name a certificate; None: unknown."""
    failing: dict[str, str] = {}
    """Deployments that fail to start or are unhealthy, with Serve's reason."""
    deployments: dict[str, DeploymentFacts] = {}
    """Deployments of the model, by name; empty in answers of older versions."""


class Inspection(_InspectionModel):
    """Reports of all parts of one model; `silent` names the parts that did not respond."""

    name: str
    model: str
    scheduler: SchedulerReport | None
    replicas: dict[ReplicaId, ReplicaReport] = {}
    ingress: IngressReport
    serve: ServeReport | None = None
    silent: dict[str, str] = {}
    """Why a part did not respond, by its name: `scheduler`, `serve`, or a replica's id."""


def read_inspection(answer: Mapping[str, Any]) -> Inspection:
    """Parse a service's answer, which may come from another version.

    Raises:
        ResponseError: If it is not an inspection; the message names the first wrong field.
    """
    return read_answer(Inspection, answer, "examination")
