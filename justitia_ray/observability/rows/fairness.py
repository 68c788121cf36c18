"""Is it fair: lag behind ideal sharing, what was promised, and who received how much."""

from justitia_ray.observability.grafana import Panel, Query, Row, Threshold
from justitia_ray.observability.metrics import (
    APPLICATION_OUTCOMES_TOTAL,
    BOUND_VIOLATIONS_TOTAL,
    BOUNDED_APPLICATIONS_TOTAL,
    COMPLETION_SECONDS,
    GPS_LAG_SECONDS,
    GREATEST_GPS_LAG_SECONDS,
    QUEUE_WAIT_SECONDS,
    SERVED_KV_TOKEN_TIME_TOTAL,
    VIRTUAL_TIME,
    VIRTUAL_TIME_PER_SECOND,
)
from justitia_ray.observability.promql import (
    WINDOW,
    gauge,
    greatest,
    per_second,
    quantile,
    rise,
    seen,
)
from justitia_ray.observability.rows.quantiles import quantiles

FAIRNESS = Row(
    200,
    "Fairness",
    (
        Panel(
            201,
            "Lag behind GPS",
            "How many seconds applications were started later, at their last start, than ideal fair"
            " sharing would have finished them. The greatest is that of one that still waits. It"
            " stays about as long as what is in flight takes; one that grows is unfair.",
            (
                Query(quantile(0.5, GPS_LAG_SECONDS), "p50 of those that ended"),
                Query(quantile(0.99, GPS_LAG_SECONDS), "p99 of those that ended"),
                Query(greatest(GREATEST_GPS_LAG_SECONDS, "model"), "greatest live {{model}}"),
            ),
            unit="s",
        ),
        Panel(
            202,
            "Lag behind GPS by tenant, p90",
            "The same for each tenant: one far above the others comes too late.",
            (Query(quantile(0.9, GPS_LAG_SECONDS, "tenant"), "{{tenant}}"),),
            unit="s",
        ),
        Panel(
            203,
            "Promised and broken",
            "Applications that ended in the window, those of them for which the order promised a"
            " greatest lag, and those that lagged more: these stay at 0. Only the policy `justitia`"
            " promises one, and not to applications that were served before a change of policy.",
            (
                Query(rise(APPLICATION_OUTCOMES_TOTAL), "ended"),
                Query(rise(BOUNDED_APPLICATIONS_TOTAL), "with a bound"),
                Query(rise(BOUND_VIOLATIONS_TOTAL), "beyond it"),
                Query(seen(GPS_LAG_SECONDS), "with a lag that is known"),
            ),
        ),
        Panel(
            204,
            "Service by tenant",
            "KV token-time that each tenant received each second. It shows who uses the engines,"
            " not who is entitled to: a tenant that asks for little receives little.",
            (Query(per_second(SERVED_KV_TOKEN_TIME_TOTAL, "tenant"), "{{tenant}}"),),
            axis="token·iterations/s",
            stacked=True,
        ),
        Panel(
            205,
            "Share of the service by tenant",
            "The same as a share, over the window. Under `fairness: tenant`, tenants that always"
            " have something waiting come to shares in proportion to their weights.",
            (
                Query(
                    f"{per_second(SERVED_KV_TOKEN_TIME_TOTAL, 'tenant', window=WINDOW)}"
                    " / on () group_left ()"
                    f" {per_second(SERVED_KV_TOKEN_TIME_TOTAL, window=WINDOW)}",
                    "{{tenant}}",
                ),
            ),
            unit="percentunit",
            stacked=True,
            most=1,
        ),
        Panel(
            206,
            "Completion time by tenant",
            "From the arrival of an application to its end, of those that finished.",
            quantiles(COMPLETION_SECONDS, "tenant", 0.5, 0.9),
            unit="s",
        ),
        Panel(
            207,
            "Wait for a lease by tenant, p90",
            "From the submission of an inference to its lease. Under pressure it grows for all; for"
            " one alone, that one has asked for more than its share.",
            (Query(quantile(0.9, QUEUE_WAIT_SECONDS, "tenant"), "{{tenant}}"),),
            unit="s",
            thresholds=(Threshold(60, "yellow"),),
        ),
        Panel(
            208,
            "Rate of virtual time",
            "By how much V rises each second: the service of one unit of weight. It falls as more"
            " applications share the engines, and rests at 0 while there are none.",
            (Query(gauge(VIRTUAL_TIME_PER_SECOND, "model"), "{{model}}"),),
            axis="token·iterations/s",
        ),
        Panel(
            209,
            "Virtual time",
            "V itself. It never falls, also not when a scheduler is started again: where it does,"
            " the store was lost or emptied.",
            (Query(gauge(VIRTUAL_TIME, "model"), "{{model}}"),),
            axis="token·iterations",
        ),
    ),
)
