"""Inspection of a service: each process reports its own view of the state, for comparison.

The answer of `GET /v1/examination` has these classes, and `justitia doctor` reads it. It contains
ids, sizes and ages, but no texts. Each process reports only its own state, so that disagreements
are visible. All ages are in seconds. Tables that could grow without bound are truncated, and
`left_out` counts the entries left out.
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
"""Maximum number of entries of each table in an inspection; 10,000 entries are 2 MB of JSON."""
MAX_LISTED_APPLICATIONS = 1_000
"""Maximum number of applications in an inspection; computing the lags of 1,000 takes the scheduler
0.1 s.
"""


class _InspectionModel(BaseModel):
    """Base class of the parts of an inspection, which ignores fields of other versions."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ApplicationFacts(_InspectionModel):
    """State of a live application in the scheduler."""

    state: str
    ingress_id: IngressId
    """Id of the ingress that opened the application."""
    finish: VirtualTime
    """Virtual finish time F of the application in GPS. If the application was withdrawn, F leaves
    out its next submission.
    """
    clock: VirtualTime
    """Virtual time V to compare with the application's F. With `fairness: tenant`, it is the
    virtual time in the application's tenant.
    """
    active: bool
    """Whether GPS, the ideal fair schedule, still serves the application (F > V)."""
    withdrawn: bool
    charged: KvTokenTime
    attained: KvTokenTime
    age_s: Seconds
    idle_s: Seconds | None
    """Seconds since the application's last inference ended; None while it has one."""
    idle_limit_s: Seconds | None = None
    """Seconds after which the idle application ends; None: `SilenceLimits.application_s` applies.
    """
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
    """Number of leases from an earlier scheduler that no ingress has claimed since."""
    address: str = ""
    """Host and port of the replica, as of its last report; empty before the first."""
    silent_s: Seconds
    draining_s: Seconds | None = None
    """Seconds since the replica began to drain; None if it does not drain."""
    stalled_s: Seconds | None = None
    """Seconds since the replica first reported its stalled engine; None if the engine makes steps.
    """
    kv_tokens: Tokens
    block_size: Tokens = 1
    unexplained_kv_tokens: Tokens = 0
    """KV tokens in use on the replica that belong to no lease, at its last report."""
    leases: int = 0
    unread: int = 0
    """Number of messages to the replica that it has not acknowledged."""
    next_unread: int | None = None
    """Number of the first message that the replica has not acknowledged; None if there is none."""
    free_for_first: bool = False
    """Whether the replica is idle although the first inference of the queue would fit on it."""


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
    """Seconds since the scheduler's last save; None before the first save."""
    save_interval_s: Seconds


class SilenceLimits(_InspectionModel):
    """Limits on ages and silences in seconds; a value above its limit means a fault."""

    lease_s: Seconds
    replica_s: Seconds
    heartbeat_s: Seconds
    ingress_s: Seconds
    long_poll_s: Seconds
    application_s: Seconds


class ScalingFacts(_InspectionModel):
    """Number of replicas that the scheduler wants, and the settings behind it."""

    wanted: int
    asked: int
    """Wanted number of replicas before the limits `minimum` and `maximum` are applied."""
    minimum: int
    maximum: int | None
    load_s: Seconds
    """Seconds that a replica takes to load, measured or as configured."""
    asked_s_ago: Seconds | None
    """Seconds since Serve's autoscaler last asked; None if it has not asked within the timeout."""
    downscale_delay_s: Seconds | None
    """Configured delay of a scale-down in seconds; None: Serve does not scale."""
    is_serves: bool
    """Whether Serve is configured to scale the model to the wanted number of replicas."""


class SchedulerReport(_InspectionModel):
    """State of a model's scheduler, for an inspection."""

    ready: bool
    degraded: str | None = None
    epoch: Epoch = 0
    version: str | None = None
    pid: int | None = None
    virtual_time: VirtualTime = 0
    recovering: bool = False
    waiting: int = 0
    held_back: int = 0
    """Number of applications that wait until they are stored; the report omits their inferences."""
    first: RequestId | None = None
    """First inference of the queue; None if no waiting inference can start."""
    limits: SilenceLimits | None = None
    store: StoreFacts | None = None
    applications: dict[ApplicationId, ApplicationFacts] = {}
    ended: tuple[ApplicationId, ...] = ()
    """Ended applications that GPS, the ideal fair schedule, still serves; the store has them too.
    """
    inferences: dict[RequestId, InferenceFacts] = {}
    leases: dict[LeaseId, LeaseFacts] = {}
    replicas: dict[ReplicaId, ReplicaFacts] = {}
    ingresses: dict[IngressId, IngressFacts] = {}
    scaling: ScalingFacts | None = None
    """Wanted number of replicas with its settings; None if unknown, or without autoscaling."""
    broken_rules: tuple[str, ...] = ()
    """Violated invariants of the scheduler's state, with details."""
    unchecked_rules: str | None = None
    """Reason why invariants were not checked; None if they were checked."""
    left_out: dict[str, int] = {}
    """Number of entries that were left out, by table."""


class HeldLeaseReport(_InspectionModel):
    """State of a lease that a replica holds."""

    state: str
    age_s: Seconds
    aborted: bool


class ReplicaReport(_InspectionModel):
    """State of a replica, as reported by itself."""

    epoch: Epoch
    draining: bool
    engine: str | None
    """Reason why the engine cannot continue; None if it is healthy."""
    stalled_s: Seconds | None = None
    """Seconds without an engine step although the engine has work; None if it is not stalled."""
    kv_tokens: Tokens
    free_kv_tokens: Tokens
    held: dict[LeaseId, HeldLeaseReport] = {}
    unconfirmed: tuple[LeaseId, ...] = ()
    """Ended leases whose end the scheduler has not confirmed."""


class FrontFacts(_InspectionModel):
    """Serve's HTTP front end: kind and connection limits."""

    kind: Literal["haproxy", "serve"]
    """Kind of HTTP front end: HAProxy, or Serve's own proxy."""
    max_connections: int | None = None
    """Connection limit of each HAProxy; None for Serve's proxy, which has none."""
    wanted_descriptors: int | None = None
    """File descriptors that HAProxy needs for its connection limit; with fewer it does not start.
    """
    descriptors: int
    """Limit of open files per process on the ingress's machine."""
    fitting_connections: int
    """Connections that HAProxy can hold with this machine's limit of open files."""
    haproxy_can_run: bool
    splices: bool = False
    """Whether HAProxy splices bodies. If so, a unary call runs to its end even after its caller
    disconnects.
    """


class ProxyFacts(_InspectionModel):
    """Cluster addresses that a process would call through an HTTP proxy."""

    variable: str
    """Environment variable that names the HTTP proxy."""
    addresses: tuple[str, ...]


class IngressReport(_InspectionModel):
    """State of the ingress that answered an inspection."""

    ingress_id: IngressId
    epoch: Epoch
    open_applications: int
    max_outstanding: int | None = None
    """Maximum number of callers of this model that may wait at each ingress."""
    front: FrontFacts | None = None
    """HTTP front end before the ingress (HAProxy or Serve's proxy), found from its environment."""
    proxied: ProxyFacts | None = None
    """Cluster addresses that are called through an HTTP proxy; None if all calls are direct."""
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
    """Serve's status of the deployment, `UPDATING` until every replica has the deployed
    configuration.
    """
    target: int
    """Number of replicas that Serve aims for."""
    running: int
    starting: int = 0
    stopping: int = 0
    starting_s: Seconds = 0.0
    """Seconds since the first of the starting replicas was created."""
    unplaced: int = 0
    """Number of starting replicas without a node."""
    unplaced_s: Seconds = 0.0
    """Seconds since the first replica without a node was created."""
    unchanged_s: Seconds = 0.0
    """Seconds since the last deployment, or since the youngest running replica was created."""
    needs: str = ""
    """Resources that a replica requests, as text."""
    fitting_nodes: int = 0
    """Number of cluster nodes that have the requested resources, free or used."""
    failed_starts: int = 0
    """Number of replicas that ended before they ran, since the deployment; 0 once the deployment is
    complete.
    """
    failed_log: str | None = None
    """Log file and node of the last replica that failed to start."""


class ServeReport(_InspectionModel):
    """State of the application in Ray Serve, and the size of the cluster."""

    nodes: int
    replicas: dict[ReplicaId, ServeReplica]
    ingresses: int
    """Number of ingress processes that accept requests."""
    predictors: int
    """Number of predictor processes that respond."""
    front: Literal["haproxy", "serve"] | None = None
    """HTTP front end of Serve's controller; None: unknown."""
    tls: bool | None = None
    """Whether Serve's HTTP options name a TLS certificate; None: unknown."""
    failing: dict[str, str] = {}
    """Deployments that fail to start or are unhealthy, with Serve's reason."""
    deployments: dict[str, DeploymentFacts] = {}
    """Deployments of the model by name; empty in answers of older versions."""


class Inspection(_InspectionModel):
    """Reports of all processes of a model; `silent` names the processes without an answer."""

    name: str
    model: str
    scheduler: SchedulerReport | None
    replicas: dict[ReplicaId, ReplicaReport] = {}
    ingress: IngressReport
    serve: ServeReport | None = None
    silent: dict[str, str] = {}
    """Reason why a process did not answer, by its name: `scheduler`, `serve`, or a replica's id."""


def read_inspection(answer: Mapping[str, Any]) -> Inspection:
    """Parse an inspection, which may come from another version of the service.

    Raises:
        ResponseError: If the answer is not an inspection; the message names the first wrong field.
    """
    return read_answer(Inspection, answer, "examination")
