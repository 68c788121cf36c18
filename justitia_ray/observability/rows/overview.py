"""Is it well, is it saturated, and how long do applications take."""

from functools import partial

from justitia_ray.observability.grafana import Panel, Query, Row, Threshold
from justitia_ray.observability.metrics import (
    APPLICATION_OUTCOMES_TOTAL,
    BACKLOG_KV_TOKEN_TIME,
    BACKLOG_KV_TOKENS,
    BOUND_VIOLATIONS_TOTAL,
    COMPLETION_SECONDS,
    DECISIONS_TOTAL,
    INFERENCE_OUTCOMES_TOTAL,
    KV_CAPACITY_TOKENS,
    KV_UTILIZATION_RATIO,
    LEASED_INFERENCES,
    LIVE_APPLICATIONS,
    PULLING_REPLICAS,
    QUEUE_WAIT_SECONDS,
    REFUSALS_TOTAL,
    SERVED_KV_TOKEN_TIME_TOTAL,
    STORE_REACHABLE,
    WAITING_INFERENCES,
)
from justitia_ray.observability.promql import (
    RANGE,
    WINDOW,
    gauge,
    least,
    per_second,
    quantile,
    rise,
)
from justitia_ray.observability.rows.quantiles import quantiles


def _seconds_of_backlog(*by: str) -> str:
    """Return how long the backlog takes at the service of the window; 0 where nothing waits."""
    backlog = gauge(BACKLOG_KV_TOKEN_TIME, *by)
    # The counter has a series for each tenant, and none before the first service.
    served = per_second(SERVED_KV_TOKEN_TIME_TOTAL, *by, window=WINDOW)
    return f"{backlog} / clamp_min({served} or 0 * {backlog}, 1)"


_figure = partial(Panel, kind="stat", width=3, height=4)

_FIGURES = (
    _figure(
        101,
        "Waiting inferences",
        "Inferences that hold no lease. Above 0 the engines are the bottleneck, and the order"
        " decides who goes first.",
        (Query(gauge(WAITING_INFERENCES), "waiting"),),
        decimals=0,
    ),
    _figure(
        102,
        "Backlog",
        "How long the engines need for all that waits, at the rate of service of the window. One"
        " that grows for longer than a burst lasts needs more replicas.",
        (Query(_seconds_of_backlog(), "backlog"),),
        unit="s",
        thresholds=(Threshold(60, "yellow"), Threshold(600, "red")),
    ),
    _figure(
        103,
        "Live applications",
        "Applications that are open, or closed with inferences left.",
        (Query(gauge(LIVE_APPLICATIONS), "live"),),
        decimals=0,
    ),
    _figure(
        104,
        "KV utilization",
        "Share of all replicas' KV memory that sequences hold. Near 100 % the engines can take"
        " nothing more, whatever their GPUs say.",
        (
            Query(
                f"sum ({gauge(KV_UTILIZATION_RATIO, 'replica')}"
                f" * {gauge(KV_CAPACITY_TOKENS, 'replica')}) / {gauge(KV_CAPACITY_TOKENS)}",
                "utilization",
            ),
        ),
        unit="percentunit",
        most=1,
    ),
    _figure(
        105,
        "Pulling replicas",
        "Replicas that pull and are given leases. At 0 nothing is served.",
        (Query(gauge(PULLING_REPLICAS), "replicas"),),
        decimals=0,
        names=(("0", "none", "red"),),
    ),
    _figure(
        106,
        "Bound violations",
        "Applications, in the time on the screen, that lagged farther behind ideal fair sharing"
        " than the order promises. It stays at 0; anything else is a defect to report.",
        (Query(rise(BOUND_VIOLATIONS_TOTAL, window=RANGE), "violations"),),
        decimals=0,
        thresholds=(Threshold(0.01, "red"),),
    ),
    _figure(
        107,
        "Decision p99",
        "Time in which the scheduler handles 99 % of its events. Meant to stay below 100 µs.",
        (Query(quantile(0.99, DECISIONS_TOTAL), "p99"),),
        unit="s",
        thresholds=(Threshold(0.0001, "yellow"), Threshold(0.001, "red")),
    ),
    _figure(
        108,
        "Store",
        "Whether what the scheduler saves arrives in Redis. While it does not, serving goes on, and"
        " a scheduler that is started again would not know its applications.",
        (Query(least(STORE_REACHABLE), "store"),),
        names=(("0", "away", "red"), ("1", "reachable", "green")),
    ),
)

_CURVES = (
    Panel(
        109,
        "Inferences waiting and leased",
        "Leased ones are on their way to a replica or run there. Waiting ones beside free KV memory"
        " are a fault, unless a cap of the policy holds them or their ingress is silent.",
        (
            Query(gauge(WAITING_INFERENCES, "model"), "{{model}} waiting"),
            Query(gauge(LEASED_INFERENCES, "model"), "{{model}} leased"),
        ),
    ),
    Panel(
        110,
        "Backlog in time",
        "How long each model's engines need for all that waits for it, at the rate of service of"
        " the window.",
        (Query(_seconds_of_backlog("model"), "{{model}}"),),
        unit="s",
    ),
    Panel(
        111,
        "Backlog in KV memory",
        "What all inferences in the queue would hold at once, beside what there is. Several times"
        " the capacity is a queue that another replica shortens.",
        (
            Query(gauge(BACKLOG_KV_TOKENS, "model"), "{{model}} waiting"),
            Query(gauge(KV_CAPACITY_TOKENS, "model"), "{{model}} capacity"),
        ),
        axis="tokens",
    ),
    Panel(
        112,
        "Completion time by class",
        "From the arrival of an application to its end, of those that finished: half took less than"
        " p50, nine in ten less than p90.",
        quantiles(COMPLETION_SECONDS, "application_class", 0.5, 0.9),
        unit="s",
        width=12,
    ),
    Panel(
        113,
        "Wait for a lease by class",
        "From the submission of an inference to its first lease. Short applications wait shortly"
        " also when long ones fill the engines.",
        quantiles(QUEUE_WAIT_SECONDS, "application_class", 0.5, 0.9),
        unit="s",
        width=12,
    ),
    Panel(
        114,
        "Applications by outcome",
        "Applications that ended each second. Expired ones were never closed by their caller.",
        (Query(per_second(APPLICATION_OUTCOMES_TOTAL, "outcome"), "{{outcome}}"),),
        unit="ops",
    ),
    Panel(
        115,
        "Inferences by outcome",
        "Inferences that ended each second. Failed ones were answered with an error.",
        (Query(per_second(INFERENCE_OUTCOMES_TOTAL, "outcome"), "{{outcome}}"),),
        unit="ops",
    ),
    Panel(
        116,
        "Refusals",
        "What the scheduler refused each second, by reason. queue_full and too_many_applications"
        " are pressure, not_stored is Redis; callers may come back after these. The others are"
        " faults of callers.",
        (Query(per_second(REFUSALS_TOTAL, "reason"), "{{reason}}"),),
        unit="ops",
    ),
)

OVERVIEW = Row(100, "Overview", _FIGURES + _CURVES)
