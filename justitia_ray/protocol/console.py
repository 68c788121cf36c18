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
"""Version of these messages, increased when a field changes its meaning."""
INTERVAL_S: Seconds = 1.0
"""Seconds between two frames of a model."""
QUEUE_ROWS = 50
"""Maximum number of rows of the queue in a frame."""
PLANNED = 128
"""Maximum number of planned rectangles in a frame."""
PAST_S: Seconds = 300.0
"""Maximum age of the bars in a whole frame."""

CONTENT_TYPE = "application/x-ndjson"


# --- lanes


class BarKind(StrEnum):
    """Kind of a rectangle in a replica's lane."""

    RUN = "run"
    """KV held by the application's leases."""
    HELD = "held"
    """KV of a live application without leases, which the engine's prefix cache may still hold."""


class Bar(NamedTuple):
    """Rectangle in a lane: KV of an application on a replica over time. A JSON array.

    A bar replaces an earlier bar with the same id. If the application's KV changes much, its bar
    ends and another bar starts.
    """

    id: int
    """Number of the bar, unique within the epoch."""
    replica_id: ReplicaId
    application: ApplicationId
    """Key of the application in `Frame.labels`."""
    kind: BarKind
    start: Seconds
    end: Seconds | None
    """End; None if the bar has not ended."""
    kv_tokens: Tokens
    """Height of the bar: KV tokens at the last snapshot, or their mean over an ended bar."""


class PlannedBar(NamedTuple):
    """Rectangle in the future: next start of a waiting application, if predictions come true."""

    replica_id: ReplicaId
    application: ApplicationId
    start: Seconds
    end: Seconds
    kv_tokens: Tokens


class Label(NamedTuple):
    """Names of an application in a bar or row. A JSON array."""

    tenant: ClientId
    application_id: ApplicationId
    """Id that the caller gave, without the tenant."""
    application_class: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLane:
    """State of a replica. A tenant's frame has only `replica_id`, `kv_tokens` and `state`."""

    replica_id: ReplicaId
    kv_tokens: Tokens
    """KV memory of the replica: the height of the lane."""
    state: str
    """`serving`, `draining`, `silent` or `stalled`."""
    used_kv_tokens: Tokens | None = None
    """KV in use by the engine's gauge at its last report; None before the first report."""
    leased_kv_tokens: Tokens | None = None
    """KV tokens held by running leases, as last reported."""
    held_kv_tokens: Tokens | None = None
    """KV tokens of idle contexts of live applications."""
    leases: int | None = None
    running: int | None = None
    sequences: int | None = None
    max_num_seqs: int | None = None
    silent_s: Seconds | None = None
    """Seconds since the replica's last call."""


# --- strip


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """Summary of a model's queue. Amounts are None in a tenant's frame."""

    state: str
    """`ready`, `recovering`, `degraded`, `stalled` or `empty` (no replica is up)."""
    why: str | None = None
    """Reason for the state in words; None if ready."""
    policy: str
    virtual_time: VirtualTime | None = None
    drain_s: Seconds | None = None
    """Seconds in which the replicas would serve all waiting inferences at the recent rate; None:
    unknown."""
    kv_tokens: Tokens | None = None
    used_kv_tokens: Tokens | None = None
    """KV in use by the engines' gauges, over all replicas."""
    leased_kv_tokens: Tokens | None = None
    held_kv_tokens: Tokens | None = None
    free_kv_tokens: Tokens | None = None
    """KV that is neither in use nor occupied by idle contexts."""
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
    """Waiting application, as a row of the queue."""

    position: int | None
    """Number of applications ahead; None if the application is held back from the queue."""
    application: ApplicationId
    tenant: ClientId
    application_id: ApplicationId
    application_class: str
    tier: str
    weight: float
    reason: str
    """Reason as in `outlook` of `GET /v1/applications`, with the node of a limit if any:
    `quota:acme/search`."""
    why: str
    """Reason in words."""
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
    """Seconds until all its waiting inferences have started, at the present speed; None without a
    guarantee."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """First waiting applications in order, and counts of the viewer's live applications."""

    rows: tuple[QueueRow, ...]
    waiting: int
    """Number of waiting applications, including those that `rows` omits."""
    by_reason: Mapping[str, int]
    """Number of live applications by reason, without the node of a limit."""


@dataclass(frozen=True, slots=True)
class Ages:
    """Waiting times of applications; an application's is that of its oldest waiting inference."""

    p50_s: Seconds
    p95_s: Seconds
    oldest_s: Seconds


# --- shares


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaLeft:
    """Remaining amount of a node's quota, over all models."""

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
    """Row of a node in the tree of tenants; parents precede children."""

    quotas: tuple[QuotaLeft, ...] = ()


@dataclass(frozen=True, slots=True)
class SharePast:
    """Shares of the KV memory that nodes used at an earlier time."""

    at: Seconds
    used: Mapping[ClientId, float]
    """Share by node, as `ShareRow.used`; nodes with 0 are missing."""


# --- lines of the stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """First line of a stream of frames."""

    kind: Literal["hello"] = "hello"
    version: int = VERSION
    service_version: str
    tenant: ClientId | None
    """Tenant whose applications are shown, with its descendants; None: all tenants."""
    is_operator: bool
    """Whether the viewer may cancel applications, ask what-if questions, and see predictors."""
    models: tuple[str, ...]
    """Models with frames in this stream."""
    policies: tuple[str, ...] = ()
    """Names of policies for what-if questions."""
    interval_s: Seconds = INTERVAL_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """State of a model, sent once a second."""

    kind: Literal["frame"] = "frame"
    model: str
    epoch: Epoch
    """Term of the scheduler; ids of bars start again in a new term."""
    number: int
    """Number of the snapshot since the scheduler's start; numbers may be skipped."""
    at: Seconds
    """Time of the frame, on the scheduler's clock."""
    recorded_from: Seconds
    """Time from which bars are complete; recording starts with the first viewer."""
    is_whole: bool
    """Whether `bars` are all recorded bars, which replace the reader's bars; otherwise they are the
    bars that have changed since the model's last frame.
    """
    strip: Strip
    replicas: tuple[ReplicaLane, ...] = ()
    bars: tuple[Bar, ...] = ()
    planned: tuple[PlannedBar, ...] = ()
    """Planned bars; each frame replaces all earlier ones."""
    labels: Mapping[ApplicationId, Label] = field(default_factory=dict)
    """Labels of applications in planned and new bars; a reader keeps earlier labels."""
    queue: Queue
    ages: Ages | None = None
    """Waiting times; None if no inference waits."""
    own: Counts
    """Counts of the viewer's applications; for an operator, of all applications."""
    others: Counts
    """Counts of all other applications."""
    shares: tuple[ShareRow, ...] = ()
    shares_past: tuple[SharePast, ...] = ()
    """Shares of the last 15 minutes, one every five seconds, in a whole frame; otherwise empty."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Numbers of omitted entries by field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    """State of a model's predictor, sent to operators every ten seconds."""

    kind: Literal["predictor"] = "predictor"
    model: str
    overview: Mapping[str, Any] | None = None
    """Answer of `GET /v1/predictor` for the model."""
    error: str | None = None
    """Reason for a missing overview."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Sent once a second while a model's scheduler does not answer."""

    kind: Literal["trouble"] = "trouble"
    model: str
    reason: str
    since_s: Seconds
    """Seconds since the scheduler's last answer, or since the start of the stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bye:
    """Last line of a stream that the service ends; without it, the connection was lost."""

    kind: Literal["bye"] = "bye"
    reason: str
    code: str
    """`limit` if the stream has reached its maximum duration, otherwise an error code."""
    retry_after_s: Seconds | None
    """Seconds after which to connect again; None: this credential is not accepted."""


Line: TypeAlias = Hello | Frame | Predictor | Trouble | Bye
KINDS: Mapping[str, type[Line]] = {
    "hello": Hello,
    "frame": Frame,
    "predictor": Predictor,
    "trouble": Trouble,
    "bye": Bye,
}
"""Class of a line by its `kind`."""


def read_line(line: Mapping[str, Any]) -> Line | None:
    """Parse a line of the stream; None for a kind that this version does not know.

    Raises:
        ResponseError: If the line does not match its kind; the message names the first wrong field.
    """
    kind = KINDS.get(str(line.get("kind")))
    return None if kind is None else read_answer(kind, line, f"line of the kind {line['kind']}")
