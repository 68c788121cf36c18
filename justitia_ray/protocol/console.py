"""Data of the console: the lines of its stream.

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
"""Version of these messages; it rises if a field changes its meaning."""
INTERVAL_S: Seconds = 1.0
"""Time between two frames of one model."""
QUEUE_ROWS = 50
"""Maximum number of rows of the queue in a frame."""
PLANNED = 128
"""Maximum number of planned rectangles in a frame."""
PAST_S: Seconds = 300.0
"""Maximum length of the past in a whole frame."""

CONTENT_TYPE = "application/x-ndjson"


# --- lanes


class BarKind(StrEnum):
    """What a rectangle of a lane shows."""

    RUN = "run"
    """KV that the application's leases hold."""
    HELD = "held"
    """Idle context of a live application, which the engine's prefix cache may still have."""


class Bar(NamedTuple):
    """A rectangle of a lane: KV of one application on one replica over time; a JSON array.

    A bar that was sent before replaces the earlier one with its id. If the application's KV changes
    much, its bar ends and another one starts.
    """

    id: int
    """Number of the bar, unique within the epoch."""
    replica_id: ReplicaId
    application: ApplicationId
    """Key of the application in `Frame.labels`."""
    kind: BarKind
    start: Seconds
    end: Seconds | None
    """None: it has not ended."""
    kv_tokens: Tokens
    """Height: the KV at the last look; of an ended bar the mean over its time."""


class PlannedBar(NamedTuple):
    """A rectangle ahead of now: the next start of a waiting application, if predictions hold."""

    replica_id: ReplicaId
    application: ApplicationId
    start: Seconds
    end: Seconds
    kv_tokens: Tokens


class Label(NamedTuple):
    """Names of an application of a bar or a row; a JSON array."""

    tenant: ClientId
    application_id: ApplicationId
    """The caller's id, without the tenant."""
    application_class: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLane:
    """A replica now. A tenant's frame has only `replica_id`, `kv_tokens` and `state`."""

    replica_id: ReplicaId
    kv_tokens: Tokens
    """Capacity: the height of the lane."""
    state: str
    """`serving`, `draining`, `silent` or `stalled`."""
    used_kv_tokens: Tokens | None = None
    """KV in use by the engine's gauge at its last report; None: no report yet."""
    leased_kv_tokens: Tokens | None = None
    """KV that running leases hold, as last reported."""
    held_kv_tokens: Tokens | None = None
    """KV of idle contexts whose applications are live."""
    leases: int | None = None
    running: int | None = None
    sequences: int | None = None
    max_num_seqs: int | None = None
    silent_s: Seconds | None = None
    """Time since the replica's last call."""


# --- strip


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """State of one model's queue in a line. Amounts are None in a tenant's frame."""

    state: str
    """`ready`, `recovering`, `degraded`, `stalled` or `empty` (no replica is up)."""
    why: str | None = None
    """Reason in words; None if it is ready."""
    policy: str
    virtual_time: VirtualTime | None = None
    drain_s: Seconds | None = None
    """Time in which the replicas would serve all that waits, at the recent rate; None: unknown."""
    kv_tokens: Tokens | None = None
    used_kv_tokens: Tokens | None = None
    """KV in use by the engines' gauges."""
    leased_kv_tokens: Tokens | None = None
    held_kv_tokens: Tokens | None = None
    free_kv_tokens: Tokens | None = None
    """KV that is neither in use nor held."""
    replicas_up: int | None = None
    replicas_wanted: int | None = None
    """None: nothing sizes the model's replicas, or not yet."""
    wanted_why: str | None = None
    applications: int | None = None
    """Number of live applications, of all tenants."""
    waiting: int | None = None
    running: int | None = None
    grants: int | None = None
    suspects: int | None = None
    kv: KvTotals | None = None
    """Integrals of the KV memory since the scheduler's start."""
    store: StoreView | None = None
    version: str | None = None


# --- queue


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRow:
    """A waiting application in the order of the queue."""

    position: int | None
    """Number of applications before it; None: it is held back before the order applies."""
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
    """The reason in words."""
    what_would_help: str
    waiting: int
    running: int
    age_s: Seconds
    """Time since the application arrived."""
    waited_s: Seconds
    """Time since its oldest waiting inference was submitted."""
    predicted_kv_token_time: KvTokenTime
    kv_token_time: KvTokenTime
    virtual_finish_time: VirtualTime
    ahead_kv_token_time: KvTokenTime | None = None
    expected_start_s: Quantiles | None = None
    expected_finish_s: Quantiles | None = None
    guaranteed_by_s: Seconds | None = None
    """Time by which all its waiting inferences have started, at the present speed; None: nothing
    is promised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """The first waiting applications in order, and counts of the viewer's live applications."""

    rows: tuple[QueueRow, ...]
    waiting: int
    """Number of applications that wait; more than `rows` if that is full."""
    by_reason: Mapping[str, int]
    """Number of live applications by reason, without the node of a limit."""


@dataclass(frozen=True, slots=True)
class Ages:
    """How long what waits has waited: the oldest waiting inference of each application."""

    p50_s: Seconds
    p95_s: Seconds
    oldest_s: Seconds


# --- shares


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaLeft:
    """What is left of one quota of a node, over all models."""

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
    """A node of the tree of tenants; each comes before those below it."""

    quotas: tuple[QuotaLeft, ...] = ()


@dataclass(frozen=True, slots=True)
class SharePast:
    """Parts of the KV memory that nodes used at an earlier time."""

    at: Seconds
    used: Mapping[ClientId, float]
    """By node, as `ShareRow.used`; nodes without any are left out."""


# --- lines of the stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """First line of a stream."""

    kind: Literal["hello"] = "hello"
    version: int = VERSION
    service_version: str
    tenant: ClientId | None
    """Tenant whose applications are shown, with all tenants below it; None: all tenants."""
    is_operator: bool
    """Whether the caller may cancel applications here, ask "what if", and see predictors."""
    models: tuple[str, ...]
    """Models that send frames; each has a queue and a scheduler of its own."""
    policies: tuple[str, ...] = ()
    """Names of policies that "what if" knows."""
    interval_s: Seconds = INTERVAL_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """State of one model, once a second."""

    kind: Literal["frame"] = "frame"
    model: str
    epoch: Epoch
    """Term of the scheduler; the ids of bars start again in another one."""
    number: int
    """Number of the second since the scheduler began; it may jump."""
    at: Seconds
    """Time of the frame."""
    recorded_from: Seconds
    """Time from which bars are complete: nothing is recorded before the first viewer came."""
    is_whole: bool
    """Whether `bars` are all of the past, so that a reader drops those that it has; otherwise they
    are those that are new or have changed since the model's last frame."""
    strip: Strip
    replicas: tuple[ReplicaLane, ...] = ()
    bars: tuple[Bar, ...] = ()
    planned: tuple[PlannedBar, ...] = ()
    """The order ahead, all of it in each frame."""
    labels: Mapping[ApplicationId, Label] = field(default_factory=dict)
    """Names of the applications of planned and of new bars; a reader keeps those of earlier bars.
    """
    queue: Queue
    ages: Ages | None = None
    """None: nothing waits."""
    own: Counts
    """The viewer's applications: for an operator all."""
    others: Counts
    """All other applications."""
    shares: tuple[ShareRow, ...] = ()
    shares_past: tuple[SharePast, ...] = ()
    """Shares of the last 15 minutes, one each five seconds, in a whole frame; else empty."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Number of entries left out for their number, by the field's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    """A model's predictor, every ten seconds, for operators."""

    kind: Literal["predictor"] = "predictor"
    model: str
    overview: Mapping[str, Any] | None = None
    """As `GET /v1/predictor` answers for the model."""
    error: str | None = None
    """Why there is no overview."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A model's scheduler has not answered: its last frame gets older; once a second."""

    kind: Literal["trouble"] = "trouble"
    model: str
    reason: str
    since_s: Seconds
    """Time since the scheduler's last answer, or since the stream's start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bye:
    """Last line of a stream that the service ends; without it the connection was lost."""

    kind: Literal["bye"] = "bye"
    reason: str
    code: str
    """`limit`: the stream has lasted as long as one may. A reader treats other codes alike."""
    retry_after_s: Seconds | None
    """When to connect again; None: not with this key."""


Line: TypeAlias = Hello | Frame | Predictor | Trouble | Bye
KINDS: Mapping[str, type[Line]] = {
    "hello": Hello,
    "frame": Frame,
    "predictor": Predictor,
    "trouble": Trouble,
    "bye": Bye,
}
"""Class of a line, by its `kind`."""


def read_line(line: Mapping[str, Any]) -> Line | None:
    """Parse a line of the stream; None: a kind that this version does not know.

    Raises:
        ResponseError: If it is not a line of its kind; the message names the first wrong field.
    """
    kind = KINDS.get(str(line.get("kind")))
    return None if kind is None else read_answer(kind, line, f"line of the kind {line['kind']}")
