"""Data of the console: the JSON lines of its stream.

Names and order of the fields are those of the JSON. Times (`…_at`, `start`, `end`) are seconds on
the scheduler's clock, which is close to Unix time; `at` of the same line is "now". Durations
(`…_s`) are seconds. KV memory is in tokens. A reader ignores fields and kinds of lines that it
does not know.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple, TypeAlias

from justitia_ray.core.calibration import Quantiles
from justitia_ray.protocol.status import Counts, KvTotals, NodeShare, StoreView, read_answer
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

VERSION = 1
"""Version of the console's messages, increased when a field changes its meaning."""
INTERVAL_S: Seconds = 1.0
"""Seconds between two updates (frames) of a model in the console."""
QUEUE_ROWS = 50
"""Maximum number of waiting applications that an update of the console lists."""
PLANNED = 128
"""Maximum number of planned starts in an update of the console."""
PAST_S: Seconds = 300.0
"""Maximum age in seconds of the bars in a complete update of the console."""

CONTENT_TYPE = "application/x-ndjson"


# --- lanes


class BarKind(StrEnum):
    """Whether a bar of the console shows KV memory of running inferences or of cached contexts."""

    RUN = "run"
    """KV memory held by the application's running inferences."""
    HELD = "held"
    """KV memory of an application without running inferences, which the prefix cache may still
    hold.
    """


class Bar(NamedTuple):
    """Bar in the console: an application's KV memory on a replica over time. A JSON array.

    A bar replaces an earlier bar with the same id. If the application's KV changes much, its bar
    ends and another bar starts.
    """

    id: int
    """Number of the bar, unique during a scheduler's term."""
    replica_id: ReplicaId
    application: ApplicationId
    """Key of the bar's application in `Frame.labels`."""
    kind: BarKind
    start: Seconds
    end: Seconds | None
    """Time at which the bar ends; None if it has not ended."""
    kv_tokens: Tokens
    """Height of the bar: its latest KV tokens, or their mean if the bar has ended."""


class PlannedBar(NamedTuple):
    """Bar in the future of the console: the predicted next start of a waiting application."""

    replica_id: ReplicaId
    application: ApplicationId
    start: Seconds
    end: Seconds
    kv_tokens: Tokens


class Label(NamedTuple):
    """Names of an application that the console shows. A JSON array."""

    tenant: ClientId
    application_id: ApplicationId
    """Application id that the caller gave, without the tenant."""
    application_class: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLane:
    """State of a replica in the console. Tenants see only `replica_id`, `kv_tokens`, `state`."""

    replica_id: ReplicaId
    kv_tokens: Tokens
    """KV memory of the replica in tokens, the height of its lane."""
    state: str
    """State of the replica: `serving`, `draining`, `silent` or `stalled`."""
    used_kv_tokens: Tokens | None = None
    """KV tokens in use by the engine's own gauge at its last report; None before the first report.
    """
    leased_kv_tokens: Tokens | None = None
    """KV tokens held by running leases in the replica's last report."""
    held_kv_tokens: Tokens | None = None
    """KV tokens of cached contexts of applications that have no running inference."""
    leases: int | None = None
    running: int | None = None
    sequences: int | None = None
    max_num_seqs: int | None = None
    silent_s: Seconds | None = None
    """Seconds since the replica's last call to the scheduler."""


# --- strip


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """Summary of a model's queue in the console. Tenants see no amounts (None)."""

    state: str
    """State of the model: `ready`, `recovering`, `degraded`, `stalled` or `empty` (no replica is
    up).
    """
    why: str | None = None
    """Reason for the model's state in words; None if the model is ready."""
    policy: str
    virtual_time: VirtualTime | None = None
    drain_s: Seconds | None = None
    """Seconds in which the replicas would serve all waiting inferences at the recent rate; None:
    unknown.
    """
    kv_tokens: Tokens | None = None
    used_kv_tokens: Tokens | None = None
    """KV tokens in use over all replicas, by the engines' own gauges."""
    leased_kv_tokens: Tokens | None = None
    held_kv_tokens: Tokens | None = None
    free_kv_tokens: Tokens | None = None
    """KV tokens that are neither in use nor occupied by cached contexts."""
    replicas_up: int | None = None
    replicas_wanted: int | None = None
    """Wanted number of replicas; None without autoscaling, or before its first decision."""
    wanted_why: str | None = None
    applications: int | None = None
    """Number of live applications, of all tenants."""
    waiting: int | None = None
    running: int | None = None
    grants: int | None = None
    suspects: int | None = None
    kv: KvTotals | None = None
    """KV memory over time since the scheduler's start."""
    store: StoreView | None = None
    version: str | None = None


# --- queue


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """Waiting application in the console's queue."""

    position: int | None
    """Number of applications ahead in the queue; None if the application is held back, for example
    by a quota.
    """
    application: ApplicationId
    tenant: ClientId
    application_id: ApplicationId
    application_class: str
    tier: str
    weight: float
    reason: str
    """Reason for waiting, as in `outlook` of `GET /v1/applications`. A limit follows with its
    tenant: `quota:acme/search`.
    """
    why: str
    """Reason for waiting in words."""
    what_would_help: str
    waiting: int
    running: int
    age_s: Seconds
    """Seconds since the application's arrival."""
    waited_s: Seconds
    """Seconds since the application's oldest waiting inference was submitted."""
    predicted_kv_token_time: KvTokenTime
    kv_token_time: KvTokenTime
    virtual_finish_time: VirtualTime
    ahead_kv_token_time: KvTokenTime | None = None
    expected_start_s: Quantiles | None = None
    expected_finish_s: Quantiles | None = None
    guaranteed_by_s: Seconds | None = None
    """Seconds until all waiting inferences of the application have started, at the present speed;
    None without a guarantee.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """First waiting applications in order, and counts of the viewer's live applications."""

    rows: tuple[QueueRow, ...]
    waiting: int
    """Number of waiting applications, including applications that `rows` omits."""
    by_reason: Mapping[str, int]
    """Number of live applications by reason for waiting, without the tenant of a limit."""


@dataclass(frozen=True, slots=True)
class Ages:
    """Waiting times of applications, each since its oldest waiting inference was submitted."""

    p50_s: Seconds
    p95_s: Seconds
    oldest_s: Seconds


# --- shares


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaLeft:
    """Remaining amount of a tenant's quota, over all models."""

    unit: str
    per: str
    limit: float
    used: float
    claimed: float
    remaining: float
    reset_s: Seconds
    on_exhausted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRow(NodeShare):
    """Shares of a tenant of the tree; parents precede their children."""

    quotas: tuple[QuotaLeft, ...] = ()


@dataclass(frozen=True, slots=True)
class SharePast:
    """Shares of the KV memory that tenants used at an earlier time."""

    at: Seconds
    used: Mapping[ClientId, float]
    """Used share of the KV memory by tenant; tenants with 0 are missing."""


# --- lines of the stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """First line of the console's stream."""

    kind: Literal["hello"] = "hello"
    version: int = VERSION
    service_version: str
    tenant: ClientId | None
    """Tenant whose applications are shown, with its descendants; None: all tenants."""
    is_operator: bool
    """Whether the viewer may cancel applications, ask what-if questions, and see predictors."""
    models: tuple[str, ...]
    """Names of the models that the console's stream shows."""
    policies: tuple[str, ...] = ()
    """Names of scheduling policies that what-if questions may use."""
    interval_s: Seconds = INTERVAL_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """State of a model in the console, sent once a second."""

    kind: Literal["frame"] = "frame"
    model: str
    epoch: Epoch
    """Epoch of the scheduler; the ids of bars start again in each epoch."""
    number: int
    """Number of the state since the scheduler's start; numbers may be skipped."""
    at: Seconds
    """Time of this state, on the scheduler's clock."""
    recorded_from: Seconds
    """Time from which all bars are known, because recording starts with the first viewer."""
    is_whole: bool
    """Whether `bars` contains all recorded bars and replaces the reader's bars. Otherwise it
    contains only bars that have changed.
    """
    strip: Strip
    replicas: tuple[ReplicaLane, ...] = ()
    bars: tuple[Bar, ...] = ()
    planned: tuple[PlannedBar, ...] = ()
    """Predicted starts of waiting applications, which replace all earlier predictions."""
    labels: Mapping[ApplicationId, Label] = field(default_factory=dict)
    """Names of applications that the viewer has not received in an earlier frame."""
    queue: Queue
    ages: Ages | None = None
    """Waiting times of the model's applications; None if no inference waits."""
    own: Counts
    """Counts of the viewer's applications; for an operator, of all applications."""
    others: Counts
    """Counts of the applications that the viewer may not see."""
    shares: tuple[ShareRow, ...] = ()
    shares_past: tuple[SharePast, ...] = ()
    """Shares of KV memory in the last 15 minutes, every five seconds; empty unless the update is
    complete.
    """
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Number of entries that were left out, by field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    """State of a model's predictor, sent to operators every ten seconds."""

    kind: Literal["predictor"] = "predictor"
    model: str
    overview: Mapping[str, Any] | None = None
    """Answer of `GET /v1/predictor` for the model."""
    error: str | None = None
    """Reason why `overview` is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Message of the console that a model's scheduler does not answer, sent once a second."""

    kind: Literal["trouble"] = "trouble"
    model: str
    reason: str
    since_s: Seconds
    """Seconds since the scheduler's last answer, or since the start of the stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bye:
    """Last line of a console's stream if the service ends it, not if the connection is lost."""

    kind: Literal["bye"] = "bye"
    reason: str
    code: str
    """Why the service ends the stream: `limit` if its maximum duration is reached, otherwise an
    error code.
    """
    retry_after_s: Seconds | None
    """Seconds after which to connect again; None: the credential is not accepted."""


Line: TypeAlias = Hello | Frame | Predictor | Trouble | Bye
KINDS: Mapping[str, type[Line]] = {
    "hello": Hello,
    "frame": Frame,
    "predictor": Predictor,
    "trouble": Trouble,
    "bye": Bye,
}
"""Class of a line in the console's stream, by its `kind`."""


def read_line(line: Mapping[str, Any]) -> Line | None:
    """Parse a line of the console's stream; None for a kind that this version does not know.

    Raises:
        ResponseError: If the line does not match its kind; the message names the first wrong field.
    """
    kind = KINDS.get(str(line.get("kind")))
    return None if kind is None else read_answer(kind, line, f"line of the kind {line['kind']}")
