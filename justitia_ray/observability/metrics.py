"""Table of the exported metrics: name, kind, labels and meaning of each.

Names are `justitia_<noun>_<unit>`, and Ray's exporter puts `ray_` before them. The dashboard and
the table of `deployments/monitoring/README.md` are generated from this table. Each process of the
kind in `set_by` exports its own series (Ray adds a `WorkerId`), so a query adds the series up or
takes the maximum: `sum by (model)`, `max by (model)`.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from justitia_ray.core.actions import Refusal
from justitia_ray.core.calibration import HORIZONS, QuantileSide
from justitia_ray.core.entities import FailureCause, Outcome
from justitia_ray.core.outlook import Reason
from justitia_ray.core.tenants import TIERS, Period, Unit
from justitia_ray.predictor.estimate import Source
from justitia_ray.protocol.refusals import DropReason
from justitia_ray.recognition.harnesses import HARNESSES
from justitia_ray.recognition.rules import CONVERSATION

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
SetBy: TypeAlias = Literal["scheduler", "ingress", "replica", "predictor"]

EXPORTED_PREFIX = "ray_"
"""Prefix that Ray's exporter adds to every metric's name."""

ALL_LABELS = ("application", "model")
"""Labels of every metric: the application's configured name, and the model.

In Ray Serve's own metrics `application` is the name of the deployed Serve application, which may
differ.
"""

_QUEUE_S = (0.01, 0.05, 0.25, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_COMPLETION_S = (0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
_LAG_S = (0.01, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
"""Bucket limits of lags in seconds; lags of 0 or less are in the first bucket, because Ray allows
no limit of 0.
"""
_EXCHANGE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
_RELATIVE_ERROR = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0, 100.0)
DECISION_S = (1e-5, 2.51e-5, 5.01e-5, 1e-4, 2.51e-4, 5.01e-4, 1e-3, 1e-2, 1e-1)
"""Bucket limits of the time of a scheduling decision, densest around the target of 0.1 ms."""
MAX_LAG_CANDIDATES = 2_000
"""Maximum number of applications that a search for the greatest lag reads, because it blocks the
scheduler.
"""

LABEL_VALUES: dict[str, tuple[str, ...]] = {
    "outcome": tuple(outcome.value for outcome in Outcome),
    "event": ("granted", "expired", "nacked"),
    "cause": tuple(cause.value for cause in FailureCause),
    "rule": ("outran", "expected"),
    "reason": (
        Refusal.UNKNOWN_APPLICATION.value,
        Refusal.APPLICATION_CLOSED.value,
        Refusal.QUEUE_FULL.value,
        Refusal.TOO_MANY_APPLICATIONS.value,
        Refusal.NOT_STORED.value,
        Refusal.QUOTA_EXHAUSTED.value,
        Refusal.CAP_REACHED.value,
    ),
    "horizon": tuple(HORIZONS),
    "fell": tuple(fell.value for fell in QuantileSide),
    "outlook": tuple(reason.value for reason in Reason),
    "working_set": ("started", "waiting"),
    "context": ("found", "missed"),
    "deadline": ("made", "missed", "refused"),
    "tier": tuple(TIERS),
    "direction": ("prompt", "cached", "output"),
    "prompt_part": ("cached", "computed"),
    "exchange": ("answered", "failed"),
    "failed_with": ("4xx", "5xx"),
    "dropped_reason": tuple(reason.value for reason in DropReason),
    "unit": tuple(unit.value for unit in Unit),
    "per": tuple(period.value for period in Period),
    "recognized_by": (
        *("none", "header", "metadata", *(harness.name for harness in HARNESSES), "baggage"),
        *(CONVERSATION, "new_conversation"),
    ),
    "source": get_args(Source),
    "result": ("took_over", "rejected", "failed"),
    "le": (*(f"{bound:g}" for bound in DECISION_S), "+Inf"),
}
"""Labels with known values, whose counters are exported as 0 from the start.

An operator's own headers and body fields add further values of `recognized_by`. The reasons leave
out refusals that end an admitted inference, because these are counted as outcomes.
"""
BOUNDED_LABELS = ("application_class", "tenant", "node")
"""Labels whose values come from callers and operators; beyond a limit the value is `other`.

The limit is `metrics.max_classes`, for tenants and nodes `metrics.max_tenants`. Nodes are named as
in `tenants` of the `user_config`, including patterns such as `acme/*`.
"""
OPEN_LABELS = ("code",)
"""Labels whose values depend on the value of another label, so that they cannot be listed."""


@dataclass(frozen=True, slots=True)
class Metric:
    """An exported metric, as a row of the table of metrics."""

    name: str
    description: str
    """Meaning and unit of the metric, in one or two sentences."""
    own_labels: tuple[str, ...] = ()
    """Labels of the metric besides those that every metric has."""
    buckets: tuple[float, ...] = ()
    """Upper limits of a histogram's buckets, in its unit; empty for other kinds."""
    set_by: SetBy = "scheduler"

    @property
    def kind(self) -> Kind:
        """Kind of the metric: counter, gauge or histogram, by its name and buckets."""
        if self.buckets:
            return "histogram"
        return "counter" if self.name.endswith("_total") else "gauge"

    @property
    def labels(self) -> tuple[str, ...]:
        """All label names of the exported metric."""
        return ALL_LABELS + self.own_labels

    @property
    def exported(self) -> tuple[str, ...]:
        """Names of the metric's series in Prometheus."""
        name = EXPORTED_PREFIX + self.name
        if self.kind == "histogram":
            return (f"{name}_bucket", f"{name}_sum", f"{name}_count")
        return (name,)


# --- the queue

WAITING_INFERENCES = Metric(
    "justitia_waiting_inferences",
    "Inferences without a lease: in the queue; suspended while their ingress is silent; or"
    " reported to hold an earlier scheduler's lease that no replica has reported yet.",
)
LEASED_INFERENCES = Metric(
    "justitia_leased_inferences",
    "Inferences that hold a lease: on their way to a replica, or running there.",
)
BACKLOG_KV_TOKEN_TIME = Metric(
    "justitia_backlog_kv_token_time",
    "Predicted cost of the inferences in the queue, less the service that they have received"
    " already, in token·iterations.",
)
BACKLOG_KV_TOKENS = Metric(
    "justitia_backlog_kv_tokens",
    "KV memory that the inferences in the queue would need at once, in tokens.",
)
LIVE_APPLICATIONS = Metric(
    "justitia_live_applications",
    "Applications that are open, or closed and still have inferences.",
)
PULLING_REPLICAS = Metric(
    "justitia_pulling_replicas",
    "Replicas that pull and accept leases.",
)
WANTED_REPLICAS = Metric(
    "justitia_wanted_replicas",
    "Replicas that the queue needs, from `autoscaling.min_replicas` to `max_replicas`; without"
    " `autoscaling` at least 1, for 60 s of work.",
)
DRAIN_SECONDS = Metric(
    "justitia_drain_seconds",
    "Seconds in which the replicas that accept leases would serve all waiting, running and"
    " expected work of open applications; without replicas, including the time to load one.",
)
TARGET_DRAIN_SECONDS = Metric(
    "justitia_target_drain_seconds",
    "Target for the drain time in seconds, `autoscaling.target_drain_s`; absent without"
    " `autoscaling`.",
)
QUEUE_WAIT_SECONDS = Metric(
    "justitia_queue_wait_seconds",
    "Seconds from the submission of an inference to its first lease; inferences of an earlier"
    " scheduler, which may have leased them, are left out.",
    ("application_class", "tenant"),
    _QUEUE_S,
)
COMPLETION_SECONDS = Metric(
    "justitia_completion_seconds",
    "Seconds from the arrival of an application to its end, for finished applications.",
    ("application_class", "tenant"),
    _COMPLETION_S,
)
CLASS_PROMPT_TOKENS_TOTAL = Metric(
    "justitia_class_prompt_tokens_total",
    "Prompt tokens of ended applications: `cached` ones were in an engine's prefix cache,"
    " `computed` ones were not.",
    ("prompt_part", "application_class", "tenant"),
)
REFUSALS_TOTAL = Metric(
    "justitia_refusals_total",
    "Refusals by the scheduler: of inferences (`unknown_application`, `application_closed`,"
    " `application_ending`, `queue_full`, `cap_reached`), of applications, each once"
    " (`too_many_applications`, `not_stored`), and of both, counted separately"
    " (`quota_exhausted`).",
    ("reason",),
)

EXPECTED_STARTS_TOTAL = Metric(
    "justitia_expected_starts_total",
    "Starts that the scheduler had predicted, by how far ahead (`horizon`: at most this long)"
    " and by the outcome: `early`, before p10; `within` p10 to p90; `late`. Predictions that the"
    " scheduler makes to learn are included.",
    ("horizon", "fell"),
)
APPLICATIONS_BY_OUTLOOK = Metric(
    "justitia_applications_by_outlook",
    "Live applications by the reason why they stand where they do, those that the quotas hold back"
    f" among them (`quota`). Of more than {MAX_LAG_CANDIDATES:,} live ones, those that arrived"
    " first. Counted as often as takes at most 1 % of the scheduler's time.",
    ("outlook",),
)
APPLICATIONS_BY_TIER = Metric(
    "justitia_applications_by_tier",
    "Live applications by service tier; counted together with those by outlook.",
    ("tier",),
)
WORKING_SET_APPLICATIONS = Metric(
    "justitia_working_set_applications",
    "Applications that have `started` and keep their memory, and applications `waiting` to"
    " start; counted together with those by outlook. 0 without a working set.",
    ("working_set",),
)
WORKING_SET_CONTEXT_TOKENS = Metric(
    "justitia_working_set_context_tokens",
    "KV tokens of idle contexts that count as used memory; counted together with applications by"
    " outlook.",
)
CONTEXT_RETURNS_TOTAL = Metric(
    "justitia_context_returns_total",
    "Applications that returned from a gap while their context still counted as used memory:"
    " `found`, the engine had it cached; `missed`, most of it had to be computed again.",
    ("context",),
)
DEADLINES_TOTAL = Metric(
    "justitia_deadlines_total",
    "Inferences with a deadline: `made`, the first lease came in time; `missed` in the queue;"
    " `refused` at submission, because the deadline could not be met.",
    ("deadline",),
)

# --- fairness

VIRTUAL_TIME = Metric(
    "justitia_virtual_time",
    "Virtual time V: the service that one unit of weight has received, in token·iterations. It"
    " continues after a restart.",
)
VIRTUAL_TIME_PER_SECOND = Metric(
    "justitia_virtual_time_per_second",
    "Increase of V per second since the last export.",
)
GPS_LAG_SECONDS = Metric(
    "justitia_gps_lag_seconds",
    "Seconds by which an application's last start was later than its end under ideal fair"
    " sharing; applications that were not behind are in the first bucket.",
    ("application_class", "tenant"),
    _LAG_S,
)
GREATEST_GPS_LAG_SECONDS = Metric(
    "justitia_greatest_gps_lag_seconds",
    "The greatest lag of a live application that waits, as if it started now; 0 if none is behind."
    f" Of more than {MAX_LAG_CANDIDATES:,} live ones, of those that arrived first and of the first"
    " in order. Measured as often as takes at most 1 % of the scheduler's time.",
)
BOUNDED_APPLICATIONS_TOTAL = Metric(
    "justitia_bounded_applications_total",
    "Ended applications for which the order promised a largest lag; 0 without"
    " `scheduler.lag_meter`.",
)
BOUND_VIOLATIONS_TOTAL = Metric(
    "justitia_bound_violations_total",
    "Ended applications that lagged farther behind GPS than promised: a defect. 0 without"
    " `scheduler.lag_meter`.",
)
SERVED_KV_TOKEN_TIME_TOTAL = Metric(
    "justitia_served_kv_token_time_total",
    "Service that replicas reported, in token·iterations.",
    ("tenant",),
)
SETTLEMENTS_TOTAL = Metric(
    "justitia_settlements_total",
    "Charges that were raised: `outran`, an application received more than its charge (rule 1);"
    " `expected`, it reached a stage at which more is expected (rule 7).",
    ("rule",),
)

QUOTA_LEFT_RATIO = Metric(
    "justitia_quota_left_ratio",
    "Remaining share of a tenant's quota over all models, as the accounts last reported; 0 is"
    " exhausted. For tenants without their own series, the smallest share.",
    ("tenant", "unit", "per"),
)

QUOTA_LIMIT = Metric(
    "justitia_quota_limit",
    "Limit of a configured node's quota, in the quota's unit; for a pattern (`acme/*`), the sum"
    " over its nodes with usage or claims.",
    ("node", "unit", "per"),
)
QUOTA_USED = Metric(
    "justitia_quota_used",
    "Usage of a configured node's quota in the current period, without reservations; summed like"
    " the limit.",
    ("node", "unit", "per"),
)
QUOTA_RESERVED = Metric(
    "justitia_quota_reserved",
    "Unused claims of live applications on a configured node's quota; summed like the limit.",
    ("node", "unit", "per"),
)
QUOTA_EXCEEDED = Metric(
    "justitia_quota_exceeded",
    "Number of times that a quota refused or deprioritised, or would have (`shadow`), since the"
    " accounts started.",
    ("node", "unit", "per"),
)
NODE_TOKENS_TOTAL = Metric(
    "justitia_node_tokens_total",
    "Tokens of ended inferences, by the lowest configured node above the tenant, or `other`"
    " without one. `cached` is the part of `prompt` that was in an engine's prefix cache.",
    ("node", "direction"),
)
NODE_KV_TOKEN_TIME_TOTAL = Metric(
    "justitia_node_kv_token_time_total",
    "Service that replicas reported, in token·iterations, by the lowest configured node above"
    " the tenant, or `other` without one.",
    ("node",),
)
ACCOUNTS_EXCHANGES_TOTAL = Metric(
    "justitia_accounts_exchanges_total",
    "Messages of the scheduler to the accounts of quotas: `answered`, or `failed` and repeated.",
    ("exchange",),
)
ACCOUNTS_EXCHANGE_SECONDS = Metric(
    "justitia_accounts_exchange_seconds",
    "Seconds from a message to the accounts to its answer, including the accounts' save.",
    (),
    _EXCHANGE_S,
)
WAITING_CLAIMS = Metric(
    "justitia_waiting_claims",
    "Claims of applications and inferences that the accounts have not decided yet.",
)


# --- decisions, leases

LEASES_TOTAL = Metric(
    "justitia_leases_total",
    "Leases: `granted`; `expired`, because no payload came in time; `nacked`, returned by an"
    " ingress.",
    ("event",),
)
ENGINE_FAILURES_TOTAL = Metric(
    "justitia_engine_failures_total",
    "Engines that died: by themselves or because their replica crashed (`crash`), so that their"
    " calls are suspects; or killed from outside while the replica lived (`kill`).",
    ("cause",),
)
INFERENCE_OUTCOMES_TOTAL = Metric(
    "justitia_inference_outcomes_total",
    "Inferences that ended.",
    ("outcome",),
)
APPLICATION_OUTCOMES_TOTAL = Metric(
    "justitia_application_outcomes_total",
    "Applications that ended, without refused ones; an application that is never closed expires.",
    ("outcome", "application_class", "tenant"),
)
DECISIONS_TOTAL = Metric(
    "justitia_decisions_total",
    "Decisions of the core that took at most `le` seconds: each event is one decision, or as"
    " many as it grants inferences, with equal shares of its time. Cumulative like the buckets of"
    " a histogram, for `histogram_quantile`.",
    ("le",),
)
DECISION_SECONDS_TOTAL = Metric(
    "justitia_decision_seconds_total",
    "Seconds that the core took to handle events.",
)
EPOCH = Metric(
    "justitia_epoch",
    "Epoch of the leader: the time at which it became leader in ms since 1970, or more; each"
    " leader's is higher than the one before.",
)
STORE_REACHABLE = Metric(
    "justitia_store_reachable",
    "1 if the scheduler's saves reach its store, 0 if not; 1 without a store.",
)

# --- ingresses

EPOCH_CHANGES_TOTAL = Metric(
    "justitia_epoch_changes_total",
    "Number of times that an ingress found a new leader.",
    ("replica",),
    set_by="ingress",
)
OUTSTANDING_INFERENCES = Metric(
    "justitia_outstanding_inferences",
    "Inferences that an ingress has submitted and not answered.",
    ("replica",),
    set_by="ingress",
)
DROPPED_CALLS_TOTAL = Metric(
    "justitia_dropped_calls_total",
    "Calls that an ingress answered with an error once their admission had begun, by the error's"
    " `code` and by `X-Justitia-Dropped-Reason`.",
    ("replica", "code", "dropped_reason"),
    set_by="ingress",
)
FAILED_STREAMS_TOTAL = Metric(
    "justitia_failed_streams_total",
    "Streams that failed after their head with status 200 and ended with an error event, by the"
    " class of the status that the error would have had: `4xx` or `5xx`.",
    ("replica", "failed_with"),
    set_by="ingress",
)
PREDICTIONS_TOTAL = Metric(
    "justitia_predictions_total",
    "Applications opened at an ingress, each once, by the source of their estimate: a `model` of"
    " the class that read the input, the mean of the `class`, similar classes (`neighbours`), or"
    " the request alone (`prior`). An application that an inference opens is counted at its first"
    " lease.",
    ("replica", "source"),
    set_by="ingress",
)
RECOGNIZED_TOTAL = Metric(
    "justitia_recognized_total",
    "Inferences by the rule that recognised their application: `header`, `metadata`, the name of"
    " a harness or of your own headers, `baggage`, a field of the body, `conversation`;"
    " `new_conversation` if the inference began a conversation, `none` if it is an application of"
    " its own.",
    ("replica", "recognized_by"),
    set_by="ingress",
)
PREDICTOR_MISSED_TOTAL = Metric(
    "justitia_predictor_missed_total",
    "Estimates that the predictor did not return in time, so that the ingress used its copy of"
    " the mean costs of classes.",
    ("replica",),
    set_by="ingress",
)
PREDICTION_RELATIVE_ERROR = Metric(
    "justitia_prediction_relative_error",
    "Relative error |predicted − true| / true of the KV token-time of finished applications; 1"
    " is 100 %.",
    ("replica", "application_class", "source"),
    _RELATIVE_ERROR,
    set_by="ingress",
)

# --- replicas

KV_UTILIZATION_RATIO = Metric(
    "justitia_kv_utilization_ratio",
    "Share of a replica's KV memory that sequences hold, 0 to 1, by the engine's own gauge.",
    ("replica",),
    set_by="replica",
)
KV_CAPACITY_TOKENS = Metric(
    "justitia_kv_capacity_tokens",
    "KV memory of a replica, in tokens.",
    ("replica",),
    set_by="replica",
)
HELD_CONTEXTS = Metric(
    "justitia_held_contexts",
    "Contexts of applications between two inferences that a replica's engine evicts last; absent"
    " without `engine.hold_contexts`.",
    ("replica",),
    set_by="replica",
)
HELD_KV_TOKENS = Metric(
    "justitia_held_kv_tokens",
    "Cached tokens of held contexts, common tokens once. They count as free memory unless a running"
    " inference uses them; absent without `engine.hold_contexts`.",
    ("replica",),
    set_by="replica",
)
HOST_KV_TOKENS = Metric(
    "justitia_host_kv_tokens",
    "KV tokens in a replica's host memory; absent without `engine.host_kv_gib`.",
    ("replica",),
    set_by="replica",
)
HOST_KV_CAPACITY_TOKENS = Metric(
    "justitia_host_kv_capacity_tokens",
    "KV tokens that fit into a replica's host memory; absent without `engine.host_kv_gib`.",
    ("replica",),
    set_by="replica",
)
HELD_LEASES = Metric(
    "justitia_held_leases",
    "Leases that a replica holds: armed or running.",
    ("replica",),
    set_by="replica",
)
STALLED_SECONDS = Metric(
    "justitia_stalled_seconds",
    "Seconds since a replica's engine stalled: it has work and makes no steps; 0 if it makes"
    " steps.",
    ("replica",),
    set_by="replica",
)
PREEMPTIONS_TOTAL = Metric(
    "justitia_preemptions_total",
    "Sequences that an engine preempted because its KV memory was full.",
    ("replica",),
    set_by="replica",
)
PROMPT_TOKENS_TOTAL = Metric(
    "justitia_prompt_tokens_total",
    "Prompt tokens of the calls that ended on a replica.",
    ("replica",),
    set_by="replica",
)
OUTPUT_TOKENS_TOTAL = Metric(
    "justitia_output_tokens_total",
    "Output tokens of the calls that ended on a replica.",
    ("replica",),
    set_by="replica",
)
CACHED_TOKENS_TOTAL = Metric(
    "justitia_cached_tokens_total",
    "Prompt tokens of ended calls that were in the engine's prefix cache; the engine computed"
    " the others.",
    ("replica",),
    set_by="replica",
)

# --- predictors

LEARNED_APPLICATIONS_TOTAL = Metric(
    "justitia_learned_applications_total",
    "Finished applications from which the predictor has learned.",
    set_by="predictor",
)
TRAININGS_TOTAL = Metric(
    "justitia_trainings_total",
    "Trainings that ended: the new model `took_over`; it was `rejected`, because the one in"
    " service is better; or the training `failed`.",
    ("result",),
    set_by="predictor",
)
MODEL_VERSION = Metric(
    "justitia_model_version",
    "Version of the model that predicts for a class; 0 if the class mean is used.",
    ("application_class",),
    set_by="predictor",
)

TABLE: tuple[Metric, ...] = tuple(
    value for value in tuple(globals().values()) if isinstance(value, Metric)
)
"""All metrics, in the order of this file."""
