"""Rows and panels of the dashboard, in the order of an operator's questions.

Panel numbers are part of links: a new panel takes the next free number of its row, and the number
of a removed panel stays unused.
"""

from grafana_foundation_sdk.builders.dashboard import Row

from deployments.monitoring.panel_kinds import Query, curves, figure
from deployments.monitoring.panels_admission import OUTLOOKS, TENANTS
from deployments.monitoring.promql import (
    RANGE,
    WINDOW,
    gauge,
    greatest,
    least,
    per_second,
    quantile,
    rise,
    seen,
)
from justitia_ray.observability import metrics as m
from justitia_ray.observability.metrics import Metric


def _quantiles(metric: Metric, label: str, *shares: float) -> tuple[Query, ...]:
    """Return a PromQL query for each quantile of a metric, with a curve for each label value."""
    return tuple(
        Query(quantile(share, metric, label), f"p{100 * share:g} {{{{{label}}}}}")
        for share in shares
    )


# --- Overview


def _seconds_of_backlog(*by: str) -> str:
    """Return PromQL for the seconds that serving the waiting work takes at the present rate."""
    backlog = gauge(m.BACKLOG_KV_TOKEN_TIME, *by)
    # The counter of served work does not exist before the first inference.
    served = per_second(m.SERVED_KV_TOKEN_TIME_TOTAL, *by, window=WINDOW)
    return f"{backlog} / clamp_min({served} or 0 * {backlog}, 1)"


_FIGURES = (
    figure(
        101,
        "Waiting inferences",
        "Inferences that hold no lease. Above 0 the engines are the bottleneck, and the order"
        " decides who goes first.",
        (Query(gauge(m.WAITING_INFERENCES), "waiting"),),
        decimals=0,
    ),
    figure(
        102,
        "Backlog",
        "How long the engines need for all that waits, at the rate of service of the window. One"
        " that grows for longer than a burst lasts needs more replicas.",
        (Query(_seconds_of_backlog(), "backlog"),),
        unit="s",
        thresholds={60: "yellow", 600: "red"},
    ),
    figure(
        103,
        "Live applications",
        "Applications that are open, or closed with inferences left.",
        (Query(gauge(m.LIVE_APPLICATIONS), "live"),),
        decimals=0,
    ),
    figure(
        104,
        "KV utilization",
        "Share of all replicas' KV memory that sequences hold. Near 100 % the engines can take"
        " nothing more, whatever their GPUs say.",
        (
            Query(
                f"sum ({gauge(m.KV_UTILIZATION_RATIO, 'replica')}"
                f" * {gauge(m.KV_CAPACITY_TOKENS, 'replica')}) / {gauge(m.KV_CAPACITY_TOKENS)}",
                "utilization",
            ),
        ),
        unit="percentunit",
        highest=1,
    ),
    figure(
        105,
        "Pulling replicas",
        "Replicas that pull and are given leases. At 0 nothing is served.",
        (Query(gauge(m.PULLING_REPLICAS), "replicas"),),
        decimals=0,
        names=(("0", "none", "red"),),
    ),
    figure(
        106,
        "Bound violations",
        "Applications, in the time on the screen, that lagged farther behind ideal fair sharing"
        " than the order promises. It stays at 0; anything else is a defect to report. Measured"
        " with `scheduler.lag_meter: true` alone.",
        (Query(rise(m.BOUND_VIOLATIONS_TOTAL, window=RANGE), "violations"),),
        decimals=0,
        thresholds={0.01: "red"},
    ),
    figure(
        107,
        "Decision p99",
        "Time in which the scheduler handles 99 % of its events. Meant to stay below 100 µs.",
        (Query(quantile(0.99, m.DECISIONS_TOTAL), "p99"),),
        unit="s",
        thresholds={0.0001: "yellow", 0.001: "red"},
    ),
    figure(
        108,
        "Store",
        "Whether what the scheduler saves arrives in Redis. While it does not, serving goes on, and"
        " a scheduler that is started again would not know its applications.",
        (Query(least(m.STORE_REACHABLE), "store"),),
        names=(("0", "away", "red"), ("1", "reachable", "green")),
    ),
)

_CURVES = (
    curves(
        109,
        "Inferences waiting and leased",
        "Leased ones are on their way to a replica or run there. Waiting ones beside free KV memory"
        " are a fault, unless a cap of the policy holds them or their ingress is silent.",
        (
            Query(gauge(m.WAITING_INFERENCES, "model"), "{{model}} waiting"),
            Query(gauge(m.LEASED_INFERENCES, "model"), "{{model}} leased"),
        ),
    ),
    curves(
        110,
        "Backlog in time",
        "How long each model's engines need for all that waits for it, at the rate of service of"
        " the window.",
        (Query(_seconds_of_backlog("model"), "{{model}}"),),
        unit="s",
    ),
    curves(
        111,
        "Backlog in KV memory",
        "What all inferences in the queue would hold at once, beside what there is. Several times"
        " the capacity is a queue that another replica shortens.",
        (
            Query(gauge(m.BACKLOG_KV_TOKENS, "model"), "{{model}} waiting"),
            Query(gauge(m.KV_CAPACITY_TOKENS, "model"), "{{model}} capacity"),
        ),
        axis="tokens",
    ),
    curves(
        118,
        "Replicas wanted and there",
        "What the queue asks for, beside the replicas that take leases. Wanted for long and not"
        " there: nodes that do not come, or an autoscaler that does not ask.",
        (
            Query(greatest(m.WANTED_REPLICAS, "model"), "{{model}} wanted"),
            Query(gauge(m.PULLING_REPLICAS, "model"), "{{model}} there"),
        ),
        width=12,
    ),
    curves(
        119,
        "Drain time",
        "How long the present replicas need for all that waits, runs, and is expected of open"
        " applications: autoscaling aims at autoscaling.target_drain_s.",
        (
            Query(greatest(m.DRAIN_SECONDS, "model"), "{{model}}"),
            Query(greatest(m.TARGET_DRAIN_SECONDS, "model"), "{{model}} target"),
        ),
        unit="s",
        width=12,
    ),
    curves(
        112,
        "Completion time by class",
        "From the arrival of an application to its end, of those that finished: half took less than"
        " p50, nine in ten less than p90.",
        _quantiles(m.COMPLETION_SECONDS, "application_class", 0.5, 0.9),
        unit="s",
        width=12,
    ),
    curves(
        113,
        "Wait for a lease by class",
        "From the submission of an inference to its first lease. Short applications wait shortly"
        " also when long ones fill the engines.",
        _quantiles(m.QUEUE_WAIT_SECONDS, "application_class", 0.5, 0.9),
        unit="s",
        width=12,
    ),
    curves(
        114,
        "Applications by outcome",
        "Applications that ended each second. Expired ones were never closed by their caller.",
        (Query(per_second(m.APPLICATION_OUTCOMES_TOTAL, "outcome"), "{{outcome}}"),),
        unit="ops",
    ),
    curves(
        115,
        "Inferences by outcome",
        "Inferences that ended each second. Failed ones were answered with an error.",
        (Query(per_second(m.INFERENCE_OUTCOMES_TOTAL, "outcome"), "{{outcome}}"),),
        unit="ops",
    ),
    curves(
        116,
        "Refusals",
        "What the scheduler refused each second, by reason. queue_full and too_many_applications"
        " are pressure, not_stored is Redis, application_ending a scheduler that was just started"
        " again; callers may come back after these, and after quota_exhausted once something of the"
        " quota has come back. The others are faults of callers.",
        (Query(per_second(m.REFUSALS_TOTAL, "reason"), "{{reason}}"),),
        unit="ops",
    ),
    curves(
        117,
        "Quotas left",
        "What is left of each tenant's quotas, over the limit, as any of the schedulers heard it"
        " from the accounts. 0: applications of the tenant are refused or wait behind all others.",
        (
            Query(
                greatest(m.QUOTA_LEFT_RATIO, "tenant", "unit", "per"),
                "{{tenant}} {{unit}} per {{per}}",
            ),
        ),
        unit="percentunit",
    ),
)


# --- Fairness

_FAIRNESS = (
    curves(
        201,
        "Lag behind GPS",
        "How many seconds applications were started later, at their last start, than ideal fair"
        " sharing would have finished them. The greatest is that of one that still waits. It"
        " stays about as long as what is in flight takes; one that grows is unfair.",
        (
            Query(quantile(0.5, m.GPS_LAG_SECONDS), "p50 of those that ended"),
            Query(quantile(0.99, m.GPS_LAG_SECONDS), "p99 of those that ended"),
            Query(greatest(m.GREATEST_GPS_LAG_SECONDS, "model"), "greatest live {{model}}"),
        ),
        unit="s",
    ),
    curves(
        202,
        "Lag behind GPS by tenant, p90",
        "The same for each tenant: one far above the others comes too late.",
        (Query(quantile(0.9, m.GPS_LAG_SECONDS, "tenant"), "{{tenant}}"),),
        unit="s",
    ),
    curves(
        203,
        "Promised and broken",
        "Applications that ended in the window, those of them for which the order promised a"
        " greatest lag, and those that lagged more: these stay at 0. Only the policy `justitia`"
        " promises one, and not to applications that were served before a change of policy. Bounds"
        " are measured with `scheduler.lag_meter: true` alone.",
        (
            Query(rise(m.APPLICATION_OUTCOMES_TOTAL), "ended"),
            Query(rise(m.BOUNDED_APPLICATIONS_TOTAL), "with a bound"),
            Query(rise(m.BOUND_VIOLATIONS_TOTAL), "beyond it"),
            Query(seen(m.GPS_LAG_SECONDS), "with a lag that is known"),
        ),
    ),
    curves(
        204,
        "Service by tenant",
        "KV token-time that each tenant received each second. It shows who uses the engines,"
        " not who is entitled to: a tenant that asks for little receives little.",
        (Query(per_second(m.SERVED_KV_TOKEN_TIME_TOTAL, "tenant"), "{{tenant}}"),),
        axis="token·iterations/s",
        stacked=True,
    ),
    curves(
        205,
        "Share of the service by tenant",
        "The same as a share, over the window. Under `fairness: tenant`, tenants that always"
        " have something waiting come to shares in proportion to their weights.",
        (
            Query(
                f"{per_second(m.SERVED_KV_TOKEN_TIME_TOTAL, 'tenant', window=WINDOW)}"
                " / on () group_left ()"
                f" {per_second(m.SERVED_KV_TOKEN_TIME_TOTAL, window=WINDOW)}",
                "{{tenant}}",
            ),
        ),
        unit="percentunit",
        stacked=True,
        highest=1,
    ),
    curves(
        206,
        "Completion time by tenant",
        "From the arrival of an application to its end, of those that finished.",
        _quantiles(m.COMPLETION_SECONDS, "tenant", 0.5, 0.9),
        unit="s",
    ),
    curves(
        207,
        "Wait for a lease by tenant, p90",
        "From the submission of an inference to its lease. Under pressure it grows for all; for"
        " one alone, that one has asked for more than its share.",
        (Query(quantile(0.9, m.QUEUE_WAIT_SECONDS, "tenant"), "{{tenant}}"),),
        unit="s",
        thresholds={60: "yellow"},
    ),
    curves(
        208,
        "Rate of virtual time",
        "By how much V rises each second: the service of one unit of weight. It falls as more"
        " applications share the engines, and rests at 0 while there are none.",
        (Query(gauge(m.VIRTUAL_TIME_PER_SECOND, "model"), "{{model}}"),),
        axis="token·iterations/s",
    ),
    curves(
        209,
        "Virtual time",
        "V itself. It never falls, also not when a scheduler is started again: where it does,"
        " the store was lost or emptied.",
        (Query(gauge(m.VIRTUAL_TIME, "model"), "{{model}}"),),
        axis="token·iterations",
    ),
)


# --- Replicas

_REPLICAS = (
    curves(
        301,
        "KV utilization by replica",
        "Share of its KV memory that a replica's sequences hold. With a queue, all are high;"
        " one that stays low then is not given work or does not take it.",
        (Query(greatest(m.KV_UTILIZATION_RATIO, "model", "replica"), "{{model}} {{replica}}"),),
        unit="percentunit",
        highest=1,
        thresholds={0.98: "yellow"},
    ),
    curves(
        302,
        "Leases held by replica",
        "Leases that are armed or run on a replica.",
        (Query(gauge(m.HELD_LEASES, "model", "replica"), "{{model}} {{replica}}"),),
    ),
    curves(
        303,
        "Preemptions by replica",
        "Sequences that an engine preempted each second because its KV memory was full. What"
        " they had computed is computed again: many of them waste the engine.",
        (Query(per_second(m.PREEMPTIONS_TOTAL, "model", "replica"), "{{model}} {{replica}}"),),
        unit="ops",
        thresholds={1: "yellow"},
    ),
    curves(
        304,
        "Output tokens by replica",
        "Output tokens each second, of the calls that ended then: long ones come in steps.",
        (Query(per_second(m.OUTPUT_TOKENS_TOTAL, "model", "replica"), "{{model}} {{replica}}"),),
        axis="tokens/s",
    ),
    curves(
        305,
        "Prompt tokens by replica",
        "Prompt tokens each second, of the calls that ended then.",
        (Query(per_second(m.PROMPT_TOKENS_TOTAL, "model", "replica"), "{{model}} {{replica}}"),),
        axis="tokens/s",
    ),
    curves(
        306,
        "Outstanding by ingress",
        "Inferences that an ingress has submitted and not answered. Callers' connections are"
        " about as many.",
        (Query(gauge(m.OUTSTANDING_INFERENCES, "model", "replica"), "{{model}} {{replica}}"),),
    ),
    curves(
        307,
        "Stalled replicas",
        "Time for which a replica's engine has had work and made no steps; 0 where it works. What"
        " it ran goes on elsewhere, and it is replaced after `replica.stall_replace_s`.",
        (Query(greatest(m.STALLED_SECONDS, "model", "replica"), "{{model}} {{replica}}"),),
        unit="s",
        thresholds={1: "red"},
    ),
    curves(
        308,
        "Prompt tokens cached by replica",
        "Share of the prompt tokens of ended calls that was in the engine's prefix cache. Agents"
        " that go on have nearly all of theirs there; where it falls, contexts were evicted, or"
        " turns went to other replicas.",
        (
            Query(
                f"{per_second(m.CACHED_TOKENS_TOTAL, 'model', 'replica')}"
                f" / ({per_second(m.PROMPT_TOKENS_TOTAL, 'model', 'replica')} > 0)",
                "{{model}} {{replica}}",
            ),
        ),
        unit="percentunit",
    ),
    curves(
        309,
        "Prompt tokens by class",
        "Prompt tokens each second of the applications that ended then: those in an engine's"
        " prefix cache, and those that were computed.",
        (
            Query(
                per_second(m.CLASS_PROMPT_TOKENS_TOTAL, "application_class", "prompt_part"),
                "{{application_class}} {{prompt_part}}",
            ),
        ),
        axis="tokens/s",
    ),
)


# --- Scheduler

_SCHEDULER = (
    curves(
        401,
        "Decision time",
        "In what time the scheduler takes half and 99 % of its decisions: an arrival, a grant, a"
        " report, an end. Meant to stay below 100 µs.",
        _quantiles(m.DECISIONS_TOTAL, "model", 0.5, 0.99),
        unit="s",
        thresholds={0.0001: "yellow"},
    ),
    curves(
        402,
        "Decisions",
        "Decisions that the scheduler took each second.",
        (Query(per_second(m.DECISIONS_TOTAL, "model", where={"le": "+Inf"}), "{{model}}"),),
        unit="ops",
    ),
    curves(
        403,
        "Time spent on decisions",
        "Share of one core that decisions take. The scheduler of a model is one process: near"
        " 100 % it is the bottleneck.",
        (Query(per_second(m.DECISION_SECONDS_TOTAL, "model"), "{{model}}"),),
        unit="percentunit",
        thresholds={0.5: "yellow"},
    ),
    curves(
        404,
        "Leases granted",
        "Leases each second: what the replicas are given.",
        (Query(per_second(m.LEASES_TOTAL, "model", where={"event": "granted"}), "{{model}}"),),
        unit="ops",
    ),
    curves(
        405,
        "Leases that came to nothing",
        "Leases whose payload did not come in time (expired) and those that an ingress gave"
        " back (nacked), each second. Their inferences wait again, at the head of their"
        " application. A few belong to a replica that was lost; many are a fault of the"
        " network.",
        (
            Query(
                per_second(m.LEASES_TOTAL, "model", where={"event": "expired"}),
                "expired {{model}}",
            ),
            Query(
                per_second(m.LEASES_TOTAL, "model", where={"event": "nacked"}), "nacked {{model}}"
            ),
        ),
        unit="ops",
    ),
    curves(
        406,
        "Time in office",
        "For how long the scheduler of a model has been in office: its epoch is the instant in"
        " ms at which it took it. It falls to 0 when a scheduler is started again.",
        (Query(f"time() - {greatest(m.EPOCH, 'model')} / 1000", "{{model}}"),),
        unit="s",
    ),
    curves(
        409,
        "Engines that died",
        "Engines that died while their replicas lived, in the window: by themselves (crash), or"
        " killed from outside (kill). What ran on one that crashed is suspect; see"
        " troubleshooting.md, A call that kills its engine.",
        (Query(rise(m.ENGINE_FAILURES_TOTAL, "model", "cause"), "{{cause}} {{model}}"),),
    ),
    curves(
        408,
        "Changes of office",
        "How often ingresses found another scheduler in office than the one they knew, in the"
        " window. They and the replicas tell it anew what they have.",
        (Query(rise(m.EPOCH_CHANGES_TOTAL, "model"), "{{model}}"),),
    ),
    curves(
        407,
        "Store reachable",
        "1 while what the scheduler saves arrives in Redis, 0 while it does not.",
        (Query(least(m.STORE_REACHABLE), "least of all models"),),
        highest=1,
    ),
)


# --- Predictor

_PREDICTOR = (
    curves(
        501,
        "Relative error by class",
        "|predicted − true| / true of the KV token-time of applications that finished. Where it"
        " stays above 100 %, the order of that class is little better than chance.",
        _quantiles(m.PREDICTION_RELATIVE_ERROR, "application_class", 0.5, 0.9),
        unit="percentunit",
    ),
    curves(
        502,
        "Relative error by source, p50",
        "The same by what the estimate rested on. A model that looks at the input has to be"
        " better than the mean of its class.",
        (Query(quantile(0.5, m.PREDICTION_RELATIVE_ERROR, "source"), "{{source}}"),),
        unit="percentunit",
    ),
    curves(
        503,
        "Predictions compared",
        "Applications that finished in the window and whose estimate could be compared.",
        (Query(seen(m.PREDICTION_RELATIVE_ERROR, "application_class"), "{{application_class}}"),),
    ),
    curves(
        504,
        "Estimates by source",
        "Applications that were estimated each second, by what the estimate rests on: a model"
        " of their class, the mean of the class, like classes (neighbours), the request"
        " alone (prior).",
        (Query(per_second(m.PREDICTIONS_TOTAL, "source"), "{{source}}"),),
        unit="ops",
        stacked=True,
    ),
    curves(
        510,
        "Recognised by",
        "Inferences each second by the rule that recognised their application: what is none is"
        " served as an application of its own, and an agent among them loses its place with"
        " every turn.",
        (Query(per_second(m.RECOGNIZED_TOTAL, "recognized_by"), "{{recognized_by}}"),),
        unit="ops",
        stacked=True,
    ),
    curves(
        505,
        "Estimates that the predictor missed",
        "Estimates each second that the predictor was asked for and did not give in time: the"
        " ingress took its own copy of the mean costs of classes."
        " All of them: the predictor is gone.",
        (Query(per_second(m.PREDICTOR_MISSED_TOTAL, "model"), "{{model}}"),),
        unit="ops",
        thresholds={1: "yellow"},
    ),
    curves(
        506,
        "Charges raised",
        "Charges that the scheduler raised each second: an application received more than it"
        " was charged (outran), or came to a stage at which more is expected (expected)."
        " Many of them are estimates that are too low.",
        (Query(per_second(m.SETTLEMENTS_TOTAL, "rule"), "{{rule}}"),),
        unit="ops",
    ),
    curves(
        507,
        "Applications learned from",
        "Finished applications that the predictor took in each second.",
        (Query(per_second(m.LEARNED_APPLICATIONS_TOTAL, "model"), "{{model}}"),),
        unit="ops",
    ),
    curves(
        508,
        "Trainings by result",
        "Trainings that ended in the window: the new model took over, was rejected because the"
        " one in service is better, or the training failed.",
        (Query(rise(m.TRAININGS_TOTAL, "result"), "{{result}}"),),
    ),
    curves(
        509,
        "Model version by class",
        "Version of the model that answers for a class; 0 where the mean of the class does.",
        (
            Query(
                greatest(m.MODEL_VERSION, "model", "application_class"),
                "{{model}} {{application_class}}",
            ),
        ),
    ),
)


ROWS = (
    (Row("Overview").id(100).collapsed(False), _FIGURES + _CURVES),
    (Row("Fairness").id(200).collapsed(False), _FAIRNESS),
    (Row("Replicas").id(300).collapsed(False), _REPLICAS),
    (Row("Scheduler").id(400).collapsed(False), _SCHEDULER),
    (Row("Predictor").id(500).collapsed(False), _PREDICTOR),
    (Row("Outlooks and refusals").id(600).collapsed(False), OUTLOOKS),
    (Row("Quotas and use").id(700).collapsed(False), TENANTS),
)
