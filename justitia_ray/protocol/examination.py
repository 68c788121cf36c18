"""What an examination says: each part's own view of who holds what, to compare them.

The answer of `GET /v1/examination`, which `justitia doctor` reads. It holds ids, sizes, ages and
no texts. Each part tells only what it knows itself, so that two parts that disagree are seen to.
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

MOST_ENTRIES = 10_000
"""Of each table: 2 MB of JSON."""


class _Seen(BaseModel):
    """Read from a service of another version, it may hold more than is known here."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class ApplicationSeen(_Seen):
    """A live application, as the scheduler sees it."""

    state: str
    ingress_id: IngressId
    """Who opened it."""
    finish: VirtualTime
    """Its tag F in GPS; while withdrawn, without what its next submission will add."""
    clock: VirtualTime
    """V of the clock that F is of: of its tenant's own, with `fairness: tenant`."""
    active: bool
    """Whether GPS still serves it, F > V."""
    withdrawn: bool
    charged: KvTokenTime
    attained: KvTokenTime
    age_s: Seconds
    idle_s: Seconds | None
    """None while anything of it waits or runs."""
    waiting: int
    in_flight: int


class InferenceSeen(_Seen):
    """An inference that has not ended, as the scheduler sees it."""

    application_id: ApplicationId
    ingress_id: IngressId
    state: str


class LeaseSeen(_Seen):
    """A lease, as the scheduler sees it."""

    request_id: RequestId
    replica_id: ReplicaId
    state: str
    age_s: Seconds


class ReplicaSeen(_Seen):
    """A replica, as the scheduler sees it."""

    named: tuple[LeaseId, ...] = ()
    """Leases that it said it holds, in its last pull."""
    unclaimed: tuple[LeaseId, ...] = ()
    """Those of them that an earlier scheduler granted and no ingress has spoken for yet."""
    silent_s: Seconds
    draining_s: Seconds | None = None
    """None if it takes leases."""
    kv_tokens: Tokens
    block_size: Tokens = 1
    unexplained_kv_tokens: Tokens = 0
    """KV in use at its last pull that no lease of it explains."""
    leases: int = 0
    unread: int = 0
    """Messages to it that it has not confirmed."""
    next_unread: int | None = None
    """Number of the first of them."""
    free_for_first: bool = False
    """It holds no lease, and what comes first in the order would fit."""


class IngressSeen(_Seen):
    """An ingress, as the scheduler sees it."""

    silent_s: Seconds
    unread: int = 0


class StoreSeen(_Seen):
    """What the scheduler says of its store."""

    kind: Literal["embedded", "redis", "none"]
    trouble: str | None = None
    saves: int = 0
    saved_s_ago: Seconds | None = None
    """None if nothing has been saved yet."""
    save_interval_s: Seconds


class Limits(_Seen):
    """From when on silence and age mean something."""

    lease_s: Seconds
    replica_s: Seconds
    heartbeat_s: Seconds
    ingress_s: Seconds
    long_poll_s: Seconds
    application_s: Seconds


class SchedulerSeen(_Seen):
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
    """Applications that wait to be stored, of whose inferences the scheduler says nothing yet."""
    first: RequestId | None = None
    """The inference that comes first in the order; None if none waits that may be granted."""
    limits: Limits | None = None
    store: StoreSeen | None = None
    applications: dict[ApplicationId, ApplicationSeen] = {}
    ended: tuple[ApplicationId, ...] = ()
    """Applications that have ended and that GPS still serves: they are stored too."""
    inferences: dict[RequestId, InferenceSeen] = {}
    leases: dict[LeaseId, LeaseSeen] = {}
    replicas: dict[ReplicaId, ReplicaSeen] = {}
    ingresses: dict[IngressId, IngressSeen] = {}
    broken_rules: tuple[str, ...] = ()
    """Rules of its state that do not hold, and why."""
    unchecked_rules: str | None = None
    """Why the rules were not looked at."""
    left_out: dict[str, int] = {}
    """Entries that are missing in a table, by its name."""


class HeldSeen(_Seen):
    """A lease that a replica holds."""

    state: str
    age_s: Seconds
    aborted: bool


class ReplicaOwn(_Seen):
    """A replica's own view."""

    epoch: Epoch
    draining: bool
    engine: str | None
    """Why the engine cannot go on; None if it can."""
    kv_tokens: Tokens
    free_kv_tokens: Tokens
    held: dict[LeaseId, HeldSeen] = {}
    unconfirmed: tuple[LeaseId, ...] = ()
    """Leases that have ended and whose end the scheduler has not confirmed."""


class IngressOwn(_Seen):
    """The view of the ingress that answered."""

    ingress_id: IngressId
    epoch: Epoch
    open_applications: int
    tickets: dict[RequestId, bool] = {}
    """Inferences that it has outstanding, and whether each waits for a lease."""
    left_out: int = 0


class ServeReplica(_Seen):
    """A replica process, as Ray Serve sees it."""

    state: str
    pid: int | None = None
    node_ip: str | None = None


class ServeSeen(_Seen):
    """Ray Serve's view of the application, and the cluster's size."""

    nodes: int
    replicas: dict[ReplicaId, ServeReplica]
    ingresses: int
    """Ingress processes that take requests."""
    predictors: int
    """Predictor processes that answer."""


class Examination(_Seen):
    """All of it. What gave no answer is told in `silent`."""

    name: str
    model: str
    scheduler: SchedulerSeen | None
    replicas: dict[ReplicaId, ReplicaOwn] = {}
    ingress: IngressOwn
    serve: ServeSeen | None = None
    silent: dict[str, str] = {}
    """Why there is no answer, by who was asked: `scheduler`, `serve`, or a replica's id."""


def read_examination(answer: Mapping[str, Any]) -> Examination:
    """Read the answer of a service, which may be of another version.

    Raises:
        ResponseError: If it is no examination; the message names the first field that is not.
    """
    try:
        return Examination.model_validate(answer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ResponseError(200, f"it is no examination: {place}: {first['msg']}") from None
