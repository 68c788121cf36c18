"""The inspection of a service: each part's own view of who holds what, to be compared.

The answer of `GET /v1/examination`, which `justitia doctor` reads. It holds ids, sizes, ages and
no texts. Each part says only what it knows itself, so that disagreements show.
All ages are in seconds; tables that could grow without bound are cut, and `left_out` says by how
much.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from justitia_ray.errors import ResponseError
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
"""Most entries of each table: 2 MB of JSON."""
MAX_LISTED_APPLICATIONS = 1_000
"""Most applications in one status: a tenth of a second of the scheduler's time, most for lags."""


class _InspectionModel(BaseModel):
    """A part of an inspection; one of another version may hold fields that are unknown here."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ApplicationFacts(_InspectionModel):
    """A live application, as the scheduler sees it."""

    state: str
    ingress_id: IngressId
    """The ingress that opened it."""
    finish: VirtualTime
    """The tag F in GPS; while withdrawn, without what the next submission will add."""
    clock: VirtualTime
    """V of the clock that F belongs to: the tenant's own, with `fairness: tenant`."""
    active: bool
    """Whether GPS still serves the application, F > V."""
    withdrawn: bool
    charged: KvTokenTime
    attained: KvTokenTime
    age_s: Seconds
    idle_s: Seconds | None
    """None while an inference of the application waits or runs."""
    idle_limit_s: Seconds | None = None
    """How long it may be idle before it ends, if not `SilenceLimits.application_s`."""
    waiting: int
    in_flight: int


class InferenceFacts(_InspectionModel):
    """An inference that has not ended, as the scheduler sees it."""

    application_id: ApplicationId
    ingress_id: IngressId
    state: str


class LeaseFacts(_InspectionModel):
    """A lease, as the scheduler sees it."""

    request_id: RequestId
    replica_id: ReplicaId
    state: str
    age_s: Seconds


class ReplicaFacts(_InspectionModel):
    """A replica, as the scheduler sees it."""

    unclaimed: tuple[LeaseId, ...] = ()
    """Named leases that an earlier scheduler granted and no ingress has claimed yet."""
    address: str = ""
    """Host and port where it takes calls, as its last pull said; empty before the first."""
    silent_s: Seconds
    draining_s: Seconds | None = None
    """None if the replica does not drain."""
    stalled_s: Seconds | None = None
    """Time since the replica first said that its engine makes no steps; None if it makes some."""
    kv_tokens: Tokens
    block_size: Tokens = 1
    unexplained_kv_tokens: Tokens = 0
    """KV in use at the last pull that no lease of the replica explains."""
    leases: int = 0
    unread: int = 0
    """Messages to the replica that it has not confirmed."""
    next_unread: int | None = None
    """Number of the first unread message."""
    free_for_first: bool = False
    """Whether the replica holds no lease and the first inference in order would fit."""


class IngressFacts(_InspectionModel):
    """An ingress, as the scheduler sees it."""

    silent_s: Seconds
    unread: int = 0


class StoreFacts(_InspectionModel):
    """The scheduler's store, as the scheduler sees it."""

    kind: Literal["embedded", "redis", "none"]
    trouble: str | None = None
    saves: int = 0
    saved_s_ago: Seconds | None = None
    """None before the first save."""
    save_interval_s: Seconds


class SilenceLimits(_InspectionModel):
    """Ages and silences above which something is wrong."""

    lease_s: Seconds
    replica_s: Seconds
    heartbeat_s: Seconds
    ingress_s: Seconds
    long_poll_s: Seconds
    application_s: Seconds


class ScalingFacts(_InspectionModel):
    """How many replicas the queue asks for, and who goes by it."""

    wanted: int
    asked: int
    """Before the limits."""
    minimum: int
    maximum: int | None
    load_s: Seconds
    """Time that a replica takes to load, measured or as configured."""
    asked_s_ago: Seconds | None
    """Since somebody asked who starts replicas; None: nobody has, or not for long."""
    downscale_delay_s: Seconds | None
    """Configured delay of a scale-down; None: Serve scales nothing."""
    is_serves: bool
    """Whether Serve is to scale by it."""


class SchedulerReport(_InspectionModel):
    """The scheduler's own view."""

    ready: bool
    degraded: str | None = None
    epoch: Epoch = 0
    version: str | None = None
    pid: int | None = None
    virtual_time: VirtualTime = 0
    recovering: bool = False
    waiting: int = 0
    held_back: int = 0
    """Applications that wait to be stored; their inferences are left out until then."""
    first: RequestId | None = None
    """The first inference in order; None if no waiting one may be granted."""
    limits: SilenceLimits | None = None
    store: StoreFacts | None = None
    applications: dict[ApplicationId, ApplicationFacts] = {}
    ended: tuple[ApplicationId, ...] = ()
    """Ended applications that GPS still serves: they are stored too."""
    inferences: dict[RequestId, InferenceFacts] = {}
    leases: dict[LeaseId, LeaseFacts] = {}
    replicas: dict[ReplicaId, ReplicaFacts] = {}
    ingresses: dict[IngressId, IngressFacts] = {}
    scaling: ScalingFacts | None = None
    """None while it is not known, and of schedulers that do not size."""
    broken_rules: tuple[str, ...] = ()
    """Rules of the scheduler's state that do not hold, and why."""
    unchecked_rules: str | None = None
    """Why the rules were not checked."""
    left_out: dict[str, int] = {}
    """Number of entries left out of a table, by its name."""


class HeldLeaseReport(_InspectionModel):
    """A lease that a replica holds."""

    state: str
    age_s: Seconds
    aborted: bool


class ReplicaReport(_InspectionModel):
    """A replica's own view."""

    epoch: Epoch
    draining: bool
    engine: str | None
    """Why the engine cannot go on; None if the engine is well."""
    stalled_s: Seconds | None = None
    """Time for which the engine has made no step although it has work; None if it is not stalled.
    """
    kv_tokens: Tokens
    free_kv_tokens: Tokens
    held: dict[LeaseId, HeldLeaseReport] = {}
    unconfirmed: tuple[LeaseId, ...] = ()
    """Leases that have ended and whose end the scheduler has not confirmed."""


class FrontFacts(_InspectionModel):
    """The front of Serve: who takes callers' connections, and how many."""

    kind: Literal["haproxy", "serve"]
    """HAProxy, or Serve's own proxy."""
    max_connections: int | None = None
    """Limit of each HAProxy; None: Serve's proxy, which has none."""
    wanted_descriptors: int | None = None
    """Open files that HAProxy takes for them; it does not start where fewer are allowed."""
    descriptors: int
    """Open files that a process may have on the ingress's machine."""
    fitting_connections: int
    """Connections that HAProxy could hold with them."""
    haproxy_can_run: bool
    splices: bool = False
    """Whether HAProxy splices bodies: a unary call whose caller left then runs to its end."""


class IngressReport(_InspectionModel):
    """The view of the ingress that answered."""

    ingress_id: IngressId
    epoch: Epoch
    open_applications: int
    max_outstanding: int | None = None
    """Callers of this model that may wait at each ingress."""
    front: FrontFacts | None = None
    """The front that the environment of the ingress chooses."""
    tickets: dict[RequestId, bool] = {}
    """Pending inferences of the ingress, and whether each waits for a lease."""
    left_out: int = 0


class ServeReplica(_InspectionModel):
    """A replica process, as Ray Serve sees it."""

    state: str
    pid: int | None = None
    node_ip: str | None = None


class ServeReport(_InspectionModel):
    """Ray Serve's view of the application, and the cluster's size."""

    nodes: int
    replicas: dict[ReplicaId, ServeReplica]
    ingresses: int
    """Ingress processes that take requests."""
    predictors: int
    """Predictor processes that answer."""
    front: Literal["haproxy", "serve"] | None = None
    """The front that Serve's controller runs."""
    tls: bool | None = None
    """Whether Serve's HTTP options name a certificate; None: not said."""
    failing: dict[str, str] = {}
    """Deployments whose processes do not start or are not well, and Serve's reason."""


class Inspection(_InspectionModel):
    """The views of all parts of one model; `silent` names those that gave no answer."""

    name: str
    model: str
    scheduler: SchedulerReport | None
    replicas: dict[ReplicaId, ReplicaReport] = {}
    ingress: IngressReport
    serve: ServeReport | None = None
    silent: dict[str, str] = {}
    """Why a part gave no answer, by its name: `scheduler`, `serve`, or a replica's id."""


def read_inspection(answer: Mapping[str, Any]) -> Inspection:
    """Read the answer of a service, which may be of another version.

    Raises:
        ResponseError: If the answer is no inspection; the message names the first wrong field.
    """
    try:
        return Inspection.model_validate(answer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ResponseError(200, f"it is no examination: {place}: {first['msg']}") from None
