"""Data of `GET /v1/status` and `GET /v1/applications`: built by the scheduler, parsed by readers.

Names and order of the fields are those of the JSON. A field that an older service does not send
gets its default. Times and ages are in seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from justitia_ray.core.actions import Lag
from justitia_ray.core.outlook import Outlook
from justitia_ray.errors import ResponseError
from justitia_ray.units import (
    ApplicationId,
    ClientId,
    Epoch,
    KvTokenTime,
    ReplicaId,
    Seconds,
    Tokens,
    VirtualTime,
)

T = TypeVar("T")


# --- applications


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationView:
    """State of an application in the queue of one model."""

    application_id: ApplicationId
    application_class: str
    recognized_by: str | None = None
    """Rule that recognised the application; empty if the call named it; None: not reported."""
    tenant: ClientId
    weight: float = 1.0
    state: str = ""
    """State of the application: `open`, `closing`, or before it is open `held` or `refused` by its
    quotas.
    """
    predicted_kv_token_time: KvTokenTime | None = None
    kv_token_time: KvTokenTime = 0
    """Service that the application has received, without the cost of prefill."""
    prefill_token_time: KvTokenTime = 0
    """Cost of computing the application's prompts; 0 unless prefill has a cost."""
    virtual_finish_time: VirtualTime | None = None
    """Virtual finish time F of the application (its tag); None before it is open."""
    age_s: Seconds | None = None
    """Seconds since the application's arrival; None before it is open."""
    waiting: int = 0
    running: int = 0
    """Number of the application's inferences with a lease."""
    ended: int = 0
    prompt_tokens: Tokens = 0
    """Prompt tokens of the application's ended inferences."""
    cached_prompt_tokens: Tokens = 0
    gps_lag: Lag | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FullOutlook(Outlook):
    """Predicted start and end of an application in full, as answered for a single application."""

    quota_comes_back_s: Seconds | None = None
    """Seconds until the quota that holds the application back is expected to have enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundApplication(ApplicationView):
    """Answer of `GET /v1/applications/ID`."""

    outlook: FullOutlook | None = None
    """Predicted start and end at the only model; None if the application is at no model or at
    several.
    """
    models: Mapping[str, "FoundApplication"] = field(default_factory=dict)
    """State of the application by model, if the service has several models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedApplication(ApplicationView):
    """Application in an answer of `GET /v1/applications`."""

    outlook: Outlook


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of applications and of their waiting and running inferences."""

    applications: int
    waiting: int
    running: int


@dataclass(frozen=True, slots=True)
class Listing:
    """First applications of a caller in a model's queue, and counts of all applications."""

    applications: tuple[ListedApplication, ...]
    own: Counts
    others: Counts


# --- status


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptKvView:
    """KV memory that a replica keeps for applications between two inferences."""

    held_contexts: int | None = None
    """Number of contexts that the engine evicts last (`engine.hold_contexts`); None: off, or not
    reported.
    """
    held_kv_tokens: Tokens | None = None
    """Cached tokens of the held contexts, common tokens once; free memory unless a running
    inference uses them.
    """
    host_kv_tokens: Tokens | None = None
    """KV tokens in host memory (`engine.host_kv_gib`); None: off."""
    host_kv_capacity_tokens: Tokens | None = None
    """KV tokens that fit into the host memory; None: off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """State of a replica in the scheduler."""

    kv_tokens: Tokens = 0
    leases: int = 0
    running: int | None = None
    """Number of the replica's leases whose inference has started."""
    sequences: int | None = None
    max_num_seqs: int | None = None
    draining: bool = False
    state: str | None = None
    """State of the replica: `serving`, `draining`, `silent` or `stalled`; None: not reported."""
    silent_s: Seconds = 0.0
    used_kv_tokens: Tokens | None = None
    """KV tokens in use by the engine's own gauge; None before the first report."""
    kept: KeptKvView | None = None
    """Cached contexts and use of the host memory; None: the engine has neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadView:
    """Next inference to start, and the reason why it waits."""

    application_id: ApplicationId
    application_class: str = ""
    tenant: ClientId
    client: ClientId = ""
    key: tuple[float, ...]
    """The policy's sort key of the application, without infinite parts."""
    virtual_finish_time: VirtualTime
    prompt_tokens: Tokens
    predicted_output_tokens: Tokens
    waited_s: Seconds
    waits_for: str
    """Reason for waiting: `recovery`, `replica`, `working_set` or `room`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingSetView:
    """Applications that share the KV memory (working set), and applications that wait to join."""

    started: int
    """Number of applications that have started and may keep their KV memory."""
    waiting: int
    """Number of applications that wait to start."""
    context_tokens: Tokens
    """KV tokens of cached contexts without a running inference, which count as used memory."""
    room_tokens: Tokens
    """KV tokens that running inferences and counted contexts may hold together."""
    found: int
    """Number of inferences that found their application's counted context in the cache."""
    missed: int
    """Number of inferences whose application's counted context had been evicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreView:
    """State of the scheduler's store; without a store, only `kind` and `durability` are set."""

    kind: str
    """Kind of store: `embedded`, `redis` or `none`."""
    durability: str
    connected: bool | None = None
    trouble: str | None = None
    saved_s_ago: Seconds | None = None
    """Seconds since the scheduler's last save; None before the first save."""
    save_interval_s: Seconds | None = None
    unsaved_applications: int | None = None
    """Number of applications with changes since the last save."""


@dataclass(frozen=True, slots=True)
class KvTotals:
    """KV memory over time since the scheduler's start, and preemptions, over all replicas."""

    used_token_s: float = 0
    capacity_token_s: float = 0
    preemptions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShare:
    """Shares of a tenant of the tree in one model, as fractions of 1."""

    node: ClientId
    weight: float | None
    """Weight of the tenant; None if the policy does not share between tenants."""
    fair_share: float | None
    """Share of all service that the tenant is entitled to now, among tenants with work; None
    without work. It is updated when a sibling's work starts or ends.
    """
    guaranteed: float
    used: float
    """Share of the KV memory in use by the tenant."""
    borrowed: float
    """Part of `used` that exceeds both the fair share and the guaranteed share."""
    waiting: int
    running: int


@dataclass(frozen=True, slots=True)
class FrontView:
    """Serve's HTTP front end before the ingress that answered."""

    kind: str
    max_connections: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillCostView:
    """Cost of computing prompts, for applications that are opened now."""

    source: str
    """Source of the prefill cost: `configured` or `measured`."""
    per_token: float | None = None
    """Cost of each computed prompt token in token·iterations; None: not measured yet, so prompts
    cost nothing.
    """
    per_pair: float | None = None
    """Cost of each pair of a computed token and an earlier token, in token·iterations."""
    release: str | None = None
    """Release of the service in which the prefill cost was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerStatus:
    """State of a model's scheduler; a scheduler that is starting reports only the first fields."""

    ready: bool = False
    """Whether the scheduler is the leader and serves calls."""
    degraded: str | None = None
    """Reason for degraded service; None if there is none."""
    epoch: Epoch | None = None
    saves: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    policy: str | None = None
    """Name of the scheduling policy; None while the scheduler is starting."""
    virtual_time: VirtualTime = 0
    applications: int = 0
    waiting: int = 0
    kept_out: int = 0
    """Number of waiting inferences that cannot start because their ingress does not respond."""
    held_back_s: Seconds | None = None
    """Seconds for which the policy holds back the next application; None if the policy does not."""
    in_flight: int = 0
    """Number of inferences with a lease."""
    backlog_kv_tokens: Tokens = 0
    grants: int = 0
    prompt_tokens: Tokens = 0
    """Prompt tokens of ended inferences."""
    cached_prompt_tokens: Tokens = 0
    prefill_cost: PrefillCostView | None = None
    """Cost of computing prompts; None: computing them costs nothing."""
    prefill_token_time: KvTokenTime = 0
    """Cost of computing prompts so far; 0 unless prefill has a cost."""
    forgiven_token_time: KvTokenTime = 0
    """Part of `prefill_token_time` that was charged to tenants but not to applications, because
    contexts were evicted.
    """
    late_reports: int = 0
    engine_failures: Mapping[str, int] = field(default_factory=dict)
    """Number of engines that died, by cause."""
    suspects: int = 0
    """Number of inferences that run on separate engines, because they may have killed an engine."""
    recovering: bool = False
    ingresses: int = 0
    replicas: Mapping[ReplicaId, ReplicaView] = field(default_factory=dict)
    head: HeadView | None = None
    """Next inference to start; None if no waiting inference can start."""
    working_set: WorkingSetView | None = None
    """State of the working set; None: the policy has none, or its option is off."""
    first_applications: tuple[ApplicationView, ...] = ()
    store: StoreView | None = None
    kv: KvTotals = field(default_factory=KvTotals)
    decisions: Mapping[str, Any] = field(default_factory=dict)
    """Histogram of the durations of scheduling decisions; see `observability.scheduler_metrics`."""
    shares: tuple[NodeShare, ...] = ()
    quotas: Mapping[ClientId, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """Quotas of tenants over all models, as in `accounts.messages.NodeStanding`."""
    size: Mapping[str, Any] | None = None
    """Wanted number of replicas, and whether Serve scales to it (`autoscaled`); None until the
    replicas have reported.
    """
    version: str | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus(SchedulerStatus):
    """Answer of `GET /v1/status` about one model."""

    model: str = ""
    front: FrontView | None = None


# --- parsing


def read_answer(kind: type[T], answer: Mapping[str, Any], name: str) -> T:
    """Parse an answer of the service, of this version or another; unknown fields are ignored.

    Args:
        kind: Class of the answer.
        answer: The answer.
        name: Name of the answer for the error.

    Raises:
        ResponseError: If the answer is not of that class; the message names the first wrong field.
    """
    try:
        read: T = _adapter_of(kind).validate_python(answer)  # type: ignore[arg-type]  # hashable
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ResponseError(200, f"it is no {name}: {place}: {first['msg']}") from None
    return read


@cache
def _adapter_of(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
